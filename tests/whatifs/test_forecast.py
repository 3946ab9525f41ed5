"""Captured work placed on another device, priced and replayed."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from tests.cost.test_pricing import Half
from windtunnel.cost.roofline import RooflinePricer
from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.hardware import Device, device
from windtunnel.simulate import replay
from windtunnel.whatifs.another_batch import with_batch
from windtunnel.whatifs.forecast import changes, forecast
from windtunnel.whatifs.placing import place_on

CHIP = Device("toy", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e12, "bf16": 2e12})
PROCESSOR = Device("cpu", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e12}, kind="cpu")
US = 1000


def step():
    """Python, two operators, a number that Python reads, more Python."""
    builder = GraphBuilder()
    thread = builder.resource("main thread", ResourceKind.HOST_THREAD)
    rows = [
        builder.task(name, op=op, kind=kind, resource=thread, duration_ns=took, phase=phase, flops=flops,
                     bytes_read=moved, bytes_written=8, param_bytes=param)
        for name, op, kind, took, phase, flops, moved, param in (
            ("python", "python", Kind.HOST, 10 * US, Phase.FORWARD, 0, 0, 0),
            ("gemm", "gemm", Kind.COMPUTE, 50 * US, Phase.FORWARD, 100 * 10**6, 1000, 600),
            ("python", "python", Kind.HOST, 10 * US, Phase.FORWARD, 0, 0, 0),
            ("sum", "sum", Kind.COMPUTE, 50 * US, Phase.FORWARD, 1, 30_000, 0),
            ("item", "item", Kind.HOST, 1 * US, Phase.FORWARD, 0, 0, 0),
            ("count", "add", Kind.COMPUTE, 1 * US, Phase.UPDATE, 1, 4, 0),
        )
    ]  # fmt: skip
    for one, following in itertools.pairwise(rows):
        builder.edge(one, following, kind=EdgeKind.ORDER)
    builder.edge(rows[1], rows[3], kind=EdgeKind.DATA)
    builder.edge(rows[3], rows[4], kind=EdgeKind.DATA)
    return builder.build()


def test_kernels_run_beside_python_and_the_thread_waits_only_for_results():
    priced = forecast(step(), CHIP, model=[RooflinePricer()], launch_ns=5 * US)

    # python 10, launch 5, gemm 100 on the queue, sum 30 behind it, then item and the counter on the host
    assert 10 + 5 + 100 + 30 + 1 == round(priced.makespan_ns / US)
    timeline = replay(priced.graph)
    names = priced.graph.tasks.strings("name").to_numpy().tolist()
    assert timeline.start_ns[names.index("sum")] == timeline.finish_ns[names.index("gemm")]
    assert timeline.start_ns[2] == 15 * US  # Python goes on while the device computes


def test_counters_of_an_optimizer_stay_on_the_host():
    placed = place_on(step(), CHIP)

    assert [0, 1, 0, 1, 0, 0, 0, 0] == placed.tasks["resource"].tolist()
    assert 2 == (placed.tasks.strings("op").to_numpy() == "launch").sum()


def test_placing_keeps_all_work_and_the_graph_valid():
    before, after = step(), place_on(step(), CHIP).validate()

    for name in ("flops", "bytes_read", "bytes_written", "param_bytes"):
        assert before.tasks[name].sum() == after.tasks[name].sum()


def test_work_on_queues_and_processors_stays_where_it_is():
    placed = place_on(step(), CHIP)

    assert place_on(placed, CHIP) is placed
    graph = step()
    assert place_on(graph, PROCESSOR) is graph
    assert 10 + 100 + 10 + 30 + 1 == round(forecast(graph, PROCESSOR, model=[RooflinePricer()]).makespan_ns / US)


def test_shares_say_on_whose_word_the_makespan_rests():
    found = forecast(step(), CHIP, model=[Half("gemm", 1.5), RooflinePricer()], launch_ns=5 * US)
    shares = {one.name: round(one.duration_ns / US) for one in found.sources}

    assert {"half": 200, "roofline": 30, "captured": 11, "assumed launch": 5} == shares
    assert 1.0 == pytest.approx(sum(one.ratio for one in found.sources))
    assert 30 / 246 == pytest.approx(found.unsure_ratio, rel=1e-3)
    assert found.low_ns < found.makespan_ns < found.high_ns
    assert {"compute", "memory"} == {one.name for one in found.bindings}
    assert found.device_ns == sum(one.duration_ns for one in found.classes)
    assert {"elementwise", "reduction"} == {one.name for one in found.classes}  # gemm is no schema name


def test_a_larger_batch_scales_samples_and_not_parameters():
    twice = with_batch(step(), 8, 16)

    assert [200 * 10**6, 2, 1] == twice.tasks["flops"][[1, 3, 5]].tolist()
    assert [600 + 2 * 400, 60_000, 4] == twice.tasks["bytes_read"][[1, 3, 5]].tolist()
    with pytest.raises(InputError, match="does not show its batch size"):
        with_batch(step(), 0, 16)
    with pytest.raises(InputError, match="0 samples"):
        with_batch(step(), 8, 0)


def test_operators_without_the_batch_in_their_shapes_do_not_scale():
    shapes = [json.dumps(one) for one in ([], [[8, 4], [4, 2]], [], [[3, 5]], [], [])]
    twice = with_batch(step().with_columns(input_shapes=shapes), 8, 16)

    assert [200 * 10**6, 1] == twice.tasks["flops"][[1, 3]].tolist()


def test_what_would_change_is_offered_for_types_that_the_device_has():
    found = forecast(step(), CHIP, model="roofline")
    others = changes(step(), CHIP, found, model="roofline")

    assert ["bf16"] == [one.dtype for one in others]
    assert others[0].device_ns < found.device_ns


def test_a_catalog_device_prices_every_task_that_computes():
    priced = forecast(step(), device("h100")).graph
    computes = priced.select(kind=Kind.COMPUTE)

    assert "" not in set(priced.tasks.strings("cost_source").to_numpy()[computes])
    assert np.isfinite(priced.tasks["efficiency"][computes]).all()
