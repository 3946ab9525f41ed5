"""``convert``: what is written is what was there, one file per rank, and nothing is overwritten."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import windtunnel
from tests.cli.graphs import step_graph
from tests.shared_data import shared_path
from windtunnel.graph import GraphBuilder, Kind, ResourceKind, load, save
from windtunnel.simulate import replay
from windtunnel.sources.chakra import load_chakra


@pytest.fixture
def stored(tmp_path):
    return save(step_graph(), tmp_path / "train.wt")


@pytest.mark.parametrize("suffix", [".et", ".et.gz", ".json", ".json.gz"])
def test_a_captured_step_replays_alike_as_a_chakra_trace(stored, tmp_path, suffix):
    outcome = windtunnel("convert", stored, tmp_path / f"out{suffix}", "--json")
    again = load_chakra(tmp_path / f"out{suffix}")

    assert 0 == outcome.code
    assert [str(tmp_path / f"out{suffix}")] == json.loads(outcome.stdout)["paths"]
    assert replay(load(stored)).finish_ns.tolist() == replay(again).finish_ns.tolist()
    assert ["main thread", "stream 7"] == again.resources.strings("name").to_numpy().tolist()
    assert load(stored).tasks["kind"].tolist() == again.tasks["kind"].tolist()


def test_a_chakra_trace_becomes_a_stored_graph(stored, tmp_path):
    windtunnel("convert", stored, tmp_path / "out.et")
    windtunnel("convert", tmp_path / "out.et", tmp_path / "again.wt")

    assert load(tmp_path / "again.wt").equals(load_chakra(tmp_path / "out.et"))


def test_every_rank_gets_a_file_of_its_own(tmp_path):
    graph = step_graph().replicate(3)
    last = [4 * rank for rank in range(3)]
    save(graph.meet([row + rank for rank, row in enumerate(last)], [0, 0, 0]), tmp_path / "job.wt")
    outcome = windtunnel("convert", tmp_path / "job.wt", tmp_path / "job.et")
    alone = [load_chakra(tmp_path / f"job.{rank}.et") for rank in range(3)]

    assert "job.0.et and 2 more, one per rank" in " ".join(outcome.stdout.split())
    assert [6, 6, 6] == [graph.num_tasks for graph in alone]
    assert len({replay(graph).makespan_ns for graph in alone}) == 1


def test_messages_that_share_links_are_not_written_without_them(tmp_path):
    builder = GraphBuilder()
    wire = builder.resource("wire", ResourceKind.LINK, rate=1e9)
    builder.task("send", kind=Kind.COMM, duration_ns=5, message_bytes=8, route=0)
    save(builder.build({"routes": [[wire]]}), tmp_path / "flow.wt")
    outcome = windtunnel("convert", tmp_path / "flow.wt", tmp_path / "flow.et")

    assert 1 == outcome.code
    assert "share the links of their routes" in outcome.stderr
    assert not (tmp_path / "flow.et").exists()


def test_nothing_is_overwritten_and_no_form_is_guessed(stored, tmp_path):
    (tmp_path / "out.et").write_text("mine")

    assert "there already" in windtunnel("convert", stored, tmp_path / "out.et").stderr
    assert "mine" == (tmp_path / "out.et").read_text()
    assert 0 == windtunnel("convert", stored, tmp_path / "out.et", "--force").code
    assert "let it end in .wt, .et" in windtunnel("convert", stored, tmp_path / "out.txt").stderr


@pytest.mark.parametrize("name", ["kineto/amd_mi250_toy_train.json.gz", "critical_path/cuda_event_sync.json.gz"])
def test_a_captured_gpu_trace_replays_alike_as_a_chakra_trace(tmp_path, name):
    """Kernels keep their consumers and the order of their streams; the peers' converter leaves each one a leaf."""
    from windtunnel.sources.kineto.reader import load_kineto

    source = shared_path(f"replay/{name}")
    windtunnel("convert", source, tmp_path / "out.et.gz")

    assert (
        replay(load_kineto(source)).finish_ns.tolist() == replay(load_chakra(tmp_path / "out.et.gz")).finish_ns.tolist()
    )
