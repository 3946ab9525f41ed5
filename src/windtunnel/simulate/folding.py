"""Equal ranks are replayed once.

In: a graph, mostly of many ranks. Out: a small graph with one task for each class of tasks that any replay treats
alike, and its timeline for all of them, equal to the nanosecond. Not here: the loops (``equal_tasks.py``).

Tasks are alike if they take the same time and wait for alike tasks. Where the order on a resource is decided at run
time, or messages share a link, that is not enough: there, tasks are alike if they have the same place among all tasks
of alike resources. So the
hosts of a cluster fold even where the ranks of a host share its NIC, and a straggler unfolds what it delays, with the
queues that this goes through, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import NotApplicableError
from windtunnel.graph import UNPLACED, Discipline, EdgeKind, Graph, Table
from windtunnel.simulate.arrays import (
    FixedOrder,
    build_fixed_order,
    column,
    find_contended_resources,
    flow_mask,
    join_mask,
    task_durations,
)
from windtunnel.simulate.equal_tasks import alike_lists, fold_pass
from windtunnel.simulate.flows import pad_routes
from windtunnel.simulate.timeline import Timeline

__all__ = ["Fold", "fold"]

# T tasks, C classes, K variants of the durations, R contended resources, M tasks on them
Ints = NDArray[Any]

# columns that determine a replay in addition to the durations
_PLAYED = ("resource", "priority", "earliest_ns", "is_arrival_join", "route", "message_bytes")


@dataclass(frozen=True, eq=False)
class Fold:
    """A graph and the small one that stands for it.

    Attributes
    ----------
    graph : Graph
    small : Graph
        One task per class, C in all; unplaced unless its resource has an order to decide. Made for replays alone: where
        a task is placed, or what it sends, may differ within a class.
    member : int32 [T]
        The small task that each task is like.
    representative : int64 [C]
        The task that each small one was.
    """

    graph: Graph = field(repr=False)
    small: Graph
    member: NDArray[np.int32] = field(repr=False)
    representative: NDArray[np.int64] = field(repr=False)
    is_ordered: bool

    def __str__(self) -> str:
        return f"{self.graph.num_tasks:,} tasks folded to {self.small.num_tasks:,}"

    def unfold(self, timeline: Timeline) -> Timeline:
        """The timeline of the whole graph from that of the small one."""
        # The sequence of the whole graph: by the turn of each task's class, and by row within a class.
        rank = np.empty(self.small.num_tasks, np.int32)
        rank[timeline.sequence] = np.arange(len(rank), dtype=np.int32)
        return Timeline(
            graph=self.graph,
            start_ns=timeline.start_ns[self.member],
            finish_ns=timeline.finish_ns[self.member],
            sequence=np.argsort(rank[self.member], kind="stable").astype(np.int32),
            engine="static" if self.is_ordered else "event",
            fold=self,
        )

    def fits(self, graph: Graph) -> bool:
        """Whether a graph differs in nothing that replay reads but durations, by the identity of its columns."""
        local, others = self.graph.tasks, graph.tasks
        return (
            graph.num_tasks == self.graph.num_tasks
            and graph.edges is self.graph.edges
            and graph.resources is self.graph.resources
            and all(others.get(name) is local.get(name) for name in _PLAYED)
        )

    def shrunk(self, durations_KT: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Durations of the small tasks, int64 [K, C]; None where some differ within a class."""
        result = durations_KT[:, self.representative]
        is_alike = all((small[self.member] == whole).all() for small, whole in zip(result, durations_KT, strict=True))
        return result if is_alike else None


def fold(graph: Graph, durations_KT: NDArray[np.int64] | None = None) -> Fold:
    """Find the tasks that replay treats alike.

    Parameters
    ----------
    graph : Graph
    durations_KT : int64 [K, T], optional
        Variants of the durations; alike is then what is alike in all of them. The graph's own by default.

    Raises
    ------
    NotApplicableError
        The graph has arrival joins: who is like whom is then decided at run time.

    Examples
    --------
    >>> from windtunnel.graph import GraphBuilder
    >>> from windtunnel.simulate import fold, replay
    >>> builder = GraphBuilder()
    >>> builder.edge(builder.task("forward", duration_ns=3), builder.task("backward", duration_ns=5))
    >>> folded = fold(builder.build().replicate(1000))
    >>> str(folded), folded.unfold(replay(folded.small)).makespan_ns
    ('2,000 tasks folded to 2', 8)

    References
    ----------
    Paige and Tarjan, "Three partition refinement algorithms", SIAM Journal on Computing, 1987.
    """
    if durations_KT is None:
        durations_KT = task_durations(graph)[None]
    if not can_fold(graph):
        raise NotApplicableError("arrival joins are not folded", fix="replay the graph as it is")
    result = fold_within(graph, build_fixed_order(graph), durations_KT, graph.num_tasks)
    assert result is not None, "there are no more classes than tasks"
    return result


