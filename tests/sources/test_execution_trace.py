"""PyTorch execution traces: true data edges, two tasks per operator of an accelerator, kind about bad files."""

import contextlib
import copy
import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from tests.cli.command import windtunnel
from tests.shared_data import find_shared, shared_path
from tests.simulate.reference import reference_replay
from windtunnel import registry
from windtunnel.errors import GraphError, InputError, TraceError
from windtunnel.graph import EdgeKind, Kind, Phase, ProcessGroup
from windtunnel.reports import explain
from windtunnel.simulate import replay
from windtunnel.sources.execution_trace.reader import count_unmeasured_tasks, is_execution_trace, load_execution_trace
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.whatifs import whatif

MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
RELU_ = "aten::relu_(Tensor(a!) self) -> Tensor(a!)"
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"
COPY_ = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
READ = "aten::_local_scalar_dense(Tensor self) -> Scalar"
LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"


def tensor(number, storage, *, offset=0, elements=16, device="cpu"):
    return [number, storage, offset, elements, 4, device]


def side(values, shape=(4, 4)):
    is_tensor = [isinstance(value, list) and len(value) == 6 for value in values]
    types = [type(value).__name__.title() for value in values]
    return {
        "values": list(values),
        "shapes": [list(shape) if tensors else [] for tensors in is_tensor],
        "types": ["Tensor(float)" if tensors else kind for tensors, kind in zip(is_tensor, types, strict=True)],
    }


def node(number, name, schema="", inputs=(), outputs=(), parent=2, tid=1, **attributes):
    given = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": tid, "fw_tid": 0, "op_schema": schema}
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": side(inputs),
        "outputs": side(outputs),
        "attrs": [{"name": key, "type": "", "value": value} for key, value in {**given, **attributes}.items()],
    }


ROOTS = [
    node(1, "[pytorch|profiler|execution_trace|process]", parent=1, tid=0, scope=7),
    node(2, "[pytorch|profiler|execution_trace|thread]", parent=1, scope=7),
]


def flat(nested):
    """The same node as schema 1.0.1 spells it."""
    attrs = {attribute["name"]: attribute["value"] for attribute in nested["attrs"]}
    sides = {
        f"{which}{suffix}": nested[f"{which}s"][key]
        for which in ("input", "output")
        for suffix, key in (("s", "values"), ("_shapes", "shapes"), ("_types", "types"))
    }
    return {"id": nested["id"], "name": nested["name"], "parent": nested["ctrl_deps"], **attrs, **sides}


def written(tmp_path, *nodes, schema="1.1.0-chakra.0.0.4", roots=True, name="et.json"):
    path = tmp_path / name
    path.write_text(json.dumps({"schema": schema, "pid": "1", "nodes": [*(ROOTS if roots else []), *nodes]}))
    return path


def edges(graph, kind):
    names, chosen = graph.tasks.strings("name").to_numpy(), graph.edges["kind"] == kind
    pairs = zip(graph.edges["src"][chosen].tolist(), graph.edges["dst"][chosen].tolist(), strict=True)
    on = graph.resources.strings("name").to_numpy()[graph.tasks["resource"]]
    label = [name if queue.startswith("thread") else f"{name} @ {queue}" for name, queue in zip(names, on, strict=True)]
    return {(label[src], label[dst]) for src, dst in pairs}


X, W, Y = tensor(3, 4), tensor(5, 6), tensor(8, 9)
STEP = [
    node(10, "aten::mm", MM, [X, W], [Y]),
    node(11, "aten::view", VIEW, [Y, [16]], [tensor(12, 9)]),
    node(13, "aten::relu_", RELU_, [tensor(12, 9)], [tensor(12, 9)]),
    node(14, "aten::mul", "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", [Y, X], [tensor(15, 16)]),
    node(17, "aten::copy_", COPY_, [X, tensor(15, 16), False], [X]),
]


# --- what is read -------------------------------------------------------------------------------------


