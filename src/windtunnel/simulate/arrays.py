"""What the engines need of a graph, as plain arrays.

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
from windtunnel.graph import Discipline, Graph
from windtunnel.simulate.event_engine import EDGE, JOIN, RESOURCE, SHARE, TASK
from windtunnel.simulate.flows import NS_PER_S, pad_routes

__all__ = ["EventInput", "FixedOrder", "build_fixed_order", "event_input", "has_fixed_order"]

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
class Sends:
    """What flows over links, in row order."""

    capacity: Ints  # [R] float64, bytes per second
    route: Ints  # [F, W] int32
    size: Ints  # [F] float64
    position: Ints  # [F] int64, of the task


@dataclass(frozen=True, slots=True, eq=False)
class EventInput:
    """Outgoing edges and resources for the event-driven engine; position p holds task ``order[p]``."""

    order: Ints  # [T] int32
    roots: Ints  # positions that wait for no other
    indptr: Ints  # [T+1] int64, outgoing edges of each position
    edges: Ints  # [E] of EDGE
    tasks: Ints  # [T] of TASK
    resources: Ints  # [R+1] of RESOURCE
    is_plain: bool  # neither of the next five says anything
    priority: Ints  # [T] int32
    releases_at_start: Ints  # [T] bool
    shares: Ints  # [R+1] of SHARE
    flow: Ints  # [T] int32, number of each position's flow, -1 if it has none
    sends: Sends | None
    slowdown_RS: Ints
    num_events: int
    latest_ns: int  # a bound on the end of the last task of a plain graph, but for the durations


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


def flow_mask(graph: Graph) -> Ints:
    """Tasks whose bytes flow over links, bool [T]."""
    route = graph.tasks.get("route")
    if route is None:
        return np.zeros(graph.num_tasks, np.bool_)
    sends: Ints = (route >= 0) & (column(graph, "message_bytes", np.int64) > 0) & ~join_mask(graph)
    return sends


@njit(cache=True, nogil=True)
def _permute_edges(
    order: Ints,
    row_indptr: Ints,
    edge_rows: Ints,
    other: Ints,
    lag: Ints,
    from_start: Ints,
    other_out: Ints,
    lag_out: Ints,
) -> Ints:
    """Adjacency by position: ``other`` end of each edge as a position, complemented for from_start, and its lag."""
    # From rows to positions. Neighbors in time become neighbors in memory, which is what makes a pass
    # fast: a replay reads edges and tasks almost sequentially.
    #      rows:       tasks in the order in which a source wrote them
    #      positions:  the same tasks topologically sorted; order[position] = row
    # An edge that waits for a start has its end complemented (~u < 0): the sign bit is free, and a
    # separate column would cost another stream of memory.
    num_tasks = order.size
    position = np.empty(num_tasks, dtype=np.int32)
    for p in range(num_tasks):
        position[order[p]] = p
    indptr = np.zeros(num_tasks + 1, dtype=np.int64)
    filled = 0
    for p in range(num_tasks):
        v = order[p]
        for i in range(row_indptr[v], row_indptr[v + 1]):
            e = edge_rows[i]
            u = position[other[e]]
            other_out[filled] = ~u if from_start[e] else u
            lag_out[filled] = lag[e]
            filled += 1
        indptr[p + 1] = filled
    return indptr


@njit(cache=True, nogil=True)
def _break_chains(indptr: Ints, source: Ints, resource: Ints, is_free: Ints) -> None:
    """Set ``is_free`` [R] where some task does not wait, by an edge of its own, for the end of the one before it."""
    # A resource has nothing to decide if its tasks form a chain of edges: each waits for the end of the
    # one before it in the topological order. Then the fixed-order engine gives what the event engine
    # would, many times faster. One task without such an edge is enough to need the other.
    latest = np.full(is_free.size, -1, dtype=np.int64)
    for p in range(resource.size):
        r = resource[p]
        if r < 0 or is_free[r]:
            continue
        if latest[r] >= 0:
            result = False
            for e in range(indptr[p], indptr[p + 1]):
                if source[e] == latest[r]:
                    result = True
                    break
            is_free[r] = not result
        latest[r] = p


def build_fixed_order(graph: Graph) -> FixedOrder:
    """Sort the tasks topologically and permute everything, so that a pass streams through memory."""
    order = graph.topological_order().astype(np.int32)
    source, lag = np.empty(graph.num_edges, np.int32), np.empty(graph.num_edges, np.int64)
    indptr = _permute_edges(
        order, *_copies(graph.predecessors_csr()), edge_column(graph, "src", np.int32),
        edge_column(graph, "lag_ns", np.int64), edge_column(graph, "from_start", np.bool_), source, lag,
    )  # fmt: skip
    return FixedOrder(order, indptr, source, lag, column(graph, "earliest_ns", np.int64)[order])


def has_fixed_order(graph: Graph, program: FixedOrder) -> bool:
    """Whether edges alone decide the order on every contended resource: nothing is left to decide at run time."""
    if join_mask(graph).any() or flow_mask(graph).any():
        return False
    return not find_contended_resources(graph, program).any()


def find_contended_resources(graph: Graph, program: FixedOrder) -> Ints:
    """Mask the resources on which tasks can compete, as no chain of edges keeps them apart, bool [R]."""
    resource = graph.tasks["resource"].astype(np.int32)
    users = np.bincount(resource[resource >= 0], minlength=graph.num_resources)
    is_shared = graph.resources["discipline"] == Discipline.SHARED
    slowdown = graph.resources.get("slowdown")
    is_crowded = users > graph.resources["slots"]
    is_slow = np.zeros(graph.num_resources, np.bool_)
    if slowdown is not None:
        is_slow = is_shared & (users > 0) & (slowdown[:, 0] != 1.0)
        is_crowded = np.where(is_shared, users > 1, is_crowded)
    is_free = np.zeros(graph.num_resources, np.bool_)
    _break_chains(program.indptr, program.source, resource[program.order], is_free)
    meets: Ints = is_slow | (is_crowded & is_free)
    return meets


def event_input(graph: Graph) -> EventInput:
    """Lay out outgoing edges, priorities and resources for the event-driven engine."""
    # The event engine would take tasks in any order; the topological one makes it stream.
    order = graph.topological_order().astype(np.int32)
    from_start = edge_column(graph, "from_start", np.bool_)
    lag = edge_column(graph, "lag_ns", np.int64)
    edges = np.empty(graph.num_edges, dtype=EDGE)
    indptr = _permute_edges(
        order, *_copies(graph.successors_csr()), edge_column(graph, "dst", np.int32), lag, from_start,
        edges["target"], edges["lag"],
    )  # fmt: skip
    indegree = np.diff(graph.predecessors_csr()[0])
    is_join = join_mask(graph)
    nowhere = graph.num_resources  # a resource of its own: there is always room
    resource = np.where(is_join | (graph.tasks["resource"] < 0), nowhere, graph.tasks["resource"])
    users = np.bincount(resource, minlength=nowhere + 1)
    is_join &= indegree > 0  # a join that waits for nothing is a task of no time
    # Which resources are shared, and by how many at full speed, of SHARE [R+1].
    is_shared = np.append(graph.resources["discipline"] == Discipline.SHARED, False)
    shares = _records(SHARE, is_shared=is_shared, slots=np.append(graph.resources["slots"], 0))
    priority = _priority(graph, resource)
    earliest = np.where(join_mask(graph), 0, column(graph, "earliest_ns", np.int64))
    tasks = _records(TASK, start=earliest, missing=indegree, resource=np.where(is_join, JOIN, resource))[order]
    slots = np.append(graph.resources["slots"], graph.num_tasks)
    sends, flow = _sends(graph, order)
    # most graphs need none of these: the engine is compiled a second time without them, for speed
    is_special = (from_start, is_join, users[shares["is_shared"] > 0], priority)
    # Mask the tasks for whose start other tasks wait, bool [T].
    mask = np.zeros(graph.num_tasks, dtype=np.bool_)
    mask[graph.edges["src"][from_start]] = True
    return EventInput(
        order=order,
        roots=np.flatnonzero(tasks["missing"] == 0).astype(np.int32),
        indptr=indptr,
        edges=edges,
        tasks=tasks,
        resources=_records(RESOURCE, first=np.cumsum(users) - users, unused=slots),
        is_plain=sends is None and not any(column.any() for column in is_special),
        priority=priority[order],
        releases_at_start=mask[order],
        shares=shares,
        flow=flow,
        sends=sends,
        slowdown_RS=_slowdown(graph, shares["is_shared"][:-1] > 0, users[:-1]),
        # one completion or timer per task, one arrival per edge into a join, one tick per change of users
        num_events=graph.num_tasks + int(indegree[is_join].sum()) + 2 * int(users[shares["is_shared"] > 0].sum()) + 1,
        latest_ns=int(earliest.max(initial=0)) + int(lag.sum()),
    )


def _records(kind: np.dtype[Any], **columns: Ints) -> Ints:
    """One record per row; columns that are not given are zero."""
    rows = np.zeros(len(next(iter(columns.values()))), dtype=kind)
    for name, values in columns.items():
        rows[name] = values
    return rows


def _priority(graph: Graph, resource: Ints) -> Ints:
    """Priorities int32 [T], zero where the resource does not look at them."""
    looks = np.append(graph.resources["discipline"] == Discipline.PRIORITY, False)
    return np.where(looks[resource], column(graph, "priority", np.int32), 0).astype(np.int32)


def _sends(graph: Graph, order: Ints) -> tuple[Sends | None, Ints]:
    """What flows, and the number of each position's flow; of two flows the one of the smaller row comes first."""
    rows = np.flatnonzero(flow_mask(graph))
    flow = np.full(graph.num_tasks, -1, np.int32)
    if not len(rows):
        return None, flow
    flow[rows] = np.arange(len(rows))
    position = np.empty(graph.num_tasks, np.int64)
    position[order] = np.arange(graph.num_tasks)
    return Sends(
        capacity=graph.resources["rate"].astype(np.float64),
        route=pad_routes(graph.meta.routes)[graph.tasks["route"][rows]],
        size=graph.tasks["message_bytes"][rows].astype(np.float64),
        position=position[rows],
    ), flow[order]


