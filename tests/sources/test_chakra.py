"""Chakra traces: exact on a published trace, byte-stable on our own, kind about bad files."""

import contextlib
import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_path
from tests.strategies import graphs
from windtunnel import registry
from windtunnel.errors import GraphError, TraceError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind
from windtunnel.simulate import replay
from windtunnel.sources.chakra.reader import load_chakra
from windtunnel.sources.chakra.wire import field_bytes, field_varint, varint
from windtunnel.sources.chakra.writer import save_chakra


def node(ids, name="op", kind=4, data=(), ctrl=(), duration_us=1, attrs=()):
    """One encoded node; attributes are (name, field number, value)."""
    body = field_varint(1, ids) + field_bytes(2, name.encode()) + field_varint(3, kind)
    body += b"".join(varint(4 << 3) + varint(dep) for dep in ctrl)  # one by one, as older writers do
    body += field_bytes(5, b"".join(map(varint, data))) if data else b""
    body += field_varint(7, duration_us)
    for attr, number, value in attrs:
        encoded = field_bytes(number, value) if isinstance(value, bytes) else varint(number << 3) + varint(value)
        body += field_bytes(10, field_bytes(1, attr.encode()) + encoded)
    return varint(len(body)) + body


def written(tmp_path, *nodes):
    path = tmp_path / "trace.et"
    path.write_bytes(varint(7) + field_bytes(1, b"0.0.4") + b"".join(nodes))
    return path


def unplaced(graph):
    return graph.with_columns(resource=np.full(graph.num_tasks, -1, np.int32))


CPU = (("is_cpu_op", 27, 1),)


# --- published ----------------------------------------------------------------------------------------


def test_the_published_trace_has_its_published_counts():
    graph = load_chakra(shared_path("replay/chakra/chakra.0.et.gz"))
    durations_us = graph.duration_ns // 1000
    on_cpu = graph.tasks["resource"] == 0

    assert (3664, 181_878) == (graph.num_tasks, graph.num_edges)
    assert {"COMP": 3643, "COMM_COLL": 21} == {
        name: int((graph.tasks.strings("chakra.node_type").to_numpy() == name).sum()) for name in ("COMP", "COMM_COLL")
    }
    assert (52_252, 329_543) == (durations_us[on_cpu].sum(), durations_us[~on_cpu].sum())
    assert 36_715 == durations_us[graph.tasks["resource"] == 2].sum()
    assert 5 == (np.diff(graph.predecessors_csr()[0]) == 0).sum()


def test_the_published_trace_replays_to_its_published_times():
    """The longest dependency path, and three first-in-first-out queues."""
    graph = load_chakra(shared_path("replay/chakra/chakra.0.et.gz"))

    assert 46_140_000 == replay(unplaced(graph)).makespan_ns
    assert 295_545_000 == replay(graph).makespan_ns


def test_protobuf_and_json_of_one_trace_give_one_replay():
    binary = load_chakra(shared_path("replay/chakra/chakra.0.et.gz"))
    text = load_chakra(shared_path("replay/chakra/chakra.0.json.gz"))

    assert replay(binary).finish_ns.tolist() == replay(text).finish_ns.tolist()


def test_the_published_trace_survives_writing_and_reading(tmp_path):
    graph = load_chakra(shared_path("replay/chakra/chakra.0.et.gz"))
    first = save_chakra(graph, tmp_path / "a.et")[0]
    again = load_chakra(first)

    assert graph.equals(again)
    assert first.read_bytes() == save_chakra(again, tmp_path / "b.et")[0].read_bytes()


def test_a_lowered_collective_keeps_its_sends_and_receives():
    graph = load_chakra(shared_path("replay/astra_sim/msccl/custom_allreduce.0.et.gz"))
    types = graph.tasks.strings("chakra.node_type").to_numpy()

    assert (14, 14, 7) == tuple(int((types == name).sum()) for name in ("COMM_SEND", "COMM_RECV", "COMP"))
    assert {131_072} == set(graph.tasks["message_bytes"][types != "COMP"].tolist())
    assert {7} == set(graph.tasks["chakra.comm_src"][types == "COMM_RECV"].tolist())
    assert {1} == set(graph.tasks["chakra.comm_dst"][types == "COMM_SEND"].tolist())
    assert {7} == set(graph.tasks["peer"][types == "COMM_RECV"].tolist())
    assert {1} == set(graph.tasks["peer"][types == "COMM_SEND"].tolist())
    assert {-1} == set(graph.tasks["peer"][types == "COMP"].tolist())


