"""Loops over edges, compiled.

In: plain arrays. Out: adjacency, topological order, a shortest cycle, the edges that bridge removed tasks.
Not here: time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# T tasks, E edges, R removed tasks
Ints = NDArray[Any]
# A path from the kept task ``origin`` over removed ones to ``target``, and the row of the next path to the same target.
# Records, because numba compiles one array that grows many times faster than one for each column.
PATH = np.dtype(
    [
        ("delay", np.int64), ("next", np.int64), ("origin", np.int32), ("target", np.int32),
        ("from_start", np.bool_), ("kind", np.int8),
    ],
    align=True,
)  # fmt: skip


@njit(cache=True)
def adjacency(key: Ints, num_tasks: int) -> tuple[Ints, Ints]:
    """Group edge rows by ``key`` (their src or dst): indptr int64 [T+1], edge rows int32 [E], stable."""
    # Counting sort into compressed sparse rows: count per key, sum up, fill. Stable, so that the edges
    # of a task keep their row order, on which arrival joins rely.
    #      edges of task v are rows[indptr[v] : indptr[v + 1]]
    indptr = np.zeros(num_tasks + 1, dtype=np.int64)
    for e in range(key.size):
        indptr[key[e] + 1] += 1
    for v in range(num_tasks):
        indptr[v + 1] += indptr[v]
    fill = indptr[:-1].copy()
    rows = np.empty(key.size, dtype=np.int32)
    for e in range(key.size):
        rows[fill[key[e]]] = e
        fill[key[e]] += 1
    return indptr, rows


@njit(cache=True)
def kahn_order(indptr: Ints, edge_rows: Ints, dst: Ints, num_tasks: int) -> Ints:
    """Topological order int32; shorter than T if there is a cycle. Sources come in row order (queue, not stack)."""
    # ``order`` is the queue as well: what is between head and tail has no predecessor left. A queue
    # (first in, first out) keeps tasks that are independent in row order, which is roughly time order.
    indegree = np.zeros(num_tasks, dtype=np.int32)
    for e in range(dst.size):
        indegree[dst[e]] += 1
    order = np.empty(num_tasks, dtype=np.int32)
    tail = 0
    for v in range(num_tasks):
        if indegree[v] == 0:
            order[tail] = v
            tail += 1
    head = 0
    while head < tail:
        u = order[head]
        head += 1
        for i in range(indptr[u], indptr[u + 1]):
            v = dst[edge_rows[i]]
            indegree[v] -= 1
            if indegree[v] == 0:
                order[tail] = v
                tail += 1
    return order[:tail]


@njit(cache=True)
def shortest_cycle_through(start: int, indptr: Ints, edge_rows: Ints, dst: Ints, limit: int) -> Ints:
    """Breadth-first search for the shortest cycle through ``start`` of fewer than ``limit`` tasks; empty if none."""
    # Breadth-first, so that the first way back to ``start`` is a shortest one. ``limit`` is the length of
    # the best cycle so far: a search that cannot beat it ends early.
    num_tasks = indptr.size - 1
    parent = np.full(num_tasks, -1, dtype=np.int32)
    depth = np.zeros(num_tasks, dtype=np.int32)
    queue = np.empty(num_tasks, dtype=np.int32)
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        u = queue[head]
        head += 1
        if depth[u] + 1 >= limit:
            break
        for i in range(indptr[u], indptr[u + 1]):
            v = dst[edge_rows[i]]
            if v == start:
                # Walk back along parents; the depth says at which index each task belongs.
                cycle = np.empty(depth[u] + 1, dtype=np.int32)
                for k in range(depth[u], -1, -1):
                    cycle[k] = u
                    u = parent[u]
                return cycle
            if parent[v] < 0 and v != start:
                parent[v] = u
                depth[v] = depth[u] + 1
                queue[tail] = v
                tail += 1
    return np.empty(0, dtype=np.int32)


@njit(cache=True)
def _double(paths: Ints) -> Ints:
    bigger = np.empty(2 * paths.size, PATH)
    for i in range(paths.size):  # numba compiles a loop many times faster than a slice
        bigger[i] = paths[i]
    return bigger


@njit(cache=True)
def _join_kinds(first: int, second: int, order_kind: int, data_kind: int, control_kind: int) -> int:
    """Return the kind of a path of two edges: data passes only where both edges pass it."""
    # Along a path     ORDER + ORDER = ORDER     DATA + DATA = DATA     all other pairs = CONTROL
    # A kept task that was only ordered before the removed reader hands it no data, and what the
    # removed task read is not read by what merely followed it: both paths still have to be waited for.
    if first != second and (first == data_kind or (first == order_kind and second == data_kind)):
        return control_kind
    return second if first == order_kind else first


@njit(cache=True)
def _parallel_kind(first: int, second: int, order_kind: int, control_kind: int) -> int:
    """Kind of an edge in place of two with the same ends: the one that says more."""
    if first == order_kind or (first == control_kind and second != order_kind):
        return second
    return first


@njit(cache=True)
def bridge(
    order: Ints,
    src: Ints,
    dst: Ints,
    lag_ns: Ints,
    from_start: Ints,
    kind: Ints,
    removed: Ints,
    order_kind: int,
    data_kind: int,
    control_kind: int,
) -> Ints:
    """Paths over removed tasks, of which those to kept tasks replace what is removed.

    A removed task counts as one of zero duration, so a path's lag is the sum of its lags and its first edge says
    whether it starts at the start or the end of the kept predecessor. Per (origin, from_start, target) the longest
    path wins. Walks the removed tasks in topological order; each keeps a linked list of the kept tasks that reach it.

    Returns
    -------
    records of ``PATH``, to removed tasks and to kept ones; a path of ORDER edges alone stays ORDER, one of DATA edges
    alone DATA: what was read by a removed task is not read by all that waited for it.
    """
    #         a --lag 3--> (x) --lag 2--> (y) --lag 1--> b        x and y are removed
    #      becomes
    #         a ---------------- lag 6 ----------------> b
    # Each removed task keeps a linked list of the paths from kept tasks to it, all in one pool:
    #      first[v] -> path -> path.next -> ... -> -1
    # Lists are short where few tasks are removed in a row; duplicates of one origin merge, else parallel
    # paths through a chain of diamonds would double at each of them.
    num_tasks = removed.size
    first = np.full(num_tasks, -1, dtype=np.int64)
    paths, used = np.empty(1024, PATH), 0
    # the row of a pair in the list being filled, so that parallel paths merge instead of multiplying
    seen = np.full(2 * num_tasks, -1, dtype=np.int64)
    stamp = np.full(2 * num_tasks, -1, dtype=np.int64)
    in_indptr, in_rows = adjacency(dst, num_tasks)
    for position in range(order.size):
        v = order[position]
        # Only removed tasks and kept ones right behind them have anything to do.
        touched = removed[v]
        if not touched:
            for i in range(in_indptr[v], in_indptr[v + 1]):
                if removed[src[in_rows[i]]]:
                    touched = True
                    break
        if not touched:
            continue
        for i in range(in_indptr[v], in_indptr[v + 1]):
            e = in_rows[i]
            u = src[e]
            if not removed[u]:
                if not removed[v]:
                    continue
                # -2 stands for the edge itself, from a kept task; else the list of the removed predecessor is walked.
                row = -2
            else:
                row = first[u]
            while row != -1:
                if row == -2:
                    a, w, s, k = u, lag_ns[e], from_start[e], kind[e]
                    row = -1
                else:
                    a, w, s = paths[row].origin, paths[row].delay + lag_ns[e], paths[row].from_start
                    k = _join_kinds(paths[row].kind, kind[e], order_kind, data_kind, control_kind)
                    row = paths[row].next
                # ``stamp[key] == position`` says that this origin is in the list of this task already; comparing with
                # the position saves clearing the array for every task.
                key = 2 * a + (1 if s else 0)
                if stamp[key] == position:
                    path = paths[seen[key]]
                    path.delay = max(path.delay, w)
                    path.kind = _parallel_kind(path.kind, k, order_kind, control_kind)
                    continue
                if used == paths.size:
                    paths = _double(paths)
                path = paths[used]
                path.origin, path.target, path.delay, path.from_start, path.kind = a, v, w, s, k
                path.next = first[v]
                if removed[v]:
                    first[v] = used
                stamp[key], seen[key] = position, used
                used += 1
    return paths[:used]
