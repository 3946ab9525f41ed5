"""The fixed-order engine, compiled: longest path over tasks sorted topologically.

In: plain arrays in *position* order (position p holds task ``order[p]``), so that a pass streams through memory.
Out: finish times. Not here: contention (``event_engine.py``), choosing an engine (``arrays.py``).

An edge is stored with its successor: ``source[e]`` is the predecessor's position u, or ``~u`` if the successor waits
for the predecessor's start instead of its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# T tasks, E edges, K variants, L live tasks (those whose finish is still needed by a later one)
Ints = NDArray[Any]

AHEAD = 8  # tasks between asking memory for durations and using them

# For loops that allocate nothing: numba then leaves out its reference counts, which took a third of the time.
kernel: Callable[[Any], Any] = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]


@kernel
def static_pass(indptr: Ints, source: Ints, lag: Ints, duration: Ints, earliest: Ints, finish: Ints) -> None:
    """Fill ``finish`` [T]: the latest of ``earliest`` and each predecessor's end (or start) plus lag, plus duration."""
    # Positions are topological, so that one sweep is enough: every predecessor is final when it is read.
    #      finish[v] = max(earliest[v], max over edges of end(u) + lag, or start(u) + lag) + duration[v]
    # Starts are not stored: a start is finish - duration, which saves an array in each pass.
    for v in range(duration.size):
        start = earliest[v]
        for e in range(indptr[v], indptr[v + 1]):
            u = source[e]
            if u >= 0:
                arrival = finish[u] + lag[e]
            else:
                u = ~u
                arrival = finish[u] - duration[u] + lag[e]
            start = max(start, arrival)
        finish[v] = start + duration[v]


@njit(cache=True, nogil=True)
def assign_live_slots(indptr: Ints, source: Ints, slot: Ints, source_slot: Ints) -> int:
    """Give each position a row of a small buffer, reused after its last successor; returns the rows needed, L."""
    # Register allocation for the sweep: a finish time is only needed until the task's last successor
    # was visited, so that rows of the buffer are reused as registers are.
    #      chain of tasks     0 -> 1 -> 2 -> 3 -> 4
    #      row of each        0    1    0    1    0      two rows of K variants instead of five
    # A batch of K variants then works in L*K words, which stay in the cache, instead of T*K.
    num_tasks = slot.size
    last_use = np.arange(num_tasks)
    for v in range(num_tasks):
        for e in range(indptr[v], indptr[v + 1]):
            u = source[e]
            last_use[u if u >= 0 else ~u] = v
    unused = np.empty(num_tasks, dtype=np.int32)
    num_unused = 0
    num_slots = 0
    for v in range(num_tasks):
        if num_unused > 0:
            num_unused -= 1
            slot[v] = unused[num_unused]
        else:
            slot[v] = num_slots
            num_slots += 1
        # The task has its own row before the rows of its predecessors are released: a kernel writes its
        # result while it still reads theirs, so that they must not be the same.
        for e in range(indptr[v], indptr[v + 1]):
            u = source[e]
            position = u if u >= 0 else ~u
            source_slot[e] = slot[position] if u >= 0 else ~slot[position]
            if last_use[position] == v:
                last_use[position] = -1
                unused[num_unused] = slot[position]
                num_unused += 1
        # Nothing waits for this task; its finish only counts for the makespan.
        if last_use[v] == v:
            unused[num_unused] = slot[v]
            num_unused += 1
    return num_slots


@kernel
def batch_makespans(
    indptr: Ints,
    source: Ints,
    source_slot: Ints,
    slot: Ints,
    lag: Ints,
    earliest: Ints,
    order: Ints,
    durations_TK: Ints,
    first: int,
    count: int,
    finish_LK: Ints,
    makespan_K: Ints,
) -> int:
    """Replay variants ``first`` … ``first + count`` at once, K contiguous, in a buffer of live tasks only.

    Returns all durations or-ed together: negative if one of them is, and at least as large as the largest.
    """
    seen = np.int64(0)
    makespan = makespan_K[first : first + count]
    for v in range(order.size):
        row = order[v]
        ahead = order[min(v + AHEAD, order.size - 1)]
        for k in range(0, count, 8):  # one per cache line: fetched now, there when its turn comes
            seen |= durations_TK[ahead, first + k]
        finish = finish_LK[slot[v]]
        for k in range(count):
            finish[k] = earliest[v]
        for e in range(indptr[v], indptr[v + 1]):
            u = source[e]
            wait = lag[e]
            if u >= 0:
                before = finish_LK[source_slot[e]]
                for k in range(count):
                    finish[k] = max(finish[k], before[k] + wait)
            else:
                before = finish_LK[~source_slot[e]]
                other = order[~u]
                for k in range(count):
                    finish[k] = max(finish[k], before[k] - durations_TK[other, first + k] + wait)
        for k in range(count):
            duration = durations_TK[row, first + k]
            seen |= duration
            finish[k] += duration
            makespan[k] = max(makespan[k], finish[k])
    return int(seen)


@kernel
def batch_finishes(
    indptr: Ints,
    source: Ints,
    lag: Ints,
    earliest: Ints,
    order: Ints,
    durations_TK: Ints,
    first: int,
    count: int,
    finish_TK: Ints,
) -> int:
    """As ``batch_makespans``, keeping every finish: ``finish_TK`` is in row order, not in position order."""
    # K is the last axis of each array, so that the inner loops are vectorized; ``seen`` collects the
    # bits of all durations, whose sign bit shows a negative one without a branch in the loop.
    seen = np.int64(0)
    for v in range(order.size):
        row = order[v]
        for k in range(first, first + count):
            finish_TK[row, k] = earliest[v]
        for e in range(indptr[v], indptr[v + 1]):
            u = source[e]
            from_start = u < 0
            before = order[~u if from_start else u]
            for k in range(first, first + count):
                arrival = finish_TK[before, k] + lag[e]
                if from_start:
                    arrival -= durations_TK[before, k]
                finish_TK[row, k] = max(finish_TK[row, k], arrival)
        for k in range(first, first + count):
            seen |= durations_TK[row, k]
            finish_TK[row, k] += durations_TK[row, k]
    return int(seen)
