"""Chakra execution traces -> graphs, and graphs -> ``.et`` files (room sources).

In: ``.et`` (protobuf) or JSON Chakra traces of one rank, packed or not. Out: a graph on the three queues on which such
traces are replayed (host, device compute, device communication), and back, byte-stable for what was written here.
Not here: prices of collectives, several ranks in one graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import TraceError
from windtunnel.graph import EdgeKind, Graph, Kind, Meta, ProcessGroup, ResourceKind
from windtunnel.outputs import replacing
from windtunnel.reading import shown
from windtunnel.sources.chakra._nodes import NODE_TYPES, Nodes, read_nodes, unpacked_head
from windtunnel.sources.chakra._wire import encode_varints, field_bytes, field_varint, varint

__all__ = ["COMM_TYPES", "is_chakra_json", "load_chakra", "save_chakra"]

Ints = NDArray[Any]

COMM_TYPES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter_block", "barrier",
)  # fmt: skip
_QUEUES = (
    ("cpu", ResourceKind.HOST_THREAD),
    ("device compute", ResourceKind.STREAM),
    ("device communication", ResourceKind.STREAM),
)
_CPU, _COMPUTE, _COMM = range(3)
_MEMORY_TYPES = (NODE_TYPES.index("MEM_LOAD"), NODE_TYPES.index("MEM_STORE"))
_METADATA, _COMP, _COLL = (NODE_TYPES.index(name) for name in ("METADATA", "COMP", "COMM_COLL"))
_SEND, _RECV = NODE_TYPES.index("COMM_SEND"), NODE_TYPES.index("COMM_RECV")
_FIRST_COMM = _SEND
_MESSAGE_NAMES = {_SEND: "send", _RECV: "recv"}
# attribute -> task column; a negative value stands for a node that lacks it
_OWN = ("comm_src", "comm_dst", "comm_priority", "stream", "tid")
_INTEGERS = {"comm_tag": "tag"} | {name: f"chakra.{name}" for name in _OWN}
_NODE_TYPE = "chakra.node_type"
_WORK = {"comm_size": "message_bytes", "num_ops": "flops"}
_INT64, _BOOL, _TEXT, _INT64_LIST = 9, 27, 29, 10


def is_chakra_json(path: Path) -> bool:
    """Whether the file begins as a Chakra trace in JSON does; a file that cannot be read does not."""
    return b'"workload_graph"' in unpacked_head(path)


@registry.source(
    "chakra",
    source="Chakra (MLCommons), arXiv 2305.14516; schema of et_def.proto",
    sniff=is_chakra_json,
    suffixes=(".et", ".et.gz"),
)
def load_chakra(path: str | Path, *, read_limit: int | None = None) -> Graph:
    """Load a Chakra trace of one rank: ``.et`` or its JSON form, ``.gz`` or not.

    Every node becomes a task, sorted by node id (column ``order``), so that first-in-first-out by (ready time, id) is
    by row. Host operators run on the resource ``cpu``, collectives and messages of the device on ``device
    communication``, all else on ``device compute``. Data dependencies become DATA edges, control dependencies CONTROL
    edges, unless some point to operators that the file leaves out: then they tell of the call tree, and the caller's
    id is kept in the column ``parent``.

    Parameters
    ----------
    path : str or Path
    read_limit : int, optional
        The most bytes of memory that reading may take (`windtunnel.reading.ReadLimit`).

    Returns
    -------
    Graph
        ``meta["trace"]`` counts what was not kept.

    Raises
    ------
    TraceError
        The file is cut (byte offset) or no Chakra trace, a node's type is unknown, its id is not unique, or it depends
        on a node that is not there.
    GraphError
        The dependencies form a cycle; names the nodes.
    """
    path = Path(path)
    nodes = read_nodes(path, read_limit)
    _check_attributes(path, nodes)
    is_cpu = _is_cpu(nodes)
    is_comm = nodes.types >= _FIRST_COMM
    edges = np.concatenate([nodes.data_deps, nodes.ctrl_deps])
    kinds = np.repeat([EdgeKind.DATA, EdgeKind.CONTROL], [len(nodes.data_deps), len(nodes.ctrl_deps)])
    order = np.lexsort((np.arange(len(edges)), edges[:, 0]))
    return Graph.from_columns(
        tasks={
            "name": nodes.names,
            "op": _operators(nodes),
            "kind": _kinds(nodes.types, is_cpu),
            "resource": np.where(is_cpu, _CPU, np.where(is_comm, _COMM, _COMPUTE)),
            "duration_ns": _exact_durations(nodes),
            "order": nodes.ids,
            _NODE_TYPE: [NODE_TYPES[code] for code in nodes.types.tolist()],
            **_optional_columns(nodes),
        },
        edges={
            "src": edges[order, 1],
            "dst": edges[order, 0],
            "kind": kinds[order],
            **_edge_columns(nodes, edges[order, 0]),
        },
        resources={
            "name": [name for name, _ in _QUEUES],
            "kind": [kind for _, kind in _QUEUES],
            "discipline": [0, 0, 0],
            "slots": [1, 1, 1],
        },
        meta=Meta(source="chakra", trace={"file": path.name, "dropped": nodes.dropped}, groups=_groups(nodes)),
    )


def _check_attributes(path: Path, nodes: Nodes) -> None:
    """What should be a whole number is one."""
    for name in (*_INTEGERS, *_WORK, "is_cpu_op", "comm_type", "duration_ns"):
        for row, value in nodes.attrs.get(name, {}).items():
            if not isinstance(value, int):
                raise TraceError(
                    f"attribute {name} of node {nodes.ids[row]} is {shown(value)} instead of a whole number",
                    where=f"{path}: {nodes.names[row][:80]!r}",
                    fix="export it again",
                )


def _is_cpu(nodes: Nodes) -> Ints:
    given = nodes.attrs.get("is_cpu_op", {})
    return np.array([bool(given.get(row, 0)) for row in range(len(nodes.ids))], dtype=bool)


def _kinds(types: Ints, is_cpu: Ints) -> Ints:
    kind = np.where(types >= _FIRST_COMM, Kind.COMM, Kind.COMPUTE)
    kind = np.where(np.isin(types, _MEMORY_TYPES), Kind.COPY, kind)
    return np.where(types == _METADATA, Kind.VIRTUAL, np.where(is_cpu, Kind.HOST, kind))


def _operators(nodes: Nodes) -> list[str]:
    """Operator families: the collective of a communication node, else the name without its number."""
    comm_type = nodes.attrs.get("comm_type", {})
    operators = [name.partition("(")[0] for name in nodes.names]
    for row, code in comm_type.items():
        if nodes.types[row] == _COLL and 0 <= code < len(COMM_TYPES):
            operators[row] = COMM_TYPES[code]
    for code, name in _MESSAGE_NAMES.items():
        for row in np.flatnonzero(nodes.types == code).tolist():
            operators[row] = name
    return operators


def _exact_durations(nodes: Nodes) -> Ints:
    """Chakra counts microseconds; what we wrote has the nanoseconds beside."""
    duration_ns = nodes.duration_ns.copy()
    for row, value in nodes.attrs.get("duration_ns", {}).items():
        duration_ns[row] = value
    return duration_ns


def _optional_columns(nodes: Nodes) -> dict[str, Any]:
    num_nodes = len(nodes.ids)
    columns: dict[str, Any] = {}
    for names, absent in ((_INTEGERS, -1), (_WORK, 0)):
        for attribute, column in names.items():
            if attribute in nodes.attrs:
                columns[column] = np.full(num_nodes, absent, dtype=np.int64)
                for row, value in nodes.attrs[attribute].items():
                    columns[column][row] = value
    if groups := _groups(nodes):
        number = {group.name: place for place, group in enumerate(groups)}
        columns["group"] = np.full(num_nodes, -1, dtype=np.int32)
        for row, name in nodes.attrs["pg_name"].items():
            columns["group"][row] = number[str(name)]
    if (peer := _peers(nodes)) is not None:
        columns["peer"] = peer
    if nodes.start_ns.any():
        columns["start_ns"] = nodes.start_ns
    if len(nodes.parents):
        columns["parent"] = np.full(num_nodes, -1, dtype=np.int64)
        columns["parent"][nodes.parents[::-1, 0]] = nodes.parents[::-1, 1]
    return columns


def _groups(nodes: Nodes) -> tuple[ProcessGroup, ...]:
    """Process groups in the order of their first node; Chakra names them and keeps their members elsewhere."""
    named = sorted(nodes.attrs.get("pg_name", {}).items())
    return tuple(ProcessGroup(name) for name in dict.fromkeys(str(name) for _, name in named))


def _peers(nodes: Nodes) -> Ints | None:
    """Whom each message goes to or comes from; None where no node is a message between two ranks."""
    peer = np.full(len(nodes.ids), -1, dtype=np.int64)
    for code, attribute in ((_SEND, "comm_dst"), (_RECV, "comm_src")):
        for row, rank in nodes.attrs.get(attribute, {}).items():
            peer[row] = rank if nodes.types[row] == code else peer[row]
    return peer if (peer >= 0).any() else None


def _edge_columns(nodes: Nodes, dst: Ints) -> dict[str, Any]:
    """Lags and start-to-start edges, which only our own files have: lists per node, in the order of its edges."""
    columns: dict[str, Any] = {}
    first = np.searchsorted(dst, np.arange(len(nodes.ids) + 1))
    for attribute, dtype in (("lag_ns", np.int64), ("from_start", np.bool_)):
        if attribute in nodes.attrs:
            columns[attribute] = np.zeros(len(dst), dtype=dtype)
            for row, values in nodes.attrs[attribute].items():
                room = columns[attribute][first[row] : first[row + 1]]
                if isinstance(values, list):
                    room[: len(values)] = values[: len(room)]
    return columns


# --- writing ------------------------------------------------------------------------------------------


def save_chakra(graph: Graph, path: str | Path) -> Path:
    """Write a graph as a Chakra ``.et`` file, whole or not at all.

    CONTROL edges become control dependencies, all others data dependencies, of device tasks too. What Chakra has no
    field for (nanoseconds, lags, start-to-start edges) is written as attributes that other tools skip.

    Parameters
    ----------
    graph : Graph
    path : str or Path

    Returns
    -------
    Path
        The file that was written.
    """
    path = Path(path)
    with replacing(path) as scratch, scratch.open("wb") as out:
        out.write(_delimited(field_bytes(1, b"0.0.4") + field_bytes(2, _text("schema", "windtunnel"))))
        for node in _encoded(graph):
            out.write(_delimited(node))
    return path


def _delimited(message: bytes) -> bytes:
    return varint(len(message)) + message


def _integer(name: str, value: int) -> bytes:
    # a member of a oneof is written even if it is 0
    return field_bytes(1, name.encode()) + varint(_INT64 << 3) + varint(value)


def _text(name: str, value: str) -> bytes:
    return field_bytes(1, name.encode()) + field_bytes(_TEXT, value.encode("utf-8", "replace"))


def _list(name: str, packed: bytes) -> bytes:
    return field_bytes(1, name.encode()) + field_bytes(_INT64_LIST, field_bytes(1, packed))


def _encoded(graph: Graph) -> list[bytes]:
    tasks = graph.tasks
    ids = _ids(graph)
    types, is_cpu = _types(graph), _runs_on_host(graph)
    dependencies = [_packed(graph, ids, is_control) for is_control in (True, False)]
    attributes = _attribute_columns(graph, types)
    names = tasks.strings("name")
    start_us = tasks["start_ns"] // 1000 if "start_ns" in tasks else np.zeros(graph.num_tasks, np.int64)
    parent = tasks.get("parent")
    nodes = []
    for row in range(graph.num_tasks):
        ctrl, data = dependencies[0][row], dependencies[1][row]
        if parent is not None and parent[row] >= 0 and not ctrl:
            ctrl = varint(int(parent[row]))
        duration_ns = int(tasks["duration_ns"][row])
        parts = [
            field_varint(1, int(ids[row])),
            field_bytes(2, names.decode(row).encode("utf-8", "replace")),
            field_varint(3, int(types[row])),
            field_bytes(4, ctrl) if ctrl else b"",
            field_bytes(5, data) if data else b"",
            field_varint(6, int(start_us[row])),
            field_varint(7, duration_ns // 1000),
            field_bytes(10, field_bytes(1, b"is_cpu_op") + varint(_BOOL << 3) + varint(int(is_cpu[row]))),
            field_bytes(10, _integer("duration_ns", duration_ns)) if duration_ns % 1000 else b"",
        ]
        parts += [field_bytes(10, column[row]) for column in attributes if column[row]]
        nodes.append(b"".join(parts))
    return nodes


def _ids(graph: Graph) -> Ints:
    """Node ids: those of the trace, if every task still has its own in rising order; else the rows."""
    order = graph.tasks.get("order")
    is_whole = order is not None and len(order) and order[0] >= 0 and (np.diff(order) > 0).all()
    return order if is_whole and order is not None else np.arange(graph.num_tasks, dtype=np.int64)


def _types(graph: Graph) -> Ints:
    by_kind = {Kind.COMM: _COLL, Kind.COPY: _MEMORY_TYPES[0], Kind.VIRTUAL: _METADATA, Kind.SYNC: _METADATA}
    types = np.array([by_kind.get(kind, _COMP) for kind in Kind])[graph.tasks["kind"]]
    if _NODE_TYPE in graph.tasks:
        given = graph.tasks.strings(_NODE_TYPE)
        codes = np.array([NODE_TYPES.index(text) if text in NODE_TYPES else 0 for text in given.values])[given.codes]
        types = np.where(codes > 0, codes, types)
    found: Ints = types
    return found


def _runs_on_host(graph: Graph) -> Ints:
    resource = graph.tasks["resource"]
    on_thread: Ints = np.append(graph.resources["kind"] == ResourceKind.HOST_THREAD, False)[resource]
    is_host: Ints = on_thread | ((graph.tasks["kind"] == Kind.HOST) & (resource < 0))
    return is_host


def _edges_by_task(graph: Graph, is_control: bool) -> tuple[Ints, Ints]:
    """Incoming edges of one sort: rows grouped by dst in row order, and where each task's group begins."""
    rows = np.flatnonzero((graph.edges["kind"] == EdgeKind.CONTROL) == is_control)
    dst = graph.edges["dst"][rows]
    rows = rows[np.argsort(dst, kind="stable")]
    return rows, np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=graph.num_tasks))])


