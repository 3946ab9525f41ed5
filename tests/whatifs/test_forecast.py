"""Captured work placed on another device, priced and replayed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.cost.test_pricing import Half
from windtunnel.cost.bounds import bounds_on
from windtunnel.cost.pricer import exact_prices
from windtunnel.cost.roofline import RooflinePricer
from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.graph.kernel_classes import does_matrix_work
from windtunnel.hardware import Device, device
from windtunnel.simulate import replay
from windtunnel.whatifs.ask import apply, whatif
from windtunnel.whatifs.compilation import ENTRY_NS
from windtunnel.whatifs.forecast import changes, forecast, rank_forecasts
from windtunnel.whatifs.placing import place_on
from windtunnel.whatifs.request import parse_request

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


def with_size(graph, batch_size):
    """The step as if its program read one input of so many samples."""
    call = {
        "schema": "aten::sum(Tensor self) -> Tensor", "inputs": [[1, 1, 0, 4, 4, "cpu"]], "shapes": [[batch_size, 4]],
        "types": ["Tensor(float)"], "strides": [[4, 1]], "outputs": [], "output_shapes": [], "output_types": [],
        "grad": True,
    }  # fmt: skip
    calls = [-1, 0, -1, -1, -1, -1]
    return graph.with_columns(call=calls).with_meta(program={"calls": [call], "parameters": {}})


def test_kernels_run_beside_python_and_the_thread_waits_only_for_results():
    priced = forecast(step(), CHIP, model=[RooflinePricer()], launch_ns=5 * US)

    # python 10, launch 5, gemm 100 on the queue, sum 30 behind it, then item and the counter on the host
    assert 10 + 5 + 100 + 30 + 1 + 2 == round(priced.makespan_ns / US)  # 2 of the counter, which stays on the host
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

    assert {"half": 200, "roofline": 32, "captured": 11, "assumed launch": 5} == shares
    assert 1.0 == pytest.approx(sum(one.ratio for one in found.sources))
    assert 32 / 232 == pytest.approx(found.unsure_ratio, rel=1e-3)  # of the device's time: the host's hides nothing
    assert found.at_bound_ratio == found.unsure_ratio
    assert found.low_ns < found.makespan_ns < found.high_ns
    assert {"compute", "memory", "overhead"} == {one.name for one in found.bindings}
    assert found.device_ns == sum(one.duration_ns for one in found.classes)
    assert {"elementwise", "product", "reduction"} == {one.name for one in found.classes}


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


class Flat:
    """Says a microsecond for everything, however large it is; or what it is told, by bytes."""

    name = "flat"

    def __init__(self, told=None, *, is_measurement=False):
        self.told, self.is_measurement = told or {}, is_measurement

    def covers(self, work, device):
        return np.ones(len(work), dtype=bool)

    def price(self, work, device):
        limits = bounds_on(device, work.flops, work.bytes_moved)
        times = [self.told.get(moved, US) for moved in work.bytes_moved.tolist()]
        return exact_prices(limits, limits.efficiency(np.array(times, dtype=float)))


def test_host_and_device_are_told_apart():
    found = forecast(step(), CHIP, model=[RooflinePricer()], launch_ns=5 * US)

    # python 10 + 10, item 1, two launches of 5; gemm 100, sum 30 and 2 of the counter
    assert 31 == round(found.host_ns / US)
    assert 132 == round(found.device_ns / US)
    assert "device" == found.limit
    assert 1 - 31 / 148 == pytest.approx(found.idle_ratio, rel=1e-2)


def test_a_host_that_is_twice_as_fast_or_left_out_changes_only_its_own_part():
    whole, half, none = (
        forecast(step(), CHIP, model=[RooflinePricer()], launch_ns=5 * US, host_factor=factor) for factor in (1, 0.5, 0)
    )

    assert whole.host_ns == 2 * half.host_ns
    assert 0 == none.host_ns
    assert whole.device_ns == half.device_ns == none.device_ns == none.makespan_ns
    assert none.makespan_ns < half.makespan_ns < whole.makespan_ns
    with pytest.raises(InputError, match="cannot take -1 times as long"):
        forecast(step(), CHIP, model=[RooflinePricer()], host_factor=-1)


def test_devices_that_the_host_makes_alike_are_ranked_by_their_own_time():
    slow = Device("slow", 2**30, bandwidth_bytes_per_s=5e8, peak_flops_per_s={"fp32": 5e11})
    given = {"model": [RooflinePricer()], "launch_ns": 100_000 * US}
    found, key = rank_forecasts([forecast(step(), slow, **given), forecast(step(), CHIP, **given)])

    assert "device_ns" == key
    assert ["toy", "slow"] == [one.device for one in found]
    found, key = rank_forecasts([forecast(step(), one, model=[RooflinePricer()]) for one in (slow, CHIP)])
    assert ("makespan_ns", "toy") == (key, found[0].device)


def test_no_task_and_no_step_is_under_the_bound_whatever_the_model_says():
    """A learned model that says a microsecond for a matrix product would promise a device that nobody can build."""
    bound = forecast(step(), CHIP, model=[RooflinePricer()], host_factor=0)
    found = forecast(step(), CHIP, model=[Flat()], host_factor=0)

    assert found.device_ns >= bound.device_ns
    assert found.makespan_ns >= found.bound_ns > 0
    assert found.low_ns >= found.bound_ns
    assert "flat under its bound" in {one.name for one in found.sources}
    assert (found.graph.tasks["efficiency"][found.graph.select(kind=Kind.COMPUTE)] <= 1).all()


def test_a_larger_batch_is_never_priced_below_a_smaller_one():
    """Learned prices may fall a little with the size; a device could always run the small batch as the large one."""
    falling = Flat({30_008: 900 * US, 60_008: 800 * US, 60_016: 700 * US, 120_032: 600 * US})
    graph = with_size(step(), 8)
    times = [forecast(graph, CHIP, model=[falling], batch_size=size).device_ns for size in (4, 8, 16, 32)]

    assert sorted(times) == times


def test_a_model_without_an_interval_is_unsure_but_no_bound():
    slow = forecast(step(), CHIP, model=[Flat(dict.fromkeys((30_008, 1008, 12), 900 * US))])

    assert 1.0 == pytest.approx(slow.unsure_ratio, rel=1e-3)
    assert 0.0 == slow.at_bound_ratio


def test_what_will_run_compiled_is_placed_with_fused_kernels():
    """A chain of two kernels of 40 and 20 µs makes the trip of the longer one; a step that is not compiled has both."""
    builder = GraphBuilder()
    thread = builder.resource("main thread", ResourceKind.HOST_THREAD)
    rows = [
        builder.task(op, op=op, kind=Kind.COMPUTE, resource=thread, duration_ns=0, phase=Phase.FORWARD, flops=1,
                     bytes_read=moved, bytes_written=0)
        for op, moved in (("aten::mm", 50_000), ("aten::add", 40_000), ("aten::mul", 20_000), ("aten::mm", 50_000))
    ]  # fmt: skip
    for src, dst in itertools.pairwise(rows):
        builder.edge(src, dst, kind=EdgeKind.ORDER)
    graph = builder.build()
    eager, compiled = (
        forecast(graph.with_meta(is_uncompiled=is_uncompiled), CHIP, model=[RooflinePricer()])
        for is_uncompiled in (False, True)
    )

    assert 20 * US == pytest.approx(eager.device_ns - compiled.device_ns, rel=0.01)
    assert 1 == compiled.graph.select(name="fused kernel").sum()
    assert 0 < eager.host_ns - (compiled.host_ns - ENTRY_NS)  # fewer launches, and one entry into compiled code


@pytest.fixture(scope="module")
def convolutional():
    """A step that really ran: convolutions and a perceptron."""
    torch = pytest.importorskip("torch")
    from windtunnel.sources.torch.step import capture

    layers = torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 900, 10)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(32, 3, 32, 32)

    def step():
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()

    return capture(step, iterations=2, warmup=1, model=model, optimizer=optimizer)


def test_what_another_type_gains_on_a_priced_gpu_is_what_a_prediction_in_it_says(convolutional):
    """Not what operators gain on this host, nor what data sheets promise."""
    priced = forecast(convolutional, device("h100")).graph
    in_low = forecast(convolutional, device("h100"), dtype="bf16").graph

    amp = apply(priced, parse_request("amp"))
    products = does_matrix_work(priced) & priced.select(kind=Kind.COMPUTE)

    assert 0 < np.count_nonzero(products)
    np.testing.assert_allclose(amp.duration_ns[products], in_low.duration_ns[products], atol=2)


def test_convolutions_of_a_priced_gpu_run_in_tf32_already(convolutional):
    priced = forecast(convolutional, device("h100")).graph

    tf32 = apply(priced, parse_request("tf32"))
    changed = set(priced.tasks.strings("op").to_numpy()[priced.duration_ns != tf32.duration_ns].tolist())

    assert changed
    assert not any("conv" in op for op in changed)


def test_operators_of_a_priced_gpu_are_not_run_on_this_host(convolutional):
    (answer,) = whatif(forecast(convolutional, device("h100")).graph, ["batch-size"])

    assert not answer.is_applicable
    assert "prices of h100-sxm5-80g" in answer.reason


def test_what_workers_load_ahead_is_no_time_of_the_host():
    """A host of 20 ms in a step of 14 ms was once printed: two workers loaded 14 of them beside the script."""
    builder = GraphBuilder()
    threads = [builder.resource(name, ResourceKind.HOST_THREAD) for name in ("main thread", "2 loader workers")]
    facts = {"kind": Kind.HOST, "op": "python"}
    loaded = builder.task("load batch", kind=Kind.IO, resource=threads[1], phase=Phase.DATA, duration_ns=150 * US)
    taken = builder.task("take batch", **facts, resource=threads[0], phase=Phase.DATA, duration_ns=2 * US)
    python = builder.task("python", **facts, resource=threads[0], phase=Phase.FORWARD, duration_ns=10 * US)
    product = {"flops": 100 * 10**6, "bytes_read": 1000, "bytes_written": 8, "phase": Phase.FORWARD}
    gemm = builder.task("gemm", op="gemm", kind=Kind.COMPUTE, resource=threads[0], duration_ns=50 * US, **product)
    for src, dst in ((taken, python), (python, gemm)):
        builder.edge(src, dst, kind=EdgeKind.ORDER)
    builder.edge(loaded, taken, kind=EdgeKind.DATA)
    result = forecast(builder.build(), CHIP, model=[RooflinePricer()], launch_ns=5 * US)

    assert (17 * US, 150 * US, "loader") == (result.host_ns, result.loading_ns, result.limit)
    assert result.host_ns < result.makespan_ns


def test_the_interval_of_a_trace_of_several_iterations_is_of_all_of_them_as_its_time_is():
    builder = GraphBuilder()
    stream = builder.resource("stream", ResourceKind.STREAM)
    rows = [
        builder.task("gemm", op="gemm", kind=Kind.COMPUTE, resource=stream, duration_ns=100, flops=10**8,
                     bytes_read=8, bytes_written=8, iteration=number)
        for number in range(3)
    ]  # fmt: skip
    for one, following in itertools.pairwise(rows):
        builder.edge(one, following, kind=EdgeKind.ORDER)
    found = forecast(builder.build(), CHIP, model=[Half("gemm")])

    assert 3 * 200 * US == found.makespan_ns == found.device_ns
    assert (found.device_low_ns, found.device_high_ns) == (found.low_ns, found.high_ns)
