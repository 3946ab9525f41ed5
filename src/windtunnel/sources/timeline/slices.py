"""Loops over sorted events, compiled: nesting into leaf slices, matching by id, lanes of a stream (sources, timeline).

In: plain arrays in a stated order. Out: plain arrays. Not here: names, policies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.graph import EdgeKind

# H host events, S slices, D device tasks, Q queries
Ints = NDArray[Any]
ORDER = int(EdgeKind.ORDER)
TOLERANCE_NS = 1000  # old traces resolve a quarter of a µs, and round twice


@njit(cache=True)
def cut_slices(thread: Ints, start: Ints, end: Ints, is_task: Ints, returns: Ints) -> tuple[Any, ...]:
    """Cut nested events into the pieces that a thread runs one after the other: A ⊃ (B, C) becomes A B A C A.

    Parameters
    ----------
    thread, start, end : int [H]
        Sorted by thread, start, longest first.
    is_task : bool [H]
        False for annotations: they enclose, but their own time is no work.
    returns : bool [H]
        Add a slice of no duration at the end of this event (the return of a waiting call).

    Returns
    -------
    slice event, start, end, is_return [S]; first slice, last slice, parent [H]; number of events cut at their
    parent's end by more than the tolerance, and the first of them.
    """
    #      events    A |-----------------------------|       slices   A |  B  | A | C |   A   |
    #                    B |-----|    C |---|
    # The stack holds the open events, outermost first. ``cursor`` is how far the thread is cut: a slice of
    # the enclosing task ends where a child begins, and goes on where the child ended. Annotations are on
    # the stack, as they enclose, but get no slices; ``owner`` skips them.
    num = len(start)
    room = 2 * num + np.int64(returns.sum())
    slice_event = np.empty(room, np.int32)
    slice_start = np.empty(room, np.int64)
    slice_end = np.empty(room, np.int64)
    is_return = np.zeros(room, np.bool_)
    first = np.zeros(num, np.int32)
    last = np.zeros(num, np.int32)
    parent = np.full(num, -1, np.int32)
    stack = np.empty(num, np.int32)
    finish = np.empty(num, np.int64)  # end, cut at the end of the enclosing task
    owner = np.full(num, -1, np.int32)  # nearest enclosing task, or itself
    depth = 0
    count = 0
    num_cut = 0
    first_cut = -1
    cursor = np.int64(0)
    for event in range(num + 1):
        at_edge = event == num or (event > 0 and thread[event] != thread[event - 1])
        while depth > 0 and (at_edge or finish[stack[depth - 1]] <= start[event]):
            top = stack[depth - 1]
            # an event of no duration at the very end of its parent is still inside
            if not at_edge and finish[top] == start[event] and end[event] == start[event] and finish[top] > start[top]:
                break
            depth -= 1
            if is_task[top]:
                if finish[top] > cursor or first[top] == count:
                    slice_event[count] = top
                    slice_start[count] = min(cursor, finish[top])
                    slice_end[count] = finish[top]
                    count += 1
                    cursor = finish[top]
                if returns[top]:
                    slice_event[count] = top
                    slice_start[count] = cursor
                    slice_end[count] = cursor
                    is_return[count] = True
                    count += 1
            last[top] = count - 1
        if event == num:
            break
        if at_edge:
            cursor = start[event]
        finish[event] = end[event]
        enclosing = -1
        if depth > 0:
            parent[event] = stack[depth - 1]
            enclosing = owner[stack[depth - 1]]
        if enclosing >= 0:
            if end[event] > finish[enclosing]:
                finish[event] = finish[enclosing]
                if is_task[event] and end[event] - finish[enclosing] > TOLERANCE_NS:
                    num_cut += 1
                    if first_cut < 0:
                        first_cut = event
            if start[event] > cursor:
                slice_event[count] = enclosing
                slice_start[count] = cursor
                slice_end[count] = start[event]
                count += 1
        cursor = max(cursor, start[event])
        owner[event] = event if is_task[event] else enclosing
        first[event] = count
        stack[depth] = event
        depth += 1
    return (
        slice_event[:count],
        slice_start[:count],
        slice_end[:count],
        is_return[:count],
        first,
        last,
        parent,
        num_cut,
        first_cut,
    )


@njit(cache=True)
def inherit(parent: Ints, own: Ints) -> Ints:
    """Give every event without a value (-1) that of its nearest ancestor that has one [H]; parents come first."""
    # Events are sorted by start and longest first, so that parents come before their children: one pass.
    value = own.copy()
    for event in range(len(parent)):
        if value[event] < 0 and parent[event] >= 0:
            value[event] = value[parent[event]]
    return value


@njit(cache=True)
def fill_between(thread: Ints, value: Ints, other: int) -> None:
    """Give slices without a value (-1) that of their neighbors on the thread if both have the same, else ``other``."""
    since = -1  # last slice with a value
    for s in range(len(value) + 1):
        at_edge = s == len(value) or (s > 0 and thread[s] != thread[s - 1])
        if at_edge or value[s] >= 0:
            inner = not at_edge and since >= 0 and value[since] == value[s]
            for hole in range(s - 1, -1, -1):
                if value[hole] >= 0:
                    break
                value[hole] = value[s] if inner else other
            since = -1
        if s < len(value) and value[s] >= 0:
            since = s


@njit(cache=True)
def match_latest(keys: Ints, times: Ints, query_keys: Ints, before: Ints) -> Ints:
    """Find for each query the last entry with its key that is not later than it, else the first with its key, else -1.

    ``keys``, ``times`` are sorted by key, then time. Ids that are used twice (merged or repeated traces) are so
    told apart.
    """
    result = np.full(len(query_keys), -1, np.int64)
    for query in range(len(query_keys)):
        low, high = 0, len(keys)
        while low < high:  # first entry beyond (key, time)
            middle = (low + high) // 2
            if keys[middle] < query_keys[query] or (
                keys[middle] == query_keys[query] and times[middle] <= before[query]
            ):
                low = middle + 1
            else:
                high = middle
        if low > 0 and keys[low - 1] == query_keys[query]:
            result[query] = low - 1
        elif low < len(keys) and keys[low] == query_keys[query]:
            result[query] = low
    return result


@njit(cache=True)
def assign_lanes(stream: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Put tasks that overlap on one stream on lanes of their own; sorted by stream, then start.

    Returns
    -------
    lane within the stream [D] (0 is the stream itself), start [D] moved behind the previous task where both overlap
    by no more than the tolerance, previous task of the lane [D] or -1.
    """
    # First fit: the lowest lane that is free. Kernels of one stream overlap only by rounding, which is cut,
    # or where a stream runs several at once, which needs lanes.
    #      lane 0  |---a---|     |--c--|
    #      lane 1       |---b---|
    num = len(start)
    lane = np.zeros(num, np.int32)
    begin = start.copy()
    previous = np.full(num, -1, np.int32)
    tails = np.full(16, -1, np.int64)
    used = 0
    for task in range(num):
        if task == 0 or stream[task] != stream[task - 1]:
            used = 0
        selected = -1
        for candidate in range(used):
            busy_until = end[tails[candidate]]
            overlap = busy_until - start[task]
            if overlap <= 0 or (overlap <= TOLERANCE_NS and busy_until <= end[task]):
                selected = candidate
                break
        if selected < 0:
            if used == len(tails):
                tails = np.concatenate((tails, tails))
            selected = used
            used += 1
        else:
            previous[task] = tails[selected]
            begin[task] = max(start[task], end[tails[selected]])
        tails[selected] = task
        lane[task] = selected
    return lane, begin, previous


