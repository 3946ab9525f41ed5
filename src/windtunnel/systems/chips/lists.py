"""List schedules of a layer's operators, for all chips of a space at once.

In: ``Operations``, cycles by chip. Out: cycles of the best of a few list schedules, and what no schedule is below.
Parts of a layer that follow each other in any schedule are solved one by one: what two parts take adds up. No schedule
is below the longest path, nor below what the cores of each type have to do: with weights u and 1 - u of the types, an
operator adds the lesser of what it takes spread and u times its share of the cores of its type. Those that have to be
spread, as on one core they take too long for any better schedule, add up.
"""

# N operators, P chips

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.chips import list_kernels as kernels
from windtunnel.systems.chips.operations import Operations

__all__ = ["RULES", "list_cycles", "new_schedule", "order_operations", "reorder_columns"]

Ints = NDArray[np.int64]
RULES = np.array([1.0, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0, np.inf])
"""From how many times faster on an operator is spread over all cores."""


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
    shared = (
        *order_operations(operations, order),
        reorder_columns(single_PN, order),
        reorder_columns(spread_PN, order),
    )

    def part(thread: int) -> None:
        kernels.schedule_chips(
            thread, num_threads, *shared, cores_P2, RULES, cycles_P, bound_P, new_schedule(len(operations))
        )

    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(part, range(num_threads)))
    return cycles_P, bound_P


def new_schedule(num: int) -> tuple[NDArray[Any], ...]:
    """Empty columns of a schedule: starts, whether spread, cores."""
    return np.zeros(num, np.int64), np.zeros(num, np.bool_), np.zeros(num, np.int64)


def order_operations(operations: Operations, order: Ints) -> tuple[Any, Any, Any]:
    """Types, order and segments of the operators as the loops take them."""
    segments = operations.segment[order]
    ptr_G = np.searchsorted(segments, np.arange(int(segments.max(initial=-1)) + 2))
    return operations.kind_N[order], operations.is_before[np.ix_(order, order)], ptr_G


def reorder_columns(values: Ints, order: Ints) -> Ints:
    """Columns in the order of the operators."""
    return np.ascontiguousarray(values[:, order])
