"""What the engines need of a graph, as plain arrays (room simulate, private).

In: a graph. Out: a ``FixedOrder`` (tasks sorted topologically) or an ``EventInput`` (rows as they are), and which of
the two applies. Absent columns become their neutral value here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.errors import GraphError
from windtunnel.graph import UNPLACED, Discipline, Graph
from windtunnel.simulate._event import JOIN

__all__ = ["EventInput", "FixedOrder", "event_input", "fixed_order", "has_fixed_order"]

# T tasks, E edges, R resources, S measured users of a shared resource
Ints = NDArray[Any]

_LARGEST_NS = 2.0**61
_SMALLEST_SLOWDOWN = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class FixedOrder:
    """Tasks in topological order; position p holds task ``order[p]``."""

    order: Ints  # [T] int32, task at each position
    indptr: Ints  # [T+1] int64, incoming edges of each position
    source: Ints  # [E] int32, position of the predecessor, complemented for from_start
    lag: Ints  # [E] int64
    earliest: Ints  # [T] int64


@dataclass(frozen=True, slots=True, eq=False)
class EventInput:
    """Outgoing edges and resources for the event-driven engine; position p holds task ``order[p]``."""

    order: Ints  # [T] int32
    indptr: Ints  # [T+1] int64, outgoing edges of each position
    target: Ints  # [E] int32, position of the successor, complemented for from_start
    lag: Ints  # [E] int64
    priority: Ints | None  # [T] int32, None if the graph is plain
    state: Ints  # [T, 2] int64: earliest start, resource << 32 | indegree
    releases_at_start: Ints | None  # [T] bool, None if the graph is plain
    discipline: Ints  # [R]
    slots: Ints  # [R]
    slowdown_RS: Ints  # noqa: N815 - shape letters
    queue_base: Ints  # [R+1]
    num_events: int


def column(graph: Graph, name: str, dtype: type[np.generic]) -> Ints:
    """A task column as a fresh array [T], zero where the graph lacks it."""
    values = graph.tasks.get(name)
    return np.zeros(graph.num_tasks, dtype) if values is None else values.astype(dtype)


def edge_column(graph: Graph, name: str, dtype: type[np.generic]) -> Ints:
    """An edge column as a fresh array [E], zero where the graph lacks it."""
    values = graph.edges.get(name)
    return np.zeros(graph.num_edges, dtype) if values is None else values.astype(dtype)


def join_mask(graph: Graph) -> Ints:
    """Arrival joins, bool [T]."""
    return column(graph, "is_arrival_join", np.bool_)


@njit(cache=True, nogil=True)
def _permute_edges(
    order: Ints, row_indptr: Ints, edge_rows: Ints, other: Ints, lag: Ints, from_start: Ints
) -> tuple[Ints, Ints, Ints]:
    """Adjacency by position: ``other`` end of each edge as a position, complemented for from_start, and its lag."""
    num_tasks = order.size
    position = np.empty(num_tasks, dtype=np.int32)
    for p in range(num_tasks):
        position[order[p]] = p
    indptr = np.zeros(num_tasks + 1, dtype=np.int64)
    source = np.empty(other.size, dtype=np.int32)
    lag_out = np.empty(other.size, dtype=np.int64)
    filled = 0
    for p in range(num_tasks):
        v = order[p]
        for i in range(row_indptr[v], row_indptr[v + 1]):
            e = edge_rows[i]
            u = position[other[e]]
            source[filled] = ~u if from_start[e] else u
            lag_out[filled] = lag[e]
            filled += 1
        indptr[p + 1] = filled
    return indptr, source, lag_out


@njit(cache=True, nogil=True)
def _has_chain(indptr: Ints, source: Ints, resource: Ints, needs_chain: Ints) -> bool:
    """Whether on every resource that needs it each task ends before the next begins, by an edge of its own."""
    latest = np.full(needs_chain.size, -1, dtype=np.int64)
    for p in range(resource.size):
        r = resource[p]
        if r < 0 or not needs_chain[r]:
            continue
        if latest[r] >= 0:
            found = False
            for e in range(indptr[p], indptr[p + 1]):
                if source[e] == latest[r]:
                    found = True
                    break
            if not found:
                return False
        latest[r] = p
    return True


def fixed_order(graph: Graph) -> FixedOrder:
    """Sort the tasks topologically and permute everything, so that a pass streams through memory."""
    order = graph.topological_order().astype(np.int32)
    indptr, source, lag = _permute_edges(
        order, *_copies(graph.predecessors_csr()), edge_column(graph, "src", np.int32),
        edge_column(graph, "lag_ns", np.int64), edge_column(graph, "from_start", np.bool_),
    )  # fmt: skip
    return FixedOrder(order, indptr, source, lag, column(graph, "earliest_ns", np.int64)[order])


def has_fixed_order(graph: Graph, program: FixedOrder) -> bool:
    """Whether edges alone decide the order on every contended resource: nothing is left to decide at run time."""
    if join_mask(graph).any():
        return False
    resource = graph.tasks["resource"].astype(np.int32)
    users = np.bincount(resource[resource >= 0], minlength=graph.num_resources)
    slots = graph.resources["slots"]
    is_shared = graph.resources["discipline"] == Discipline.SHARED
    slowdown = graph.resources.get("slowdown")
    if slowdown is None:
        needs_chain = users > slots
    else:
        if (is_shared & (users > 0) & (slowdown[:, 0] != 1.0)).any():
            return False
        needs_chain = np.where(is_shared, users > 1, users > slots)
    return bool(_has_chain(program.indptr, program.source, resource[program.order], needs_chain))


def event_input(graph: Graph) -> EventInput:
    """Lay out outgoing edges, priorities and resources for the event-driven engine."""
    order = graph.topological_order().astype(np.int32)
    from_start = edge_column(graph, "from_start", np.bool_)
    indptr, target, lag = _permute_edges(
        order, *_copies(graph.successors_csr()), edge_column(graph, "dst", np.int32),
        edge_column(graph, "lag_ns", np.int64), from_start,
    )  # fmt: skip
    indegree = np.diff(graph.predecessors_csr()[0])
    is_join = join_mask(graph)
    resource = np.where(is_join, UNPLACED, graph.tasks["resource"]).astype(np.int64)
    users = np.bincount(resource[resource >= 0], minlength=graph.num_resources)
    is_join &= indegree > 0  # a join that waits for nothing is a task of no time
    discipline = graph.resources["discipline"].astype(np.int8)
    is_shared = discipline == Discipline.SHARED
    priority = _priority(graph, resource, discipline)
    # most graphs need none of these: the engine is compiled a second time without them, for speed
    is_plain = not (from_start.any() or is_join.any() or users[is_shared].any() or priority.any())
    state = np.empty((graph.num_tasks, 2), dtype=np.int64)
    state[:, 0] = np.where(join_mask(graph), 0, column(graph, "earliest_ns", np.int64))[order]
    state[:, 1] = ((np.where(is_join, JOIN, resource) << 32) + indegree)[order]
    return EventInput(
        order=order,
        indptr=indptr,
        target=target,
        lag=lag,
        priority=None if is_plain else priority[order],
        state=state,
        releases_at_start=None if is_plain else _marked(graph, from_start)[order],
        discipline=discipline,
        slots=graph.resources["slots"].astype(np.int64),
        slowdown_RS=_slowdown(graph, is_shared, users),
        queue_base=np.concatenate([[0], np.cumsum(users)]).astype(np.int64),
        # one completion or timer per task, one arrival per edge into a join, one tick per change of users
        num_events=graph.num_tasks + int(indegree[is_join].sum()) + 2 * int(users[is_shared].sum()) + 1,
    )


def _priority(graph: Graph, resource: Ints, discipline: Ints) -> Ints:
    """Priorities int32 [T], zero where the resource does not look at them."""
    if not graph.num_resources:
        return np.zeros(graph.num_tasks, dtype=np.int32)
    counts = (resource >= 0) & (discipline[resource] == Discipline.PRIORITY)
    return np.where(counts, column(graph, "priority", np.int32), 0).astype(np.int32)


def _marked(graph: Graph, from_start: Ints) -> Ints:
    """Tasks by whose start others wait, bool [T]."""
    mask = np.zeros(graph.num_tasks, dtype=np.bool_)
    mask[graph.edges["src"][from_start]] = True
    return mask


def _copies(csr: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    # compiled functions are specialised on writability; one form of each array keeps it at one compilation
    return csr[0].copy(), csr[1].copy()


def task_durations(graph: Graph) -> Ints:
    """Durations as the engines use them, int64 [T]: zero for arrival joins, which only pass arrivals on."""
    duration = graph.duration_ns.astype(np.int64)
    duration[join_mask(graph)] = 0
    return duration


def check_span(graph: Graph, duration_ns: Ints) -> None:
    """Refuse durations whose sum could leave 64 bits.

    Raises
    ------
    GraphError
        The durations, lags and earliest starts add up to more than 73 years.
    """
    latest = 0 if not graph.num_tasks else column(graph, "earliest_ns", np.int64).max()
    total = float(duration_ns.sum(dtype=np.float64)) + float(latest)
    total += float(edge_column(graph, "lag_ns", np.int64).sum(dtype=np.float64))
    if total > _LARGEST_NS:
        raise GraphError(
            f"the durations, lags and earliest starts add up to {total:.3g} ns, more than 64 bits hold safely",
            where="tasks column 'duration_ns', edges column 'lag_ns'",
            fix="time is in nanoseconds; look for a column in another unit or an absolute time stamp",
        )


def _slowdown(graph: Graph, is_shared: Ints, users: Ints) -> Ints:
    """The slow-down curves float64 [R, S]; S is 0 where no resource has one."""
    curves = graph.resources.get("slowdown")
    if curves is None:
        return np.zeros((graph.num_resources, 0))
    curves = np.ascontiguousarray(curves, dtype=np.float64).copy()
    used = curves[is_shared & (users > 0)]
    if used.size and (used.min() < _SMALLEST_SLOWDOWN or used.max() > 2.0**20):
        raise GraphError(
            f"a slow-down of {used.min() if used.min() < _SMALLEST_SLOWDOWN else used.max():g} is out of range",
            where="resources column 'slowdown'",
            fix="slowdown[r, n-1] says how many times longer each of n tasks takes: 0.25 to 1,048,576",
        )
    return curves