def test_data_edges_follow_storages_through_views_and_in_place_operators(tmp_path):
    graph = load_execution_trace(written(tmp_path, *STEP))

    data = {("aten::mm", "aten::relu_"), ("aten::relu_", "aten::mul"), ("aten::mul", "aten::copy_")}
    assert data == edges(graph, EdgeKind.DATA)
    # what overwrites X waits for those that read it
    assert {("aten::mm", "aten::copy_"), ("aten::mul", "aten::copy_")} == edges(graph, EdgeKind.CONTROL)
    assert {64} == set(graph.edges["size_bytes"][graph.edges["kind"] == EdgeKind.DATA].tolist())
    assert 2 * 4 * 4 * 4 == graph.tasks["flops"][0]
    assert (128, 64) == (graph.tasks["bytes_read"][0], graph.tasks["bytes_written"][0])


def test_disjoint_ranges_of_one_storage_are_independent(tmp_path):
    halves = [tensor(20 + half, 9, offset=8 * half, elements=8) for half in range(2)]
    writes = [node(10 + half, f"aten::relu_{half}", RELU_, [halves[half]], [halves[half]]) for half in range(2)]
    reads = node(30, "aten::sum", "aten::sum(Tensor self) -> Tensor", [halves[1]], [tensor(31, 32)])
    graph = load_execution_trace(written(tmp_path, *writes, reads))

    assert {("aten::relu_1", "aten::sum")} == edges(graph, EdgeKind.DATA)


def test_both_spellings_give_one_graph(tmp_path):
    nested = load_execution_trace(written(tmp_path, *STEP, name="nested.json"))
    path = written(tmp_path, *map(flat, [*ROOTS, *STEP]), schema="1.0.1", roots=False)

    assert nested.with_meta(trace={}).equals(load_execution_trace(path).with_meta(trace={}))


def test_an_operator_that_only_calls_others_is_no_task(tmp_path):
    calls = node(10, "aten::linear", LINEAR, [X, W, "<None>"], [Y])
    graph = load_execution_trace(written(tmp_path, calls, node(11, "aten::mm", MM, [X, W], [Y], parent=10)))

    assert ["aten::mm"] == graph.tasks.strings("name").to_numpy().tolist()
    assert 1 == graph.meta.trace["nodes without work of their own"]


def test_an_accelerator_has_tasks_of_its_own(tmp_path):
    """The host only launches; a value that Python reads and a copy to the host hold the thread up."""
    x, y, z = (tensor(number, number, device="cuda:0") for number in (3, 8, 9))
    on_host = tensor(40, 41)
    graph = load_execution_trace(
        written(
            tmp_path,
            node(10, "aten::mm", MM, [x, x], [y]),
            node(11, "aten::relu_", RELU_, [y], [y]),
            node(12, "aten::copy_", COPY_, [on_host, y, False], [on_host]),
            node(13, "aten::mul", "aten::mul(Tensor self, Tensor other) -> Tensor", [y, x], [z]),
            node(14, "aten::_local_scalar_dense", READ, [z], [1.0]),
        )
    )
    device = "@ cuda:0 compute"

    assert {f"aten::{name}" for name in ("mm", "relu_", "copy_", "mul")} == {
        a for a, _ in edges(graph, EdgeKind.LAUNCH)
    }
    assert {(f"aten::copy_ {device}", "aten::mul")} == edges(graph, EdgeKind.SYNC)
    assert (f"aten::mul {device}", "aten::_local_scalar_dense") in edges(graph, EdgeKind.DATA)
    assert {"aten::copy_"} == set(graph.tasks.strings("name").to_numpy()[graph.tasks["kind"] == Kind.COPY])
    assert [3, 1, 5] == [int((graph.tasks["kind"] == kind).sum()) for kind in (Kind.COMPUTE, Kind.COPY, Kind.HOST)]


