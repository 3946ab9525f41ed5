"""Recorded pairs of a GPU: operators have shapes, layers and lines, and kernels belong to them."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from windtunnel.cost.rerun.program import program_of
from windtunnel.graph import EdgeKind, Kind, Phase, ResourceKind
from windtunnel.hardware import device
from windtunnel.simulate import replay
from windtunnel.sources.execution_trace.kineto import read_events as read_pair
from windtunnel.sources.execution_trace.nodes import read_document
from windtunnel.sources.execution_trace.reader import load_execution_trace
from windtunnel.sources.kineto.events import read_events
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.timeline.build import build_graph
from windtunnel.sources.torch.same_operators import share_operators
from windtunnel.whatifs.forecast import forecast
from windtunnel.whatifs.stashing import vdnn

PAIRS = Path(__file__).parents[2] / "benchmarks" / "gpu" / "h200" / "pairs"
NAMES = ("perceptron", "residual_net", "streams_net")


@pytest.fixture(scope="module")
def kineto():
    return {name: load_kineto(PAIRS / f"{name}-rich.json.gz") for name in NAMES}


@pytest.fixture(scope="module")
def pair():
    files = {name: (PAIRS / f"{name}-execution.json.gz", PAIRS / f"{name}-rich.json.gz") for name in NAMES}
    return {name: load_execution_trace(trace, kineto=kineto) for name, (trace, kineto) in files.items()}


def texts(graph, column):
    return graph.tasks.strings(column).to_numpy()


def kernels_of(graph):
    return graph.select(kind=Kind.COMPUTE) & on_device(graph)


def on_device(graph):
    return graph.resources["kind"][graph.tasks["resource"]] == ResourceKind.STREAM


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_belongs_to_an_operator_with_shapes_and_a_line(kineto, pair, name):
    for graph in (kineto[name], pair[name]):
        kernels = kernels_of(graph)
        described = texts(graph, "input_shapes") != ""

        assert (described | graph.tasks["is_part"])[kernels].all()
        assert not (described & graph.tasks["is_part"]).any()
        assert all(line.startswith("benchmarks/gpu/scripts/") for line in texts(graph, "line")[kernels])


def test_both_readers_say_the_same_of_shapes_types_and_work(kineto, pair):
    """A Kineto trace lacks results, which follow from the inputs, and shapes of long lists."""
    for name in NAMES:
        alone, joined = kineto[name], pair[name]
        rows = {event: row for row, event in enumerate(joined.tasks["event"].tolist())}
        kernels = np.flatnonzero(kernels_of(alone) & ~alone.tasks["is_part"])
        other = np.array([rows[event] for event in alone.tasks["event"][kernels].tolist()])
        op = texts(alone, "op")[kernels]
        is_list = np.array([text.startswith("aten::_foreach") for text in op])

        assert (op == texts(joined, "op")[other]).all()
        assert (texts(alone, "input_shapes")[kernels] == texts(joined, "input_shapes")[other])[op == "aten::mm"].all()
        for column, tolerance in (("flops", 0.02), ("bytes_read", 0.1), ("bytes_written", 0.1)):
            sums = [
                graph.tasks[column][chosen][~is_list].sum() for graph, chosen in ((alone, kernels), (joined, other))
            ]
            assert sums[0] == pytest.approx(sums[1], rel=tolerance), (name, column)


def test_operators_of_one_layer_share_its_name_in_all_phases(pair):
    graph = pair["residual_net"]
    layers = texts(graph, "layer")
    phases = {int(phase) for phase in graph.tasks["phase"][layers == "Sequential_0.Residual_0.Conv2d_1"]}

    assert {Phase.FORWARD, Phase.BACKWARD} <= phases
    assert {"Sequential_0"} == set(layers[kernels_of(graph) & graph.select(phase=Phase.UPDATE)])


def test_data_flows_between_kernels_and_the_replay_is_the_recording(kineto, pair):
    for name in NAMES:
        graph = pair[name]
        is_data = (graph.edges["kind"] == EdgeKind.DATA) & (graph.edges["size_bytes"] > 0)
        kernels = on_device(graph)

        assert (kernels[graph.edges["src"]] & kernels[graph.edges["dst"]] & is_data).sum() > 40
        assert replay(graph).makespan_ns == replay(kineto[name]).makespan_ns
        assert (replay(graph).start_ns == graph.tasks["start_ns"]).all()


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_that_of_the_allocator(pair, name):
    """Workspaces of operators, and gradients of the step before, are told apart from results."""
    peak_bytes = json.loads((PAIRS / f"{name}.json").read_text())["memory"]["peak"]["allocated_bytes"]

    assert peak_bytes == pytest.approx(replay(pair[name]).memory().peak_bytes, rel=0.001)


@pytest.mark.parametrize("name", NAMES)
def test_light_iterations_take_over_what_a_rich_one_knows(name):
    document = read_document(PAIRS / f"{name}-execution.json.gz")
    rich, _, _ = read_pair(document, PAIRS / f"{name}-rich.json.gz")
    shared, matched = share_operators(read_events(PAIRS / f"{name}-plain.json.gz"), rich)
    graph = build_graph(shared, window="ProfilerStep")
    kernels = kernels_of(graph)
    peak_bytes = json.loads((PAIRS / f"{name}.json").read_text())["memory"]["peak"]["allocated_bytes"]

    assert matched == 1
    assert 3 == graph.num_iterations
    assert ((texts(graph, "input_shapes") != "") | graph.tasks["is_part"])[kernels].all()
    assert (texts(graph, "line") != "")[kernels].all()
    assert 1 == len({int(graph.tasks["flops"][graph.tasks["iteration"] == turn].sum()) for turn in range(3)})
    assert peak_bytes == pytest.approx(replay(graph).memory().peak_bytes, rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_tells_the_program_and_its_parameters(pair, name):
    """What an optimizer changes and a forward pass reads is a parameter; views of it are none."""
    facts = json.loads((PAIRS / f"{name}.json").read_text())["facts"]
    program = program_of(pair[name])

    assert facts["optimizers"][0]["num_tensors"] == len(program.parameters)
    assert {Phase.FORWARD} <= {call.phase for call in program.calls}
    assert (kernels_of(pair[name]) & (pair[name].tasks["call"] >= 0)).sum() > 20


def test_threads_and_streams_have_names(kineto):
    names = kineto["streams_net"].resources.strings("name").to_numpy().tolist()

    assert {"main thread", "backward thread", "GPU 0 stream 7", "GPU 0 stream 13"} <= set(names)


def test_a_foreign_trace_is_predicted_on_another_gpu(kineto):
    answers = {name: forecast(kineto["residual_net"], device(name)) for name in ("h200", "a100")}
    recorded = kineto["residual_net"]
    device_ns = int(recorded.duration_ns[kernels_of(recorded)].sum())

    assert answers["a100"].device_ns > 1.5 * answers["h200"].device_ns
    assert 0.4 * device_ns < answers["h200"].device_ns < 1.5 * device_ns


def test_kernels_of_a_replayed_cuda_graph_have_the_line_that_replays_it():
    graph = load_kineto(PAIRS / "graphed_net-rich.json.gz")

    assert {"benchmarks/gpu/scripts/graphed_net.py:91"} == set(texts(graph, "line")[on_device(graph)])


def test_generated_code_is_no_line_of_the_program():
    graph = load_kineto(PAIRS / "compiled_lm-rich.json.gz")

    assert {"compiled_lm.py"} == {
        Path(line).name.partition(":")[0] for line in set(texts(graph, "line")[on_device(graph)])
    }


def test_results_beside_a_branch_come_back_in_the_order_of_the_backward_pass(pair):
    """A residual network reads the results of its branches in another order than it makes them."""
    graph = pair["residual_net"]
    changed = vdnn(graph)

    assert changed.select(op="memcpy HtoD", name="prefetch.*").sum() > 1
    assert replay(changed).makespan_ns >= replay(graph).makespan_ns
