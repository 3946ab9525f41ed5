"""``windtunnel chip predict`` of a file of masks."""

import json

import pytest

from tests.cli.command import windtunnel
from tests.systems.chips.test_skipping import record, step
from windtunnel import save
from windtunnel.sources.zeros.records import ZeroRecords


@pytest.fixture
def files(tmp_path):
    masks, graph = tmp_path / "train.zeros.npz", tmp_path / "train.wt"
    early = [record(iteration=1, density=0.9)]
    ZeroRecords("train.py", (*early, record(), record("first", is_first=True)), {}).save(masks)
    save(step(zeros={"conv": record().summary()}), graph)
    return str(masks), str(graph)


def test_it_prints_layers_steps_and_how_it_goes_over_time(files):
    found = windtunnel("chip", "predict", *files, "--check")

    assert 0 == found.code, found.stderr
    for words in ("sparse-grid, iteration 3", "backward pass", "both, work shared", "not in the graph: first",
                  "all 2 layers agree", "iteration"):  # fmt: skip
        assert words in found.stdout


def test_the_picture_has_each_layer_in_each_way_to_skip(files, tmp_path):
    page = tmp_path / "zeros.html"
    found = windtunnel("chip", "predict", *files, "--html", str(page))

    assert 0 == found.code, found.stderr
    text = page.read_text(encoding="utf-8")
    for words in ("conv", "first", "both, work shared", "gradients of weights", "times as fast"):
        assert words in text
    assert 2 == windtunnel("chip", "predict", *files, "--html", str(page)).code


def test_as_json_it_has_every_pass_of_every_layer(files):
    found = windtunnel("chip", "predict", files[0], "--json", "--check")
    document = json.loads(found.stdout)

    assert "windtunnel.codesign-zeros/1" == document["schema"]
    assert [1, 3] == [one["iteration"] for one in document["iterations"]]
    assert ["conv", "first"] == [one["name"] for one in document["iterations"][1]["layers"]]
    assert [] == document["miscounted"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--chip", "h100"], "h100 does not say what it is built of"),
        (["--chip", "tpu-v4-like"], "has no grid that skips zeros"),
        (["one.wt", "two.wt"], "unexpected extra argument(s) (two.wt)"),
    ],
)
def test_what_does_not_go_together_is_refused(files, more, message):
    found = windtunnel("chip", "predict", files[0], *more)

    assert 2 == found.code
    assert message in " ".join(found.stderr.split())
