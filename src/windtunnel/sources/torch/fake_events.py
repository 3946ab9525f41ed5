"""A profile of a step on fake tensors, read as if it had been a real one.

In: events of a rich profile under fake tensors. Out: the same without what the fake tensors themselves did, each
operator below the program's own once, and with storages: a fake tensor's place in memory tells nothing, so a result
lies in the storage of an argument where the operator's schema says that it is a view of it, else in one of its own;
and a result that is an argument was made in place. What the fake tensors took tells nothing either, so every call takes
the same time: which tasks the graph has must not depend on this host.
Not here: the fake tensors (``sources.memory``), what operators do (``ops``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.dry.host_side import rename_for_device
from windtunnel.sources.memory.in_place import IN_PLACE_SCHEMAS
from windtunnel.sources.torch.ops import is_tensor_record, is_view
from windtunnel.sources.torch.profile import Events

__all__ = ["DISPATCH", "as_if_real"]

DISPATCH = "PythonDispatchMode"
_TICK_NS = 1_000_000  # far longer than what the profiler's own cost is taken for
_FRESH = 1 << 40  # storages made here: no tensor's own number is as large
Node = dict[str, Any]


def as_if_real(events: Events, marks: tuple[str, ...] = ()) -> Events:
    """Drop what fake tensors did, and give every tensor its storage and every call one time.

    Parameters
    ----------
    events : Events
    marks : tuple of str
        How the names of marks begin, which are no calls and take no time.
    """
    kept = np.flatnonzero(~_inside_dispatch(events))
    columns = ("start_ns", "end_ns", "thread", "sequence", "forward_thread", "record_id")
    named = {name: getattr(events, name)[kept] for name in columns}
    seen = replace(events, names=[events.names[row] for row in kept.tolist()], **named, nodes={})
    nodes = {item: events.nodes[item] for item in seen.record_id.tolist() if item in events.nodes}
    seen = replace(seen, nodes=_nest_nodes(seen, nodes))
    _Storages().assign(seen)
    return _with_even_times(seen, np.array([name.startswith(marks) for name in seen.names], dtype=bool))


def _inside_dispatch(events: Events) -> NDArray[np.bool_]:
    """The dispatch to Python and all that ends within it; a range that only begins there goes on after it."""
    hidden = np.zeros(len(events.names), dtype=bool)
    until: dict[int, int] = {}
    rows = zip(events.names, events.thread.tolist(), events.end_ns.tolist(), strict=True)
    for row, (name, thread, end_ns) in enumerate(rows):
        hidden[row] = name == DISPATCH or end_ns <= until.get(thread, -1)
        if name == DISPATCH:
            until[thread] = max(until.get(thread, -1), end_ns)
    return hidden


def _with_even_times(events: Events, is_mark: NDArray[np.bool_]) -> Events:
    """The same order of points, with a tick after entering each call, and one of Python after each outermost call."""
    #      A |---------------|    D |--|      before: whatever Python and the dispatch took
    #        B |---|  C |--|
    #      +A . +B . -B +C . -C -A . +D .     after: a dot is one tick
    start_ns, end_ns = np.zeros_like(events.start_ns), np.zeros_like(events.end_ns)
    memory_ns = events.memory_ns.copy()
    for thread in np.unique(events.thread).tolist():
        rows = np.flatnonzero(events.thread == thread)
        before, after = _write_times(events, rows, is_mark, start_ns, end_ns)
        own = events.memory_thread == thread
        memory_ns[own] = np.interp(memory_ns[own], before, after).astype(np.int64)
    return replace(events, start_ns=start_ns, end_ns=end_ns, memory_ns=memory_ns)


def _write_times(
    events: Events,
    rows: NDArray[np.int64],
    is_mark: NDArray[np.bool_],
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
) -> tuple[list[int], list[int]]:
    """Write the new times of one thread's events; old and new time of each point."""
    clock, depth = int(events.start_ns[rows[0]]), 0  # depth: calls that are open, without marks of modules
    before: list[int] = []
    after: list[int] = []
    stack: list[int] = []

    def leave(row: int) -> None:
        nonlocal clock, depth
        end_ns[row] = clock
        before.append(int(events.end_ns[row]))
        after.append(clock)
        if not is_mark[row]:
            depth -= 1
            clock += _TICK_NS * (depth <= 1)  # the iteration itself is open

    for row in rows.tolist():
        while stack and events.end_ns[stack[-1]] <= events.start_ns[row]:
            leave(stack.pop())
        start_ns[row] = clock
        before.append(int(events.start_ns[row]))
        after.append(clock)
        stack.append(row)
        if not is_mark[row]:
            depth += 1
            clock += _TICK_NS
    while stack:
        leave(stack.pop())
    return before, after


