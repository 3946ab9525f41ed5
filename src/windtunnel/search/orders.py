"""Orders that make a chain of a graph: each node after its predecessors.

In: nodes and edges. Out: named orders, equal on every machine: ties go to the smaller number. Over a chain the
program of ``minmax`` is quick, and what it finds is a true cut, if not always the best.

Source: Tarnawski et al., NeurIPS 2020, section 5.2 (DPL), which takes the depth-first one.
"""

# N nodes

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.search.work import Groups

__all__ = ["ORDERS", "depth_first", "random_order"]

Ints = NDArray[np.int64]
Order = Callable[[int, ArrayLike, ArrayLike, Groups], Ints]


def depth_first(num_nodes: int, src: ArrayLike, dst: ArrayLike) -> Ints:
    """What became ready last goes first.

    Examples
    --------
    >>> depth_first(5, [0, 0, 1, 2], [1, 2, 3, 4]).tolist()
    [0, 2, 4, 1, 3]
    """
    return _walk(num_nodes, src, dst, lambda ready: ready.pop())


def breadth_first(num_nodes: int, src: ArrayLike, dst: ArrayLike) -> Ints:
    """What became ready first goes first."""
    return _walk(num_nodes, src, dst, lambda ready: ready.pop(0))


def random_order(num_nodes: int, src: ArrayLike, dst: ArrayLike, random: np.random.Generator) -> Ints:
    """Any of those that are ready goes first."""
    return _walk(num_nodes, src, dst, lambda ready: ready.pop(int(random.integers(len(ready)))))


def _walk(num_nodes: int, src: ArrayLike, dst: ArrayLike, take: Callable[[list[int]], int]) -> Ints:
    after, waiting = _after(num_nodes, src, dst)
    ready = [node for node in range(num_nodes) if not waiting[node]]
    result = []
    while ready:
        node = take(ready)
        result.append(node)
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return np.array(result, np.int64)


def _after(num_nodes: int, src: ArrayLike, dst: ArrayLike) -> tuple[list[list[int]], list[int]]:
    """Successors of each node in ascending order, and how many predecessors it waits for."""
    after: list[list[int]] = [[] for _ in range(num_nodes)]
    waiting = [0] * num_nodes
    for a, b in sorted(set(zip(np.asarray(src).tolist(), np.asarray(dst).tolist(), strict=True))):
        after[a].append(b)
        waiting[b] += 1
    return after, waiting


def narrow(num_nodes: int, src: ArrayLike, dst: ArrayLike, groups: Groups) -> Ints:
    """The ready node after which least is alive: outputs that somebody still has to read cost what they cost."""
    after, waiting = _after(num_nodes, src, dst)
    before: list[list[int]] = [[] for _ in range(num_nodes)]
    for node, others in enumerate(after):
        for other in others:
            before[other].append(node)
    unread = [len(others) for others in after]
    cost = np.zeros(num_nodes)
    np.add.at(cost, groups.own_G, groups.cost_G)

    def change(node: int) -> float:
        freed = sum(cost[other] for other in before[node] if unread[other] == 1)
        return float((cost[node] if after[node] else 0.0) - freed)

    ready = [(change(node), node) for node in range(num_nodes) if not waiting[node]]
    heapq.heapify(ready)
    result = []
    while ready:
        known, node = heapq.heappop(ready)
        now = change(node)
        if now < known:  # another reader has been placed since
            heapq.heappush(ready, (now, node))
            continue
        result.append(node)
        for other in before[node]:
            unread[other] -= 1
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (change(other), other))
    return np.array(result, np.int64)


ORDERS: dict[str, Order] = {
    "depth-first": lambda num_nodes, src, dst, _: depth_first(num_nodes, src, dst),
    "breadth-first": lambda num_nodes, src, dst, _: breadth_first(num_nodes, src, dst),
    "narrow": narrow,
}
