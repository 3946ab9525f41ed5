"""Many ranks in one graph: copies of one rank, several graphs joined, and ranks that meet.

In: graphs. Out: graphs in which column ``rank`` tells workers apart. All of it is done in bulk, as a thousand ranks of
a thousand tasks are usual. A meeting (a collective, or a message that both sides wait for) is said here and nowhere
else: each member arrives, all wait for the last arrival, then all go on together. Not here: how long a message takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.graph.schema import EDGE_COLUMNS, RESOURCE_COLUMNS, TASK_COLUMNS, UNPLACED, EdgeKind, Kind
from windtunnel.graph.select import as_mask
from windtunnel.graph.table import Strings, Table, concat_all

if TYPE_CHECKING:
    from windtunnel.graph.graph import Graph

__all__ = ["join", "join_routes", "meet", "replicate"]

# R ranks or copies, T tasks, M members of K meetings
Rows = NDArray[np.int64]
# what a task that only waits does not do
_WORK = ("duration_ns", "flops", "bytes_read", "bytes_written", "message_bytes", "param_bytes", "output_bytes")
_NO_WORK = (*_WORK, "freed_bytes", "workspace_bytes", "duration_std_ns", "samples_ns")
_RANK_NAME = re.compile(r"rank (\d+) ")


def replicate(graph: Graph, num_copies: int, shared: ArrayLike | None = None) -> Graph:
    """Copy tasks, edges and resources; column ``rank`` tells the copies apart. Nothing joins them yet.

    A graph of several ranks can be copied again: data x pipeline x tensor parallel ranks are three copies in a row,
    the innermost first. Rank r of copy c becomes rank ``c * num_ranks + r``.

    Parameters
    ----------
    graph : Graph
    num_copies : int
    shared : mask or rows of resources, optional
        What all copies use together, such as the NIC of their host; it is not copied.

    Raises
    ------
    InputError
        ``num_copies`` is below 1.
    """
    if num_copies < 1:
        raise InputError(f"cannot make {num_copies} ranks from a graph of {graph.num_ranks}")
    count, ranks = graph.num_tasks, _ranks_of(graph)
    width = int(ranks.max(initial=0)) + 1
    is_shared = np.zeros(graph.num_resources + 1, dtype=bool)  # the last entry is for unplaced tasks
    is_shared[:-1] = as_mask([] if shared is None else shared, graph.num_resources)
    is_shared[-1] = True
    own = np.flatnonzero(~is_shared[:-1])
    copies = np.arange(num_copies, dtype=np.int64)[:, None]
    # row of each resource in each copy; the last column is for unplaced tasks
    index = np.tile(np.arange(graph.num_resources + 1), (num_copies, 1))
    index[1:, own] = graph.num_resources + (copies[1:] - 1) * len(own) + np.arange(len(own))
    index[:, -1] = UNPLACED
    rank = (copies * width + ranks).ravel().astype(np.int32)
    tasks = graph.tasks.take(np.tile(np.arange(count), num_copies))
    columns = {"rank": rank, "resource": index[:, graph.tasks["resource"]].ravel().astype(np.int32)}
    routes = graph.meta.routes
    if "route" in tasks:
        columns["route"] = _shift_numbers(tasks["route"], np.repeat(copies.ravel() * len(routes), count))
    return replace(
        graph,
        tasks=tasks.replace(**columns),
        resources=_resources(graph, num_copies, own, width),
        edges=_edges(graph, copies),
        meta=replace(
            graph.meta,
            routes=tuple(tuple(row[list(route)].tolist()) for row in index for route in routes),
            rank_base_bytes=graph.meta.rank_base_bytes * num_copies,
        ),
    )


def _shift_numbers(column: NDArray[np.int32], offset: NDArray[np.int64] | int) -> NDArray[np.int32]:
    """Add an offset to a column of numbers; -1, which stands for none, stays."""
    return np.where(column < 0, column, column + offset).astype(np.int32)


def _ranks_of(graph: Graph) -> NDArray[np.int32]:
    return graph.tasks.get("rank", np.zeros(graph.num_tasks, dtype=np.int32))  # type: ignore[no-any-return]


def _resources(graph: Graph, num_copies: int, own: Rows, width: int) -> Table:
    """The resources of the first copy, then those of each further copy that it does not share."""
    rows = np.concatenate([np.arange(graph.num_resources), np.tile(own, num_copies - 1)])
    copy = np.concatenate(
        [np.zeros(graph.num_resources, dtype=np.int64), np.repeat(np.arange(1, num_copies), len(own))]
    )
    names = graph.resources.strings("name").to_numpy()
    of_rank = np.zeros(graph.num_resources, dtype=np.int64)
    used = graph.tasks["resource"]
    of_rank[used[used != UNPLACED]] = _ranks_of(graph)[used != UNPLACED]
    for row, result in enumerate(_RANK_NAME.match(name) for name in names):
        if result is not None:  # one that no task uses is known by its name alone
            of_rank[row] = int(result[1])
    is_own = np.zeros(graph.num_resources, dtype=bool)
    is_own[own] = True
    bare = [_RANK_NAME.sub("", name, count=1) for name in names]
    machine = graph.resources.get("machine", np.zeros(graph.num_resources, dtype=np.int32))
    named = [
        f"rank {item * width + of_rank[row]} {bare[row]}" if is_own[row] else names[row]
        for row, item in zip(rows.tolist(), copy.tolist(), strict=True)
    ]
    span = int(machine.max(initial=0)) + 1
    return graph.resources.take(rows).replace(
        name=Strings.of(named), machine=(copy * span + machine[rows]).astype(np.int32)
    )


def _edges(graph: Graph, copies: Rows) -> Table:
    num_copies = len(copies)
    edges = graph.edges.take(np.tile(np.arange(graph.num_edges), num_copies))
    offset = np.repeat(copies.ravel() * graph.num_tasks, graph.num_edges).astype(np.int32)
    return edges.replace(src=edges["src"] + offset, dst=edges["dst"] + offset)


def join(graphs: Sequence[Graph]) -> tuple[Table, Table, Table]:
    """Tasks, edges and resources of several graphs side by side; a column that one lacks gets its default there.

    Nothing is renamed: ranks, groups and clocks must be made common before. Column ``route`` counts on through all of
    them, as ``join_routes`` does.
    """
    tasks, resources = (
        np.cumsum([0, *counts]) for counts in zip(*[(g.num_tasks, g.num_resources) for g in graphs], strict=True)
    )
    routes = np.cumsum([0, *(len(graph.meta.routes) for graph in graphs)])
    offsets = {"resource": resources, "route": routes}
    placed = [
        graph.tasks.replace(
            **{
                name: _shift_numbers(graph.tasks[name], offset[index])
                for name, offset in offsets.items()
                if name in graph.tasks
            }
        )
        for index, graph in enumerate(graphs)
    ]
    moved = [
        graph.edges.replace(src=graph.edges["src"] + np.int32(offset), dst=graph.edges["dst"] + np.int32(offset))
        for graph, offset in zip(graphs, tasks.tolist(), strict=False)
    ]
    return (
        concat_all(placed, TASK_COLUMNS),
        concat_all(moved, EDGE_COLUMNS),
        concat_all([graph.resources for graph in graphs], RESOURCE_COLUMNS),
    )


def join_routes(graphs: Sequence[Graph]) -> tuple[tuple[int, ...], ...]:
    """Join ``meta.routes`` of several graphs."""
    offsets = np.cumsum([0, *(graph.num_resources for graph in graphs)]).tolist()
    return tuple(
        tuple(link + offset for link in route)
        for graph, offset in zip(graphs, offsets, strict=False)
        for route in graph.meta.routes
    )


def meet(graph: Graph, members: ArrayLike, meetings: ArrayLike, duration_ns: ArrayLike | None = None) -> Graph:
    """Let tasks of several ranks begin together, when the last of them can.

    In front of each member comes an arrival on the member's resource, which takes all that the member waited for, and
    per meeting one virtual task that waits for all arrivals.

    Parameters
    ----------
    graph : Graph
    members : int [M]
        Rows of tasks, each once.
    meetings : int [M]
        Number of the meeting of each, 0 to K - 1; none is empty.
    duration_ns : int [K], optional
        What each member of a meeting takes once all are there; as they are by default.

    Returns
    -------
    Graph
        With M arrivals, then K virtual tasks appended.

    Raises
    ------
    InputError
        A task is in two meetings, or the numbers of meetings have gaps.
    """
    row, meeting = np.asarray(members, dtype=np.int64), np.asarray(meetings, dtype=np.int64)
    if not len(row) and not len(meeting):
        return graph
    num_tasks, num_meetings = graph.num_tasks, int(meeting.max(initial=-1)) + 1
    # The first member of each meeting stands for it; written in reverse order, so that the first one stays.
    first = np.full(num_meetings, -1, dtype=np.int64)
    if len(row) == len(meeting):
        first[meeting[::-1]] = row[::-1]
    if len(np.unique(row)) != len(row) or (first < 0).any():
        raise InputError(
            f"{len(row)} members of {num_meetings} meetings",
            where="meet",
            fix="give each task once, number without gaps",
        )
    tasks = graph.tasks
    #      before:   p --> member                      p: what the member waited for
    #      after:    p --> arrival --ORDER---------> member
    #                        \--MESSAGE--> hub --MESSAGE--^        one hub per meeting, all arrivals lead to it
    arrivals = _waiting(tasks, row, {"kind": int(Kind.SYNC)})
    names = arrivals.strings("name")
    arrivals = arrivals.replace(name=Strings(names.codes, tuple(f"arrival at {name}" for name in names.values)))
    hubs = _waiting(tasks, first, {"kind": int(Kind.VIRTUAL), "resource": UNPLACED, "earliest_ns": 0, "rank": 0})
    changed: dict[str, Any] = {}
    if duration_ns is not None:
        changed["duration_ns"] = tasks["duration_ns"].copy()
        changed["duration_ns"][row] = np.asarray(duration_ns, dtype=np.int64)[meeting]
    if "earliest_ns" in tasks:
        changed["earliest_ns"] = tasks["earliest_ns"].copy()
        # An earliest start held for the arrival, which inherits it; the member now starts by its hub alone.
        changed["earliest_ns"][row] = 0
    arrival, hub = num_tasks + np.arange(len(row)), num_tasks + len(row) + meeting
    # Edges into a member lead to its arrival instead; edges out of it stay.
    moved = np.arange(num_tasks, dtype=np.int32)
    moved[row] = arrival
    new: dict[str, Any] = {
        "src": np.concatenate([arrival, arrival, hub]).astype(np.int32),
        "dst": np.concatenate([hub, row, row]).astype(np.int32),
        "kind": np.repeat([EdgeKind.MESSAGE, EdgeKind.ORDER, EdgeKind.MESSAGE], len(row)).astype(np.int8),
        "lag_ns": np.zeros(3 * len(row), np.int64),
        "from_start": np.zeros(3 * len(row), bool),
    }
    edges = graph.edges.replace(dst=moved[graph.edges["dst"]])
    return replace(
        graph,
        tasks=concat_all([tasks.replace(**changed), arrivals, hubs], TASK_COLUMNS),
        edges=concat_all([edges, Table(new)], EDGE_COLUMNS),
    )


class Meetings(NamedTuple):
    """The meetings of a graph, one entry per member: int64 [M] each."""

    arrival: Rows
    """The task in which the member waits for its peers."""
    hub: Rows
    """The task in which all arrivals come together."""
    member: Rows


def meetings(graph: Graph) -> Meetings:
    """What ``meet`` has put into a graph, in the order of the arrivals' edges."""
    kind, edges = graph.tasks["kind"], graph.edges
    src, dst = edges["src"].astype(np.int64), edges["dst"].astype(np.int64)
    is_message = edges["kind"] == EdgeKind.MESSAGE
    into = is_message & (kind[src] == Kind.SYNC) & (kind[dst] == Kind.VIRTUAL)
    out_of = is_message & (kind[src] == Kind.VIRTUAL)
    hub_of_arrival, hub_of_member = np.full(graph.num_tasks, -1, np.int64), np.full(graph.num_tasks, -1, np.int64)
    hub_of_arrival[src[into]], hub_of_member[dst[out_of]] = dst[into], src[out_of]
    goes_on = (edges["kind"] == EdgeKind.ORDER) & (hub_of_arrival[src] >= 0)
    goes_on &= hub_of_arrival[src] == hub_of_member[dst]
    member_of = np.full(graph.num_tasks, -1, np.int64)
    member_of[src[goes_on]] = dst[goes_on]
    arrival = src[into]
    return Meetings(arrival, dst[into], member_of[arrival])


def arrivals(graph: Graph, members: ArrayLike) -> Rows:
    """Where each member of a meeting waits for its peers, int64 [M]; the member itself where it meets no peer.

    Parameters
    ----------
    graph : Graph
    members : int [M]
        Rows of tasks.
    """
    result = meetings(graph)
    entry = np.arange(graph.num_tasks)
    entry[result.member[result.member >= 0]] = result.arrival[result.member >= 0]
    waiting: Rows = entry[np.asarray(members, dtype=np.int64)]
    return waiting


def _waiting(tasks: Table, rows: Rows, columns: Mapping[str, int]) -> Table:
    """Tasks like these that do nothing."""
    used = tasks.take(rows)
    values = dict.fromkeys(_NO_WORK, 0) | {"route": -1} | dict(columns)
    return used.replace(**{name: _all(used[name], value) for name, value in values.items() if name in used})


def _all(column: NDArray[Any], value: int) -> NDArray[Any]:
    return np.full(column.shape, value, dtype=column.dtype)
