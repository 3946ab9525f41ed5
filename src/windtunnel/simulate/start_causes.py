"""Why each task began when it did, compiled.

In: start and finish of every task. Out: the *execution graph* (the graph's edges plus the order that was realized on
each resource) and walks over it: binding constraint, critical path, latest starts. Not here: running anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.base.ordering import stable_order

# T tasks, E edges, R resources, P tasks of a path
Ints = NDArray[Any]

NOTHING, EARLIEST, DEPENDENCY, RESOURCE = 0, 1, 2, 3


@njit(cache=True, nogil=True)
def previous_on_slot(sequence: Ints, finish: Ints, resource: Ints, slots: Ints, contends: Ints) -> Ints:
    """The task that each one follows on its slot, int32 [T], -1 for the first; slots are taken as they fall free.

    ``contends`` [R] says where there is an order to speak of: more tasks than slots, one at a time per slot.
    """
    # Replays the assignment of slots: per resource, a heap of the last task on each slot that was used.
    # A task takes an unused slot while there is one, and else the slot that fell free first.
    #      heap | resource 0: slots .. | resource 1: slots .. |        base[r] .. base[r + 1]
    num_resources = slots.size
    base = np.zeros(num_resources + 1, dtype=np.int64)
    for r in range(num_resources):
        base[r + 1] = base[r] + (slots[r] if contends[r] else 0)
    heap = np.empty(base[num_resources], dtype=np.int32)  # last task of each used slot, by (finish, row)
    used = np.zeros(num_resources, dtype=np.int64)
    previous = np.full(sequence.size, -1, dtype=np.int32)
    for i in range(sequence.size):
        v = sequence[i]
        r = resource[v]
        if r < 0 or not contends[r]:
            continue
        first = base[r]
        if used[r] < slots[r]:
            index = used[r]
            used[r] += 1
            while index > 0:
                parent = (index - 1) >> 1
                other = heap[first + parent]
                if finish[other] < finish[v] or (finish[other] == finish[v] and other < v):
                    break
                heap[first + index] = other
                index = parent
            heap[first + index] = v
            continue
        # The root is the slot that fell free first; the new task replaces it there and sinks.
        previous[v] = heap[first]
        size = used[r]
        index = 0
        child = 1
        while child < size:
            other = heap[first + child]
            if child + 1 < size:
                sibling = heap[first + child + 1]
                if finish[sibling] < finish[other] or (finish[sibling] == finish[other] and sibling < other):
                    child += 1
                    other = sibling
            if finish[v] < finish[other] or (finish[v] == finish[other] and v < other):
                break
            heap[first + index] = other
            index = child
            child = 2 * index + 1
        heap[first + index] = v
    return previous


@njit(cache=True, nogil=True)
def resolve_joins(
    order: Ints,
    in_indptr: Ints,
    in_rows: Ints,
    out_indptr: Ints,
    out_rows: Ints,
    is_join: Ints,
    src: Ints,
    lag: Ints,
    from_start: Ints,
    start: Ints,
    finish: Ints,
    place: Ints,  # [T] of each task in the sequence in which they began
) -> None:
    """Make each edge that a join released an edge from the task whose arrival released it, in place.

    Of arrivals at one time that of the task that began first counts first, so that nothing waits for what began later.
    """
    # An arrival join passes its i-th arrival on through its i-th outgoing edge. With times known, each
    # pair becomes one direct edge, and the join is no task that anything waits for any more:
    #      a --\            /--> x                 first arrival  ----> x
    #      b ---> [ join ] ---> y       becomes    second arrival ----> y
    for i in range(order.size):
        v = order[i]
        if not is_join[v]:
            continue
        rows = in_rows[in_indptr[v] : in_indptr[v + 1]]
        arrival = np.empty(rows.size, dtype=np.int64)
        for k in range(rows.size):
            e = rows[k]
            arrival[k] = lag[e] + (start[src[e]] if from_start[e] else finish[src[e]])
        # Two stable sorts: by time of arrival, and among equal times by the order in which tasks began.
        started = stable_order(place[src[rows]])
        ranked = started[stable_order(arrival[started])]
        for k in range(min(rows.size, out_indptr[v + 1] - out_indptr[v])):
            arriving = rows[ranked[k]]
            released = out_rows[out_indptr[v] + k]
            src[released] = src[arriving]
            lag[released] += lag[arriving]
            from_start[released] = from_start[arriving]


@njit(cache=True, nogil=True)
def bind(
    in_indptr: Ints,
    in_rows: Ints,
    src: Ints,
    lag: Ints,
    from_start: Ints,
    previous: Ints,
    earliest: Ints,
    start: Ints,
    finish: Ints,
    constraint: Ints,  # [T] out: NOTHING, EARLIEST, DEPENDENCY or RESOURCE
    binding_task: Ints,  # [T] out: the task waited for, -1 if none
    binding_edge: Ints,  # [T] out: the edge, -1 if none
) -> None:
    """What each task's start waited for last; of several the task with the smallest row, an edge before a slot."""
    # A constraint binds if it holds exactly: its arrival equals the start. Several may; the smallest row
    # is taken, so that the critical path does not depend on the order of edges.
    for v in range(start.size):
        best = -1
        edge = -1
        for i in range(in_indptr[v], in_indptr[v + 1]):
            e = in_rows[i]
            u = src[e]
            arrival = lag[e] + (start[u] if from_start[e] else finish[u])
            if arrival == start[v] and (best < 0 or u < best):
                best = u
                edge = e
        constraint[v] = DEPENDENCY if best >= 0 else NOTHING
        u = previous[v]
        if u >= 0 and finish[u] == start[v] and (best < 0 or u < best):
            best = u
            edge = -1
            constraint[v] = RESOURCE
        if best < 0 and earliest[v] > 0 and earliest[v] == start[v]:
            constraint[v] = EARLIEST
        binding_task[v] = best
        binding_edge[v] = edge