def test_collectives_run_beside_and_a_wait_holds_the_stream_up(tmp_path):
    x, y = tensor(3, 4, device="cuda:0"), tensor(8, 9, device="cuda:0")
    schema = "c10d::allreduce_(Tensor[] tensors, int timeout) -> (Tensor[], int)"
    record = {"collective_name": "allreduce", "pg_name": "7", "dtype": "Float"}
    graph = load_execution_trace(
        written(
            tmp_path,
            node(10, "c10d::allreduce_", schema, [x, -1], [x]),
            node(11, "record_param_comms", "", [x, 41, "7"], [x], parent=10, **record),
            node(12, "nccl:all_reduce", "", [x], [], parent=11, scope=7),
            node(13, "record_param_comms", "", [41, "7"], [], collective_name="wait"),
            node(14, "aten::mm", MM, [y, y], [tensor(15, 16, device="cuda:0")]),
        )
    )
    comm = graph.tasks["kind"] == Kind.COMM

    assert [(64, 0, 41)] == [
        (graph.tasks["message_bytes"][row], graph.tasks["group"][row], graph.tasks["sequence"][row])
        for row in np.flatnonzero(comm)
    ]
    assert ["all_reduce"] == graph.tasks.strings("op").to_numpy()[comm].tolist()
    assert (ProcessGroup("7"),) == graph.meta.groups
    waited = ("record_param_comms @ cuda:0 communication", "aten::mm @ cuda:0 compute")
    assert {waited} == edges(graph, EdgeKind.SYNC)


def test_a_backward_thread_runs_while_its_caller_waits(tmp_path):
    threads = [*ROOTS, node(3, "[pytorch|profiler|execution_trace|thread]", parent=1, tid=2, scope=7)]
    engine = {"parent": 3, "tid": 2, "fw_tid": 1, "scope": 1, "seq_id": 5}
    graph = load_execution_trace(
        written(
            tmp_path,
            *threads,
            node(10, "## layer ##", scope=7),
            node(11, "aten::mm", MM, [X, W], [Y], parent=10, seq_id=5),
            node(20, "autograd::engine::evaluate_function: MmBackward0", **engine),
            node(
                21, "aten::mul", "aten::mul(Tensor a, Tensor b) -> Tensor", [Y, X], [tensor(22, 23)], parent=20, tid=2
            ),
            node(30, "Optimizer.step#SGD.step", scope=7),
            node(31, "aten::relu_", RELU_, [W], [W], parent=30),
            roots=False,
        )
    )
    phases = dict(zip(graph.tasks.strings("name").to_numpy(), graph.tasks["phase"].tolist(), strict=True))
    layers = dict(zip(graph.tasks.strings("name").to_numpy(), graph.tasks.strings("layer").to_numpy(), strict=True))

    assert {"aten::mm": Phase.FORWARD, "aten::mul": Phase.BACKWARD, "aten::relu_": Phase.UPDATE} == phases
    assert {"aten::mm": "layer", "aten::mul": "layer", "aten::relu_": ""} == layers
    turns = {("aten::mm", "aten::mul"), ("aten::mul", "aten::relu_")}
    assert turns <= edges(graph, EdgeKind.CONTROL)
    assert ("aten::mm", "aten::mul") in edges(graph, EdgeKind.DATA)


def test_steps_that_the_profiler_announces_are_iterations(tmp_path):
    steps = [node(10 * step, f"ProfilerStep#{step}", scope=7) for step in (5, 6)]
    inner = [node(10 * step + 1, "aten::mm", MM, [X, W], [tensor(8, step)], parent=10 * step) for step in (5, 6)]
    graph = load_execution_trace(written(tmp_path, *steps, *inner))

    assert [0, 1] == graph.tasks["iteration"].tolist()


