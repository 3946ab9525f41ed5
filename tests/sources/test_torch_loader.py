"""Waiting for loader workers is an edge, not a cost."""

import numpy as np
import pytest

from windtunnel.cost.host import Ceilings
from windtunnel.cost.peak import Bandwidth, Peak
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.reports import explain
from windtunnel.simulate import replay
from windtunnel.systems.utilization.model import utilization

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from windtunnel.sources.torch.loader import WAITING, LoaderMeter, Loading, with_workers, with_workers_in_trace

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


def test_traced_iterations_wait_for_batches_that_workers_load_meanwhile():
    """Two iterations of 100 ns of work, whose waits of 300 and 340 are 20 of taking a batch and the rest waiting."""
    builder = GraphBuilder()
    thread = builder.resource("main thread", ResourceKind.HOST_THREAD)
    last, start_ns = None, 0
    for iteration, wait_ns in enumerate((20, 340, 300)):
        for name, duration_ns, phase in ((WAITING, wait_ns, Phase.DATA), ("work", 100, Phase.FORWARD)):
            task = builder.task(
                name, kind=Kind.HOST, resource=thread, duration_ns=duration_ns, phase=phase, iteration=iteration,
                start_ns=start_ns,
            )  # fmt: skip
            start_ns += duration_ns
            if last is not None:
                builder.edge(last, task, kind=EdgeKind.ORDER)
            last = task
    graph = with_workers_in_trace(builder.build({"source": "kineto"}), num_workers=2, fetch_ns=840)
    timeline = replay(graph)
    waits = graph.select(name="enumerate.*")

    assert [20, 20, 20] == graph.duration_ns[waits].tolist()
    assert {"num_workers": 2, "fetch_ns": 840} == dict(graph.meta.loader)
    assert [420, 420, 420] == graph.duration_ns[graph.select(op="load")].tolist()  # a step, which is bound by them
    assert [20, 460, 900] == timeline.finish_ns[waits].tolist()
    quicker = replay(graph.scale(graph.select(op="load"), 0.1))
    assert [20, 140, 260] == quicker.finish_ns[waits].tolist()