@njit(cache=True, nogil=True)
def walk_back(last: int, binding_task: Ints, binding_edge: Ints, from_start: Ints) -> tuple[Ints, Ints]:
    """Follow the binding constraints from ``last`` back: tasks in time order, and which were left at their start."""
    # Two walks over the same chain: the first counts, so that the arrays can be filled from their end.
    size = 1
    v = last
    while binding_task[v] >= 0:
        v = binding_task[v]
        size += 1
    tasks = np.empty(size, dtype=np.int32)
    left_at_start = np.zeros(size, dtype=np.bool_)
    v = last
    for i in range(size - 1, -1, -1):
        tasks[i] = v
        if i > 0:
            edge = binding_edge[v]
            left_at_start[i - 1] = edge >= 0 and from_start[edge]
            v = binding_task[v]
    return tasks, left_at_start


@njit(cache=True, nogil=True)
def latest_starts(
    sequence: Ints,
    in_indptr: Ints,
    in_rows: Ints,
    src: Ints,
    lag: Ints,
    from_start: Ints,
    previous: Ints,
    start: Ints,
    finish: Ints,
    makespan: int,
) -> Ints:
    """The latest start of each task that leaves the makespan as it is, the realized order kept, int64 [T]."""
    # The backward half of the critical path method. In reverse of the realized sequence every successor
    # is final before its predecessors are visited:
    #      latest[u] = min over what waits for u of latest[v] - lag - (duration of u, unless from_start)
    # The slack of a task is latest - start. The realized order on each slot counts as an edge, so that
    # the slack says what is possible without changing who runs before whom.
    latest = makespan - (finish - start)
    for i in range(sequence.size - 1, -1, -1):
        v = sequence[i]
        for j in range(in_indptr[v], in_indptr[v + 1]):
            e = in_rows[j]
            u = src[e]
            bound = latest[v] - lag[e]
            if not from_start[e]:
                bound -= finish[u] - start[u]
            latest[u] = min(latest[u], bound)
        u = previous[v]
        if u >= 0:
            latest[u] = min(latest[u], latest[v] - (finish[u] - start[u]))
    return latest
