# ruff: noqa: SIM102 - numba leaves out a branch on None only where it stands alone
"""The event-driven engine, compiled: who runs next is decided as resources become free (room simulate, private).

In: plain arrays in *position* order (position p holds task ``order[p]``, neighbours in time are neighbours in memory).
Out: start, finish and the sequence in which tasks began.
Not here: choosing an engine (``_program.py``), explaining the result (``_execution.py``).

Time goes in instants, an instant in rounds. A round first takes every completion, timer and arrival of the instant,
then lets free resources begin their best waiting task; what a beginning task releases is seen in the next round.
So the result does not depend on the order in which resources or events of one instant are visited.

A SHARED resource keeps *virtual work*: what one user has received since the resource exists, as whole ns and a
fraction in 2**-30 ns. It grows at an integer rate of 2**30 / slowdown per ns, hence a task ends when the work reaches
what it was at the task's start plus its duration. Integers only: the end does not depend on how often one looks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.simulate._static import kernel

# T tasks, E edges, R resources, S measured users of a shared resource
Ints = NDArray[Any]

SHARED = 2
UNPLACED = -1
JOIN = -2  # in place of a resource: passes arrivals on, occupies nothing
MISSING = 0xFFFFFFFF  # low half of a task's state: predecessors still missing; the high half is its resource
FRACTION_BITS = 30
ONE = 1 << FRACTION_BITS
FRACTION = ONE - 1

# Unsigned positions: numba then need not ask whether an index counts from the end of the array.
U0, U1 = np.uint64(0), np.uint64(1)


# --- heap of events: (time, code), code < T is the completion of a task ---------------------------------


@njit(inline="always")
def _push_event(times: Ints, codes: Ints, size: np.uint64, time: int, code: int) -> np.uint64:
    at = size
    while at > U0:
        parent = (at - U1) >> U1
        if times[parent] <= time:
            break
        times[at] = times[parent]
        codes[at] = codes[parent]
        at = parent
    times[at] = time
    codes[at] = code
    return size + U1


@njit(inline="always")
def _pop_event(times: Ints, codes: Ints, size: np.uint64) -> np.uint64:
    """Drop the earliest event; returns the new size.

    The hole sinks to a leaf without a look at the last event, which then rises: fewer branches that nobody can predict.
    """
    size -= U1
    time = times[size]
    code = codes[size]
    at = U0
    child = U1
    while child + U1 < size:
        child += np.uint64(times[child + U1] < times[child])
        times[at] = times[child]
        codes[at] = codes[child]
        at = child
        child = at + at + U1
    if child < size:
        times[at] = times[child]
        codes[at] = codes[child]
        at = child
    while at > U0:
        parent = (at - U1) >> U1
        if times[parent] <= time:
            break
        times[at] = times[parent]
        codes[at] = codes[parent]
        at = parent
    times[at] = time
    codes[at] = code
    return size


# --- heap of waiting tasks per resource: (priority, ready, row) -----------------------------------------


@njit(inline="always")
def _is_before(a: int, b: int, priority: Ints | None, state: Ints, order: Ints) -> bool:
    if priority is not None:
        if priority[a] != priority[b]:
            return bool(priority[a] < priority[b])
    if state[a, 0] != state[b, 0]:
        return bool(state[a, 0] < state[b, 0])
    return bool(order[a] < order[b])


@njit(inline="always")
def _push_task(queue: Ints, base: int, size: int, task: int, priority: Ints | None, state: Ints, order: Ints) -> None:
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if not _is_before(task, queue[base + parent], priority, state, order):
            break
        queue[base + at] = queue[base + parent]
        at = parent
    queue[base + at] = task


@njit(inline="always")
def _pop_task(queue: Ints, base: int, size: int, priority: Ints | None, state: Ints, order: Ints) -> int:
    best = queue[base]
    size -= 1
    task = queue[base + size]
    at = 0
    child = 1
    while child < size:
        if child + 1 < size and _is_before(queue[base + child + 1], queue[base + child], priority, state, order):
            child += 1
        if not _is_before(queue[base + child], task, priority, state, order):
            break
        queue[base + at] = queue[base + child]
        at = child
        child = 2 * at + 1
    queue[base + at] = task
    return int(best)


# --- users of a shared resource: (work at which the task ends, its fraction, row) ------------------------


@kernel
def _ends_before(a: int, b: int, end: Ints) -> bool:
    if end[a, 0] != end[b, 0]:
        return bool(end[a, 0] < end[b, 0])
    return bool(end[a, 1] < end[b, 1])


@kernel
def _push_user(queue: Ints, base: int, size: int, task: int, end: Ints) -> None:
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if not _ends_before(task, queue[base + parent], end):
            break
        queue[base + at] = queue[base + parent]
        at = parent
    queue[base + at] = task


@kernel
def _pop_user(queue: Ints, base: int, size: int, end: Ints) -> int:
    best = queue[base]
    size -= 1
    task = queue[base + size]
    at = 0
    child = 1
    while child < size:
        if child + 1 < size and _ends_before(queue[base + child + 1], queue[base + child], end):
            child += 1
        if not _ends_before(queue[base + child], task, end):
            break
        queue[base + at] = queue[base + child]
        at = child
        child = 2 * at + 1
    queue[base + at] = task
    return int(best)


@kernel
def _shared_rate(slowdown_S: Ints, slots: int, users: int) -> int:
    """Work received per ns by each of ``users`` tasks, in units of 2**-30."""
    if users == 0:
        return 0
    measured = slowdown_S.size
    if measured == 0:
        slow = users / slots if users > slots else 1.0
    elif users <= measured:
        slow = slowdown_S[users - 1]
    else:
        slow = slowdown_S[measured - 1] * users / measured
    # rounded up: a task whose end is a whole number of ns then ends there and not one ns later
    return max(1, int(np.ceil(ONE / slow)))


@kernel
def _settle(work: Ints, fraction: Ints, since: Ints, rate: Ints, r: int, time: int) -> None:
    """Bring the virtual work of resource ``r`` up to ``time``; the product is split so that 64 bits hold it."""
    elapsed = time - since[r]
    since[r] = time
    part = (elapsed & FRACTION) * rate[r] + fraction[r]
    work[r] += (elapsed >> FRACTION_BITS) * rate[r] + (part >> FRACTION_BITS)
    fraction[r] = part & FRACTION


@kernel
def _time_until(missing: int, missing_fraction: int, rate: int) -> int:
    """Smallest whole number of ns in which work grows by ``missing + missing_fraction / 2**30``; rounds up."""
    if missing_fraction < 0:
        missing -= 1
        missing_fraction += ONE
    whole = missing // rate
    rest = ((missing - whole * rate) << FRACTION_BITS) + missing_fraction
    return (whole << FRACTION_BITS) + (rest + rate - 1) // rate


@kernel
def event_pass(
    indptr: Ints,  # [T+1] outgoing edges of each task, in edge row order
    target: Ints,  # [E] successor v, or ~v if it waits for the start
    lag: Ints,  # [E]
    duration: Ints,  # [T]
    order: Ints,  # [T] row of each position: breaks ties
    priority: Ints | None,  # [T] zero on FIFO resources; None: the graph is plain
    state: Ints,  # [T, 2] in: earliest, resource << 32 | indegree; out: start, -1 if a task never began
    releases_at_start: Ints | None,  # [T] some outgoing edge is from_start; None: plain
    discipline: Ints,  # [R]
    slots: Ints,  # [R]
    slowdown_RS: Ints,  # [R, S], S = 0 if there is no curve
    queue_base: Ints,  # [R+1] where each resource's waiting tasks are kept
    arrived: Ints | None,  # [T] zeros: arrivals at each join; None: plain
    end: Ints | None,  # [T, 2] work at which a task on a SHARED resource ends; None: plain
    events_room: tuple[Ints, Ints],  # times and codes of events
    tasks_room: tuple[Ints, Ints, Ints],  # [T] each: see below
    resources_room: tuple[Ints, ...],  # [R] zeros each: see below
    finish: Ints,  # [T] out
    sequence: Ints,  # [T] out: task that began i-th
) -> int:
    """Run every task; returns how many finished (less than T: deadlock).

    A plain graph has no from_start edge, join, shared resource or priority; numba leaves their branches out.
    """
    num_tasks = duration.size
    num_resources = slots.size
    timer = num_tasks
    tick = 2 * num_tasks
    arrive = tick + num_resources
    times, codes = events_room
    events = U0
    queue, free, fired = tasks_room
    num_free = 0  # free: released in this round, and wait for no slot
    num_fired = 0  # fired: ended, or ~began: outgoing edges still to follow
    waiting, unused, dirty, is_dirty, changed, is_changed, work, fraction, since, rate = resources_room
    num_dirty = 0  # dirty: resources that may begin a task in this round
    num_changed = 0  # changed: shared resources with more or fewer users than before
    num_sequenced = 0
    done = 0
    now = 0
    for r in range(num_resources):
        unused[r] = slots[r]
    for v in range(num_tasks):
        finish[v] = -1
        if state[v, 1] & MISSING == 0:
            events = _push_event(times, codes, events, state[v, 0], timer + v)

    while True:
        if num_dirty == 0 and num_free == 0 and num_fired == 0:
            if events == U0:
                break
            now = times[0]

        # --- completions, timers and arrivals of this instant, and what the last round's beginnings release ---
        while num_fired > 0 or (events > U0 and times[0] == now):
            at_start = False
            is_join = False
            if num_fired > 0:
                num_fired -= 1
                u = fired[num_fired]
                if u < 0:
                    at_start = True
                    u = ~u
                first_edge = indptr[u]
                last_edge = indptr[u + 1]
            else:
                code = codes[0]
                events = _pop_event(times, codes, events)
                if code < timer:
                    u = code
                    done += 1
                    first_edge = indptr[u]
                    last_edge = indptr[u + 1]
                    r = state[u, 1] >> 32
                    if r >= 0:
                        unused[r] += 1
                        if waiting[r] > 0 and not is_dirty[r]:
                            is_dirty[r] = 1
                            dirty[num_dirty] = r
                            num_dirty += 1
                elif code < tick:
                    v = code - timer
                    r = state[v, 1] >> 32
                    if r < 0 or discipline[r] == SHARED:
                        free[num_free] = v
                        num_free += 1
                        continue
                    _push_task(queue, queue_base[r], waiting[r], v, priority, state, order)
                    waiting[r] += 1
                    if unused[r] > 0 and not is_dirty[r]:
                        is_dirty[r] = 1
                        dirty[num_dirty] = r
                        num_dirty += 1
                    continue
                else:
                    if end is not None:
                        if code < arrive:
                            r = code - tick
                            _settle(work, fraction, since, rate, r, now)
                            base = queue_base[r]
                            while waiting[r] > 0:
                                u = queue[base]
                                if end[u, 0] > work[r] or (end[u, 0] == work[r] and end[u, 1] > fraction[r]):
                                    break
                                _pop_user(queue, base, waiting[r], end)
                                waiting[r] -= 1
                                finish[u] = now
                                done += 1
                                fired[num_fired] = u
                                num_fired += 1
                                if not is_changed[r]:
                                    is_changed[r] = 1
                                    changed[num_changed] = r
                                    num_changed += 1
                            continue
                    if arrived is not None:
                        is_join = True
                        u = target[code - arrive]
                        u = u if u >= 0 else ~u
                        first_edge = indptr[u] + arrived[u]
                        last_edge = min(first_edge + 1, indptr[u + 1])
                        arrived[u] += 1
                        if arrived[u] == state[u, 1] & MISSING:
                            last_edge = indptr[u + 1]
                            state[u, 0] = now
                            finish[u] = now
                            sequence[num_sequenced] = u
                            num_sequenced += 1
                            done += 1
            for e in range(first_edge, last_edge):
                v = target[e]
                if (v < 0) != at_start and not is_join:
                    continue
                v = v if v >= 0 else ~v
                time = now + lag[e]
                half = state[v, 1]
                if arrived is not None:
                    if half >> 32 == JOIN:
                        events = _push_event(times, codes, events, time, arrive + e)
                        continue
                time = max(state[v, 0], time)
                state[v, 0] = time
                half -= 1
                state[v, 1] = half
                if half & MISSING > 0:
                    continue
                if time > now:
                    events = _push_event(times, codes, events, time, timer + v)
                    continue
                r = half >> 32
                if r < 0 or discipline[r] == SHARED:
                    free[num_free] = v
                    num_free += 1
                    continue
                _push_task(queue, queue_base[r], waiting[r], v, priority, state, order)
                waiting[r] += 1
                if unused[r] > 0 and not is_dirty[r]:
                    is_dirty[r] = 1
                    dirty[num_dirty] = r
                    num_dirty += 1

        # --- beginnings ---
        for i in range(num_dirty):
            r = dirty[i]
            is_dirty[r] = 0
            while waiting[r] > 0 and unused[r] > 0:
                v = _pop_task(queue, queue_base[r], waiting[r], priority, state, order)
                waiting[r] -= 1
                unused[r] -= 1
                state[v, 0] = now
                sequence[num_sequenced] = v
                num_sequenced += 1
                if releases_at_start is not None:
                    if releases_at_start[v]:
                        fired[num_fired] = ~v
                        num_fired += 1
                finish[v] = now + duration[v]
                events = _push_event(times, codes, events, now + duration[v], v)
        num_dirty = 0
        for i in range(num_free):
            v = free[i]
            r = state[v, 1] >> 32
            state[v, 0] = now
            sequence[num_sequenced] = v
            num_sequenced += 1
            if releases_at_start is not None:
                if releases_at_start[v]:
                    fired[num_fired] = ~v
                    num_fired += 1
            if r < 0:
                finish[v] = now + duration[v]
                events = _push_event(times, codes, events, now + duration[v], v)
                continue
            if end is not None:
                _settle(work, fraction, since, rate, r, now)
                end[v, 0] = work[r] + duration[v]
                end[v, 1] = fraction[r]
                _push_user(queue, queue_base[r], waiting[r], v, end)
                waiting[r] += 1
                if not is_changed[r]:
                    is_changed[r] = 1
                    changed[num_changed] = r
                    num_changed += 1
        num_free = 0
        if end is not None:
            for i in range(num_changed):
                r = changed[i]
                is_changed[r] = 0
                rate[r] = _shared_rate(slowdown_RS[r], slots[r], waiting[r])
                if waiting[r] > 0:
                    u = queue[queue_base[r]]
                    wait = _time_until(end[u, 0] - work[r], end[u, 1] - fraction[r], rate[r])
                    events = _push_event(times, codes, events, now + wait, tick + r)
            num_changed = 0
    return done
