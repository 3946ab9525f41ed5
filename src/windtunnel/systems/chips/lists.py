"""List schedules of a layer's operators, for one chip or for all of a space at once.

In: ``Operations``, cycles by chip. Out: cycles of the best of a few list schedules, what no schedule is below, and for
one chip the schedule itself. Parts of a layer that follow each other in any schedule are solved one by one: what two
parts take adds up. No schedule is below the longest path, nor below what the cores of each type have to do: with
weights u and 1 - u of the types, an operator adds the lesser of what it takes spread and u times its share of the cores
of its type. Those that have to be spread, as on one core they take too long for any better schedule, add up. Not here:
proofs by search (``integer_schedule``, ``constraint_schedule``).
"""

# N operators, P chips

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.chips import list_kernels as kernels
from windtunnel.systems.chips.operations import Cores, Operations, Schedule, checked_cycles

__all__ = ["list_cycles", "list_schedule"]

Ints = NDArray[np.int64]
_RULES = np.array([1.0, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0, np.inf])


def list_cycles(operations: Operations, single_PN: Ints, spread_PN: Ints, cores_P2: Ints) -> tuple[Ints, Ints]:
    """Cycles that a list schedule takes on each chip, and what no schedule is below.

    Parameters
    ----------
    operations : Operations
    single_PN, spread_PN : int64 [P, N]
        On one core, and on all cores of the type.
    cores_P2 : int64 [P, 2]
        Tensor and vector cores.

    Returns
    -------
    cycles_P, bound_P : int64 [P]
    """
    order = np.argsort(operations.segment, kind="stable")
    cycles_P, bound_P = np.zeros(len(cores_P2), np.int64), np.zeros(len(cores_P2), np.int64)
    num_threads = numba.get_num_threads()
    shared = (*_ordered(operations, order), _columns(single_PN, order), _columns(spread_PN, order))

    def part(thread: int) -> None:
        kernels.listed_part(
            thread, num_threads, *shared, cores_P2, _RULES, cycles_P, bound_P, _nothing(len(operations))
        )

    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(part, range(num_threads)))
    return cycles_P, bound_P


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
    best = _nothing(len(operations))
    one = (_columns(single_N[None], order), _columns(spread_N[None], order))
    numbers = np.array([[cores.num_tensor, cores.num_vector]])
    kernels.listed_part(0, 1, *_ordered(operations, order), *one, numbers, _RULES, cycles, bound, best)
    back = np.argsort(order)
    return Schedule(best[0][back], best[1][back], best[2][back], int(cycles[0]), int(bound[0]))


def _nothing(num: int) -> tuple[NDArray[Any], ...]:
    return np.zeros(num, np.int64), np.zeros(num, np.bool_), np.zeros(num, np.int64)


def _ordered(operations: Operations, order: Ints) -> tuple[Any, Any, Any]:
    segments = operations.segment[order]
    ptr_G = np.searchsorted(segments, np.arange(int(segments.max(initial=-1)) + 2))
    return operations.kind_N[order], operations.is_before[np.ix_(order, order)], ptr_G


def _columns(values: Ints, order: Ints) -> Ints:
    return np.ascontiguousarray(values[:, order])