def test_a_generated_kernel_may_write_any_of_its_arguments(tmp_path):
    x, y = tensor(3, 4, device="cuda:0"), tensor(8, 9, device="cuda:0")
    kernel = node(10, "triton_fused_0", "", [x, y], [], kernel_backend="triton", kernel_file="a.py")
    after = node(11, "aten::mm", MM, [y, y], [tensor(15, 16, device="cuda:0")])
    graph = load_execution_trace(written(tmp_path, kernel, after))

    assert {("triton_fused_0 @ cuda:0 compute", "aten::mm @ cuda:0 compute")} == edges(graph, EdgeKind.DATA)


def test_without_durations_it_says_so_and_predicts_nothing(tmp_path):
    graph = load_execution_trace(written(tmp_path, *STEP))

    assert {0} == set(graph.duration_ns.tolist())
    assert {"unmeasured"} == set(graph.tasks.strings("cost_source").to_numpy())
    assert graph.num_tasks == graph.meta.num_unmeasured_tasks == count_unmeasured_tasks(graph)
    assert f"no durations: all {graph.num_tasks} tasks are unmeasured" in str(explain(graph))
    with pytest.raises(InputError, match="takes no time"):
        whatif(graph, "amp")
    priced = graph.set_duration(graph.all_tasks, 5, "mine")
    assert 0 == count_unmeasured_tasks(priced)
    assert "unmeasured" not in str(explain(priced))


# --- recorded by this PyTorch -------------------------------------------------------------------------


RECORD = """
import sys
import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

folder = sys.argv[1]
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(4, 8)
for name in ("first", "second"):
    observer = ExecutionTraceObserver()
    observer.register_callback(f"{folder}/{name}.et.json")
    with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer) as profiler:
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(f"{folder}/{name}.kineto.json")
    observer.unregister_callback()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Both traces of three training steps, twice: in a process that never recorded before, and after that."""
    folder = tmp_path_factory.mktemp("recorded")
    # external ids of the first are those of the execution trace only where nothing was recorded before
    subprocess.run([sys.executable, "-c", RECORD, str(folder)], check=True, capture_output=True)
    return folder


def test_a_trace_of_today_has_the_dataflow_of_the_model(recorded):
    graph = load_execution_trace(recorded / "first.et.json")
    data = edges(graph, EdgeKind.DATA)

    assert {("aten::addmm", "aten::clamp_min"), ("aten::relu", "aten::addmm"), ("aten::mm", "aten::add_")} <= data
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE} <= set(graph.tasks["phase"].tolist())


def without_record_ids(path, target):
    """As older profilers wrote it."""
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        event.get("args", {}).pop("Record function id", None)
    target.write_text(json.dumps(trace))
    return target


@pytest.mark.parametrize(
    ("name", "is_old", "by"),
    [
        ("first", False, "record-function id"),
        ("second", False, "record-function id"),
        ("first", True, "record-function id"),
        ("second", True, "order"),
    ],
)
def test_the_kineto_trace_of_the_run_gives_every_duration(recorded, tmp_path, name, is_old, by):
    """No time inside operators is lost or counted twice."""
    kineto = recorded / f"{name}.kineto.json"
    kineto = without_record_ids(kineto, tmp_path / "old.json") if is_old else kineto
    graph = load_execution_trace(recorded / f"{name}.et.json", kineto=kineto)
    measured = load_kineto(kineto)

    assert 0 == count_unmeasured_tasks(graph)
    assert by == graph.meta.trace["joined"]["by"]
    assert 0 == graph.meta.trace["joined"]["operators of no node"]
    assert measured.duration_ns.sum() == graph.duration_ns.sum()


def test_verbs_take_the_kineto_trace_beside_an_execution_trace(recorded):
    trace, kineto = recorded / "second.et.json", recorded / "second.kineto.json"
    timed = windtunnel("explain", trace, "--kineto", kineto)
    untimed = windtunnel("explain", trace)
    refused = windtunnel("explain", kineto, "--kineto", kineto)
    absent = windtunnel("explain", trace, "--kineto", recorded / "second.kineto")

    assert "critical path" in timed.stdout
    assert "unmeasured" not in timed.stdout
    assert "unmeasured" in untimed.stdout
    assert (2, 2) == (refused.code, absent.code)
    assert "--kineto applies only to an execution trace" in refused.stderr
    assert f"there is no {recorded / 'second.kineto'}" in absent.stderr


