"""Waiting for loader workers is an edge, not a cost."""

import numpy as np
import pytest

from windtunnel.cost.ceilings import Ceilings
from windtunnel.cost.peak import Bandwidth, Peak
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.reports import explain
from windtunnel.simulate import replay
from windtunnel.systems.utilization.model import utilization

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from windtunnel.sources.torch.loader import LoaderMeter, Loading, with_workers

MS = 1_000_000


def captured(wait_ms):
    """One iteration: fetch (with waiting), compute 10 ms, update 2 ms; four equal samples."""
    duration = np.array([wait_ms * MS + 100_000, 10 * MS, 2 * MS])
    return Graph.from_columns(
        tasks={
            "name": ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "aten::mm", "aten::add_"],
            "kind": [Kind.IO, Kind.COMPUTE, Kind.COMPUTE],
            "phase": [Phase.DATA, Phase.FORWARD, Phase.UPDATE],
            "resource": [0, 0, 0],
            "duration_ns": duration,
            "samples_ns": np.stack([duration] * 4, axis=1),
        },
        edges={"src": [0, 1], "dst": [1, 2], "kind": [1, 1]},
        resources={"name": ["main thread"], "kind": [0], "discipline": [0], "slots": [1]},
    )


def test_an_iteration_that_waits_is_as_long_as_its_loading():
    graph = with_workers(captured(8), Loading(1, 20 * MS, (8 * MS + 100_000,) * 4, (100_000,)))

    assert 20_100_000 == replay(graph).makespan_ns
    assert 100_000 == graph.duration_ns[0]
    assert ["load batch", "wait for batch"] == graph.tasks.strings("name").to_numpy()[-2:].tolist()


def test_a_faster_step_does_not_help_when_loading_is_the_limit():
    graph = with_workers(captured(8), Loading(1, 20 * MS, (8 * MS + 100_000,) * 4, (100_000,)))

    faster = graph.scale(graph.select(kind=Kind.COMPUTE), 0.5)

    assert replay(graph).makespan_ns == replay(faster).makespan_ns


def test_loading_that_hides_behind_the_step_becomes_the_limit_of_a_faster_one():
    graph = with_workers(captured(0), Loading(2, 18 * MS, (100_000,) * 4, (100_000,)))

    faster = graph.scale(graph.select(kind=Kind.COMPUTE), 0.1)

    assert 12_100_000 == replay(graph).makespan_ns
    assert 9 * MS == replay(faster).makespan_ns


def test_an_explanation_says_how_long_the_step_waits_and_not_that_all_of_it_is_data():
    """8 of 20.1 ms are waited, 0.1 hand over the batch."""
    graph = with_workers(captured(8), Loading(1, 20 * MS, (8 * MS + 100_000,) * 4, (100_000,)))
    explanation = explain(graph)

    assert {"data": 8_100_000, "forward": 10 * MS, "update": 2 * MS} == {
        share.label: share.duration_ns for share in explanation.phases
    }
    assert "waits 40 % of its time for batches: 1 loader worker needs 20.0 ms for each" in str(explanation)


def test_loading_that_nothing_waits_for_is_no_part_of_an_explanation():
    graph = with_workers(captured(0), Loading(2, 18 * MS, (100_000,) * 4, (100_000,)))
    explanation = explain(graph)

    assert [100_000, 10 * MS, 2 * MS] == [share.duration_ns for share in explanation.phases]
    assert "waits" not in str(explanation)


def test_utilization_counts_the_wait_apart_from_the_framework():
    graph = with_workers(captured(8), Loading(1, 20 * MS, (8 * MS + 100_000,) * 4, (100_000,)))
    peak = Ceilings({"float32": Peak(1e9, 0.0, (512,) * 3, "avx512f", "float32", 1)}, (Bandwidth(1e9, 0.0, 96, 1),), 1)
    flops = np.array([0, 5 * MS, 0, 0, 0])
    used = utilization(graph.with_columns(flops=flops, op=graph.tasks.strings("name")), peak)

    lost = {loss.name: loss.duration_ns for loss in used.waterfall}
    assert 8 * MS == lost["loading"]
    assert 100_000 == lost["framework"]
    assert pytest.approx(20_100_000) == sum(lost.values())


def test_a_step_without_workers_stays_as_it_is():
    graph = captured(1)

    assert graph is with_workers(graph, Loading(0, 0, (0,) * 4, (0,)))


def test_the_meter_times_the_waits_and_leaves_nothing_behind():
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    original = _MultiProcessingDataLoaderIter._get_data
    meter = LoaderMeter()
    meter.install()
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2, num_workers=1)
    assert 4 == len(list(loader))
    meter.remove()

    assert 1 == meter.num_workers
    assert meter.fetch_ns() > 0
    assert meter.take_wait_ns() > 0
    assert 0 == meter.take_wait_ns()
    assert original is _MultiProcessingDataLoaderIter._get_data
