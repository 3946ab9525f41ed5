"""A capture on a GPU holds what one on a CPU holds, and kernels; here the host stands in for the device."""

import textwrap

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from windtunnel.graph import EdgeKind, Kind, Phase, ResourceKind  # noqa: E402
from windtunnel.hardware import machine  # noqa: E402
from windtunnel.simulate import replay  # noqa: E402
from windtunnel.sources.torch import device_build  # noqa: E402
from windtunnel.sources.torch import recorder as recorder_module  # noqa: E402
from windtunnel.sources.torch.annotate import Discovery  # noqa: E402
from windtunnel.sources.torch.device_traces import lies_on_device  # noqa: E402
from windtunnel.sources.torch.recorder import Recorder  # noqa: E402
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


@pytest.fixture(scope="module")
def as_if_on_a_gpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder_module, "lies_on_device", lambda _: True)
        yield


def make_step(device="cpu"):
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(32, 64, device=device)

    def step():
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    return step, model, optimizer


@pytest.fixture(scope="module")
def graph(as_if_on_a_gpu):
    step, model, optimizer = make_step()
    return capture(step, iterations=6, model=model, optimizer=optimizer)


@pytest.fixture(scope="module")
def on_host():
    step, model, optimizer = make_step()
    return capture(step, iterations=2, model=model, optimizer=optimizer)


def texts(graph, column):
    return graph.tasks.strings(column).to_numpy()


def test_a_step_is_measured_bare_and_traced(graph):
    assert 6 == graph.num_iterations == len(graph.meta.iteration_ns["samples"])
    assert "kineto" == graph.meta.source
    assert 0.1 <= graph.meta.overhead["host_ratio"] <= 1.0
    assert 1.0 == graph.meta.overhead["matched_operator_ratio"]
    assert graph.meta.optimizers[0]["groups"][0]["options"]["foreach"] is True
    assert 4 * (64 * 128 + 128 + 128 * 8 + 8) * 3 <= graph.meta.memory_base_bytes
    assert "path" not in graph.meta.trace
    assert machine().num_cores == graph.meta.hardware["num_cores"]
    assert graph.select(op="aten::addmm").sum() >= 2 * 6


def test_it_holds_every_column_of_a_capture_on_the_host(graph, on_host):
    of_the_host_alone = {"samples_ns", "duration_std_ns", "order", "param_bytes", "rank"}

    assert set(on_host.tasks) - of_the_host_alone <= set(graph.tasks)
    assert on_host.meta.program["calls"][0]["schema"] == graph.meta.program["calls"][0]["schema"]
    assert len(on_host.meta.program["calls"]) == len(graph.meta.program["calls"])
    assert sorted(on_host.meta.program["parameters"].values()) == sorted(graph.meta.program["parameters"].values())
    assert on_host.meta.memory["by_category"].keys() == graph.meta.memory["by_category"].keys()


def test_operators_have_what_those_of_a_capture_on_the_host_have(graph, on_host):
    """Shapes, types, work, layer and phase of each operator that computes, in every iteration."""

    def rows(captured):
        computes = captured.select(kind=Kind.COMPUTE) & ~captured.select(phase=Phase.UPDATE)
        columns = [texts(captured, name)[computes] for name in ("op", "input_shapes", "input_dtypes", "layer", "line")]
        columns += [
            captured.tasks[name][computes] for name in ("phase", "flops", "bytes_read", "bytes_written", "call")
        ]
        return {tuple(row) for row in zip(*columns, strict=True)}

    products = [
        {row for row in rows(captured) if row[0] in ("aten::addmm", "aten::mm") and row[1]}
        for captured in (graph, on_host)
    ]
    assert products[0] == products[1]
    assert {"0", "2"} == {row[3] for row in products[0]}
    assert 5 == len(products[0])


def test_data_flows_from_operator_to_operator_in_every_iteration(graph):
    is_data = (graph.edges["kind"] == EdgeKind.DATA) & (graph.edges["size_bytes"] > 0)
    ops, iteration = texts(graph, "op"), graph.tasks["iteration"]
    src, dst = graph.edges["src"][is_data], graph.edges["dst"][is_data]
    pairs = {(ops[a], ops[b], iteration[a]) for a, b in zip(src, dst, strict=True) if iteration[a] == iteration[b]}

    assert {("aten::addmm", "aten::clamp_min", turn) for turn in range(6)} <= pairs