def _copies(csr: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    # compiled functions are specialized on writability; one form of each array keeps it at one compilation
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
        The durations, lags, earliest starts and what flows take add up to more than 73 years.
    """
    latest = 0 if not graph.num_tasks else column(graph, "earliest_ns", np.int64).max()
    total = float(duration_ns.sum(dtype=np.float64)) + float(latest)
    total += float(edge_column(graph, "lag_ns", np.int64).sum(dtype=np.float64)) + _longest_flows_ns(graph)
    if total > _LARGEST_NS:
        raise GraphError(
            f"the durations, lags and earliest starts add up to {total:.3g} ns, more than 64 bits hold safely",
            where="tasks column 'duration_ns', edges column 'lag_ns'",
            fix="time is in nanoseconds; look for a column in another unit or an absolute time stamp",
        )


def _longest_flows_ns(graph: Graph) -> float:
    """A bound on the time in which anything flows: some link is full all that while."""
    sends = flow_mask(graph)
    if not sends.any():
        return 0.0
    per_byte = 1.0 / np.append(graph.resources["rate"], np.inf)  # the last entry pads routes
    per_route = NS_PER_S * per_byte[pad_routes(graph.meta.routes)].sum(axis=1)
    return float((graph.tasks["message_bytes"] * per_route[graph.tasks["route"]])[sends].sum())


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
