"""List schedules of one layer for many chips, compiled.

In: plain arrays, operators in order, segments one after the other. Out: cycles of the best list schedule and what no
schedule is below, by chip. ``operations`` and ``lists`` define them.
"""

# N operators, G segments, P chips, R rules: from how many times faster on an operator is spread

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["schedule_chips", "schedule_segment"]

TENSOR, VECTOR, FUSED = range(3)


@numba.njit(cache=True)
def _core(kind: int, free_t: Any, free_v: Any) -> Any:
    """Return a free core of a kind, -1 if there is none."""
    # fused operators need a tensor and a vector core with the same number: these are taken from the front and single
    # cores from the back, so that pairs stay free as long as possible
    if kind == FUSED:
        for core in range(min(free_t.size, free_v.size)):
            if free_t[core] and free_v[core]:
                return core
        return -1
    free = free_t if kind == TENSOR else free_v
    for index in range(free.size):
        if free[free.size - 1 - index]:
            return free.size - 1 - index
    return -1


@numba.njit(cache=True)
def _take(kind: int, core: int, is_free: bool, free_t: Any, free_v: Any) -> None:
    # A fused operator occupies a tensor core and a vector core of the same number.
    if kind != VECTOR:
        free_t[core] = is_free
    if kind != TENSOR:
        free_v[core] = is_free


@numba.njit(cache=True)
def schedule_segment(first: int, last: int, kind_N: Any, before_NN: Any, single_N: Any, spread_N: Any, is_spread_N: Any,
                     num_t: int, num_v: int, start_N: Any, core_N: Any) -> Any:  # fmt: skip
    """Schedule the operators from ``first`` to ``last`` by list scheduling; return the cycles.

    The ready operator with the longest remaining path (``tail``) goes first. A spread operator needs all cores: when it
    has the longest path, later operators wait until all cores are free.
    """
    # tensor cores  |t0 ....|t2 ..|      |         single: one core of its kind, ``core_N`` names it
    # vector cores  |v1 ..|v3 ....|      |
    # spread                      |s4 ...|         all cores at once, ``core_N`` = -1
    #                             ^ now jumps from one end to the next
    num = last - first
    tail = np.zeros(num, np.int64)
    waits = np.zeros(num, np.int64)
    for index in range(num - 1, -1, -1):
        node = first + index
        longest = 0
        for other in range(index + 1, num):
            if before_NN[node, first + other]:
                waits[other] += 1
                longest = max(longest, tail[other])
        # operators are in topological order, so the tails of all successors are final
        tail[index] = longest + (spread_N[node] if is_spread_N[node] else single_N[node])
    free_t, free_v = np.ones(min(num_t, num), np.bool_), np.ones(min(num_v, num), np.bool_)
    end = np.full(num, -1, np.int64)  # -1 not started, -2 ended
    skipped = np.zeros(num, np.bool_)
    now: Any = 0
    num_left, num_running = num, 0
    while num_left:
        for index in range(num):
            skipped[index] = False
        while True:
            best = -1
            for index in range(num):
                is_ready = end[index] == -1 and waits[index] == 0 and not skipped[index]
                if is_ready and (best < 0 or tail[index] > tail[best]):
                    best = index
            if best < 0:
                break
            node = first + best
            if is_spread_N[node]:
                if num_running:
                    break
                core_N[node], end[best] = -1, now + spread_N[node]
                start_N[node] = now
                num_running += 1
                break
            core = _core(kind_N[node], free_t, free_v)
            if core < 0:  # a ready operator of another kind may still find a core now
                skipped[best] = True
                continue
            _take(kind_N[node], core, False, free_t, free_v)
            core_N[node], end[best], start_N[node] = core, now + single_N[node], now
            num_running += 1
        nearest = np.int64(1) << np.int64(62)
        for index in range(num):
            if end[index] >= 0:
                nearest = min(nearest, end[index])
        now = nearest
        for index in range(num):
            if end[index] >= 0 and end[index] <= now:
                node = first + index
                if core_N[node] >= 0:
                    _take(kind_N[node], core_N[node], True, free_t, free_v)
                end[index] = -2
                num_running -= 1
                num_left -= 1
                for other in range(index + 1, num):
                    if before_NN[node, first + other]:
                        waits[other] -= 1
    return now


