"""Which host thread waited for which: hand-offs between threads of a timeline (sources, timeline).

In: leaf slices by thread. Out: edges between slices of different threads, and the gaps that they explain. A thread
that is idle while another one runs a block of work inside that gap gave the work away and waited for it (the
autograd thread under `backward()`); a gap that ends just after another thread's work ended waited for that work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.timeline.rules import TimelineRules

__all__ = ["HandOffs", "find_hand_offs", "follow_progress"]

Int64s = NDArray[np.int64]
_MAX_THREADS = 64
Edges = dict[tuple[int, int], tuple[int, bool]]


@dataclass(frozen=True, slots=True, eq=False)
class HandOffs:
    """Edges ``source`` -> ``target`` between slices [E], and ``explained`` slices, before which the gap was a wait."""

    source: Int64s
    target: Int64s
    lag_ns: Int64s
    from_start: NDArray[np.bool_]
    explained: Int64s

    def __add__(self, other: HandOffs) -> HandOffs:
        names = self.__slots__
        return HandOffs(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))


class _Thread:
    """The slices [S] of one thread: numbers, starts, ends; and its gaps [G]."""

    def __init__(self, slices: Int64s, start: Int64s, end: Int64s, shortest_gap_ns: int) -> None:
        self.slices, self.start, self.end = slices, start, end
        self.after = np.flatnonzero(start[1:] - end[:-1] > shortest_gap_ns) + 1  # first slice after each gap
        self.gap_begin, self.gap_end = end[self.after - 1], start[self.after]


def find_hand_offs(
    thread: NDArray[np.integer],
    start: Int64s,
    end: Int64s,
    works: NDArray[np.bool_],
    issues: NDArray[np.bool_],
    collective: NDArray[np.bool_],
    rules: TimelineRules,
) -> HandOffs:
    """Find who waited for whom.

    Parameters
    ----------
    thread, start, end : int [S]
        Leaf slices, sorted by thread and start.
    works : bool [S]
        The slice belongs to an operator. Threads without any (a watchdog that only polls) hand nothing off.
    issues, collective : bool [S]
        The slice starts a collective; it is a collective that runs on the host (gloo).
    """
    borders = np.flatnonzero(np.diff(thread)) + 1
    parts = [part for part in np.split(np.arange(len(thread)), borders) if len(part) and works[part].any()]
    parts = sorted(parts, key=lambda part: -int((end[part] - start[part]).sum()))[:_MAX_THREADS]
    threads = [_Thread(part, start[part], end[part], rules.shortest_gap_ns) for part in parts]
    edges: dict[tuple[int, int], tuple[int, bool]] = {}
    explained: set[int] = set()
    for item in threads:
        for other in threads:
            if item is not other:
                _blocks_inside_gaps(item, other, rules.cover_ratio, edges, explained)
    for item in threads:
        _returns_after_work(item, threads, collective, rules, edges, explained)
    _link_issued_collectives(threads, issues, collective, edges, explained)
    _first_slices(threads, edges, explained)
    pairs = np.array(list(edges), np.int64).reshape(-1, 2)
    lags = np.array([lag for lag, _ in edges.values()], np.int64)
    starts = np.array([from_start for _, from_start in edges.values()], bool)
    return HandOffs(pairs[:, 0], pairs[:, 1], lags, starts, np.array(sorted(explained), np.int64))


def _blocks_inside_gaps(waiter: _Thread, other: _Thread, cover: float, edges: Edges, explained: set[int]) -> None:
    """Gaps of one thread that hold a whole block of work of the other."""
    first = np.searchsorted(other.start, waiter.gap_begin, side="left")
    last = np.searchsorted(other.end, waiter.gap_end, side="right") - 1
    inside = first <= last
    # the other thread rests when the gap begins and when it ends
    inside &= (first == 0) | (other.end[np.maximum(first - 1, 0)] <= waiter.gap_begin)
    following = np.minimum(last + 1, len(other.start) - 1)
    inside &= (last + 1 == len(other.start)) | (other.start[following] >= waiter.gap_end)
    first, last = np.minimum(first, len(other.start) - 1), np.maximum(last, 0)
    inside &= other.end[last] - other.start[first] >= cover * (waiter.gap_end - waiter.gap_begin)
    for gap in np.flatnonzero(inside).tolist():
        before, after = int(waiter.slices[waiter.after[gap] - 1]), int(waiter.slices[waiter.after[gap]])
        begin, finish = int(first[gap]), int(last[gap])
        edges[before, int(other.slices[begin])] = (int(other.start[begin] - waiter.gap_begin[gap]), False)
        edges[int(other.slices[finish]), after] = (int(waiter.gap_end[gap] - other.end[finish]), False)
        explained.update((after, int(other.slices[begin])))


def _returns_after_work(
    waiter: _Thread,
    threads: list[_Thread],
    collective: NDArray[np.bool_],
    rules: TimelineRules,
    edges: Edges,
    explained: set[int],
) -> None:
    """Gaps that end shortly after another thread's work did: long ones, and waits for host collectives."""
    if not len(waiter.after):
        return
    after = waiter.slices[waiter.after]
    latest = np.full(len(after), -(2**62), np.int64)
    source = np.full(len(after), -1, np.int64)
    for other in threads:
        if other is waiter:
            continue
        index = np.searchsorted(other.end, waiter.gap_end, side="right") - 1
        result = np.maximum(index, 0)
        ended = other.end[result]
        seen = (
            (index >= 0) & (ended > waiter.gap_begin) & (waiter.gap_end - ended <= rules.resume_ns) & (ended > latest)
        )
        seen &= (waiter.gap_end - waiter.gap_begin > rules.long_gap_ns) | collective[other.slices[result]]
        source[seen], latest[seen] = other.slices[result][seen], ended[seen]
    for gap in np.flatnonzero(source >= 0).tolist():
        if int(after[gap]) not in explained:
            edges[int(source[gap]), int(after[gap])] = (int(waiter.gap_end[gap] - latest[gap]), False)
            explained.add(int(after[gap]))


