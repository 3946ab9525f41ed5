"""The algorithms of collectives, as schedules.

In: an operation, an algorithm, the sizes of the network's dimensions. Out: the ``Schedule`` of one message.
Not here: time (``cost.collective``, ``expansion``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.comm.schedule import Schedule
from windtunnel.errors import InputError

__all__ = ["ALGORITHMS", "OPERATIONS", "schedule_of"]

Ints = NDArray[Any]
Steps = list[Ints]


def _step(src: Any, dst: Any, first: Any, count: Any, reduces: bool) -> Ints:
    """One step as rows of sender, receiver, first cell, number of cells, whether the receiver adds."""
    columns = np.broadcast_arrays(*(np.asarray(item, dtype=np.int64) for item in (src, dst, first, count, reduces)))
    return np.stack([np.atleast_1d(column) for column in columns], axis=1)


# --- rings --------------------------------------------------------------------------------------------


def _ring_scatter(members: Ints, cells: Ints, width: int) -> Steps:
    """Rings of members [R, n]: block b of cells [R, n] (``width`` each) ends summed up at member b of its ring."""
    size = members.shape[1]
    index, after = np.arange(size), np.roll(members, -1, axis=1)
    return [
        _step(members.ravel(), after.ravel(), cells[:, (index - t - 1) % size].ravel(), width, True)
        for t in range(size - 1)
    ]


def _ring_gather(members: Ints, cells: Ints, width: int) -> Steps:
    """Rings of members [R, n]: block b of cells [R, n] goes from member b to all of its ring."""
    size = members.shape[1]
    index, after = np.arange(size), np.roll(members, -1, axis=1)
    return [
        _step(members.ravel(), after.ravel(), cells[:, (index - t) % size].ravel(), width, False)
        for t in range(size - 1)
    ]


def _ring(op: str, sizes: tuple[int, ...]) -> Schedule:
    num = math.prod(sizes)
    ring = np.arange(num)[None]
    scatter, gather = _ring_scatter(ring, ring, 1), _ring_gather(ring, ring, 1)
    steps = {"all_reduce": [*scatter, *gather], "reduce_scatter": scatter, "all_gather": gather}[op]
    return Schedule.of_steps(num, num, steps)


def _hierarchical(op: str, sizes: tuple[int, ...]) -> Schedule:
    """Reduce-scatter dimension by dimension, innermost first, then all-gather in reverse (BlueConnect)."""
    num = math.prod(sizes)
    scatters: Steps = []
    gathers: Steps = []
    # the cells that a rank is left with begin at its ``start``; each dimension divides them by its size
    rank, start, width, stride = np.arange(num), np.zeros(num, dtype=np.int64), num, 1
    for size in sizes:
        width //= size
        index = rank // stride % size
        leaders = np.flatnonzero(index == 0)
        members = leaders[:, None] + stride * np.arange(size)
        cells = start[leaders][:, None] + width * np.arange(size)
        scatters += _ring_scatter(members, cells, width)
        gathers = [*_ring_gather(members, cells, width), *gathers]
        start, stride = start + width * index, stride * size
    steps = {"all_reduce": [*scatters, *gathers], "reduce_scatter": scatters, "all_gather": gathers}[op]
    return Schedule.of_steps(num, num, steps)


# --- trees --------------------------------------------------------------------------------------------


def _parents(num_nodes: int) -> list[int]:
    """Parent of nodes 1..m of a binary tree in which odd nodes are leaves; 0 is above the root."""
    parents = [0] * (num_nodes + 1)
    for node in range(1, num_nodes + 1):
        bit = node & -node
        above = (node ^ bit) | (bit << 1)
        parents[node] = above if above <= num_nodes else node ^ bit
    return parents


def _tree(op: str, sizes: tuple[int, ...]) -> Schedule:
    """Two trees below rank 0, each for half of the message; who is inside of one is a leaf of the other."""
    num = math.prod(sizes)
    nodes, parents = num - 1, _parents(num - 1)
    label = np.arange(num)
    mirrored = np.where(label > 0, num - label, 0)
    shifted = np.where(label > 0, label % max(nodes, 1) + 1, 0)
    second = mirrored if nodes % 2 == 0 else shifted
    depth = [0] * num
    for node in sorted(range(1, num), key=lambda node: -(node & -node)):  # parents before their children
        depth[node] = depth[parents[node]] + 1
    levels = [[node for node in range(1, num) if depth[node] == level] for level in range(1, max(depth) + 1)]

    def both(level: list[int], *, is_up: bool) -> Ints:
        above = [parents[item] for item in level]
        ends = (level, above) if is_up else (above, level)
        return np.concatenate(
            [_step(names[ends[0]], names[ends[1]], tree, 1, is_up) for tree, names in enumerate((label, second))]
        )

    up = [both(level, is_up=True) for level in reversed(levels)]
    down = [both(level, is_up=False) for level in levels]
    return Schedule.of_steps(num, 2, {"all_reduce": [*up, *down], "reduce": up, "broadcast": down}[op])


# --- pairs --------------------------------------------------------------------------------------------


def _halving_doubling(op: str, sizes: tuple[int, ...]) -> Schedule:
    """Halve what is exchanged with a partner at half the distance each time, then back (Rabenseifner).

    Of a number of ranks that is no power of two, the odd ones among the first hand over to their neighbor.
    """
    num = math.prod(sizes)
    power = 1 << (num.bit_length() - 1)
    extra = num - power
    if extra and op != "all_reduce":
        raise InputError(f"halving-doubling of {op} needs a power of two ranks, not {num}", fix="algorithm=ring")
    role = np.concatenate([2 * np.arange(extra), np.arange(2 * extra, num)])  # ranks that take part
    odd, even = 2 * np.arange(extra) + 1, 2 * np.arange(extra)
    scatters: Steps = []
    gathers: Steps = []
    index, start, width = np.arange(power), np.zeros(power, dtype=np.int64), power
    while width > 1:
        width //= 2
        is_high = (index // width) % 2
        partner = index ^ width
        scatters.append(_step(role, role[partner], start + width * (1 - is_high), width, True))
        start = start + width * is_high
        gathers.insert(0, _step(role, role[partner], start, width, False))
    whole = {"all_reduce": [*scatters, *gathers], "reduce_scatter": scatters, "all_gather": gathers}[op]
    before = [_step(odd, even, 0, power, True)] if extra else []
    after = [_step(even, odd, 0, power, False)] if extra else []
    return Schedule.of_steps(num, power, [*before, *whole, *after])


def _pairwise(op: str, sizes: tuple[int, ...]) -> Schedule:
    """All-to-all in n - 1 steps: in step k everyone sends to the rank k behind it; cell s * n + d goes from s to d."""
    del op
    num = math.prod(sizes)
    rank = np.arange(num)
    steps = [_step(rank, (rank + k) % num, rank * num + (rank + k) % num, 1, False) for k in range(1, num)]
    return Schedule.of_steps(num, num * num, steps, per_message=num, in_lockstep=True)


def _parameter_server(op: str, sizes: tuple[int, ...]) -> Schedule:
    """Every rank serves one cell: all push it there, it is added up as it comes, all pull the sum.

    The cell that a server serves needs no message from itself. Pushes come first, by server, then pulls in their order.
    """
    del op
    num = math.prod(sizes)
    server = np.repeat(np.arange(num), num - 1)
    worker = np.concatenate([np.delete(np.arange(num), index) for index in range(num)])
    push, pull = _step(worker, server, server, 1, True), _step(server, worker, server, 1, False)
    return replace(Schedule.of_steps(num, num, [push, pull]), by_arrival=True)


ALGORITHMS: Mapping[str, tuple[tuple[str, ...], Callable[[str, tuple[int, ...]], Schedule]]] = {
    "ring": (("all_reduce", "reduce_scatter", "all_gather"), _ring),
    "tree": (("all_reduce", "reduce", "broadcast"), _tree),
    "halving-doubling": (("all_reduce", "reduce_scatter", "all_gather"), _halving_doubling),
    "hierarchical": (("all_reduce", "reduce_scatter", "all_gather"), _hierarchical),
    "pairwise": (("all_to_all",), _pairwise),
    "parameter-server": (("all_reduce",), _parameter_server),
}
"""What each algorithm does, and the function that makes its schedule."""
OPERATIONS = tuple(dict.fromkeys(op for ops, _ in ALGORITHMS.values() for op in ops))


@cache
def schedule_of(algorithm: str, op: str, sizes: tuple[int, ...]) -> Schedule:
    """The schedule of one collective.

    Parameters
    ----------
    algorithm : str
        One of ``ALGORITHMS``.
    op : str
        ``all_reduce``, ``reduce_scatter``, ``all_gather``, ``all_to_all``, ``broadcast`` or ``reduce``.
    sizes : tuple of int
        Members per dimension, innermost first; only ``hierarchical`` looks at more than their product.

    Raises
    ------
    InputError
        The algorithm is not known, or does no such operation.

    References
    ----------
    Rings: Patarasuk and Yuan, JPDC 2009. Trees: Sanders, Speck and Träff, Parallel Computing 2009. Halving-doubling:
    Thakur, Rabenseifner and Gropp, IJHPCA 2005. Hierarchical: Cho et al., BlueConnect, MLSys 2019. Parameter server:
    Jiang et al., BytePS, OSDI 2020.

    Examples
    --------
    >>> ring = schedule_of("ring", "all_reduce", (4,))
    >>> len(ring), ring.sizes(1000).sum()
    (24, np.int64(6000))
    """
    if algorithm not in ALGORITHMS:
        raise InputError(f"no algorithm is called {algorithm!r}", fix=f"known: {', '.join(ALGORITHMS)}")
    operations, build = ALGORITHMS[algorithm]
    if op not in operations:
        raise InputError(f"{algorithm} does no {op}", fix=f"it does {', '.join(operations)}")
    if math.prod(sizes) < 2:
        return Schedule.of_steps(1, 1, [])
    return build(op, sizes)