# --- laws ---------------------------------------------------------------------------------------------


@given(graphs(joins=False, earliest=False, flows=False))
def test_any_graph_written_and_read_twice_is_stable(tmp_path_factory, graph):
    """Nanoseconds, lags and start-to-start edges included: the replay on unlimited resources is the same."""
    folder = tmp_path_factory.mktemp("chakra")
    once = load_chakra(save_chakra(graph, folder / "a.et")[0])
    twice = load_chakra(save_chakra(once, folder / "b.et")[0])

    assert once.equals(twice)
    assert (folder / "b.et").read_bytes() == save_chakra(twice, folder / "c.et")[0].read_bytes()
    assert graph.duration_ns.tolist() == once.duration_ns.tolist()
    assert replay(unplaced(graph)).finish_ns.tolist() == replay(unplaced(once)).finish_ns.tolist()


@given(st.binary(max_size=200))
def test_random_bytes_are_a_trace_or_a_kind_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("chakra") / "x.et"
    path.write_bytes(data)
    with contextlib.suppress(TraceError, GraphError):
        load_chakra(path)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_byte_gives_a_trace_or_a_kind_error(tmp_path_factory, at, value):
    folder = tmp_path_factory.mktemp("chakra")
    path = written(folder, *(node(i, data=[i - 1] if i else (), attrs=CPU) for i in range(20)))
    data = bytearray(path.read_bytes())
    data[at % len(data)] = value
    path.write_bytes(bytes(data))
    with contextlib.suppress(TraceError, GraphError):
        load_chakra(path)


# --- reading ------------------------------------------------------------------------------------------


def test_nodes_run_on_three_queues(tmp_path):
    graph = load_chakra(
        written(
            tmp_path,
            node(1, "aten::mm(0)", attrs=CPU),
            node(2, "gemm", data=[1]),
            node(3, "nccl", kind=7, data=[2], attrs=(("comm_type", 9, 0), ("comm_size", 13, 1024))),
            node(4, "c10d::all_reduce", kind=7, attrs=CPU),
        )
    )

    assert [0, 1, 2, 0] == graph.tasks["resource"].tolist()
    assert [Kind.HOST, Kind.COMPUTE, Kind.COMM, Kind.HOST] == graph.tasks["kind"].tolist()
    assert ["aten::mm", "gemm", "all_reduce", "c10d::all_reduce"] == graph.tasks.strings("op").to_numpy().tolist()
    assert [0, 0, 1024, 0] == graph.tasks["message_bytes"].tolist()


def test_rows_follow_node_ids_whatever_the_order_in_the_file(tmp_path):
    graph = load_chakra(written(tmp_path, node(9, "late"), node(2, "early", data=[9])))

    assert [2, 9] == graph.tasks["order"].tolist()
    assert (1, 0) == (graph.edges["src"][0], graph.edges["dst"][0])


def test_control_dependencies_are_edges_if_all_their_nodes_are_there(tmp_path):
    graph = load_chakra(written(tmp_path, node(1), node(2, ctrl=[1])))

    assert [EdgeKind.CONTROL] == graph.edges["kind"].tolist()


def test_control_dependencies_on_absent_callers_tell_of_the_call_tree(tmp_path):
    graph = load_chakra(written(tmp_path, node(10, ctrl=[3]), node(11, ctrl=[10])))

    assert 0 == graph.num_edges
    assert [3, 10] == graph.tasks["parent"].tolist()


def test_what_is_not_kept_is_counted(tmp_path):
    body = field_varint(1, 1) + field_varint(3, 4) + field_bytes(8, b"") + field_bytes(9, b"")
    graph = load_chakra(written(tmp_path, varint(len(body)) + body))

    assert {"tensor descriptions": 2} == graph.meta.trace["dropped"]


def test_device_tasks_keep_their_consumers_in_an_export(tmp_path):
    """An exported kernel that nothing waits for would let a simulator start the next step too early."""
    builder = GraphBuilder()
    kernel, sync = builder.task("kernel", duration_ns=1500), builder.task("sync", kind=Kind.HOST, duration_ns=100)
    builder.edge(kernel, sync, kind=EdgeKind.SYNC)
    graph = load_chakra(save_chakra(builder.build(), tmp_path / "a.et")[0])

    assert [1500, 100] == graph.duration_ns.tolist()
    assert 1600 == replay(graph).makespan_ns


def test_the_source_is_registered():
    assert load_chakra is registry.get("source", "chakra").function


# --- bad files ----------------------------------------------------------------------------------------


