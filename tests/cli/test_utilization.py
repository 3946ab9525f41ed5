"""``windtunnel utilization`` on stored graphs, and what it refuses."""

import json
import math

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from tests.cli.command import windtunnel
from windtunnel import hardware
from windtunnel.cost import peak as peaks
from windtunnel.graph import Graph, save


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Peaks of small products, kept in a home of the test."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(peaks, "_SIDES", (64,))
    monkeypatch.setattr(peaks, "_BUDGET_S", 0.001)
    monkeypatch.setattr(peaks, "_beyond_caches", lambda: 2**20)


def stored(path, *, flops=1_000_000, processor=""):
    graph = Graph.from_columns(
        tasks={
            "name": ["python", "aten::mm", "aten::relu"],
            "op": ["python", "aten::mm", "aten::relu"],
            "layer": ["", "head", "head"],
            "kind": [0, 1, 1],
            "flops": [0, flops, 10],
            "bytes_read": [0, 400, 40],
            "bytes_written": [0, 400, 40],
            "resource": [0, 0, 0],
            "duration_ns": [5_000, 1_000_000, 1_000],
        },
        edges={"src": [0, 1], "dst": [1, 2], "kind": [1, 1]},
        resources={"name": ["cpu"], "kind": [0], "discipline": [0], "slots": [1]},
        meta={"hardware": {"processor": processor, "num_threads": 1}},
    )
    save(graph, path)
    return path


def test_a_stored_graph_is_divided(tmp_path):
    found = windtunnel("utilization", stored(tmp_path / "net.wt"), "--json")
    (job,) = json.loads(found.stdout)["jobs"]

    assert 0 == found.code
    assert 1_000_000 == job["flops"]
    assert math.isclose(100.0, sum(job["waterfall"].values()))
    assert math.isclose(job["utilization"], 1e9 * 1_000_000 / 1_006_000 / job["peak_flops_per_s"])
    assert ["head", ""] == [layer["layer"] for layer in job["layers"]]


def test_the_answer_is_a_table_and_the_page_a_picture(tmp_path):
    page = tmp_path / "use.html"
    found = windtunnel("utilization", stored(tmp_path / "net.wt"), "--html", page)
    text = page.read_text(encoding="utf-8")

    assert 0 == found.code
    assert "GFLOP/s measured in float32" in found.stdout
    assert "framework" in found.stdout
    assert all(len(line) <= 80 for line in found.stdout.splitlines())
    assert "<svg" in text
    assert "achieved" in text
    assert 2 == windtunnel("utilization", tmp_path / "net.wt", "--html", page).code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "name one target"),
        (("resnet18", "--survey"), "name one target"),
        (("resnet81",), "did you mean resnet18"),
        (("cell-7777", "--batch-sizes", "1,none"), "whole numbers above 0"),
        (("cell-7777", "--batch-sizes", "0"), "whole numbers above 0"),
        (("cell-99999",), "no cell has the number"),
        (("/no/such.wt",), "there is no"),
    ],
)
def test_bad_input_is_explained(arguments, words):
    found = windtunnel("utilization", *arguments)

    assert 2 == found.code
    assert words in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


def test_a_graph_of_another_machine_has_no_utilization_here(tmp_path):
    found = windtunnel("utilization", stored(tmp_path / "net.wt", processor="Abacus 3000"))

    assert 2 == found.code
    assert "captured on Abacus 3000" in " ".join(found.stderr.split())
    ours = hardware.machine().cpu_name
    assert 0 == windtunnel("utilization", stored(tmp_path / "own.wt", processor=ours)).code


def test_a_graph_without_flops_has_no_utilization(tmp_path):
    found = windtunnel("utilization", stored(tmp_path / "net.wt", flops=0))

    assert 2 == found.code
    assert "states the flops" in " ".join(found.stderr.split())


def test_the_report_takes_the_waterfall_in(tmp_path):
    page = tmp_path / "net.html"
    found = windtunnel("explain", stored(tmp_path / "net.wt"), "--no-whatifs", "--utilization", "--html", page)

    assert 0 == found.code
    assert "of the peak is used; most is lost to" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_cell_is_flown_predicted_and_advised():
    found = windtunnel("utilization", "cell-3", "--batch-sizes", "1,2", "--predict", "--json")
    first, second = json.loads(found.stdout)["jobs"]

    assert (1, 2) == (first["batch_size"], second["batch_size"])
    assert 2 * first["flops"] == second["flops"]
    assert first["predicted_ns"] > 0
    assert math.isclose(
        first["predicted_utilization"], first["utilization"] * first["duration_ns"] / first["predicted_ns"]
    )
