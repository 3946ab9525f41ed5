"""The critical path of a trace as HolisticTraceAnalysis defines it: a mode for comparison (benchmarks).

In: a trace, a window. Out: nodes, weighted edges and the heaviest path, by exactly that tool's rules. It shows what
bounded the recorded run; it cannot predict, because the waits that it saw are weights. Predictions come from
`load_kineto` and `replay`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.hta_edges import DEVICE, Events, Node, all_edges
from windtunnel.errors import TraceError
from windtunnel.sources.kineto.trace import event_label, read_trace

__all__ = ["EDGE_TYPES", "HtaPath", "hta_critical_path"]

EDGE_TYPES = ("operator", "dependency", "launch", "kernel-kernel", "sync")
BOUNDS = (
    "cpu_bound",
    "data_loading",
    "gpu_compute_bound",
    "gpu_communication_bound",
    "gpu_kernel_kernel_overhead",
    "gpu_kernel_launch_overhead",
)


@dataclass(frozen=True, slots=True, eq=False)
class HtaPath:
    """The graph of a window and the heaviest path through it.

    Parameters
    ----------
    node_event : int64 [N]
        ``traceEvents`` index of each node's event; nodes are in order of time.
    node_is_end : bool [N]
    edges : int64 [E, 2]
        Rows into the nodes.
    edge_type : int8 [E]
        Position in ``EDGE_TYPES``.
    weight_ns : int64 [E]
    path : int64 [P]
        Rows of the path's edges, first to last.
    length_ns, window_ns : int
        Length of the path, and of the window.
    shares : mapping
        Share of the path's length per kind of bound; sums to 1.
    """

    node_event: NDArray[np.int64]
    node_is_end: NDArray[np.bool_]
    edges: NDArray[np.int64]
    edge_type: NDArray[np.int8]
    weight_ns: NDArray[np.int64]
    path: NDArray[np.int64]
    length_ns: int
    window_ns: int
    shares: dict[str, float]

    def __repr__(self) -> str:
        return (
            f"HtaPath({self.length_ns / 1000:,.0f} of {self.window_ns / 1000:,.0f} µs, {len(self.path):,} edges, "
            f"{len(self.events):,} events)"
        )

    @property
    def path_nodes(self) -> NDArray[np.int64]:
        """Rows of the nodes on the path, first to last."""
        return np.append(self.edges[self.path, 0], self.edges[self.path[-1:], 1])

    @property
    def events(self) -> NDArray[np.int64]:
        """``traceEvents`` indices of the events on the path, sorted."""
        return np.unique(self.node_event[self.path_nodes])

    def count(self, edges: NDArray[np.int64] | None = None) -> dict[str, int]:
        """Number of edges of each type: of the whole graph, or of the given rows."""
        types = self.edge_type if edges is None else self.edge_type[edges]
        return {name: int((types == code).sum()) for code, name in enumerate(EDGE_TYPES)}

    def weight(self, source: tuple[int, bool], target: tuple[int, bool]) -> int | None:
        """Weight in ns of the edge between two (event index, is its end) points; None if there is none."""
        points = list(zip(self.node_event.tolist(), self.node_is_end.tolist(), strict=True))
        for row, (u, v) in enumerate(self.edges.tolist()):
            if points[u] == source and points[v] == target:
                return int(self.weight_ns[row])
        return None


def hta_critical_path(
    path: str | Path,
    *,
    window: str = "",
    occurrence: int | None = None,
    zero_weight_launch_edges: bool = True,
) -> HtaPath:
    """Find the critical path of a trace by the rules of HolisticTraceAnalysis.

    Parameters
    ----------
    path : str or Path
        A Kineto trace.
    window : str
        Part of the name of an annotation; the whole trace if empty.
    occurrence : int, optional
        Which of the annotations, from 0; all of them by default.
    zero_weight_launch_edges : bool
        Also join each launch to its kernel where the launch did not decide the kernel's start.

    Raises
    ------
    TraceError
        The trace cannot be read, or has no such annotation.

    References
    ----------
    HolisticTraceAnalysis, Meta Platforms (critical path analysis).
    """
    events = Events(read_trace(path), window, occurrence)
    edges: dict[tuple[Node, Node], tuple[int, int]] = {}
    for source, target, kind, weight in all_edges(events, zero_weight_launch_edges):
        edges[source, target] = (EDGE_TYPES.index(kind), weight)
    return _heaviest(events, edges)


def _heaviest(events: Events, edges: dict[tuple[Node, Node], tuple[int, int]]) -> HtaPath:
    """Longest path by weight; of equally long ones the path through the earliest nodes."""
    nodes = sorted(
        ((i, side) for i in events.with_nodes for side in (0, 1)),
        key=lambda node: (events.time(node), events.index[node[0]], node[1]),
    )
    row_of = {node: row for row, node in enumerate(nodes)}
    pairs = np.array([(row_of[u], row_of[v]) for u, v in edges], np.int64).reshape(-1, 2)
    types = np.array([kind for kind, _ in edges.values()], np.int8)
    weights = np.maximum(np.array([weight for _, weight in edges.values()], np.int64), 0)
    path, length_ns = _longest_path(
        pairs, weights, len(nodes), [event_label(events.index[i], events.name[i]) for i, _ in nodes]
    )
    return HtaPath(
        node_event=np.array([events.index[i] for i, _ in nodes], np.int64),
        node_is_end=np.array([side == 1 for _, side in nodes], bool),
        edges=pairs,
        edge_type=types,
        weight_ns=weights,
        path=path,
        length_ns=length_ns,
        window_ns=events.finish - events.begin,
        shares=_shares(events, [nodes[v] for v in pairs[path, 1]], types[path], weights[path]),
    )


def _longest_path(
    pairs: NDArray[np.int64], weights: NDArray[np.int64], num_nodes: int, labels: list[str]
) -> tuple[NDArray[np.int64], int]:
    incoming: list[list[int]] = [[] for _ in range(num_nodes)]
    outgoing: list[list[int]] = [[] for _ in range(num_nodes)]
    for row, (u, v) in enumerate(pairs.tolist()):
        incoming[v].append(row)
        outgoing[u].append(row)
    left = [len(rows) for rows in incoming]
    ready = [node for node in range(num_nodes) if not left[node]]
    distance = [0] * num_nodes
    best = [-1] * num_nodes
    source, weight = pairs[:, 0].tolist(), weights.tolist()
    for node in ready:  # grows while it is walked
        if incoming[node]:
            best[node] = max(incoming[node], key=lambda row: (distance[source[row]] + weight[row], -source[row]))
            distance[node] = distance[source[best[node]]] + weight[best[node]]
        for row in outgoing[node]:
            target = int(pairs[row, 1])
            left[target] -= 1
            if not left[target]:
                ready.append(target)
    if len(ready) < num_nodes:
        raise _circle(incoming, source, [count > 0 for count in left], labels)
    node = max(range(num_nodes), key=lambda row: (distance[row], -row), default=-1)
    length = distance[node] if node >= 0 else 0
    path = []
    while node >= 0 and best[node] >= 0:
        path.append(best[node])
        node = source[best[node]]
    return np.array(path[::-1], np.int64), length


def _circle(incoming: list[list[int]], source: list[int], is_stuck: list[bool], labels: list[str]) -> TraceError:
    """An error that names nodes which wait for each other: walk back from a stuck node until one comes again."""
    seen: dict[int, int] = {}
    node = is_stuck.index(True)
    while node not in seen:
        seen[node] = len(seen)
        node = next(source[row] for row in incoming[node] if is_stuck[source[row]])
    circle = [labels[one] for one, place in seen.items() if place >= seen[node]][::-1]
    return TraceError(
        f"{len(circle)} starts and ends of events wait for each other in a circle",
        where=" -> ".join(circle[:5]) + (" -> ..." if len(circle) > 5 else f" -> {circle[0]}"),
        fix="the clocks of the trace contradict each other; capture again",
    )


def _shares(
    events: Events, targets: list[Node], types: NDArray[np.int8], weights: NDArray[np.int64]
) -> dict[str, float]:
    sums = dict.fromkeys(BOUNDS, 0)
    for (event, _), kind, weight in zip(targets, types.tolist(), weights.tolist(), strict=True):
        sums[_bound(events, event, EDGE_TYPES[kind])] += weight
    total = sum(sums.values()) or 1
    return {bound: value / total for bound, value in sums.items()}


def _bound(events: Events, event: int, kind: str) -> str:
    if kind == "kernel-kernel":
        return "gpu_kernel_kernel_overhead"
    if kind == "launch":
        return "gpu_kernel_launch_overhead"
    if events.cat[event] in DEVICE:
        return "gpu_communication_bound" if "nccl" in events.name[event].lower() else "gpu_compute_bound"
    return "data_loading" if "DataLoader" in events.name[event] else "cpu_bound"
