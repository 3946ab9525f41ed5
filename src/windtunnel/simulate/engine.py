"""Replay a graph.

In: a graph with durations. Out: a ``Timeline``: when each task starts and ends if every resource works as described.
Not here: prices, policies, searches. The loops are in ``static_engine.py`` and ``event_engine.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import GraphError, InputError
from windtunnel.graph import Graph
from windtunnel.simulate.arrays import (
    EventInput,
    FixedOrder,
    build_fixed_order,
    check_span,
    event_input,
    has_fixed_order,
    join_mask,
    task_durations,
)
from windtunnel.simulate.event_engine import event_pass
from windtunnel.simulate.flows import Flows, new_flows
from windtunnel.simulate.folding import Fold, can_fold, fold_within
from windtunnel.simulate.static_engine import assign_live_slots, batch_finishes, batch_makespans, static_pass
from windtunnel.simulate.timeline import Timeline

__all__ = ["Replays", "replay", "replay_many"]

Engine = Literal["static", "event"]
Ints = NDArray[Any]

# variants played at once: as many as share a row's cache lines if variants lie side by side, else few, as each one
# then is a stream of its own through memory
_PER_BLOCK_BESIDE, _PER_BLOCK_APART = 64, 16
# fewer ranks or tasks are played sooner than folded
_FOLDED_RANKS, _FOLDED_TASKS = 8, 50_000


@dataclass(frozen=True, slots=True, eq=False)
class Replays:
    """K replays of one graph under different durations.

    Attributes
    ----------
    makespan_ns : int64 [K]
    finish_ns : int64 [K, T] or None
        Only if asked for.
    """

    makespan_ns: NDArray[np.int64]
    finish_ns: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.makespan_ns)


def replay(
    graph: Graph, *, engine: Engine | None = None, like: Timeline | None = None, again: bool = False
) -> Timeline:
    """Play the graph and say when each task starts and ends.

    Tasks start as soon as their dependencies allow and their resource has a free slot. A task with a ``route`` and
    ``message_bytes`` takes its duration, which is its latency, then its bytes flow over the links of the route, at
    rates that are max-min fair among all that flows. Where edges alone fix the order on every contended resource one
    topological pass is enough; else an event-driven pass decides the order by readiness or priority. Both give the
    same answer where both apply, and equal inputs give equal bits.

    Equal ranks are played once where that is exact and saves time: among many ranks, if the order is decided at run
    time, or if the graph is to be replayed again.

    Parameters
    ----------
    graph : Graph
    engine : {"static", "event"}, optional
        Force an engine, on every task; by default the graph decides.
    like : Timeline, optional
        A replay of this graph with other durations: what it folded stays folded where the durations allow.
    again : bool
        Other durations of this graph will be replayed ``like`` this one, so that folding pays.

    Returns
    -------
    Timeline

    Raises
    ------
    GraphError
        The graph has a cycle, waits for itself, or its times leave 64 bits.
    InputError
        The static engine was asked for where the order has to be decided at run time.

    Examples
    --------
    >>> from windtunnel.graph import GraphBuilder, Kind, ResourceKind
    >>> from windtunnel.simulate import replay
    >>> builder = GraphBuilder()
    >>> stream = builder.resource("stream 7", ResourceKind.STREAM)
    >>> first = builder.task("gemm", kind=Kind.COMPUTE, resource=stream, duration_ns=300)
    >>> second = builder.task("relu", kind=Kind.COMPUTE, resource=stream, duration_ns=100)
    >>> builder.edge(first, second, lag_ns=50)
    >>> replay(builder.build()).makespan_ns
    450
    """
    duration = task_durations(graph)
    check_span(graph, duration)
    kept = None if engine is not None else _reuse_fold(graph, duration[None], like)
    if kept is not None:
        return _replay_fold(graph, kept[0], kept[1][0])
    if engine == "event":
        return _replay_events(graph, event_input(graph), duration)
    # From the cheapest to the most expensive: a fold that an earlier replay found; one static pass, if edges
    # fix every order; a fold that is searched for now; the event engine on the whole graph.
    program = build_fixed_order(graph)
    is_fixed = has_fixed_order(graph, program)
    if engine == "static" and not is_fixed:
        raise InputError(
            "the order of tasks on some resource is not fixed by edges",
            fix="leave the choice of the engine to replay(), or add ORDER edges",
        )
    # one static pass takes as long as folding
    folded = _find_fold(graph, program, duration[None]) if engine is None and (again or not is_fixed) else None
    if folded is not None:
        return _replay_fold(graph, folded, duration[folded.representative])
    return _replay_whole(graph, program, is_fixed, duration)


def replay_many(
    graph: Graph,
    durations_KT: NDArray[np.int64],
    *,
    finishes: bool = False,
    num_threads: int | None = None,
    program: FixedOrder | None = None,
    like: Timeline | None = None,
) -> Replays:
    """Replay K variants of the durations of one graph, on all cores, without copying the graph.

    Parameters
    ----------
    graph : Graph
    durations_KT : int64 [K, T]
        One row per variant. A transposed [T, K] array (Fortran order) is read fastest.
    finishes : bool
        Keep every task's finish, too (8 bytes per task and variant).
    num_threads : int, optional
        Default: one per core.
    program : FixedOrder, optional
        The graph as prepared for an earlier batch, where the edges fix the order.
    like : Timeline, optional
        A replay of this graph, folded or not; see :func:`replay`.

    Raises
    ------
    GraphError
        As for :func:`replay`.
    InputError
        The durations do not fit the graph, or some are negative.
    """
    durations_KT = np.asarray(durations_KT)
    if durations_KT.ndim != 2 or durations_KT.shape[1] != graph.num_tasks or durations_KT.dtype != np.int64:
        raise InputError(
            f"durations are {durations_KT.dtype} {list(durations_KT.shape)}, not int64 [K, {graph.num_tasks}]",
            fix="give one row of nanoseconds per variant",
        )
    num_threads = num_threads or os.cpu_count() or 1
    if program is not None:
        return _replay_many_fixed_order(graph, program, durations_KT, finishes, num_threads)
    kept = _reuse_fold(graph, durations_KT, like)
    if kept is not None:
        _check_seen(graph, int(np.bitwise_or.reduce(kept[1], axis=None)))
        return _replay_many_by_fold(*kept, finishes, num_threads)
    program = build_fixed_order(graph)
    if has_fixed_order(graph, program):
        return _replay_many_fixed_order(graph, program, durations_KT, finishes, num_threads)
    _check_seen(graph, int(np.bitwise_or.reduce(durations_KT, axis=None)))
    folded = _find_fold(graph, program, durations_KT)
    if folded is not None:
        return _replay_many_by_fold(folded, durations_KT[:, folded.representative], finishes, num_threads)
    return _replay_many_events(graph, durations_KT, finishes, num_threads)


def _reuse_fold(graph: Graph, durations_KT: Ints, like: Timeline | None) -> tuple[Fold, Ints] | None:
    """What an earlier replay folded, with its durations [K, C]; None if it did not fold, or these do not fit."""
    if like is None or like.fold is None or not like.fold.fits(graph):
        return None
    small_KC = like.fold.shrunk(durations_KT)
    return None if small_KC is None else (like.fold, small_KC)


def _find_fold(graph: Graph, program: FixedOrder, durations_KT: Ints) -> Fold | None:
    """The fold of a graph of many ranks, if at most half of its tasks are left."""
    rank = graph.tasks.get("rank")
    if rank is None or graph.num_tasks < _FOLDED_TASKS or rank.max() + 1 < _FOLDED_RANKS or not can_fold(graph):
        return None
    return fold_within(graph, program, durations_KT, graph.num_tasks // 2)


def _replay_fold(graph: Graph, folded: Fold, small_C: Ints) -> Timeline:
    program = build_fixed_order(folded.small)
    played = _replay_whole(folded.small, program, has_fixed_order(folded.small, program), small_C)
    return replace(folded.unfold(played), graph=graph)


def _replay_many_by_fold(folded: Fold, small_KC: Ints, finishes: bool, num_threads: int) -> Replays:
    program = build_fixed_order(folded.small)
    if has_fixed_order(folded.small, program):
        small = _replay_many_fixed_order(folded.small, program, small_KC, finishes, num_threads)
    else:
        small = _replay_many_events(folded.small, small_KC, finishes, num_threads)
    return small if small.finish_ns is None else Replays(small.makespan_ns, small.finish_ns[:, folded.member])


def _check_seen(graph: Graph, seen: int) -> None:
    """Judge durations by their bits or-ed together: the sign shows a negative one, the value bounds the largest."""
    # At least as large as the largest duration and less than twice that, for one operation per value.
    if seen < 0:
        raise InputError("some duration is negative", fix="a duration is a number of nanoseconds, 0 or more")
    check_span(graph, np.full(graph.num_tasks, seen))


def _replay_whole(graph: Graph, program: FixedOrder, is_fixed: bool, duration: Ints) -> Timeline:
    return (
        _replay_fixed_order(graph, program, duration)
        if is_fixed
        else _replay_events(graph, event_input(graph), duration)
    )


def _replay_fixed_order(graph: Graph, program: FixedOrder, duration: Ints) -> Timeline:
    start, finish = run_fixed(program, duration)
    return Timeline(graph=graph, start_ns=start, finish_ns=finish, sequence=program.order, engine="static")


def run_fixed(program: FixedOrder, duration: Ints) -> tuple[Ints, Ints]:
    """One static pass; returns start and finish [T] in row order."""
    finish_at = np.empty(len(duration), dtype=np.int64)
    static_pass(program.indptr, program.source, program.lag, duration[program.order], program.earliest, finish_at)
    finish = np.empty_like(finish_at)
    finish[program.order] = finish_at
    return finish - duration, finish


def _replay_events(graph: Graph, program: EventInput, duration: Ints) -> Timeline:
    start, finish, sequence = run_events(graph, program, duration)
    return Timeline(graph=graph, start_ns=start, finish_ns=finish, sequence=sequence, engine="event")


def run_events(graph: Graph, program: EventInput, duration: Ints) -> tuple[Ints, Ints, Ints]:
    """One event-driven pass; returns start, finish [T] in row order and the tasks in the order they began."""
    order = program.order
    room = event_room(program)
    done = run_event_pass(program, duration[order], room)
    if done < len(duration):
        raise _deadlock(graph, np.setdiff1d(order, order[room.sequence[:done]]))
    start, finish = np.empty_like(room.finish), np.empty_like(room.finish)
    start[order] = room.tasks["start"]
    finish[order] = room.finish
    return start, finish, order[room.sequence]


@dataclass(frozen=True, slots=True, eq=False)
class EventRoom:
    """Arrays that one event-driven pass writes to, by position; ``event_pass`` says what each is."""

    tasks: Ints
    resources: Ints
    shares: Ints
    arrived: Ints
    flows: Flows | None
    end: Ints
    keys: Ints
    codes: Ints
    of_tasks: tuple[Ints, ...]
    of_resources: tuple[Ints, ...]
    finish: Ints
    sequence: Ints


def event_room(program: EventInput) -> EventRoom:
    """Allocate for one pass; a room serves once.

    What a plain graph does not need is never touched, hence costs nothing.
    """
    num_tasks, num_events, sends = len(program.order), program.num_events + 5, program.sends
    return EventRoom(
        tasks=program.tasks.copy(),
        resources=program.resources.copy(),
        shares=program.shares.copy(),
        arrived=np.zeros(num_tasks, np.int64),
        flows=None if sends is None else new_flows(sends.capacity, sends.route, sends.size, sends.position),
        end=np.empty((num_tasks, 2), np.int64),
        keys=np.empty(num_events, np.int64),
        codes=np.empty(num_events, np.int64),
        of_tasks=tuple(np.empty(num_tasks, np.int32) for _ in range(4)),
        of_resources=tuple(np.empty(len(program.resources) + 1, np.int32) for _ in range(2)),
        finish=np.empty(num_tasks, np.int64),
        sequence=np.empty(num_tasks, np.int32),
    )


def run_event_pass(program: EventInput, duration: Ints, room: EventRoom) -> int:
    """Run the compiled pass on durations by position; returns how many tasks finished."""
    # Time and code share 63 bits of a key: bits for codes below 2 * T, the rest for times up to the latest
    # possible end. Where that does not fit, or other kinds of events occur, codes lie in an array of their own.
    bits = (2 * len(duration)).bit_length()  # of a completion or timer, below the time in one word
    is_plain = program.is_plain and program.latest_ns + int(duration.sum()) < 1 << (62 - bits)
    done: int = event_pass(
        program.roots, program.indptr, program.edges, duration, program.order, room.tasks, room.resources,
        *((None,) * 4 if is_plain else (program.priority, program.releases_at_start, room.arrived, room.shares)),
        program.slowdown_RS, room.flows, program.flow, room.end, room.keys, None if is_plain else room.codes,
        bits if is_plain else 0, room.of_tasks, room.of_resources, room.finish, room.sequence,
    )  # fmt: skip
    return done


def _deadlock(graph: Graph, stuck: Ints) -> GraphError:
    """Say who waits for whom: a cycle by name, else the resources that never let their tasks begin."""
    graph.topological_order()  # raises GraphError with the shortest cycle
    names = graph.resources.strings("name")
    waiting = np.bincount(graph.tasks["resource"][stuck] + 1, minlength=graph.num_resources + 1)[1:]
    lines = [f"{names.decode(r)} ({waiting[r]} tasks wait)" for r in np.argsort(-waiting)[:5] if waiting[r]]
    return GraphError(
        f"{len(stuck):,} of {graph.num_tasks:,} tasks can never begin",
        where="; ".join(lines),
        fix="give every resource at least one slot",
    )


def _replay_many_fixed_order(
    graph: Graph, program: FixedOrder, durations_KT: Ints, finishes: bool, num_threads: int
) -> Replays:
    num_variants, num_tasks = durations_KT.shape
    makespan = np.zeros(num_variants, dtype=np.int64)
    blocks = _blocks(durations_KT, num_threads)
    if finishes:
        finish_TK = np.empty((num_tasks, num_variants), dtype=np.int64)

        def run_all(first: int, count: int) -> int:
            seen: int = batch_finishes(
                program.indptr, program.source, program.lag, program.earliest, program.order,
                durations_KT.T, first, count, finish_TK,
            )  # fmt: skip
            return seen

        _check_seen(graph, _on_threads(run_all, blocks, num_threads))
        return Replays(finish_TK.max(axis=0, initial=0), finish_TK.T)
    # Only makespans are asked for: finish times are kept as long as some task still waits for them.
    slot = np.empty(num_tasks, dtype=np.int32)
    source_slot = np.empty(len(program.source), dtype=np.int32)
    num_live = assign_live_slots(program.indptr, program.source, slot, source_slot)

    def run(first: int, count: int) -> int:
        buffer = np.empty((num_live, count), dtype=np.int64)
        seen: int = batch_makespans(
            program.indptr, program.source, source_slot, slot, program.lag, program.earliest, program.order,
            durations_KT.T, first, count, buffer, makespan,
        )  # fmt: skip
        return seen

    _check_seen(graph, _on_threads(run, blocks, num_threads))
    return Replays(makespan)


def _replay_many_events(graph: Graph, durations_KT: Ints, finishes: bool, num_threads: int) -> Replays:
    program = event_input(graph)
    num_variants = len(durations_KT)
    makespan = np.zeros(num_variants, dtype=np.int64)
    finish_KT = np.empty(durations_KT.shape if finishes else (0, 0), dtype=np.int64)
    is_join = join_mask(graph)

    def run(k: int, _count: int) -> int:
        _, finish, _ = run_events(graph, program, np.where(is_join, 0, durations_KT[k]))
        makespan[k] = finish.max(initial=0)
        if finishes:
            finish_KT[k] = finish
        return 0

    _on_threads(run, [(k, 1) for k in range(num_variants)], num_threads)
    return Replays(makespan, finish_KT if finishes else None)


def _blocks(durations_KT: Ints, num_threads: int) -> list[tuple[int, int]]:
    """First variant and number of variants of each block."""
    num_variants = len(durations_KT)
    # Variants that lie side by side in memory share cache lines, so that many of them go through at once.
    most = _PER_BLOCK_BESIDE if durations_KT.T.flags.c_contiguous else _PER_BLOCK_APART
    size = max(1, min(most, -(-num_variants // num_threads)))
    return [(first, min(size, num_variants - first)) for first in range(0, num_variants, size)]


def _on_threads(run: Callable[[int, int], int], blocks: list[tuple[int, int]], num_threads: int) -> int:
    """Run every block; returns the results or-ed together."""
    if num_threads == 1 or len(blocks) < 2:
        return reduce(or_, (run(*block) for block in blocks), 0)
    with ThreadPoolExecutor(num_threads) as pool:
        return reduce(or_, pool.map(lambda block: run(*block), blocks), 0)
