"""Programs of a GPU: host and device are measured apart. The host's clock stands in for that of a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost.rerun.programs import LAYERS, PARAMETERS, perceptron, perceptron_graph, perceptron_rows
from windtunnel import whatif
from windtunnel.cost.rerun import Form, Program, Ratios, UpdateForm, measure_ratios, measure_update, program_of
from windtunnel.cost.rerun.stopwatch import NOTHING, Stopwatch
from windtunnel.errors import AbsentDeviceError, PriceError
from windtunnel.flights import fly, verify
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.measure import ProfileDatabase
from windtunnel.measure.devices import HostClock
from windtunnel.whatifs.measured import apply_ratios, apply_update, update_need

torch = pytest.importorskip("torch")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is not here")


def moved(value: Any, device: str) -> Any:
    """Recorded values with their tensors on another device."""
    if isinstance(value, list):
        return [moved(item, device) for item in value]
    return device if value == "cpu" else value


def rows_on(device: str) -> list[dict[str, Any]]:
    return [{**row, **{name: moved(row[name], device) for name in ("inputs", "outputs") if name in row}}
            for row in perceptron_rows()]  # fmt: skip


def program_on(device: str) -> Program:
    calls = [replace(call, inputs=moved(call.inputs, device), outputs=moved(call.outputs, device))
             for call in perceptron().calls]  # fmt: skip
    return Program(tuple(calls), dict(PARAMETERS), frozenset(), 1)


def graph_on_device() -> Graph:
    """Each call launches one kernel: 100 ns on the host, 1000 on the stream; the update launches one of 400."""
    builder = GraphBuilder()
    host = builder.resource("main thread", ResourceKind.HOST_THREAD)
    stream = builder.resource("GPU 0 stream 7", ResourceKind.STREAM)
    parts = [(call, phase) for phase in (Phase.FORWARD, Phase.BACKWARD) for call in range(4)]
    last = None
    for call, phase in [*parts, (-1, Phase.UPDATE)]:
        about = {"phase": phase, "call": call, "layer": LAYERS[call]}
        launch = builder.task("launch", kind=Kind.HOST, resource=host, duration_ns=100, **about)
        duration_ns = 400 if call < 0 else 1000
        kernel = builder.task("sgemm", kind=Kind.COMPUTE, resource=stream, duration_ns=duration_ns, **about)
        builder.edge(launch, kernel, kind=EdgeKind.LAUNCH)
        if last is not None:
            builder.edge(last[0], launch, kind=EdgeKind.ORDER)
            builder.edge(last[1], kernel, kind=EdgeKind.ORDER)
        last = launch, kernel
    program = {
        "parameters": {str(key): name for key, name in PARAMETERS.items()},
        "frozen": [],
        "calls": rows_on("cuda:0"),
    }
    optimizers = perceptron_graph().meta.optimizers
    return builder.build(
        {"source": "torch step", "hardware": {"num_threads": 1}, "optimizers": optimizers, "program": program}
    )


class SimulatedStream:
    """A device that runs what it is given, one kernel after the other, on a clock of its own."""

    device_name = "simulated"

    def __init__(self) -> None:
        self.host_ns, self.device_ns, self.num_holds = 0.0, 0.0, 0

    def launch(self, host_ns: float, kernel_ns: float) -> None:
        self.host_ns += host_ns
        self.device_ns = max(self.device_ns, self.host_ns) + kernel_ns

    def stamp(self) -> float:
        return max(self.device_ns, self.host_ns)

    def wait(self, stamp: float) -> None:
        self.host_ns = max(self.host_ns, stamp)

    def between_ns(self, first: float, last: float) -> float:
        return last - first

    def finish(self) -> None:
        self.host_ns = max(self.host_ns, self.device_ns)

    def hold(self, duration_ns: float) -> None:
        self.num_holds += 1
        self.device_ns = self.host_ns + duration_ns


KERNELS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=150)


@given(KERNELS)
def test_a_device_that_is_held_up_tells_what_its_kernels_take(kernels):
    device = SimulatedStream()
    stopwatch = Stopwatch(device, paused_by=device, hold_ns=50.0 * 32)
    for part, host_ns, kernel_ns in kernels:
        stopwatch.begin(part)
        device.launch(host_ns, kernel_ns)
        stopwatch.begin(NOTHING)
    times_ns = np.zeros(5)
    total_ns = stopwatch.settle(times_ns)

    expected = np.bincount([part for part, _, _ in kernels], [kernel for _, _, kernel in kernels], minlength=5)
    assert expected.tolist() == times_ns.tolist()
    assert total_ns == expected.sum()
    assert device.num_holds == -(-len(kernels) // 32)


def test_without_a_hold_launches_would_be_counted():
    device = SimulatedStream()
    stopwatch = Stopwatch(device, paused_by=device)
    for part in range(2):
        stopwatch.begin(part)
        device.launch(40, 10)
    stopwatch.begin(NOTHING)
    times_ns = np.zeros(2)
    stopwatch.settle(times_ns)

    assert [50.0, 40.0] == times_ns.tolist()


def test_nodes_that_follow_each_other_are_timed_over_pauses():
    device = SimulatedStream()
    stopwatch = Stopwatch(device, paused_by=device, hold_ns=10_000.0)
    for part in range(100):
        stopwatch.begin(part)
        device.launch(3, 7)
    stopwatch.begin(NOTHING)
    times_ns = np.zeros(100)

    assert 700.0 == stopwatch.settle(times_ns)
    assert [7.0] * 100 == times_ns.tolist()


def test_a_program_says_which_gpus_hold_its_tensors():
    assert () == perceptron().devices
    assert ("cuda:1",) == program_on("cuda:1").devices
    assert "cuda" == program_on("cuda:1").device
    assert perceptron().fingerprint != program_on("cuda:0").fingerprint


def test_host_and_device_have_ratios_of_their_own(tmp_path):
    database = ProfileDatabase(tmp_path / "profile.db")
    first = measure_ratios(perceptron(), Form(num_passes=2), database=database, budget_s=0.2, device_clock=HostClock())
    known = measure_ratios(perceptron(), Form(num_passes=2), database=database, budget_s=0.2, device_clock=HostClock())

    for side in (first, first.device):
        assert (side.forward[:4] > 0.5).all()
        assert (side.backward[:4] > 0.5).all()
        assert side.backward_total > 1.0  # two passes instead of one
    assert first.device.device is None
    assert np.array_equal(known.forward, first.forward)
    assert np.array_equal(known.device.backward, first.device.backward)


def test_an_update_is_timed_on_both_sides(tmp_path):
    optimizers = perceptron_graph(width=256).meta.optimizers
    database = ProfileDatabase(tmp_path / "profile.db")
    form = UpdateForm(frozen=frozenset({"0.weight"}))
    measured = measure_update(optimizers, form, threads=1, database=database, budget_s=0.05, device_clock=HostClock())
    again = measure_update(optimizers, form, threads=1, database=database, budget_s=0.05, device_clock=HostClock())

    assert 0 < measured.device_ratio < 1.0
    assert (float(measured), measured.device_ratio) == (float(again), again.device_ratio)


def test_kernels_take_the_ratios_of_the_device_and_launches_those_of_the_host():
    graph = graph_on_device()
    ones = np.ones(6)
    device = Ratios(0.5 * ones, 0.25 * ones, ones, forward_total=0.5, backward_total=0.25)
    changed = apply_ratios(graph, Ratios(2 * ones, 3 * ones, ones, forward_total=2, backward_total=3, device=device))
    on_stream = changed.select(name="sgemm")

    for phase, host_ns, kernel_ns in ((Phase.FORWARD, 200, 500), (Phase.BACKWARD, 300, 250), (Phase.UPDATE, 100, 400)):
        tasks = changed.select(phase=phase)
        assert {host_ns} == set(changed.duration_ns[tasks & ~on_stream].tolist())
        assert {kernel_ns} == set(changed.duration_ns[tasks & on_stream].tolist())


def test_an_update_on_a_device_takes_both_ratios():
    graph = graph_on_device()
    need = update_need(graph, UpdateForm({"fused": True}))

    class Both(float):
        device_ratio = 0.5

    changed = apply_update(graph, Both(0.25))
    update = changed.select(phase=Phase.UPDATE)
    assert "cuda" == need.device
    assert "cuda" in need.key
    assert [25, 200] == sorted(changed.duration_ns[update].tolist())


@needs_no_gpu
def test_a_program_of_an_absent_gpu_is_not_run_on_the_host():
    with pytest.raises(AbsentDeviceError, match="there is none here"):
        measure_ratios(program_on("cuda:0"), Form(num_passes=2), budget_s=0.01)
    with pytest.raises(AbsentDeviceError):
        measure_update(perceptron_graph().meta.optimizers, UpdateForm({"fused": True}), device="cuda")


def test_a_process_with_two_gpus_is_refused():
    calls = (program_on("cuda:0").calls[0], *program_on("cuda:1").calls[1:])
    with pytest.raises(PriceError, match="several GPUs"):
        measure_ratios(Program(calls, dict(PARAMETERS), frozenset(), 1), Form(num_passes=2), budget_s=0.01)


@needs_no_gpu
def test_where_the_gpu_is_absent_published_ratios_answer_what_has_them():
    answers = {str(answer.request): answer for answer in whatif(graph_on_device(), ["amp", "gradient-accumulation"])}

    assert answers["amp"].is_applicable
    assert not answers["gradient-accumulation"].is_applicable
    assert "there is none here" in answers["gradient-accumulation"].reason


class OtherGpu(HostClock):
    """The stand-in of a GPU that has a name."""

    device_name = "NVIDIA H100 80GB HBM3"


CAPTURED_ON = ("NVIDIA H200",)
OTHER = "captured on NVIDIA H200, and the GPU here is NVIDIA H100 80GB HBM3"


def test_what_was_captured_on_another_gpu_does_not_run_again_here():
    program = replace(perceptron(), captured_on=CAPTURED_ON)
    optimizers = perceptron_graph().meta.optimizers

    with pytest.raises(AbsentDeviceError, match=OTHER) as caught:
        measure_ratios(program, Form(num_passes=2), budget_s=0.01, device_clock=OtherGpu())
    with pytest.raises(AbsentDeviceError, match=OTHER):
        measure_update(optimizers, UpdateForm({"fused": True}), device_clock=OtherGpu(), captured_on=CAPTURED_ON)
    assert 2 == caught.value.exit_code
    assert "capture it here" in caught.value.fix
    same = replace(program, captured_on=("NVIDIA A100", OtherGpu.device_name))
    assert measure_ratios(same, Form(num_passes=2), budget_s=0.01, device_clock=OtherGpu()).device is not None


def on_h200() -> Graph:
    graph = graph_on_device()
    return graph.with_meta(hardware={**graph.meta.hardware, "devices": [{"name": name} for name in CAPTURED_ON]})


def test_programs_and_updates_know_the_gpu_of_their_capture():
    assert CAPTURED_ON == program_of(on_h200()).captured_on
    assert CAPTURED_ON == update_need(on_h200(), UpdateForm({"fused": True})).captured_on
    assert () == program_of(perceptron_graph()).captured_on


@pytest.mark.parametrize("name", [OtherGpu.device_name, ""])
def test_a_graph_of_another_gpu_is_not_flown(monkeypatch, name):
    """Nor on a host without any: its prediction would be compared with something else."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(name))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
    graph = on_h200().with_meta(origin={"workload": "mlp"})

    with pytest.raises(AbsentDeviceError, match=OTHER if name else "there is none here"):
        fly(graph, "amp")
    with pytest.raises(AbsentDeviceError, match=OTHER if name else "there is none here"):
        verify("mlp", "amp", graph=graph)
