"""Schedules of one layer's operators on one chip: what the solvers of the bars and the list schedules come to.

In: ``Operations``, cycles on one core and on all cores of its type. Out: ``Schedule``; the exact times of an order,
with which every solver ends. Not here: who finds an order (``operator_ilp``, ``operator_cp_sat``).

Source: PHAZE (Wang et al., ICML 2024), section 4.2.
"""

# N operators

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.systems.chips import list_kernels as kernels
from windtunnel.systems.chips import lists
from windtunnel.systems.chips.operations import FUSED, Operations

__all__ = [
    "GAP",
    "TIME_LIMIT_S",
    "Cores",
    "Schedule",
    "Task",
    "checked_cycles",
    "is_beside",
    "list_schedule",
    "replayed",
]

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
    beside = is_beside(operations)
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


def list_schedule(operations: Operations, single_N: Ints, spread_N: Ints, cores: Cores) -> Schedule:
    """The best list schedule on one chip, with what no schedule is below.

    Raises
    ------
    InputError
        Cycles are no whole numbers from 0 on, or not one for each operator.
    """
    single_N, spread_N = checked_cycles(operations, single_N, spread_N)
    order = np.argsort(operations.segment, kind="stable")
    cycles, bound = np.zeros(1, np.int64), np.zeros(1, np.int64)
    best = lists.new_schedule(len(operations))
    one = (lists.reorder_columns(single_N[None], order), lists.reorder_columns(spread_N[None], order))
    numbers = np.array([[cores.num_tensor, cores.num_vector]])
    kernels.schedule_chips(
        0, 1, *lists.order_operations(operations, order), *one, numbers, lists.RULES, cycles, bound, best
    )
    back = np.argsort(order)
    return Schedule(best[0][back], best[1][back], best[2][back], int(cycles[0]), int(bound[0]))


def is_beside(operations: Operations) -> NDArray[np.bool_]:
    """Whether two could run at once, bool [N, N]."""
    before = operations.is_before
    found: NDArray[np.bool_] = ~(before | before.T | np.eye(len(operations), dtype=np.bool_))
    return found
