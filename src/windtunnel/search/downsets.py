"""Downsets of a graph, each once: the one kernel behind every planner that cuts a graph into stages.

In: nodes and the order between them. Out: ``Lattice``: every set of nodes that is closed under predecessors, smallest
first, each with the smaller one that it grew from, so that whatever adds up over nodes is a difference of two rows,
and pairs of nested downsets are priced one from the other without ever being stored. Closed under successors by the
same code. Named orders make a chain of a graph, each node after its predecessors, equal on every machine: ties go to
the smaller number. Over a chain the program of ``minmax`` is quick, and what it finds is a true cut, if not always the
best. Not here: what a difference costs (``minmax``), what the nodes are.

Source: Tarnawski et al., NeurIPS 2020, section 4 ("ideals") and 5.2 (DPL), which takes the depth-first order; the
pricing by parents is ours.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import GraphError, WindtunnelError
from windtunnel.search import downset_kernels as kernels
from windtunnel.search.work import Groups

__all__ = ["CAP", "ORDERS", "Closure", "Lattice", "TooManyDownsets", "chain", "depth_first", "downsets", "random_order"]

# N nodes, W words of 64 bits, I downsets, L levels: downsets of one size


CAP = 60_000
Closure = Literal["predecessors", "successors"]
Ints = NDArray[np.int64]
Order = Callable[[int, ArrayLike, ArrayLike, Groups], Ints]


class TooManyDownsets(WindtunnelError):  # noqa: N818  an outcome to plan around, not a mistake of anybody's
    """There are more than the cap; says how far they were seen."""

    exit_code = 1


@dataclass(frozen=True, eq=False)
class Lattice:
    """All downsets of a graph; the first is empty, the last holds every node.

    Parameters
    ----------
    words_IW : uint64 [I, W]
        Node n of downset i is bit ``n % 64`` of word ``n // 64``.
    parent_I : int32 [I]
        The downset with one node less that each grew from; 0 for the empty one.
    added_I : int32 [I]
        Which node that is; -1 for the empty one.
    level_ptr : int64 [N + 2]
        Downsets of s nodes are rows ``level_ptr[s]`` up to ``level_ptr[s + 1]``.
    """

    words_IW: NDArray[np.uint64]
    parent_I: NDArray[np.int32]
    added_I: NDArray[np.int32]
    level_ptr: NDArray[np.int64]

    @property
    def num_downsets(self) -> int:
        """I."""
        return len(self.parent_I)

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.level_ptr) - 2

    @cached_property
    def num_pairs(self) -> int:
        """Pairs of nested downsets, including each downset with itself."""
        threads = numba.get_num_threads()
        proper = kernels.count_pairs(self.words_IW, self.parent_I, self.added_I, threads)
        return int(proper) + self.num_downsets

    def members(self, downset: int) -> NDArray[np.bool_]:
        """Which nodes a downset holds, bool [N]."""
        nodes = np.arange(self.num_nodes)
        words = self.words_IW[downset, nodes // kernels.WORD]
        result: NDArray[np.bool_] = (words >> (nodes % kernels.WORD).astype(np.uint64)) & np.uint64(1) == 1
        return result

    def sums(self, values: ArrayLike) -> NDArray[Any]:
        """What adds up over the nodes of each downset, [I] or [I, K].

        Parameters
        ----------
        values : array [N] or [N, K]
        """
        values_N = np.asarray(values)
        sums_I = np.zeros((self.num_downsets, *values_N.shape[1:]), values_N.dtype)
        for first, last in zip(self.level_ptr[1:], self.level_ptr[2:], strict=False):
            sums_I[first:last] = sums_I[self.parent_I[first:last]] + values_N[self.added_I[first:last]]
        return sums_I


def downsets(
    num_nodes: int,
    src: ArrayLike,
    dst: ArrayLike,
    *,
    cap: int = CAP,
    closed_under: Closure = "predecessors",
    progress: Progress | None = None,
) -> Lattice:
    """Every set of nodes that holds all predecessors (or all successors) of its members.

    Parameters
    ----------
    num_nodes : int
    src, dst : int [E]
    cap : int
        The maximum number of downsets.
    closed_under : str
    progress : callable, optional
        Called with (what, done, total).

    Raises
    ------
    TooManyDownsets
        There are more than the cap.
    GraphError
        The graph has a cycle.

    Examples
    --------
    >>> lattice = downsets(4, [0, 0, 1, 2], [1, 2, 3, 3])
    >>> lattice.num_downsets, lattice.num_pairs
    (6, 20)
    """
    before, after = (np.asarray(ends, dtype=np.int64) for ends in (src, dst))
    if closed_under == "successors":
        before, after = after, before
    # Direct predecessors of every node as bits [N, W].
    before_NW = np.zeros((num_nodes, max(1, -(-num_nodes // kernels.WORD))), np.uint64)
    np.bitwise_or.at(
        before_NW, (after, before // kernels.WORD), np.uint64(1) << (before % kernels.WORD).astype(np.uint64)
    )
    levels = [np.zeros((1, before_NW.shape[1]), np.uint64)]
    parents, added = [np.zeros(1, np.int32)], [np.full(1, -1, np.int32)]
    count = first = 1
    for size in range(1, num_nodes + 1):
        words, parent, node, is_over = kernels.grow(levels[-1], before_NW, cap - count)
        if is_over:
            raise TooManyDownsets(
                f"more than {cap:,} downsets, seen up to {size} of {num_nodes} nodes",
                fix="allow more (--max-downsets), or merge branches of the graph",
            )
        if not len(words):
            raise GraphError(f"a cycle holds {num_nodes - size + 1} nodes back", where="edges", fix="merge the cycle")
        parents.append(parent + np.int32(first - len(levels[-1])))
        added.append(node)
        levels.append(words)
        count += len(words)
        first = count
        if progress is not None:
            progress("downsets", size, num_nodes)
    return Lattice(
        np.concatenate(levels),
        np.concatenate(parents),
        np.concatenate(added),
        np.concatenate([[0], np.cumsum([len(level) for level in levels])]),
    )


def chain(order: Sequence[int] | NDArray[Any]) -> Lattice:
    """The prefixes of an order: the downsets of a graph that was made a chain.

    Parameters
    ----------
    order : int [N]
        Every node once.
    """
    nodes = np.asarray(order, dtype=np.int64)
    num = len(nodes)
    bits = np.zeros((num + 1, max(1, -(-num // kernels.WORD))), np.uint64)
    for index, node in enumerate(nodes.tolist(), start=1):
        bits[index] = bits[index - 1]
        bits[index, node // kernels.WORD] |= np.uint64(1 << (node % kernels.WORD))
    return Lattice(
        bits,
        np.maximum(np.arange(-1, num), 0).astype(np.int32),
        np.concatenate([[-1], nodes]).astype(np.int32),
        np.arange(num + 2),
    )


# N nodes


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
