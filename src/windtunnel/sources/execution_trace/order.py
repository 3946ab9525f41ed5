"""When the operators of an execution trace began and ended, and what they are part of.

In: nodes, in the order in which they began. Out: points over all threads together (there are no times: ids count
beginnings, so an operator ends with the last that it called), and phase and layer of every event. The labels are
those of a timeline, whose names announce the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Phase
from windtunnel.sources.execution_trace.nodes import Document, Node
from windtunnel.sources.timeline.events import Category, Events, Sparse
from windtunnel.sources.timeline.host import Host, Labels, label_events
from windtunnel.sources.timeline.slices import fill_between
from windtunnel.sources.torch.timeline_points import Points

__all__ = ["find_parents", "label_nodes", "lay_out", "phases"]

# N nodes (= events)
Int = NDArray[np.int64]
_USER_SCOPE = 7
_MODULES = ("nn.Module: ", "wt:module:")


def find_parents(nodes: list[Node]) -> tuple[Int, Int]:
    """Event that each lies inside on its own thread [N], and the same with what called a backward pass [N]; or -1."""
    row = {node.id: event for event, node in enumerate(nodes)}
    parent = np.array([row.get(node.parent, -1) for node in nodes], np.int64)
    thread = np.array([node.thread for node in nodes], np.int64)
    own = np.where((parent >= 0) & (thread[parent] == thread), parent, -1)
    caller = np.array([row.get(node.forward_parent, -1) for node in nodes], np.int64)
    caller = np.where(caller < np.arange(len(nodes)), caller, -1)
    return own, np.where(parent >= 0, parent, caller)


def lay_out(nodes: list[Node], parent: Int) -> Points:
    """Enter and leave points of all events on one line."""
    count = len(nodes)
    last, depth = np.arange(count), np.zeros(count, np.int64)
    for event in range(count - 1, -1, -1):
        if parent[event] >= 0:
            last[parent[event]] = max(last[parent[event]], last[event])
    for event in np.flatnonzero(parent >= 0).tolist():
        depth[event] = depth[parent[event]] + 1
    # all enter in order; when the last inside has entered, the innermost leaves first
    begin = np.concatenate([np.arange(count), last])
    order = np.lexsort((np.concatenate([depth * 0, -depth]), np.repeat([0, 1], count), begin))
    index = np.empty(2 * count, np.int64)
    index[order] = np.arange(2 * count)
    owner = np.full(2 * count, -1, np.int64)
    owner[index[:count]] = np.arange(count)
    owner[index[count:]] = parent
    tokens = np.empty(2 * count, object)
    tokens[index] = [*(f"+{node.name}" for node in nodes), *(f"-{node.name}" for node in nodes)]
    return Points(tokens, np.arange(2 * count), owner, np.arange(count), parent, index[:count], index[count:])


def label_nodes(document: Document, parent: Int) -> Labels:
    """Phase and layer of every event, as of the operators of a Kineto trace."""
    nodes = document.nodes
    names = {name: code for code, name in enumerate(dict.fromkeys(node.name for node in nodes))}
    return label_events(_as_events(document, names), _as_host(nodes, parent))


def _as_events(document: Document, names: dict[str, int]) -> Events:
    nodes = document.nodes
    rows = np.arange(len(nodes), dtype=np.int32)
    return Events.of(
        path=str(document.path),
        category=[_category(node) for node in nodes],
        start_ns=rows,
        duration_ns=np.zeros(len(nodes)),
        name=[names[node.name] for node in nodes],
        names=tuple(names),
        sequence_number=Sparse(rows, np.array([node.sequence for node in nodes], np.int64)),
    )


def _as_host(nodes: list[Node], parent: Int) -> Host:
    rows, empty = np.arange(len(nodes), dtype=np.int32), np.empty(0, np.int32)
    times, flags = np.empty(0, np.int64), np.empty(0, bool)
    return Host(
        rows, np.array([_category(node) for node in nodes], np.uint8), parent.astype(np.int32),
        empty, empty, rows, empty, empty, times, times, flags, 0, -1,
    )  # fmt: skip


def _category(node: Node) -> Category:
    if node.name.startswith(_MODULES):
        return Category.MODULE
    is_annotation = node.scope == _USER_SCOPE and not node.schema
    return Category.ANNOTATION if is_annotation else Category.OPERATOR


def phases(nodes: list[Node], labels: Labels, order: Int) -> dict[int, int]:
    """Phase of the events ``order``: what lies between two of one phase on a thread belongs to it."""
    thread = np.array([nodes[event].thread for event in order.tolist()], np.int64)
    by_thread = np.argsort(thread, kind="stable")
    phase = labels.phase[order][by_thread].astype(np.int8)
    threads: Any = np.unique(thread, return_inverse=True)[1].reshape(-1).astype(np.int32)
    fill_between(threads[by_thread], phase, int(Phase.OTHER))
    return dict(zip(order[by_thread].tolist(), phase.tolist(), strict=True))