def can_fold(graph: Graph) -> bool:
    """Whether who is like whom is known before a replay."""
    return not join_mask(graph).any()


def fold_within(graph: Graph, program: FixedOrder, durations_KT: Ints, max_classes: int) -> Fold | None:
    """As ``fold``, of a graph without joins; None if there are more classes than that."""
    num_tasks = graph.num_tasks
    crowds = _Crowds.of(graph, program)
    durations_TK = np.ascontiguousarray(durations_KT.T)
    member, first = np.empty(num_tasks, np.int32), np.empty(num_tasks, np.int64)
    sets = np.empty(num_tasks + 1, np.int64), np.empty(graph.num_edges, np.int64), np.empty(graph.num_edges, np.int64)
    # Partition refinement. Resources start out equal where they work alike; then, in turns:
    #      1. tasks get classes, given which places they have in the lists of which resources (fold_pass)
    #      2. resources get numbers by the classes of the tasks in their lists (alike_lists)
    # until no further resources are distinguished. Each round only splits, so that it ends; two tasks that are
    # in one class then behave alike in every replay.
    number, count = crowds.first_numbers()
    while True:
        label = crowds.labels(number, num_tasks)
        num_classes = fold_pass(
            program.indptr, program.source, program.lag, program.earliest, label, program.order, durations_TK,
            max_classes, member, first, *sets,
        )  # fmt: skip
        if num_classes < 0:
            return None
        before = count
        number, count = alike_lists(crowds.indptr, member[crowds.position], number)
        if count == before:
            break
    return _build_fold(graph, program, crowds, number, member, first[:num_classes], sets)


@dataclass(frozen=True, slots=True, eq=False)
class _Crowds:
    """Where tasks meet, as lists: those on each resource whose order is decided at run time, those over each link.

    A task that flows over several links has several entries.
    """

    kind: Ints  # [R] int64, resources or links that work alike have the same
    resource: Ints  # [R] int64, their rows
    indptr: Ints  # [R+1] int64
    position: Ints  # [M], by row within each list
    fact: Ints  # [M] int64, priority or bytes
    turn: Ints  # [M] int64, number of the link in the route, -1 on a resource
    by_task: Ints  # [M], entries by task, and there in the order of its route
    task_indptr: Ints  # [N+1] of the N tasks that have entries
    is_link: Ints  # [R] bool

    @classmethod
    def of(cls, graph: Graph, program: FixedOrder) -> _Crowds:
        queued, flowing = _queues(graph, program), _links(graph)
        row, resource, fact, turn, is_link = (np.concatenate(pair) for pair in zip(queued, flowing, strict=True))
        order = np.lexsort((row, resource, is_link))
        listed = np.stack([is_link, resource], axis=1)[order]
        begins = np.flatnonzero(np.append(True, (listed[1:] != listed[:-1]).any(axis=1))[: len(listed)])
        by_task = np.lexsort((turn[order], row[order]))
        begins_task = np.flatnonzero(np.append(True, np.diff(row[order][by_task]) != 0)[: len(row)])
        position = np.empty(graph.num_tasks, np.int64)
        position[program.order] = np.arange(graph.num_tasks)
        lists = listed[begins]
        return cls(
            kind=_kinds(graph, lists),
            resource=lists[:, 1],
            indptr=np.append(begins, len(row)),
            position=position[row[order]],
            fact=fact[order],
            turn=turn[order],
            by_task=by_task,
            task_indptr=np.append(begins_task, len(row)),
            is_link=lists[:, 0] == 1,
        )

    def first_numbers(self) -> tuple[Ints, int]:
        """Number the lists by what they are and by what is known of their tasks."""
        number, _ = alike_lists(self.indptr, self.fact, self.kind)
        number, count = alike_lists(self.indptr, self.turn, number)
        return number, int(count)

    def leaders(self, number: Ints) -> Ints:
        """The first list of each number, [numbers]."""
        return np.unique(number, return_index=True)[1]

    def labels(self, number: Ints, num_tasks: int) -> Ints:
        """The places of each task in the lists that it is in, as a number; 0 where it is in none, [T]."""
        label = np.zeros(num_tasks, np.int64)
        # An entry of a list counts as the same entry of the first list with that number: the third task on
        # resource 7 has the place of the third task on resource 2, if both resources are alike.
        shift = self.indptr[self.leaders(number)][number] - self.indptr[:-1]
        entry = 1 + np.arange(len(self.position)) + np.repeat(shift, np.diff(self.indptr))
        indices = entry[self.by_task]
        alike, _ = alike_lists(self.task_indptr, indices, np.zeros(len(self.task_indptr) - 1, np.int64))
        label[self.position[self.by_task[self.task_indptr[:-1]]]] = 1 + alike
        return label


