"""What one layer does on a chip of tensor and vector cores, and when.

In: operators with the cycles that each takes on one core and on all cores of its type. Out: ``Operations``,
``Schedule``; the exact times of a given order, which every solver ends with. Not here:
who finds an order (``lists``, ``integer_schedule``, ``constraint_schedule``), cycles of an operator.

Source: PHAZE (Wang et al., ICML 2024), section 4.2. An operator runs on one core of its type, or is spread over all of
them and then nothing that could run beside it does; an operator that fuses a tensor and a vector operator takes a core
of both types, of the same number.
"""

# N operators

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import GraphError, InputError

__all__ = [
    "FUSED",
    "GAP",
    "TENSOR",
    "TIME_LIMIT_S",
    "VECTOR",
    "Cores",
    "Operations",
    "Schedule",
    "Task",
    "checked_cycles",
    "replayed",
]

TENSOR, VECTOR, FUSED = range(3)
GAP, TIME_LIMIT_S = 0.01, 600.0  # where a solver of schedules ends
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Cores:
    """How many there are of each type."""

    num_tensor: int
    num_vector: int

    def of(self, kind: int) -> int:
        """Operators of a kind that can run at once, each on its own core or pair."""
        return (self.num_tensor, self.num_vector, min(self.num_tensor, self.num_vector))[kind]


@dataclass(frozen=True, eq=False)
class Operations:
    """Operators of one layer and phase, each after all that it reads from.

    Parameters
    ----------
    kind_N : int8 [N]
        ``TENSOR``, ``VECTOR`` or ``FUSED``.
    src, dst : int64 [E]
        Who reads from whom; ``src < dst``.
    names : tuple of str
    """

    kind_N: NDArray[np.int8]
    src: Ints
    dst: Ints
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, kinds: ArrayLike, edges: Sequence[tuple[int, int]], names: Sequence[str] = ()) -> Operations:
        """From plain values.

        Raises
        ------
        GraphError
            An edge leaves the operators, or does not lead to a later one.
        """
        kind_N = np.asarray(kinds, np.int8)
        ends = np.array(sorted(set(edges)), np.int64).reshape(-1, 2)
        for src, dst in ends.tolist():
            if not 0 <= src < dst < len(kind_N):
                raise GraphError(f"an operator cannot wait so: {src} -> {dst}", where=f"{len(kind_N)} operators")
        return cls(kind_N, ends[:, 0], ends[:, 1], tuple(names))

    def __len__(self) -> int:
        return len(self.kind_N)

    @cached_property
    def is_before(self) -> NDArray[np.bool_]:
        """Whether the first has to end before the second starts, bool [N, N]."""
        found = np.zeros((len(self), len(self)), np.bool_)
        found[self.src, self.dst] = True
        for node in range(len(self)):  # edges lead forwards, so that rows of sources are whole when they are read
            for source in self.src[self.dst == node]:
                found[:, node] |= found[:, source]
        return found

    @cached_property
    def is_beside(self) -> NDArray[np.bool_]:
        """Whether two could run at once."""
        found: NDArray[np.bool_] = ~(self.is_before | self.is_before.T | np.eye(len(self), dtype=np.bool_))
        return found

    @cached_property
    def segment(self) -> Ints:
        """Parts of the layer that run one after the other in any schedule, numbered."""
        order = self.is_before.sum(axis=0).argsort(kind="stable")
        segment, found = 0, np.zeros(len(self), np.int64)
        inside = self.is_before[np.ix_(order, order)]
        for place in range(len(self)):
            if place and inside[:place, place:].all():
                segment += 1
            found[order[place]] = segment
        return found


Task = tuple[Operations, Ints, Ints, Cores]
"""Operators, cycles on one core, cycles on all, how many cores."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """When each operator starts and on which core.

    Parameters
    ----------
    start_N : int64 [N]
        Cycle.
    is_spread_N : bool [N]
    core_N : int64 [N]
        Number of its core, or of its pair of cores; -1 where it is spread.
    cycles, bound_cycles : int
        When the last one ends, and what no schedule is below.
    """

    start_N: Ints
    is_spread_N: NDArray[np.bool_]
    core_N: Ints
    cycles: int
    bound_cycles: int = 0

    @property
    def is_optimal(self) -> bool:
        """Whether nothing shorter exists."""
        return self.bound_cycles >= self.cycles

    @property
    def unplaced(self) -> Ints:
        """Operators that no core was free for."""
        return np.flatnonzero(~self.is_spread_N & (self.core_N < 0))


def checked_cycles(operations: Operations, single: ArrayLike, spread: ArrayLike) -> tuple[Ints, Ints]:
    """Cycles on one core and on all, int64 [N].

    Raises
    ------
    InputError
        They are not as many as operators, negative, or no whole numbers.
    """
    found = []
    for name, given in (("one core", single), ("all cores", spread)):
        values = np.asarray(given)
        is_whole = np.issubdtype(values.dtype, np.integer) and bool((values >= 0).all())
        if not is_whole or values.shape != operations.kind_N.shape:
            raise InputError(
                f"cycles on {name} are whole numbers from 0 on, one for each of {len(operations)} operators",
                where=f"{name}: {values.ravel()[:8].tolist()}",
            )
        found.append(values.astype(np.int64))
    return found[0], found[1]


def replayed(
    operations: Operations,
    single_N: Ints,
    spread_N: Ints,
    cores: Cores,
    order: Sequence[int],
    is_spread_N: NDArray[np.bool_],
    core_N: Ints | None = None,
) -> Schedule:
    """Start everything as early as an order allows.

    An operator for which no core is free keeps core -1 and runs nevertheless: see ``Schedule.unplaced``.

    Parameters
    ----------
    order : sequence of int
        Every operator once, after those that it waits for: who comes first in it never waits for who comes later.
    core_N : int64 [N], optional
        Whose core; where it is -1 a free one is taken, the first for pairs, the last for others.
    """
    num = len(operations)
    given_N = np.full(num, -1, np.int64) if core_N is None else core_N
    time_N = np.where(is_spread_N, spread_N, single_N)
    start_N, end_N = np.zeros(num, np.int64), np.zeros(num, np.int64)
    used_N = np.full(num, -1, np.int64)
    beside = operations.is_beside
    done: list[int] = []
    for node in order:
        is_alone = is_spread_N[node]
        apart = [one for one in done if not beside[one, node] or is_alone or is_spread_N[one]]
        if not is_alone and given_N[node] >= 0:
            apart += [one for one in done if used_N[one] == given_N[node] and _share(operations, node, one)]
        start_N[node] = max((int(end_N[one]) for one in apart), default=0)
        end_N[node] = start_N[node] + time_N[node]
        if not is_alone:
            beside_it = [one for one in done if start_N[one] < end_N[node] and start_N[node] < end_N[one]]
            taken = {int(used_N[one]) for one in beside_it if _share(operations, node, one)}
            used_N[node] = given_N[node] if given_N[node] >= 0 else _free(operations, cores, node, taken)
        done.append(node)
    return Schedule(start_N, is_spread_N.copy(), used_N, int(end_N.max(initial=0)))


def _share(operations: Operations, node: int, other: int) -> bool:
    """Whether two need a core of one type."""
    kinds = {int(operations.kind_N[node]), int(operations.kind_N[other])}
    return len(kinds) == 1 or FUSED in kinds


def _free(operations: Operations, cores: Cores, node: int, taken: set[int]) -> int:
    kind = int(operations.kind_N[node])
    numbers = range(min(cores.of(kind), len(operations)))
    return next((one for one in (numbers if kind == FUSED else reversed(numbers)) if one not in taken), -1)