def test_the_kineto_trace_of_another_run_is_refused(recorded, tmp_path):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    (tmp_path / "other.json").write_text(json.dumps({"traceEvents": [event]}))
    with pytest.raises(TraceError, match="operators are in both traces"):
        load_execution_trace(recorded / "first.et.json", kineto=tmp_path / "other.json")


# --- published ----------------------------------------------------------------------------------------

# nodes, without those of the process and of its threads
PUBLISHED = {
    "replay/chakra/host_et_1.0.2.json.gz": 261,
    "replay/execution_trace/linear_et_1.0.1.json.gz": 928,
    "replay/execution_trace/simple_add_et_1.0.1.json.gz": 36,
    "replay/execution_trace/torch_compile_et_1.1.1.json.gz": 18,
    "replay/kineto_dlrm_8ranks/et_rank0.json.gz": 1672,
}


@pytest.mark.parametrize(("name", "num_nodes"), PUBLISHED.items())
def test_published_traces_are_read_and_replayed_as_the_reference_does(name, num_nodes):
    graph = load_execution_trace(shared_path(name))
    random = np.random.default_rng(0).integers(0, 1000, graph.num_tasks)
    priced = graph.set_duration(graph.all_tasks, random)
    start, finish = reference_replay(priced)

    assert num_nodes == graph.meta.trace["num_nodes"]
    assert (start, finish) == (replay(priced).start_ns.tolist(), replay(priced).finish_ns.tolist())
    assert (graph.edges["src"] < graph.edges["dst"]).all()


def test_a_published_rank_takes_its_durations_from_its_kineto_trace():
    """Recorders that counted differently are joined by order; collectives keep their published sizes and times."""
    folder = shared_path("replay/kineto_dlrm_8ranks")
    graph = load_execution_trace(folder / "et_rank0.json.gz", kineto=folder / "rank0.json.gz")
    measured = load_kineto(folder / "rank0.json.gz")
    collective = graph.tasks["kind"] == Kind.COMM

    assert ("order", 1670) == tuple(graph.meta.trace["joined"][key] for key in ("by", "nodes"))
    assert 8 == collective.sum()
    assert measured.duration_ns[measured.select(kind=Kind.COMM)].tolist() == graph.duration_ns[collective].tolist()
    on_device = [one.resources["kind"][one.tasks["resource"]] == 1 for one in (measured, graph)]
    assert measured.duration_ns[on_device[0]].sum() == graph.duration_ns[on_device[1]].sum()
    expected = ["all_to_all"] * 4 + ["all_reduce", "all_to_all", "all_reduce", "all_reduce"]
    assert expected == graph.tasks.strings("op").to_numpy()[collective].tolist()


@pytest.mark.slow
def test_message_sizes_are_those_of_the_kernels():
    """Of the same program, recorded a few steps apart."""
    et = load_execution_trace(shared_path("replay/execution_trace/resnet_et_1.1.0.json.gz"))
    kineto = load_kineto(shared_path("replay/kineto/nccl_collectives_rank0_of_2.json.gz"))
    sizes = [graph.tasks["message_bytes"][graph.select(kind=Kind.COMM)].tolist() for graph in (et, kineto)]

    assert 21 == len(sizes[0])
    assert sizes[0] == sizes[1]


# --- bad files ----------------------------------------------------------------------------------------


def without(key):
    broken = copy.deepcopy(STEP[0])
    del broken[key]
    return broken


