"""Chakra execution traces -> graphs.

In: ``.et`` (protobuf) or JSON Chakra traces of one rank, packed or not. Out: a graph on the three queues on which such
traces are replayed (host, device compute, device communication), or on the resources of the graph that was written.
Not here: writing (``writer``), prices of collectives, several ranks in one graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.base.reading import format_value
from windtunnel.errors import TraceError
from windtunnel.graph import UNPLACED, EdgeKind, Graph, Meta, ProcessGroup, ResourceKind
from windtunnel.sources.chakra.fields import (
    COMM_TYPES,
    INTEGERS,
    NODE_TYPE,
    NODE_TYPES,
    OWN_INTEGERS,
    RESOURCES,
    WORK,
    kinds,
)
from windtunnel.sources.chakra.nodes import Nodes, read_head, read_nodes
from windtunnel.sources.chakra.resources import read_resources

__all__ = ["is_chakra_json", "load_chakra"]

Ints = NDArray[Any]

_QUEUES = (
    ("cpu", ResourceKind.HOST_THREAD),
    ("device compute", ResourceKind.STREAM),
    ("device communication", ResourceKind.STREAM),
)
_CPU, _COMPUTE, _COMM = range(3)
_COLL, _SEND, _RECV = (NODE_TYPES.index(name) for name in ("COMM_COLL", "COMM_SEND", "COMM_RECV"))
_MESSAGE_NAMES = {_SEND: "send", _RECV: "recv"}


def is_chakra_json(path: Path) -> bool:
    """Whether the file begins as a Chakra trace in JSON does; a file that cannot be read does not."""
    return b'"workload_graph"' in read_head(path)


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
    id is kept in the column ``parent``. A file that windtunnel wrote knows its resources, and gives them back.

    Parameters
    ----------
    path : str or Path
    read_limit : int, optional
        The most bytes of memory that reading may take (`windtunnel.base.reading.ReadLimit`).

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
    given = nodes.attrs.get("is_cpu_op", {})
    is_cpu = np.array([bool(given.get(row, 0)) for row in range(len(nodes.ids))], dtype=bool)
    is_comm = nodes.types >= _SEND
    # Chakra knows no resources. Without a note of ours, work is put onto three queues: CPU, compute, network.
    placed = np.where(is_cpu, _CPU, np.where(is_comm, _COMM, _COMPUTE))
    resources: dict[str, Any] = {
        "name": [name for name, _ in _QUEUES],
        "kind": [kind for _, kind in _QUEUES],
        "discipline": [0, 0, 0],
        "slots": [1, 1, 1],
    }
    if RESOURCES in nodes.about:
        resources = read_resources(nodes.about[RESOURCES], path)
        placed = _with_own(nodes, "resource", np.full(len(nodes.ids), UNPLACED))
    edges = np.concatenate([nodes.data_deps, nodes.ctrl_deps])
    edge_kinds = np.repeat([EdgeKind.DATA, EdgeKind.CONTROL], [len(nodes.data_deps), len(nodes.ctrl_deps)])
    order = np.lexsort((np.arange(len(edges)), edges[:, 0]))
    return Graph.from_columns(
        tasks={
            "name": nodes.names,
            "op": _operators(nodes),
            "kind": _with_own(nodes, "kind", kinds(nodes.types, is_cpu)),
            "resource": placed,
            "duration_ns": _exact_durations(nodes),
            "order": nodes.ids,
            NODE_TYPE: [NODE_TYPES[code] for code in nodes.types.tolist()],
            **_optional_columns(nodes),
        },
        edges={
            "src": edges[order, 1],
            "dst": edges[order, 0],
            "kind": edge_kinds[order],
            **_edge_columns(nodes, edges[order, 0]),
        },
        resources=resources,
        meta=Meta(source="chakra", trace={"file": path.name, "dropped": nodes.dropped}, groups=_groups(nodes)),
    )


def _check_attributes(path: Path, nodes: Nodes) -> None:
    """What should be a whole number is one."""
    for name in (*INTEGERS, *WORK, *OWN_INTEGERS, "is_cpu_op", "comm_type"):
        for row, value in nodes.attrs.get(name, {}).items():
            if not isinstance(value, int):
                raise TraceError(
                    f"attribute {name} of node {nodes.ids[row]} is {format_value(value)} instead of a whole number",
                    where=f"{path}: {nodes.names[row][:80]!r}",
                    fix="export it again",
                )


def _with_own(nodes: Nodes, attribute: str, column: Ints) -> Ints:
    """A column with what our own writer says of single nodes."""
    changed = column.astype(np.int64)
    for row, value in nodes.attrs.get(attribute, {}).items():
        changed[row] = value
    return changed


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
    """Chakra counts microseconds; files that this package wrote also store nanoseconds."""
    duration_ns = nodes.duration_ns.copy()
    for row, value in nodes.attrs.get("duration_ns", {}).items():
        duration_ns[row] = value
    return duration_ns


def _optional_columns(nodes: Nodes) -> dict[str, Any]:
    num_nodes = len(nodes.ids)
    columns: dict[str, Any] = {}
    for names, absent in ((INTEGERS, -1), (WORK, 0)):
        for attribute, column in names.items():
            if attribute in nodes.attrs:
                columns[column] = np.full(num_nodes, absent, dtype=np.int64)
                for row, value in nodes.attrs[attribute].items():
                    columns[column][row] = value
    for name in ("earliest_ns", "priority", "is_arrival_join"):
        if name in nodes.attrs:
            columns[name] = _with_own(nodes, name, np.zeros(num_nodes))
    if groups := _groups(nodes):
        number = {group.name: index for index, group in enumerate(groups)}
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