@njit(cache=True)
def find_last_ended_task(
    ends: Ints, starts: Ints, launches: Ints, until: Ints, since: Ints, launched_before: Ints
) -> Ints:
    """Find for each query the last task that ended in [since, until] and was launched before a time; else -1.

    ``ends`` is sorted; ``starts`` are the tasks' own starts (a task never waits for one that began later than
    ``until``).
    """
    result = np.full(len(until), -1, np.int64)
    for query in range(len(until)):
        position, high = 0, len(ends)
        while position < high:  # first that ends later than `until`
            middle = (position + high) // 2
            if ends[middle] <= until[query]:
                position = middle + 1
            else:
                high = middle
        position -= 1
        while position >= 0 and ends[position] >= since[query]:
            if launches[position] < launched_before[query] and starts[position] <= until[query]:
                result[query] = position
                break
            position -= 1
    return result


@njit(cache=True)
def thread_order(
    thread: Ints,
    begin: Ints,
    finish: Ints,
    is_explained: Ints,
    src: Ints,
    dst: Ints,
    kind: Ints,
    lag: Ints,
    from_start: Ints,
) -> int:
    """Write the edges of every thread's chain of slices; returns their number. Explained gaps get no lag."""
    # Slices are sorted by thread and time. A gap that something else explains (a wait, a launch) must not
    # be a lag as well, else a faster cause would not make the task start earlier.
    count = 0
    for after in range(1, len(thread)):
        if thread[after] == thread[after - 1]:
            src[count], dst[count], kind[count], from_start[count] = after - 1, after, ORDER, False
            lag[count] = 0 if is_explained[after] else begin[after] - finish[after - 1]
            count += 1
    return count


@njit(cache=True)
def make_consistent(
    count: int, src: Ints, dst: Ints, kind: Ints, lag: Ints, from_start: Ints, start: Ints, end: Ints, dropped: Ints
) -> int:
    """Keep (in place) the edges that agree with the measured times, with lags that do not push beyond them.

    What is kept leads forward in (start, task number), so it has no cycle. ``dropped`` counts the others by kind.
    """
    # Clocks of hosts and devices differ slightly, so that some inferred edges would lead backwards in
    # time. They are dropped. An edge that stays may not delay its target beyond the measured start; so a
    # replay with unchanged durations gives the recorded times back.
    kept = 0
    for e in range(count):
        u, v = src[e], dst[e]
        room = start[v] - (start[u] if from_start[e] else end[u])
        if room < 0 or start[u] > start[v] or (start[u] == start[v] and u >= v):
            dropped[kind[e]] += 1
            continue
        src[kept], dst[kept], kind[kept], from_start[kept] = u, v, kind[e], from_start[e]
        lag[kept] = max(min(lag[e], room), 0)
        kept += 1
    return kept


@njit(cache=True)
def latest_arrival(src: Ints, dst: Ints, lag: Ints, from_start: Ints, start: Ints, end: Ints) -> Ints:
    """When the last predecessor lets each task begin [T], at measured times; -2**62 without predecessors."""
    # Far below any time, but not the smallest integer, so that adding a lag cannot overflow.
    arrival = np.full(len(start), -(2**62), np.int64)
    for e in range(len(src)):
        source = start[src[e]] if from_start[e] else end[src[e]]
        arrival[dst[e]] = max(arrival[dst[e]], source + lag[e])
    return arrival


@njit(cache=True)
def widen_gaps(src: Ints, dst: Ints, kind: Ints, lag: Ints, start: Ints, end: Ints, arrival: Ints) -> None:
    """Give the program-order edges of tasks that nothing holds until their start the whole gap as lag."""
    for e in range(len(src)):
        if kind[e] == ORDER and arrival[dst[e]] < start[dst[e]]:
            lag[e] = start[dst[e]] - end[src[e]]