def _link_issued_collectives(
    threads: list[_Thread], issues: NDArray[np.bool_], collective: NDArray[np.bool_], edges: Edges, explained: set[int]
) -> None:
    """Each host collective starts after the operator of another thread that issued it."""
    for thread in threads:
        rows = np.flatnonzero(collective[thread.slices])
        for other in threads:
            issuing = other.slices[issues[other.slices]]
            if other is thread or not len(issuing) or not len(rows):
                continue
            starts = other.start[issues[other.slices]]
            index = np.searchsorted(starts, thread.start[rows], side="right") - 1
            for row, result in zip(rows[index >= 0].tolist(), index[index >= 0].tolist(), strict=True):
                target = int(thread.slices[row])
                before = int(thread.end[row - 1]) if row else -(2**62)
                is_bound = int(starts[result]) >= before
                edges[int(issuing[result]), target] = (int(thread.start[row] - starts[result]) if is_bound else 0, True)
                if is_bound:
                    explained.add(target)


def _first_slices(threads: list[_Thread], edges: Edges, explained: set[int]) -> None:
    """A thread that begins later than another one was given its work by the thread that worked last before."""
    for thread in threads:
        first, begin = int(thread.slices[0]), int(thread.start[0])
        if first in explained:
            continue
        ended = [
            (int(t.end[i]), int(t.slices[i]))
            for t in threads
            if (i := int(np.searchsorted(t.end, begin, side="right")) - 1) >= 0 and t is not thread
        ]
        if ended:
            latest, source = max(ended)
            edges[source, first] = (begin - latest, False)


def follow_progress(
    thread: NDArray[np.integer],
    start: Int64s,
    end: Int64s,
    polls: NDArray[np.bool_],
    device_queues: list[tuple[Int64s, Int64s]],
    rules: TimelineRules,
) -> HandOffs:
    """Tie threads that only poll (a watchdog) to the work around them: their rests are no work of their own.

    Parameters
    ----------
    thread, start, end : int [S]
        Leaf slices, sorted by thread and start.
    polls : bool [S]
        The slice's thread has no operators and launches nothing.
    device_queues : list of (task numbers, ends)
        Device tasks of each queue in order; the numbers go on after the slices.
    """
    rested = np.ones(len(thread), bool)
    rested[1:] = (thread[1:] != thread[:-1]) | (start[1:] - end[:-1] > rules.shortest_gap_ns)
    target = np.flatnonzero(polls & rested)
    latest = np.full(len(target), -(2**62), np.int64)
    source = np.full(len(target), -1, np.int64)
    borders = np.flatnonzero(np.diff(thread)) + 1
    threads = [part for part in np.split(np.arange(len(thread)), borders) if len(part) and not polls[part[0]]]
    for numbers, ends in [*((part, end[part]) for part in threads), *device_queues] if len(target) else []:
        index = np.searchsorted(ends, start[target], side="right") - 1
        result = np.maximum(index, 0)
        later = (index >= 0) & (ends[result] > latest)
        latest[later], source[later] = ends[result[later]], numbers[result[later]]
    known = source >= 0
    lag = start[target[known]] - latest[known]
    return HandOffs(source[known], target[known], lag, np.zeros(len(lag), bool), target[known])