BAD = {
    "occurs more than once": [STEP[0], STEP[0]],
    "lies inside node 99, which is not there": [{**STEP[0], "id": 100, "ctrl_deps": 99}],
    "form a cycle": [{**STEP[0], "ctrl_deps": 11}, STEP[1]],
    "missing required field `name`": [without("name")],
    "missing required field `inputs`": [without("inputs")],
    "do not fit together": [{**STEP[0], "inputs": {**STEP[0]["inputs"], "shapes": []}}],
    "is no tensor": [node(10, "aten::mm", MM, [[3, -4, 0, 16, 4, "cpu"], W], [Y])],
    "its attributes are wrong": [{**STEP[0], "attrs": []}],
    "has no operators": [],
}


@pytest.mark.parametrize(("message", "nodes"), BAD.items())
def test_what_is_wrong_is_said_with_its_place(tmp_path, message, nodes):
    path = written(tmp_path, *nodes)
    with pytest.raises(TraceError, match=message) as error:
        load_execution_trace(path)
    assert str(path) in error.value.where


def test_an_unknown_schema_is_named_with_those_that_are_known(tmp_path):
    with pytest.raises(TraceError, match=r"schema '9\.9'") as error:
        load_execution_trace(written(tmp_path, *STEP, schema="9.9"))
    assert "1.1.1" in error.value.fix


def test_a_cut_file_says_at_which_byte(tmp_path):
    path = written(tmp_path, *STEP)
    whole = path.read_bytes()
    path.write_bytes(whole[:700])
    with pytest.raises(TraceError, match="cut off") as error:
        load_execution_trace(path)
    assert "byte 700" in error.value.where
    path.write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(TraceError, match="cut"):
        load_execution_trace(path)


@given(st.data())
def test_damaged_traces_are_a_graph_or_a_kind_error(tmp_path_factory, data):
    """Bytes cut out, values exchanged for others: never a traceback."""
    path = written(tmp_path_factory.mktemp("et"), *STEP)
    if data.draw(st.booleans()):
        text = path.read_bytes()
        begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        path.write_bytes(text[:begin] + data.draw(st.binary(max_size=4)) + text[end:])
    else:
        document = json.loads(path.read_text())
        values = st.sampled_from(
            [None, -1, 0, 7, 2**47, 2**63, 1.5, "x", "", [], {}, [[]], True, [3, 4, 0, 2**40, 4, "cpu"], [[2, 2], 1]]
        )
        place = document["nodes"][data.draw(st.integers(0, 6))]
        for _ in range(data.draw(st.integers(0, 6))):
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
                place[key] = data.draw(values)
                break
            place = place[key]
        path.write_text(json.dumps(document))
    with contextlib.suppress(TraceError, GraphError):
        load_execution_trace(path)


# --- how it is reached --------------------------------------------------------------------------------


def test_it_is_registered_and_recognized_by_its_content(tmp_path):
    from windtunnel.cli.files import open_graph

    path = written(tmp_path, *STEP)
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    kineto = tmp_path / "kineto.json"
    kineto.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))

    assert "execution-trace" in registry.all("source")
    assert [True, True, False] == [is_execution_trace(one) for one in (path, packed, kineto)]
    chakra = {"Id": 1, "Name": "a", "NodeType": 4, "data_deps": [], "ctrlDeps": [], "runtime": 5}
    (tmp_path / "chakra.json").write_text(json.dumps({"workload_graph": [chakra]}))

    assert "execution-trace" == open_graph(packed).meta.source
    assert "chakra" == open_graph(tmp_path / "chakra.json").meta.source
    assert "kineto" == open_graph(tmp_path).meta.source  # of a folder, those of the profiler
    with pytest.raises(InputError, match="apply only to a trace"):
        open_graph(path, window="step")


def test_every_published_trace_is_told_apart():
    folder = find_shared("replay")
    if folder is None:
        pytest.skip("public data is not here")
    found = {path.name for path in folder.rglob("*.json*") if is_execution_trace(path)}

    assert {path.rpartition("/")[2] for path in PUBLISHED} < found
    assert 9 == len(found)