def test_a_file_cut_in_the_middle_names_the_byte(tmp_path):
    path = written(tmp_path, node(1), node(2))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(TraceError, match=rf"ends inside a message\n  where: .*byte {size - len(node(2)):,} of"):
        load_chakra(path)


def test_a_cut_gzip_file_names_the_byte(tmp_path):
    path = tmp_path / "trace.et.gz"
    path.write_bytes(gzip.compress(written(tmp_path, *(node(i) for i in range(99))).read_bytes())[:-20])
    with pytest.raises(TraceError, match=rf"gzip file is cut\n  where: .*byte {path.stat().st_size}"):
        load_chakra(path)


def test_a_dependency_on_an_absent_node_names_both(tmp_path):
    with pytest.raises(TraceError, match=r"node 2 depends on node 77, which is not there\n.*'reader'"):
        load_chakra(written(tmp_path, node(1), node(2, "reader", data=[77])))


def test_an_unknown_node_type_lists_the_known_ones(tmp_path):
    with pytest.raises(TraceError, match=r"(?s)node 1 has the unknown type 42.*7 COMM_COLL"):
        load_chakra(written(tmp_path, node(1, kind=42)))


def test_a_cycle_is_named(tmp_path):
    with pytest.raises(GraphError, match=r"(?s)cycle of 2 tasks.*'ping'"):
        load_chakra(written(tmp_path, node(1, "ping", data=[2]), node(2, "pong", data=[1])))


def test_an_id_that_occurs_twice_is_refused(tmp_path):
    with pytest.raises(TraceError, match="node id 5 occurs 2 times"):
        load_chakra(written(tmp_path, node(5), node(5)))


def test_a_file_without_nodes_is_refused(tmp_path):
    with pytest.raises(TraceError, match="there are no nodes"):
        load_chakra(written(tmp_path))


def test_an_empty_or_missing_file_is_refused(tmp_path):
    (tmp_path / "empty.et").write_bytes(b"")
    with pytest.raises(TraceError, match="the file is empty"):
        load_chakra(tmp_path / "empty.et")
    with pytest.raises(TraceError, match="No such file"):
        load_chakra(tmp_path / "absent.et")


def test_a_torch_execution_trace_is_told_from_a_chakra_graph(tmp_path):
    path = tmp_path / "et.json"
    path.write_text(json.dumps({"schema": "1.0.2", "nodes": []}))
    with pytest.raises(TraceError, match="PyTorch execution trace"):
        load_chakra(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"Id": "x"}, "Id 'x' is not a whole number"),
        ({"Id": 1, "NodeType": 4, "runtime": -5}, "runtime -5 is no time"),
        ({"Id": 1, "NodeType": 4, "runtime": 1e300}, "is no time"),
        ({"Id": 1, "NodeType": 4, "data_deps": ["a"]}, "dependency 'a' is not a whole number"),
        ({"Id": 1, "NodeType": 4, "data_deps": 7}, "data_deps 7 is not a list"),
    ],
)
def test_a_wrong_value_in_json_names_the_node(tmp_path, row, message):
    path = tmp_path / "chakra.json"
    path.write_text(json.dumps({"workload_graph": [row]}))
    with pytest.raises(TraceError, match=message):
        load_chakra(path)


@pytest.mark.parametrize("name", ["comm_tag", "comm_size", "is_cpu_op", "comm_type", "duration_ns", "comm_dst"])
@pytest.mark.parametrize(("number", "value"), [(29, b"text"), (10, field_bytes(1, b"\x01\x02"))])
def test_an_attribute_of_another_type_names_the_node(tmp_path, name, number, value):
    with pytest.raises(TraceError, match=rf"attribute {name} of node 1 is .* instead of a whole number\n.*'sender'"):
        load_chakra(written(tmp_path, node(1, "sender", 5, attrs=[(name, number, value)])))


def test_damaged_json_is_refused(tmp_path):
    path = tmp_path / "chakra.json"
    path.write_text('{"workload_graph": [')
    with pytest.raises(TraceError, match=r"this is no JSON: Expecting value\n  where: .*line 1, column 21"):
        load_chakra(path)


def test_hostile_names_survive_a_round_trip(tmp_path):
    names = ["<script>", "../../etc", "a\x00b\x1b[31m", "ü" * 10_000]
    graph = load_chakra(written(tmp_path, *(node(i + 1, name) for i, name in enumerate(names))))

    assert names == load_chakra(save_chakra(graph, tmp_path / "b.et")[0]).tasks.strings("name").to_numpy().tolist()