@numba.njit(cache=True)
def _least(first: int, last: int, kind_N: Any, before_NN: Any, single_N: Any, spread_N: Any, num_t: int, num_v: int,
           must_N: Any, end_N: Any) -> Any:  # fmt: skip
    """Return a lower bound on the schedules of a segment that spread the operators in ``must_N``."""
    # alone + max(critical path, shared): spread operators keep all cores to themselves, so their cycles add up. The
    # others take at least their longest path, and at least any weighted mean of the loads of tensor and vector cores
    # (weights 0, 1/2 and 1 are tried: each gives a valid bound).
    longest: Any = 0
    alone: Any = 0
    for node in range(first, last):
        start = 0
        for other in range(first, node):
            if before_NN[other, node]:
                start = max(start, end_N[other])
        end_N[node] = start
        if must_N[node]:
            alone += spread_N[node]
        else:
            end_N[node] += min(single_N[node], spread_N[node])
        longest = max(longest, end_N[node])
    shared = 0.0
    for step in range(3):
        weight, total = 0.5 * step, 0.0
        for node in range(first, last):
            if must_N[node]:
                continue
            share = 0.0
            if kind_N[node] != VECTOR:
                share += weight * single_N[node] / num_t
            if kind_N[node] != TENSOR:
                share += (1.0 - weight) * single_N[node] / num_v
            total += min(np.float64(min(single_N[node], spread_N[node])), share)
        shared = max(shared, total)
    return alone + max(longest, np.int64(np.ceil(shared * (1.0 - 1e-12))))


@numba.njit(cache=True)
def _bound(first: int, last: int, kind_N: Any, before_NN: Any, single_N: Any, spread_N: Any, num_t: int, num_v: int,
           upper: Any, must_N: Any, end_N: Any) -> Any:  # fmt: skip
    """Return a lower bound on all schedules of a segment, at most ``upper``, which a schedule reaches.

    A schedule below ``upper`` has to spread each operator that takes too long on one core in addition to the operators
    that have to be spread, which keep all cores to themselves.
    """
    # every forced operator raises ``alone`` and may force others: repeat until nothing changes
    alone = 0
    for node in range(first, last):
        must_N[node] = False
    is_new = True
    while is_new:
        is_new = False
        for node in range(first, last):
            if not must_N[node] and alone + single_N[node] >= upper:
                must_N[node] = is_new = True
                alone += spread_N[node]
    return min(upper, _least(first, last, kind_N, before_NN, single_N, spread_N, num_t, num_v, must_N, end_N))


@numba.njit(cache=True, nogil=True)
def schedule_chips(thread: int, num_threads: int, kind_N: Any, before_NN: Any, ptr_G: Any, single_PN: Any,
                   spread_PN: Any, cores_P2: Any, rules_R: Any, cycles_P: Any, bound_P: Any,
                   best: Any) -> None:  # fmt: skip
    """Schedule every ``num_threads``-th chip from ``thread`` on.

    ``best`` receives the schedule of the last chip: starts within segments, whether spread, cores.
    """
    # segments run one after the other in any schedule, so their cycles and bounds add up
    num = kind_N.size
    start_N, core_N, is_spread_N = np.zeros(num, np.int64), np.zeros(num, np.int64), np.zeros(num, np.bool_)
    end_N, must_N = np.zeros(num, np.int64), np.zeros(num, np.bool_)
    best_start, best_spread, best_core = best
    for chip in range(thread, cycles_P.size, num_threads):
        single_N, spread_N = single_PN[chip], spread_PN[chip]
        num_t, num_v = cores_P2[chip, 0], cores_P2[chip, 1]
        total: Any = 0
        bound: Any = 0
        for segment in range(ptr_G.size - 1):
            first, last = ptr_G[segment], ptr_G[segment + 1]
            result: Any = np.int64(1) << np.int64(62)
            least: Any = 0
            for rule in range(rules_R.size):
                for node in range(first, last):
                    is_spread_N[node] = spread_N[node] <= single_N[node] and (
                        last - first == 1 or single_N[node] >= rules_R[rule] * spread_N[node]
                    )
                cycles = schedule_segment(first, last, kind_N, before_NN, single_N, spread_N, is_spread_N, num_t, num_v,
                                          start_N, core_N)  # fmt: skip
                if cycles < result:
                    result = cycles
                    for node in range(first, last):
                        best_start[node], best_core[node] = total + start_N[node], core_N[node]
                        best_spread[node] = is_spread_N[node]
                    least = _bound(first, last, kind_N, before_NN, single_N, spread_N, num_t, num_v, result, must_N,
                                   end_N)  # fmt: skip
                if result <= least:
                    break
            total += result
            bound += least
        cycles_P[chip], bound_P[chip] = total, bound
