"""No price lies under what the device can do at best: the door that every price goes through.

In: prices of work by any model, the device. Out: the same prices, none under the bound of the work as the graph states
it. A model that says less is wrong about this work, so the bound counts; a measurement that is shorter was really seen,
so there the bound is wrong and the time stays. Not here: bounds (``bounds``), models.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.bounds import Bounds, bounds_on
from windtunnel.cost.pricer import Prices
from windtunnel.cost.work import Work, shapes_of
from windtunnel.errors import PriceError
from windtunnel.graph import Graph
from windtunnel.graph.kernel_classes import class_of
from windtunnel.hardware import Device

__all__ = ["AT_BOUND", "floor_of", "raise_to_floor", "require_possible"]

AT_BOUND = " under its bound"
"""Suffix of a model's name in ``cost_source``: the model predicted less than the bound, so the bound is used."""
_ROUNDING_NS = 1.0


def floor_of(work: Work, device: Device) -> Bounds:
    """The least time of rows of work that none can avoid: no tile, no wave and no unread row of a table counts."""
    # A look-up counts its whole table as moved, and need not read all of it: that part is no bound.
    rows = zip(work.operator.tolist(), work.shapes.tolist(), strict=True)
    sizes = [max(map(math.prod, shapes_of(text)), default=0) * _looks_up(name) for name, text in rows]
    least = np.maximum(work.bytes_moved - (4.0 * np.array(sizes, dtype=np.float64)), 0.0)
    return bounds_on(device, work.flops, least, dtype=work.dtype.tolist(), overhead_ns=0.0)


def _looks_up(operator: str) -> bool:
    """Whether an operator reads single rows or elements of its largest tensor."""
    return class_of(operator) == "indexing" or "embedding_bag" in operator or "nll_loss" in operator


def raise_to_floor(prices: Prices, floor: Bounds, is_seen: NDArray[np.bool_]) -> tuple[Prices, NDArray[np.bool_]]:
    """Prices of which none is under the floor, and which rows were [P]; rows that ``is_seen`` keep their time.

    Efficiencies are then at most 1: a bound of the model's own that its price beats gives way.
    """
    seen_ns = np.fmin(prices.duration_ns, prices.duration_low_ns)
    min_ns = np.where(is_seen, np.minimum(floor.bound_ns, seen_ns), floor.bound_ns)
    duration = np.maximum(prices.duration_ns, min_ns)
    mixed = replace(prices.bounds, bound_ns=np.clip(prices.bounds.bound_ns, min_ns, duration))
    ends = (prices.duration_high_ns, prices.duration_low_ns)
    low, high = (mixed.efficiency(np.maximum(end, mixed.bound_ns)) for end in ends)
    efficiency = np.fmin(mixed.efficiency(duration), 1.0)  # 1 also where bound and time are nothing
    return Prices(mixed, efficiency, low, high, prices.level), prices.duration_ns < min_ns - _ROUNDING_NS


def require_possible(graph: Graph, tasks: NDArray[np.int64], floor_ns: NDArray[np.float64], device: Device) -> None:
    """A last look at an answer of ours, task by task: what ends here is our defect, and names everything.

    Raises
    ------
    PriceError
        A task takes less than its floor.
    """
    took_ns = graph.duration_ns[tasks]
    under = np.flatnonzero(took_ns < floor_ns - _ROUNDING_NS)
    if len(under):
        worst = under[np.argmax(floor_ns[under] - took_ns[under])]
        pricer, operator = (graph.tasks.strings(name).decode(int(tasks[worst])) for name in ("cost_source", "name"))
        raise PriceError(
            f"{pricer} prices {operator} at {took_ns[worst]:,} ns, and {device.name} needs at least "
            f"{floor_ns[worst]:,.0f} ns for it; so it is with {len(under):,} tasks",
            where=f"task {int(tasks[worst])}",
            fix="this is a defect of windtunnel: please report it; until then name another model with --model",
        )
