"""An execution trace and the Kineto trace of the same run as one timeline.

In: nodes and the path of a Kineto trace. Out: the trace's ``Events``, whose operators have schemas, all arguments, the
bytes that they move and who reads what whom wrote. Joined by record-function id where the Kineto trace has it, else by
the order of the operators on each thread; names must agree.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import TraceError
from windtunnel.sources.execution_trace.nodes import Document, Node
from windtunnel.sources.execution_trace.order import find_parents, lay_out
from windtunnel.sources.execution_trace.work import Work, describe_nodes
from windtunnel.sources.kineto.events import to_events
from windtunnel.sources.kineto.trace import Trace, read_trace
from windtunnel.sources.timeline.events import MISSING, Category, Events, OperatorRecords
from windtunnel.sources.torch.annotate import Discovery
from windtunnel.sources.torch.dataflow import Flow, trace_flow
from windtunnel.sources.torch.ops import Role
from windtunnel.sources.torch.profile import execution_nodes
from windtunnel.sources.torch.same_operators import add_program, find_parameters
from windtunnel.sources.torch.timeline_points import match_in_order

__all__ = ["join_by_id", "read_events"]

# N nodes, O records
Int = NDArray[np.int64]
_MIN_JOINED_RATIO = 0.9
_BY_ID = "record-function id"
_FLAT = "1.0.1"  # a schema without results' strides and schemas of operators
_TEXTS = ("schema", "shapes", "dtypes", "strides", "arguments")


def read_events(
    document: Document, path: Path, read_limit: int | None = None, progress: Progress | None = None
) -> tuple[Events, dict[str, Any], dict[str, Any]]:
    """Read the events of the Kineto trace at ``path``, with what the nodes say of them; the program; the join.

    Raises
    ------
    TraceError
        Fewer than nine of ten operators are in both: they are not of one run.
    """
    trace = read_trace(path, read_limit=read_limit, progress=progress)
    events = to_events(trace)
    rows = np.flatnonzero((events.category == Category.OPERATOR) | (events.category == Category.ANNOTATION))
    rows = rows[np.lexsort((-events.duration_ns[rows], events.start_ns[rows], events.thread[rows]))]
    joins = {_BY_ID: _by_id(trace, rows, document.nodes), "order": {}}
    if len(joins[_BY_ID]) < _MIN_JOINED_RATIO * len(document.nodes):
        joins["order"] = _by_order(trace, rows, document.nodes)
    how = max(joins, key=lambda name: len(joins[name]))
    node_of = joins[how]  # trace row -> node
    if len(node_of) < _MIN_JOINED_RATIO * len(document.nodes):
        raise TraceError(
            f"only {len(node_of):,} of {len(document.nodes):,} operators are in both traces",
            where=f"{document.path} and {path}",
            fix="record both in one run, over the same steps: profile(..., execution_trace_observer=...)",
        )
    num_operators = int((events.category == Category.OPERATOR).sum())
    num_joined = int((events.category[list(node_of)] == Category.OPERATOR).sum())
    joined = {"by": how, "nodes": len(node_of), "operators of no node": num_operators - num_joined}
    events = replace(events, operators=_records_of(document, node_of))
    program: dict[str, Any] = {}
    has_steps = any(name.startswith("ProfilerStep#") for name in events.names)
    if how == _BY_ID and has_steps and not document.schema.startswith(_FLAT):
        nodes = execution_nodes(document.path)
        events, program = add_program(trace, events, nodes | find_parameters(nodes), Discovery())
    return events, program, joined


def join_by_id(trace: Trace, events: Events, document: Document) -> Events:
    """The events with what the nodes of the same numbers say of them."""
    node_of = _by_id(trace, np.arange(trace.num_rows), document.nodes)
    return replace(events, operators=_records_of(document, node_of))


def _records_of(document: Document, node_of: dict[int, int]) -> OperatorRecords:
    """Records of the rows of ``node_of``, in the order of the rows."""
    parent, _ = find_parents(document.nodes)
    works = describe_nodes(document, parent)
    points = lay_out(document.nodes, parent)
    main = points.leave - 1  # the own work of an operator comes after what it called
    flow = trace_flow(points, [work.operator for work in works], main.tolist())
    node_of_slice = dict(zip(main.tolist(), range(len(works)), strict=True))
    kept = [(row, node) for row, node in sorted(node_of.items()) if _is_described(document.nodes[node], works[node])]
    texts: dict[str, int] = {"": 0}
    codes = [[texts.setdefault(getattr(works[node].operator, name), len(texts)) for name in _TEXTS] for _, node in kept]
    columns: Any = np.array(codes, np.int32).reshape(-1, len(_TEXTS)).T
    slices = main[[node for _, node in kept]].tolist()
    place = {node: index for index, (_, node) in enumerate(kept)}
    source, target, size_bytes = _edges(flow, node_of_slice, place)
    return OperatorRecords(
        row=np.array([row for row, _ in kept], np.int32),
        **dict(zip(_TEXTS, columns, strict=True)),
        flops=np.array([works[node].operator.flops for _, node in kept], np.int64),
        bytes_read=np.array([flow.bytes_read.get(index, 0) for index in slices], np.int64),
        bytes_written=np.array([flow.bytes_written.get(index, 0) for index in slices], np.int64),
        node=np.array([document.nodes[node].id for _, node in kept], np.int64),
        computes=np.array([works[node].operator.role is Role.COMPUTE for _, node in kept], np.int8),
        source=source,
        target=target,
        size_bytes=size_bytes,
        texts=tuple(texts),
    )


def _is_described(node: Node, work: Work) -> bool:
    return bool(node.schema) or work.operator.role is Role.COMPUTE


def _edges(flow: Flow, node_of_slice: dict[int, int], place: dict[int, int]) -> tuple[Any, Any, Any]:
    """Source, target and bytes of what records read of each other; -1 bytes where one overwrites what another read."""
    pairs = [(writer, reader, size) for (writer, reader), size in flow.data.items()]
    pairs += [(reader, writer, -1) for reader, writer in sorted(flow.control)]
    known = [
        (place[node_of_slice[first]], place[node_of_slice[second]], size)
        for first, second, size in pairs
        if node_of_slice[first] in place and node_of_slice[second] in place
    ]
    rows = np.array(known, np.int64).reshape(-1, 3)
    return rows[:, 0].astype(np.int32), rows[:, 1].astype(np.int32), rows[:, 2]


def _by_id(trace: Trace, rows: Int, nodes: list[Node]) -> dict[int, int]:
    """Rows and nodes with one id and one name.

    Kineto keeps the execution trace's own id where that is recorded beside it. Older ones do not; their external id
    counts alike in a process that has recorded nothing before.
    """
    numbers = trace.argument("Record function id")
    if (numbers == MISSING).all():
        numbers = trace.external_id
    node_of = {node.record_id: index for index, node in enumerate(nodes)}
    pairs = {}
    for row, number in zip(rows.tolist(), numbers[rows].tolist(), strict=True):
        index = node_of.get(number, -1)
        if index >= 0 and nodes[index].name == trace.strings[trace.name[row]]:
            pairs[row] = index
    return pairs


def _by_order(trace: Trace, rows: Int, nodes: list[Node]) -> dict[int, int]:
    """Rows and nodes in the same place of a thread; each thread goes with the one whose names are most like its."""
    theirs = {thread: rows[trace.thread[rows] == thread] for thread in np.unique(trace.thread[rows]).tolist()}
    names = {thread: [trace.strings[code] for code in trace.name[its].tolist()] for thread, its in theirs.items()}
    pairs: dict[int, int] = {}
    for thread, count in Counter(node.thread for node in nodes).most_common():
        local = [index for index, node in enumerate(nodes) if node.thread == thread]
        requested = [nodes[index].name for index in local]
        likeness = {other: (Counter(requested) & Counter(name)).total() for other, name in names.items()}
        best = max(likeness, key=lambda other: (likeness[other], -len(names[other])), default=None)
        matched = None if best is None else match_in_order(requested, names.pop(best))
        if best is None or matched is None or not count:
            continue
        pairs |= {
            int(theirs[best][position]): index
            for index, position in zip(local, matched.tolist(), strict=True)
            if position >= 0
        }
    return pairs
