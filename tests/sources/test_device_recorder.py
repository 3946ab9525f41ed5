"""A step on a GPU is captured by bare iterations and one trace; here the host stands in for the device."""

import textwrap

import pytest

torch = pytest.importorskip("torch")

from windtunnel.graph import ResourceKind  # noqa: E402
from windtunnel.hardware import machine  # noqa: E402
from windtunnel.simulate import replay  # noqa: E402
from windtunnel.sources.kineto.reader import load_kineto  # noqa: E402
from windtunnel.sources.kineto.unprofiled import TYPICAL_SHARE  # noqa: E402
from windtunnel.sources.torch import recorder as recorder_module  # noqa: E402
from windtunnel.sources.torch.annotate import Discovery  # noqa: E402
from windtunnel.sources.torch.device_recorder import DeviceRecorder, lies_on_device  # noqa: E402
from windtunnel.sources.torch.script import capture_script  # noqa: E402
from windtunnel.sources.torch.step import capture  # noqa: E402

SCRIPT = """
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(60):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def as_if_on_a_gpu(monkeypatch):
    monkeypatch.setattr(recorder_module, "lies_on_device", lambda _: True)


def trained(device="cpu"):
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(32, 64, device=device)

    def step():
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    return step, model, optimizer


def test_a_step_is_measured_bare_and_traced(as_if_on_a_gpu):
    step, model, optimizer = trained()
    graph = capture(step, iterations=6, model=model, optimizer=optimizer)

    assert 6 == graph.num_iterations == len(graph.meta.iteration_ns["samples"])
    assert "kineto" == graph.meta.source
    assert 0.4 <= graph.meta.overhead["host_ratio"] <= 1.0
    assert graph.meta.optimizers[0]["groups"][0]["options"]["foreach"] is True
    assert 4 * (64 * 128 + 128 + 128 * 8 + 8) * 3 <= graph.meta.memory_base_bytes
    assert "path" not in graph.meta.trace
    assert machine().num_cores == graph.meta.hardware["num_cores"]
    assert graph.select(op="aten::addmm").sum() >= 2 * 6


def test_a_script_is_captured_so_and_knows_where_it_came_from(as_if_on_a_gpu, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    graph = capture_script(path, iterations=4)

    assert 4 == graph.num_iterations
    assert str(path) == graph.meta.origin["script"]
    assert graph.meta.is_complete


def test_an_iteration_of_another_kind_is_not_counted_and_begins_the_trace_anew():
    step, model, optimizer = trained()
    recorder = DeviceRecorder(3, Discovery().add([model], [optimizer]))
    seen = []
    for turn in range(40):
        if recorder.is_complete:
            break
        step()
        recorder.boundary(is_regular=turn not in (3, 9))
        seen.append(recorder.progress)
    graph = recorder.graph()

    assert recorder.is_complete
    assert 3 == len(recorder.bare_ns) == graph.num_iterations
    assert seen[-1][0] == seen[-1][1]
    assert all(0 <= done <= total for done, total in seen)


def recorded():
    step, model, optimizer = trained()
    recorder = DeviceRecorder(3, Discovery().add([model], [optimizer]))
    while not recorder.is_complete:
        step()
        recorder.boundary(is_regular=True)
    return recorder, replay(load_kineto(recorder._path, window="ProfilerStep#")).makespan_ns / 3


def test_the_traced_step_takes_as_long_as_the_bare_ones():
    recorder, traced_ns = recorded()
    recorder.bare_ns = [int(0.75 * traced_ns)] * 3
    graph = recorder.graph()

    assert 0.75 * traced_ns == pytest.approx(replay(graph).makespan_ns / 3, rel=0.031)
    assert int(0.75 * traced_ns) == graph.meta.iteration_ns["median"]


def test_bare_iterations_slower_than_traced_ones_are_told():
    recorder, traced_ns = recorded()
    recorder.bare_ns = [int(2 * traced_ns)] * 3
    graph = recorder.graph()

    assert TYPICAL_SHARE == graph.meta.overhead["host_ratio"]
    assert "the machine was disturbed" in graph.meta.overhead["note"]


def test_what_is_ended_early_leaves_no_profiler_behind():
    step, model, optimizer = trained()
    recorder = DeviceRecorder(2, Discovery().add([model], [optimizer]))
    for _ in range(7):
        step()
        recorder.boundary(is_regular=True)
    assert not recorder.is_complete
    recorder.close()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()

    assert len(profiler.events())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_kernels_lie_on_streams(tmp_path):
    step, model, optimizer = trained("cuda")
    graph = capture(step, iterations=6, model=model, optimizer=optimizer)

    assert lies_on_device(Discovery().add([model], [optimizer]))
    assert (graph.resources["kind"] == ResourceKind.STREAM).any()
    assert graph.meta.iteration_ns["median"] == pytest.approx(replay(graph).makespan_ns / 6, rel=0.2)