def _queues(graph: Graph, program: FixedOrder) -> tuple[Ints, ...]:
    """Tasks on resources whose order is decided at run time: row, resource, priority where that counts, turn, 0."""
    resource = graph.tasks["resource"]
    rows = np.flatnonzero(np.append(find_contended_resources(graph, program), False)[resource])
    looks = graph.resources["discipline"][resource[rows]] == Discipline.PRIORITY
    priority = np.where(looks, column(graph, "priority", np.int64)[rows], 0)
    none = np.zeros(len(rows), np.int64)
    return rows, resource[rows].astype(np.int64), priority, none - 1, none


def _links(graph: Graph) -> tuple[Ints, ...]:
    """Tasks that flow over links, once for each link: row, link, bytes, number of the link in its route, 1."""
    rows = np.flatnonzero(flow_mask(graph))
    if not len(rows):
        return (np.zeros(0, np.int64),) * 5
    links = pad_routes(graph.meta.routes)[graph.tasks["route"][rows]]
    # One entry per link of each route, with the number of the link within it.
    which, turn = np.nonzero(links >= 0)
    rows = rows[which]
    return rows, links[which, turn].astype(np.int64), graph.tasks["message_bytes"][rows], turn, np.ones_like(rows)


def _kinds(graph: Graph, lists: Ints) -> Ints:
    """Equal numbers for resources, or links, that work alike, int64 [R]."""
    table = graph.resources
    rate, slowdown = table.get("rate", np.zeros(graph.num_resources)), table.get("slowdown")
    facts = [table["discipline"], table["slots"], *([] if slowdown is None else slowdown.T)]
    # Facts of the other sort are multiplied by 0, so that a queue never differs by a rate that it ignores.
    of_queue = np.stack(facts, axis=1)[lists[:, 1]] * (lists[:, :1] == 0)
    of_link = (rate[lists[:, 1]] * lists[:, 0])[:, None]
    if not len(lists):
        return np.zeros(0, np.int64)
    both = np.concatenate([lists[:, :1], of_queue, of_link], axis=1)
    result: Ints = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return result


def _build_fold(
    graph: Graph,
    program: FixedOrder,
    crowds: _Crowds,
    number: Ints,
    member: Ints,
    first: Ints,
    sets: tuple[Ints, Ints, Ints],
) -> Fold:
    """Make the small graph: its rows in the order of those that they stand for, so that ties end alike."""
    users = np.diff(crowds.indptr)
    # Of alike resources the first stands for all, and its tasks for those of the others: the small graph has
    # whole queues, with the contention in them, not single tasks.
    leads = np.zeros(len(users), np.bool_)
    leads[crowds.leaders(number)] = True
    placed = crowds.position[np.repeat(leads & ~crowds.is_link, users)]
    first[member[placed]] = placed
    representative = program.order[first].astype(np.int64)
    by_row = np.argsort(representative, kind="stable")
    row = np.empty(len(first), np.int32)
    row[by_row] = np.arange(len(first), dtype=np.int32)
    indptr, token, lag = sets[0][: len(first) + 1], *(column[: sets[0][len(first)]] for column in sets[1:])
    edges = {
        "src": row[token >> 1],
        "dst": np.repeat(row, np.diff(indptr)),
        "kind": np.full(len(token), int(EdgeKind.DATA), np.int8),
        "lag_ns": lag.copy(),
        "from_start": (token & 1).astype(np.bool_),
    }
    tasks = graph.tasks.take(representative[by_row])
    is_placed = np.zeros(len(first), np.bool_)
    is_placed[row[member[placed]]] = True
    tasks = tasks.replace(resource=np.where(is_placed, tasks["resource"], UNPLACED).astype(np.int32))
    by_task = np.empty(graph.num_tasks, np.int32)
    by_task[program.order] = row[member]
    small = Graph(tasks, Table(edges), graph.resources, graph.meta)
    if crowds.is_link.any():
        small = replace(small, meta=replace(small.meta, routes=_routes(graph, crowds, number)))
    return Fold(graph, small, by_task, representative[by_row], is_ordered=not len(crowds.position))


def _routes(graph: Graph, crowds: _Crowds, number: Ints) -> tuple[tuple[int, ...], ...]:
    """Routes over the first link of each number, those that carry nothing as they were.

    None uses a link twice: were two links of a route alike, each would hold a message before or behind that of the
    other, whose second link holds another one, and so on, in rising rows without end.
    """
    # A class of flows goes over the links of the first alike route, which carry the same flows as the others.
    stands_for = np.arange(graph.num_resources)
    first = crowds.resource[crowds.leaders(number)][number]
    stands_for[crowds.resource[crowds.is_link]] = first[crowds.is_link]
    routes = list(graph.meta.routes)
    for used in np.unique(graph.tasks["route"][flow_mask(graph)]).tolist():
        routes[used] = tuple(stands_for[list(routes[used])].tolist())
    return tuple(routes)