def test_a_script_is_captured_so_and_knows_where_it_came_from(as_if_on_a_gpu, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    graph = capture_script(path, iterations=4)

    assert 4 == graph.num_iterations
    assert str(path) == graph.meta.origin["script"]
    assert graph.meta.is_complete
    assert {"train.py:8"} == {line[-10:] for line in texts(graph, "line")[graph.select(op="aten::addmm")]}


def test_what_a_checkpoint_runs_again_is_told(as_if_on_a_gpu):
    block = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(block.parameters())
    inputs = torch.randn(32, 64)

    def step():
        optimizer.zero_grad()
        checkpoint(block, inputs, use_reentrant=False).sum().backward()
        optimizer.step()

    graph = capture(step, iterations=2, model=block, optimizer=optimizer)
    again = graph.select(op="aten::addmm") & (texts(graph, "input_shapes") != "") & graph.tasks["is_recomputed"]

    assert graph.meta.program["recomputed"]
    assert {Phase.BACKWARD} == set(graph.tasks["phase"][again].tolist())
    assert 2 == again.sum()  # the second layer is not needed, and its call ends by an exception


def record(irregular=(), iterations=3, turns=80):
    step, model, optimizer = make_step()
    recorder = Recorder(iterations=iterations, warmup=1, discovery=Discovery().add([model], [optimizer]))
    recorder.begin()
    for turn in range(turns):
        if recorder.is_complete:
            break
        step()
        recorder.boundary(is_regular=turn not in irregular)
    return recorder


def test_iterations_of_another_kind_are_not_counted(as_if_on_a_gpu):
    recorder = record(irregular=(6, 12))
    graph = recorder.graph()

    assert recorder.is_complete
    assert 3 == len(recorder.recording.bare_ns) == len(graph.meta.iteration_ns["samples"])
    assert 2 <= recorder.recording.num_dropped
    assert 1 <= graph.num_iterations <= 3


def test_the_traced_step_takes_as_long_as_the_bare_ones(as_if_on_a_gpu):
    recorder = record()
    recorder.recording.bare_ns = [1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder.recording.device, "remove", lambda: None)
        traced = recorder.graph()  # in the typical share, as one nanosecond is none
    assert "the machine was disturbed" in traced.meta.overhead["note"]
    typical_ns = replay(traced).makespan_ns / traced.num_iterations
    recorder.recording.bare_ns = [int(1.2 * typical_ns)] * 3
    graph = recorder.graph()

    assert 1.2 * typical_ns == pytest.approx(replay(graph).makespan_ns / graph.num_iterations, rel=0.031)
    assert int(1.2 * typical_ns) == graph.meta.iteration_ns["median"]


def test_what_is_ended_early_keeps_what_is_whole_and_leaves_no_profiler_behind(as_if_on_a_gpu):
    recorder = record(turns=21, iterations=4)
    assert not recorder.is_complete
    recorder.close()
    graph = recorder.graph()
    step, _, _ = make_step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()

    assert len(profiler.events())
    assert 1 <= graph.num_iterations < 4
    assert 4 == len(graph.meta.iteration_ns["samples"])
    assert graph.meta.program


def test_a_recorded_rich_iteration_of_a_gpu_gives_its_program():
    """Forward calls lie on one thread, and the nodes that they made on another one."""
    folder = device_build.Path(__file__).parents[2] / "benchmarks" / "gpu" / "h200" / "pairs"
    files = (folder / "residual_net-rich.json.gz", folder / "residual_net-execution.json.gz")
    events, program = device_build.read_rich(*files, Discovery())
    schemas = [call.get("schema", "") for call in program["calls"]]
    called = np.array([events.names[code] for code in events.name[events.call.row]])
    backward = [name for name in called if name.startswith("autograd::engine::evaluate_function: ConvolutionBackward0")]

    assert 18 <= sum(schema.startswith("aten::conv2d") for schema in schemas) == len(backward)
    assert {"backward", "update"} <= {call.get("mark") for call in program["calls"]}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_kernels_lie_on_streams(tmp_path):
    step, model, optimizer = make_step("cuda")
    graph = capture(step, iterations=6, model=model, optimizer=optimizer)
    kernels = graph.select(kind=Kind.COMPUTE)

    assert lies_on_device(Discovery().add([model], [optimizer]))
    assert (graph.resources["kind"] == ResourceKind.STREAM).any()
    assert (texts(graph, "input_shapes")[kernels & ~graph.tasks["is_part"]] != "").all()
    assert graph.meta.iteration_ns["median"] == pytest.approx(replay(graph).makespan_ns / 6, rel=0.2)
