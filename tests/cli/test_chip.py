"""``windtunnel chip plan``: what it answers, and how it refuses."""

import json

import pytest

from tests.cli.command import windtunnel

SMALL = ("--max-area", "22", "--devices", "16", "--batch-size", "64")


@pytest.mark.slow
def test_chip_and_plan_together_beat_both_alone(tmp_path):
    pytest.importorskip("torch")
    page = tmp_path / "page.html"
    outcome = windtunnel("chip", "plan", "bert-large", *SMALL, "--json", "--html", page)
    document = json.loads(outcome.stdout)
    (model,) = document["models"]
    yields = {part: one["samples_per_s"] for part, one in model["searches"].items()}

    assert 0 == outcome.code
    assert "windtunnel.codesign/1" == document["schema"]
    assert "takes 1,024 devices" in model["refused"]["chip"]
    assert model["searches"]["both"]["area_um2"] <= 22e6
    assert yields["plan"] > 0
    assert model["bound_samples_per_s"] >= yields["both"] * (1 - 1e-9)
    assert model["front"][-1]["samples_per_s"] == yields["both"]
    assert "area of a chip, mm2" in page.read_text()


@pytest.mark.slow
def test_memory_that_is_too_small_is_refused_with_layer_and_lack():
    pytest.importorskip("torch")
    outcome = windtunnel("chip", "plan", "bert-large", *SMALL, "--hbm", "1MiB")

    assert 2 == outcome.code
    assert "layer embedding needs" in outcome.stderr
    assert "more than there is" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpt4",), "no network is called 'gpt4'"),
        (("gpt3", "--max-area", "nan"), "is no area"),
        (("gpt3", "--max-area", "0"), "is no area"),
        (("gpt3", "--max-area", "1"), "no template is as small"),
        (("gpt3", "--max-area", "wide"), "is no area"),
        (("gpt3", "--chip", "phaze:3x128x128+2x128+128MiB"), "num_tensor_cores 3"),
        (("gpt3", "--chip", "big"), "is no template"),
        (("gpt3", "--microbatches", "0"), "is no microbatch"),
        (("gpt3", "--fixed-plan", "--fixed-chip"), "nothing to choose"),
        (("gpt3", "--memory-model", "none"), "memory cannot be counted"),
        (("train.zeros.npz", "train.wt"), "windtunnel chip predict train.zeros.npz train.wt"),
        (("layers.json",), "windtunnel chip plan circulant layers.json"),
    ],
)
def test_what_cannot_be_is_refused(arguments, says):
    outcome = windtunnel("chip", "plan", *arguments)

    assert 2 == outcome.code
    assert says in outcome.stderr
