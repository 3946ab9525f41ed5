# ruff: noqa: SIM102 - numba leaves out a branch on None only where it stands alone
"""The event-driven engine, compiled: who runs next is decided as resources become free.

In: tables in *position* order (position p holds task ``order[p]``, neighbors in time are neighbors in memory).
Out: start, finish and the sequence in which tasks began.
Not here: choosing an engine (``arrays.py``), explaining the result (``start_causes.py``).

Time goes in instants, an instant in rounds. A round first takes every completion, timer and arrival of the instant,
then lets free resources begin their best waiting task; what a beginning task releases is seen in the next round.
So the result does not depend on the order in which resources or events of one instant are visited.

A SHARED resource keeps *virtual work*: what one user has received since the resource exists, as whole ns and a
fraction in 2**-30 ns. It grows at an integer rate of 2**30 / slowdown per ns, hence a task ends when the work reaches
what it was at the task's start plus its duration. Integers only: the end does not depend on how often one looks.

A task with a route first takes its duration, the latency, then its bytes flow over the links of the route while it
keeps its slot (of a SHARED resource it is a user for the duration only). Rates of flows are filled when an instant is
over (``flows.py``), hence in a later one than the flow's beginning it ends.

What makes it fast: one record per task, edge and resource, so that one cache line answers; memory asked for ahead of
its use; and unpredictable conditions are counted with (``num_found += is_found``) instead of jumped over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.simulate.flows import Flows, begin_flow, end_flow, fill_rates
from windtunnel.simulate.instructions import prefetch
from windtunnel.simulate.static_engine import kernel

# T tasks, E edges, R resources, S measured users of a shared resource
Ints = NDArray[Any]

JOIN = -1  # in place of a resource: passes arrivals on, occupies nothing
FRACTION_BITS = 30
ONE = 1 << FRACTION_BITS
FRACTION = ONE - 1

# in: earliest start, predecessors, resource; out: start
TASK = np.dtype([("start", np.int64), ("missing", np.int32), ("resource", np.int32)])
# target is the successor v, or ~v if it waits for the start
EDGE = np.dtype([("lag", np.int64), ("target", np.int32)])
# first: where the resource's waiting tasks are kept; dirty: may begin a task in this round
RESOURCE = np.dtype([("first", np.int64), ("waiting", np.int64), ("unused", np.int64), ("is_dirty", np.int64)])
# changed: more or fewer users than before
SHARE = np.dtype(
    [
        ("is_shared", np.int64), ("slots", np.int64), ("is_changed", np.int64), ("rate", np.int64),
        ("work", np.int64), ("fraction", np.int64), ("since", np.int64),
    ]
)  # fmt: skip

# Unsigned positions: numba then need not ask whether an index counts from the end of the array.
U0, U1, U2, U3, U4 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
AHEAD = np.uint64(1024)  # edges between asking memory for a successor and visiting it
NEVER = np.iinfo(np.int64).max


# --- heap of events: four children each, code < T is the completion of a task ----------------------------
# A key is time << bits | code, one word to compare and to move; where that does not fit, bits = 0 and codes lie apart.


@njit(inline="always")
def _place_event(keys: Ints, codes: Ints | None, hole: np.uint64, key: int, code: Any) -> None:
    """Let an event rise from the hole ``hole``."""
    # Move parents down into the hole instead of swapping: one write per level instead of three.
    while hole > U0:
        parent = (hole - U1) >> U2
        if keys[parent] <= key:
            break
        keys[hole] = keys[parent]
        if codes is not None:
            codes[hole] = codes[parent]
        hole = parent
    keys[hole] = key
    if codes is not None:
        codes[hole] = code


@njit(inline="always")
def _push_event(keys: Ints, codes: Ints | None, bits: int, size: np.uint64, time: int, code: Any) -> np.uint64:
    # The heap has four children per node because a cache line holds eight keys: the children of a
    # node are read with one or two misses, and the tree is half as deep as a binary one.
    #      node i:  children 4i+1, 4i+2, 4i+3, 4i+4;  parent (i-1) >> 2
    keys[size + U4] = NEVER  # so that the four children of any event can be read
    key = time << bits
    if codes is None:
        key |= code
    _place_event(keys, codes, size, key, code)
    return size + U1


@njit(inline="always")
def _pop_event(keys: Ints, codes: Ints | None, size: np.uint64) -> np.uint64:
    """Drop the earliest event; returns the new size.

    The hole sinks to a leaf without a look at the last event, which then rises: fewer unpredictable branches.
    """
    size -= U1
    key = keys[size]
    keys[size] = NEVER
    code = 0
    if codes is not None:
        code = codes[size]
    index = U0
    child = U1
    while child < size:
        a, b, c, d = keys[child], keys[child + U1], keys[child + U2], keys[child + U3]
        left, right = min(a, b), min(c, d)
        keys[index] = min(left, right)
        # Which of the four is smallest, as arithmetic: 2 or 3 where the right pair wins, else 0 or 1.
        child += np.uint64(d < c) + U2 if right < left else np.uint64(b < a)
        if codes is not None:
            codes[index] = codes[child]
        index = child
        child = (index << U2) + U1
    _place_event(keys, codes, index, key, code)
    return size


# --- heap of waiting tasks per resource: (priority, ready, row) -----------------------------------------


@njit(inline="always")
def _is_before(a: np.uint64, b: np.uint64, priority: Ints | None, tasks: Ints, order: Ints) -> bool:
    # A total order: priority, then the time at which the task became ready, then its row. Without the
    # row, ties would be broken by the shape of the heap, hence by the history of unrelated tasks.
    if priority is not None:
        if priority[a] != priority[b]:
            return bool(priority[a] < priority[b])
    if tasks[a].start != tasks[b].start:
        return bool(tasks[a].start < tasks[b].start)
    return bool(order[a] < order[b])


@njit(inline="always")
def _push_task(queue: Ints, resource: Any, v: np.uint64, priority: Ints | None, tasks: Ints, order: Ints) -> None:
    # All queues share one array. A resource owns as many entries as it has tasks, because each task
    # waits at most once, so that no queue grows and none needs a capacity check:
    #      queue   | resource 0 ......... | resource 1 .... | resource 2 ....... |
    #                ^ first, ^ waiting used, as a binary heap
    first = np.uint64(resource.first)
    index = np.uint64(resource.waiting)
    resource.waiting += 1
    while index > U0:
        parent = (index - U1) >> U1
        other = np.uint64(queue[first + parent])
        if not _is_before(v, other, priority, tasks, order):
            break
        queue[first + index] = other
        index = parent
    queue[first + index] = v


@njit(inline="always")
def _pop_task(queue: Ints, resource: Any, priority: Ints | None, tasks: Ints, order: Ints) -> np.uint64:
    first = np.uint64(resource.first)
    resource.waiting -= 1
    size = np.uint64(resource.waiting)
    best = np.uint64(queue[first])
    last = np.uint64(queue[first + size])
    index = U0
    child = U1
    while child < size:
        other = np.uint64(queue[first + child])
        if child + U1 < size:
            sibling = np.uint64(queue[first + child + U1])
            if _is_before(sibling, other, priority, tasks, order):
                child += U1
                other = sibling
        if not _is_before(other, last, priority, tasks, order):
            break
        queue[first + index] = other
        index = child
        child = index + index + U1
    queue[first + index] = last
    return best


# --- users of a shared resource: (work at which the task ends, its fraction, row) ------------------------


@kernel
def _ends_before(a: int, b: int, end: Ints) -> bool:
    # ``end`` is a fixed-point number in two words: whole ns of work, and the fraction in 2**-30.
    if end[a, 0] != end[b, 0]:
        return bool(end[a, 0] < end[b, 0])
    return bool(end[a, 1] < end[b, 1])


@kernel
def _push_user(queue: Ints, base: int, size: int, task: int, end: Ints) -> None:
    # The same array as that of waiting tasks: a SHARED resource has users, a FIFO one has waiters,
    # and none has both.
    index = size
    while index > 0:
        parent = (index - 1) >> 1
        if not _ends_before(task, queue[base + parent], end):
            break
        queue[base + index] = queue[base + parent]
        index = parent
    queue[base + index] = task


@kernel
def _pop_user(queue: Ints, base: int, size: int, end: Ints) -> int:
    best = queue[base]
    size -= 1
    task = queue[base + size]
    index = 0
    child = 1
    while child < size:
        if child + 1 < size and _ends_before(queue[base + child + 1], queue[base + child], end):
            child += 1
        if not _ends_before(queue[base + child], task, end):
            break
        queue[base + index] = queue[base + child]
        index = child
        child = 2 * index + 1
    queue[base + index] = task
    return int(best)


@kernel
def _rate_of_user(slowdown_S: Ints, slots: int, users: int) -> int:
    """Work received per ns by each of ``users`` tasks, in units of 2**-30."""
    if users == 0:
        return 0
    # Up to the last measured number of users the curve counts; beyond, the slow-down grows in
    # proportion to the users, as on a device that is saturated.
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
def _settle(share: Any, time: int) -> None:
    """Bring the virtual work of a resource up to ``time``; the product is split so that 64 bits hold it."""
    # elapsed * rate would need up to 61 + 30 bits, so that elapsed is split at 30 bits:
    #      (high * 2**30 + low) * rate / 2**30 = high * rate + low * rate / 2**30
    # Both products fit into 64 bits, and the remainder of the second one is carried over, so that
    # settling often or rarely gives the same work to the last bit.
    elapsed = time - share.since
    share.since = time
    part = (elapsed & FRACTION) * share.rate + share.fraction
    share.work += (elapsed >> FRACTION_BITS) * share.rate + (part >> FRACTION_BITS)
    share.fraction = part & FRACTION


@kernel
def _time_until(missing: int, missing_fraction: int, rate: int) -> int:
    """Smallest whole number of ns in which work grows by ``missing + missing_fraction / 2**30``; rounds up."""
    # The inverse of ``_settle``: the smallest t with t * rate >= missing * 2**30 + fraction. It is
    # divided in two steps for the same reason, and rounded up, as a task ends at a whole ns.
    if missing_fraction < 0:
        missing -= 1
        missing_fraction += ONE
    whole = missing // rate
    rest = ((missing - whole * rate) << FRACTION_BITS) + missing_fraction
    return (whole << FRACTION_BITS) + (rest + rate - 1) // rate


# --- resources to look at later in the round, each listed once -------------------------------------------


@njit(inline="always")
def _list_dirty(dirty: Ints, num_dirty: np.uint64, r: np.uint64, resource: Any, is_dirty: bool) -> np.uint64:
    # Writes always, and counts only if the resource was not listed: no branch that is hard to predict.
    dirty[num_dirty] = r
    num_dirty += np.uint64(is_dirty > resource.is_dirty)
    resource.is_dirty |= is_dirty
    return num_dirty


@njit(inline="always")
def _list_changed_resource(changed: Ints, num_changed: np.uint64, r: np.uint64, share: Any) -> np.uint64:
    changed[num_changed] = r
    num_changed += np.uint64(share.is_changed == 0)
    share.is_changed = 1
    return num_changed


# --- the pass ---------------------------------------------------------------------------------------------


@kernel
def event_pass(
    roots: Ints,  # tasks that wait for no other
    indptr: Ints,  # [T+1] outgoing edges of each task, in edge row order
    edges: Ints,  # [E] of EDGE
    duration: Ints,  # [T]
    order: Ints,  # [T] row of each position: breaks ties
    tasks: Ints,  # [T] of TASK
    resources: Ints,  # [R+1] of RESOURCE, the last has room for all tasks that have none
    priority: Ints | None,  # [T] zero on FIFO resources; None: the graph is plain
    releases_at_start: Ints | None,  # [T] some outgoing edge is from_start; None: plain
    arrived: Ints | None,  # [T] zeros: arrivals at each join; None: plain
    shares: Ints | None,  # [R+1] of SHARE; None: plain
    slowdown_RS: Ints,  # [R, S], S = 0 if there is no curve
    flows: Flows | None,  # the owner of each is its task; None: no task sends over links
    flow: Ints,  # [T] number of each task's flow, -1 if it has none
    end: Ints,  # [T, 2] out: work at which a task on a SHARED resource ends
    keys: Ints,  # room for the heap of events and five more
    codes: Ints | None,  # the same; None: keys hold the codes
    bits: int,  # of a code within a key
    tasks_room: tuple[Ints, Ints, Ints, Ints],  # [T] each: see below
    resources_room: tuple[Ints, Ints],  # [R+2] each: see below
    finish: Ints,  # [T] out
    sequence: Ints,  # [T] out: task that began i-th
) -> int:
    """Run every task; returns how many finished (less than T: deadlock).

    A plain graph has no from_start edge, join, shared resource, priority or flow; numba leaves their branches out.
    """
    # What an event means is encoded by the range of its code, so that a key is one word:
    #      0 ........ T        T ........ 2T       2T ........ 2T+R+1     2T+R+1 ......
    #      task ends           timer: task v       tick of resource:      edge e arrives
    #      (v)                 may begin           a user may be done     at its join
    #                          ^ timer             ^ tick                 ^ arrive
    # The order of events at one time does not matter, because nothing begins before all of them
    # were taken.
    num_tasks = duration.size
    timer = num_tasks
    tick = 2 * num_tasks
    arrive = tick + resources.size
    last_edge = np.uint64(max(edges.size, 1) - 1)
    # Life of a task:   missing > 0  --last predecessor-->  released  --earliest start is over-->
    #      waiting in its resource's heap  --slot is free-->  running  --event-->  fired: its edges follow
    queue, released, fired, joining = tasks_room
    num_fired = U0  # fired: ended, or ~began: outgoing edges still to follow
    num_joining = U0  # joining: tasks that become users of a shared resource in this round
    dirty, changed = resources_room
    num_dirty = U0
    num_changed = U0
    num_sequenced = U0
    done = 0
    now = 0
    for i in range(5):
        keys[i] = NEVER
    events = U0
    for i in range(roots.size):
        v = np.uint64(roots[i])
        events = _push_event(keys, codes, bits, events, tasks[v].start, timer + roots[i])

    while True:
        # Nothing is left to do at ``now``: the instant is over, and the next one is the earlier of the
        # next event and the next end of a flow. Rates of flows may only be filled here, since flows that
        # begin or end within one instant have to be seen together.
        if num_dirty == U0 and num_joining == U0 and num_fired == U0:
            upcoming = NEVER
            if flows is not None:
                if events == U0 or keys[U0] > now:  # else the instant goes on
                    upcoming = fill_rates(flows, now)
            if events > U0:
                upcoming = min(upcoming, keys[U0] >> bits)
            if upcoming == NEVER:
                break
            now = upcoming
            if flows is not None:
                # All flows that end now end before anything begins, as completions of plain tasks do.
                while flows.counts[0] > 0 and flows.finish[flows.queue[0]] == now:
                    f = flows.queue[0]
                    end_flow(flows, f)
                    u = np.uint64(flows.owner[f])
                    finish[u] = now
                    done += 1
                    fired[num_fired] = u
                    num_fired += U1
                    r = np.uint64(tasks[u].resource)
                    if shares is not None:
                        if not shares[r].is_shared:
                            resource = resources[r]
                            resource.unused += 1
                            num_dirty = _list_dirty(dirty, num_dirty, r, resource, resource.waiting > 0)

        # --- completions, timers and arrivals of this instant, and what the last round's beginnings release ---
        while num_fired > U0 or (events > U0 and keys[U0] >> bits == now):
            num_released = U0  # released: wait for no predecessor any more
            at_start = False
            is_join = False
            if num_fired > U0:
                num_fired -= U1
                # A task that ended (or began, complemented) earlier in this instant: its edges are still to follow.
                code = np.int64(fired[num_fired])
                if code < 0:
                    at_start = True
                    code = ~code
                first = np.uint64(indptr[np.uint64(code)])
                stop = np.uint64(indptr[np.uint64(code) + U1])
            else:
                if codes is None:
                    code = keys[U0] & ((1 << bits) - 1)
                else:
                    code = codes[U0]
                events = _pop_event(keys, codes, events)
                if code < timer:
                    u = np.uint64(code)
                    if flows is not None:
                        # The latency is over: the bytes flow now, and the task keeps its slot.
                        if flow[u] >= 0:
                            begin_flow(flows, flow[u], now)
                            continue
                    done += 1
                    first = np.uint64(indptr[u])
                    stop = np.uint64(indptr[u + U1])
                    # Tasks near in time are near in memory: what is needed soon lies a short way ahead.
                    prefetch(indptr, u + AHEAD)
                    prefetch(duration, u + AHEAD)
                    r = np.uint64(tasks[u].resource)
                    resource = resources[r]
                    resource.unused += 1
                    num_dirty = _list_dirty(dirty, num_dirty, r, resource, resource.waiting > 0)
                elif code < tick:
                    # Its last predecessor was done long ago; now its lag or earliest start is over, too.
                    released[U0] = code - timer
                    num_released = U1
                    first = U0
                    stop = U0
                else:
                    first = U0
                    stop = U0
                    if shares is not None:
                        if code < arrive:
                            # Ticks are never taken back when the number of users changes; one that comes
                            # too early finds no user whose work is done, and does nothing.
                            r = np.uint64(code - tick)
                            resource = resources[r]
                            share = shares[r]
                            _settle(share, now)
                            while resource.waiting > 0:
                                u = np.uint64(queue[resource.first])
                                if end[u, 0] > share.work or (end[u, 0] == share.work and end[u, 1] > share.fraction):
                                    break
                                _pop_user(queue, resource.first, resource.waiting, end)
                                resource.waiting -= 1
                                num_changed = _list_changed_resource(changed, num_changed, r, share)
                                if flows is not None:
                                    if flow[u] >= 0:
                                        begin_flow(flows, flow[u], now)
                                        continue
                                finish[u] = now
                                done += 1
                                fired[num_fired] = u
                                num_fired += U1
                    if arrived is not None:
                        if code >= arrive:
                            is_join = True
                            # The i-th arrival at a join releases the i-th outgoing edge of the join; the last arrival
                            # releases all that are left. Which arrival comes i-th is only known now.
                            target = edges[np.uint64(code - arrive)].target
                            u = np.uint64(target if target >= 0 else ~target)
                            first = np.uint64(indptr[u] + arrived[u])
                            stop = min(first + U1, np.uint64(indptr[u + U1]))
                            arrived[u] += 1
                            if arrived[u] == tasks[u].missing:
                                stop = np.uint64(indptr[u + U1])
                                tasks[u].start = now
                                finish[u] = now
                                sequence[num_sequenced] = u
                                num_sequenced += U1
                                done += 1
            for e in range(first, stop):
                edge = edges[e]
                prefetch(edges, e + AHEAD + AHEAD)
                prefetch(tasks, np.uint64(edges[min(e + AHEAD, last_edge)].target))
                target = edge.target
                if releases_at_start is not None:
                    # A task's edges are followed twice if some wait for its start: once for those, once for the rest.
                    if (target < 0) != at_start and not is_join:
                        continue
                    target = target if target >= 0 else ~target
                v = np.uint64(target)
                task = tasks[v]
                if arrived is not None:
                    if task.resource == JOIN:
                        time = now + edge.lag
                        events = _push_event(keys, codes, bits, events, time, arrive + np.int64(e))
                        continue
                # ``start`` serves as the time at which the task is ready until it begins.
                task.start = max(task.start, now + edge.lag)
                task.missing -= 1
                released[num_released] = v
                num_released += np.uint64(task.missing == 0)
            for i in range(num_released):
                v = np.uint64(released[i])
                task = tasks[v]
                # Not ready yet: a timer brings it back at that time.
                if task.start > now:
                    events = _push_event(keys, codes, bits, events, task.start, timer + np.int64(v))
                    continue
                r = np.uint64(task.resource)
                if shares is not None:
                    if shares[r].is_shared:
                        joining[num_joining] = v
                        num_joining += U1
                        continue
                resource = resources[r]
                _push_task(queue, resource, v, priority, tasks, order)
                num_dirty = _list_dirty(dirty, num_dirty, r, resource, resource.unused > 0)

        # --- beginnings ---
        for i in range(num_dirty):
            resource = resources[np.uint64(dirty[i])]
            resource.is_dirty = 0
            while resource.waiting > 0 and resource.unused > 0:
                v = _pop_task(queue, resource, priority, tasks, order)
                resource.unused -= 1
                tasks[v].start = now
                sequence[num_sequenced] = v
                num_sequenced += U1
                if releases_at_start is not None:
                    if releases_at_start[v]:
                        fired[num_fired] = ~np.int64(v)
                        num_fired += U1
                finish[v] = now + duration[v]
                events = _push_event(keys, codes, bits, events, now + duration[v], np.int64(v))
        num_dirty = U0
        if shares is not None:
            for i in range(num_joining):
                v = np.uint64(joining[i])
                tasks[v].start = now
                sequence[num_sequenced] = v
                num_sequenced += U1
                if releases_at_start is not None:
                    if releases_at_start[v]:
                        fired[num_fired] = ~np.int64(v)
                        num_fired += U1
                r = np.uint64(tasks[v].resource)
                resource = resources[r]
                share = shares[r]
                # The task ends when the virtual work has grown by its duration. What the others receive
                # meanwhile needs no update: their ends are stated in virtual work, too.
                _settle(share, now)
                end[v, 0] = share.work + duration[v]
                end[v, 1] = share.fraction
                _push_user(queue, resource.first, resource.waiting, v, end)
                resource.waiting += 1
                num_changed = _list_changed_resource(changed, num_changed, r, share)
            num_joining = U0
            # Once per resource and round, not once per user that came or went: the rate depends only on how
            # many users are left, and each tick that is pushed stays in the heap until its time.
            for i in range(num_changed):
                r = np.uint64(changed[i])
                resource = resources[r]
                share = shares[r]
                share.is_changed = 0
                share.rate = _rate_of_user(slowdown_RS[r], share.slots, resource.waiting)
                if resource.waiting > 0:
                    u = np.uint64(queue[resource.first])
                    wait = _time_until(end[u, 0] - share.work, end[u, 1] - share.fraction, share.rate)
                    events = _push_event(keys, codes, bits, events, now + wait, tick + np.int64(r))
            num_changed = U0
    return done
