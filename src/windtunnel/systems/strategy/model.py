"""Training strategies of a backward pass, and the duration of a step under one.

In: the backward pass of a data-parallel job as a chain: compute operators, each with the gradients that are there after
it, the costs of fusion and of synchronization by size. Out: when the last gradient has been synchronized.
This is the view in which dPRO decides; the graph itself is replayed for what is accepted (``search``). Not here:
running anything.

Source: Hu et al., dPRO, MLSys 2022, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError

__all__ = ["Chain", "Groups", "Schedule", "best_parts", "groups_of", "schedule"]

# N operators and gradients, G groups; times in ns
Floats = NDArray[np.float64]
Groups = tuple[int, ...]
"""First member of each group of neighbors, from 0."""
Sync = Callable[[float, int], float]
_MAX_PARTS = 64


@dataclass(frozen=True)
class Chain:
    """A backward pass of N operators in order, each followed by a gradient that must be synchronized.

    Parameters
    ----------
    compute_ns : float64 [N]
        Of each operator.
    size_bytes : int64 [N]
        Of the gradient that is there after it; 0 where there is none.
    sync_ns : callable
        ``sync_ns(size_bytes, num_parts)``: the time to synchronize ``size_bytes`` bytes in ``num_parts`` parts.
    fused_ns : callable, optional
        ``fused_ns(first, last)``: how long operators ``first`` to ``last`` take as one; by default as long as each for
        itself.
    begin_ns : float
        What comes before the backward pass.
    """

    compute_ns: Floats
    size_bytes: NDArray[np.int64]
    sync_ns: Sync
    fused_ns: Callable[[int, int], float] | None = None
    begin_ns: float = 0.0

    def __post_init__(self) -> None:
        compute, size = np.asarray(self.compute_ns, np.float64), np.asarray(self.size_bytes, np.int64)
        if compute.shape != size.shape or compute.ndim != 1 or not len(compute):
            raise InputError(
                f"{compute.shape} operators and {size.shape} gradients make no chain",
                fix="give one time and one size per operator, and at least one",
            )
        if not np.isfinite(compute).all() or compute.min() < 0 or size.min() < 0:
            raise InputError("times and sizes of a chain must be numbers from 0 on")
        object.__setattr__(self, "compute_ns", compute)
        object.__setattr__(self, "size_bytes", size)

    @property
    def num_operators(self) -> int:
        """Number of operators, N."""
        return len(self.compute_ns)

    def operator_ns(self, first: int, last: int) -> float:
        """Return the time of operators ``first`` to ``last`` fused into one."""
        if first == last or self.fused_ns is None:
            return float(self.compute_ns[first : last + 1].sum())
        return self.fused_ns(first, last)


@dataclass(frozen=True)
class Schedule:
    """The end times of all groups.

    Attributes
    ----------
    compute_ends_ns, sync_ends_ns : lists [G]
        Of the groups of operators, and of the groups of gradients.
    """

    compute_ends_ns: list[float]
    sync_ends_ns: list[float]

    @property
    def makespan_ns(self) -> float:
        """The end of the last operator or synchronization."""
        return max(self.compute_ends_ns[-1], self.sync_ends_ns[-1])


def groups_of(starts: Groups, count: int) -> list[tuple[int, int]]:
    """Return the first and the last member of each group."""
    return list(zip(starts, [start - 1 for start in starts[1:]] + [count - 1], strict=True))


def schedule(chain: Chain, operators: Groups, gradients: Groups, parts: Sequence[int] | None = None) -> Schedule:
    """Simulate the chain: a group of gradients starts when all of them are ready and the previous group is done.

    Parameters
    ----------
    chain : Chain
    operators, gradients : Groups
        Neighbors that are fused.
    parts : sequence of int [G], optional
        In how many parts each group of gradients is synchronized; the best number by default.

    Returns
    -------
    Schedule
        By the paper's recurrences ``p_n^e = p_(n-1)^e + p_n^d`` and ``q_n^e = max(p_n^e, q_(n-1)^e) + q_n^d``.
    """
    count = chain.num_operators
    time_ns, ends = chain.begin_ns, np.empty(count)
    compute_ends = []
    for first, last in groups_of(operators, count):
        time_ns += chain.operator_ns(first, last)
        ends[first : last + 1] = time_ns  # what is fused gives its gradients together
        compute_ends.append(time_ns)
    done, sync_ends = 0.0, []
    for index, (first, last) in enumerate(groups_of(gradients, count)):
        size = int(chain.size_bytes[first : last + 1].sum())
        if size:
            num_parts = best_parts(chain, size) if parts is None else parts[index]
            done = max(float(ends[last]), done) + chain.sync_ns(size, num_parts)
        sync_ends.append(done)
    return Schedule(compute_ends, sync_ends)


def best_parts(chain: Chain, size_bytes: float) -> int:
    """Return k*, the number of parts that minimizes the time to synchronize ``size_bytes``.

    Every number is tried until two in a row are worse, as each costs next to nothing.
    """
    best, best_ns, worse = 1, chain.sync_ns(size_bytes, 1), 0
    for parts in range(2, _MAX_PARTS + 1):
        taken_ns = chain.sync_ns(size_bytes, parts)
        if taken_ns < best_ns:
            best, best_ns, worse = parts, taken_ns, 0
        elif (worse := worse + 1) >= 2:
            break
    return best