def _packed(graph: Graph, ids: Ints, is_control: bool) -> list[bytes]:
    rows, indptr = _edges_by_task(graph, is_control)
    return encode_varints(ids[graph.edges["src"][rows]], indptr)


def _attribute_columns(graph: Graph, types: Ints) -> list[list[bytes]]:
    """Encoded attributes: per column one entry per task, empty where the task lacks it."""
    tasks, columns = graph.tasks, []
    if "op" in tasks:
        operators = tasks.strings("op")
        codes = np.array([COMM_TYPES.index(op) if op in COMM_TYPES else -1 for op in operators.values])[operators.codes]
        columns.append(
            [_integer("comm_type", code) if code >= 0 else b"" for code in np.where(types == _COLL, codes, -1).tolist()]
        )
    for names, least in ((_WORK, 1), (_INTEGERS, 0)):
        for attribute, column in names.items():
            if column in tasks:
                columns.append(
                    [_integer(attribute, value) if value >= least else b"" for value in tasks[column].tolist()]
                )
    if "group" in tasks and graph.meta.groups:
        named = [_text("pg_name", group.name) if group.name else b"" for group in graph.meta.groups]
        columns.append([named[place] if place >= 0 else b"" for place in tasks["group"].tolist()])
    return columns + [_edge_lists(graph, name) for name in ("lag_ns", "from_start") if name in graph.edges]


def _edge_lists(graph: Graph, name: str) -> list[bytes]:
    """Lags (or start flags) of each task's edges, data before control, as the reader will meet them."""
    data, control = _edges_by_task(graph, False)[0], _edges_by_task(graph, True)[0]
    rows = np.concatenate([data, control])
    dst = graph.edges["dst"][rows]
    rows = rows[np.argsort(dst, kind="stable")]
    values = graph.edges[name][rows].astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=graph.num_tasks))])
    packed = encode_varints(values, indptr)
    has_any = np.add.reduceat(np.append(values, 0), indptr[:-1]) * (np.diff(indptr) > 0)
    return [_list(name, packed[row]) if has_any[row] else b"" for row in range(graph.num_tasks)]