def _nest_nodes(events: Events, nodes: dict[int, Node]) -> dict[int, Node]:
    """The nodes, each below the nearest one that is still there."""
    result: dict[int, Node] = {}
    open_rows: dict[int, list[tuple[int, int]]] = {}  # by thread: (end, node id)
    for row, record_id in enumerate(events.record_id.tolist()):
        stack = open_rows.setdefault(int(events.thread[row]), [])
        while stack and stack[-1][0] <= events.start_ns[row]:
            stack.pop()
        node = nodes.get(record_id)
        if node is not None:
            result[record_id] = {**node, "ctrl_deps": stack[-1][1]} if stack else node
            stack.append((int(events.end_ns[row]), node["id"]))
    return result


class _Storages:
    """Which storage each tensor lies in, in the order in which operators end."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # tensor: storage
        self._made: dict[int, int] = {}  # tensor: row of the operator that made it
        self._count = _FRESH

    def assign(self, events: Events) -> None:
        """Write the storages into the nodes of the events."""
        begin = {item: row for row, item in enumerate(events.record_id.tolist())}
        points = sorted(
            [(int(events.start_ns[row]), 1, row, key) for key, row in begin.items()]
            + [(int(events.end_ns[row]), 0, -row, key) for key, row in begin.items()]
        )
        for _, is_begin, _, record_id in points:
            node = events.nodes.get(record_id)
            if node is None:
                continue
            if is_begin:
                for tensor in _tensors(node["inputs"]["values"]):
                    tensor[1] = self._of.setdefault(tensor[0], tensor[0])
            elif node["schema"]:
                row = begin[record_id]
                events.names[row] = rename_for_device(node) or events.names[row]
                if _make_in_place(node):
                    events.names[row] += "_"
                self._end(node, row)

    def _end(self, node: Node, row: int) -> None:
        given = {tensor[0]: tensor[1] for tensor in _tensors(node["inputs"]["values"])}
        viewed = next(iter(given.values()), None) if is_view(node["schema"]) else None
        for tensor in _tensors(node["outputs"]["values"]):
            is_known = tensor[0] in given or self._made.get(tensor[0], -1) > row
            if not is_known:  # neither an argument nor made by a call within
                self._count += viewed is None
                self._of[tensor[0]] = self._count if viewed is None else viewed
                self._made[tensor[0]] = row
            tensor[1] = self._of[tensor[0]]


def _make_in_place(node: Node) -> bool:
    """Let an operator that returned an argument be the one that changes its first argument; False of any other."""
    changed = next((tensor[0] for tensor in _tensors(node["outputs"]["values"])), None)
    inputs = node["inputs"]
    indices = [index for index, value in enumerate(inputs["values"]) if is_tensor_record(value) and value[0] == changed]
    if not indices or node["schema"] not in IN_PLACE_SCHEMAS:
        return False
    for column in inputs.values():  # a sum may lie in its second term
        column[0], column[indices[0]] = column[indices[0]], column[0]
    node["schema"], node["name"] = IN_PLACE_SCHEMAS[node["schema"]], f"{node['name']}_"
    return True


def _tensors(values: Any) -> Iterator[list[Any]]:
    for value in values:
        if is_tensor_record(value):
            yield value
        elif isinstance(value, list):
            yield from _tensors(value)
