"""No price lies under what the device can do at best (room cost): the door that every price goes through.

In: prices of work by any model, the device. Out: the same prices, none under the bound of the work as the graph states
it. A model that says less is wrong about this work, so the bound counts; a measurement that is shorter was really seen,
so there the bound is what is wrong, and the measured time takes its place. Not here: bounds (``bounds``), models.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.bounds import Bounds, bounds_on
from windtunnel.cost.pricer import Prices
from windtunnel.cost.work import Work
from windtunnel.errors import PriceError
from windtunnel.graph import Graph
from windtunnel.hardware import Device

__all__ = ["AT_BOUND", "floor_of", "raised", "require_possible"]

AT_BOUND = " under its bound"
"""Behind a model's name in ``cost_source``: it said less than the bound, which counts instead."""
_ROUNDING_NS = 1.0

Mask = NDArray[np.bool_]


def floor_of(work: Work, device: Device) -> Bounds:
    """The least time of rows of work: no tiles, no waves, so nothing that a better kernel could avoid.

    Raises
    ------
    InputError
        The device has no peak rate for a type.
    """
    return bounds_on(device, work.flops, work.bytes_moved, dtype=work.dtype.tolist())


def raised(prices: Prices, floor: Bounds, is_seen: Mask) -> tuple[Prices, Mask]:
    """Prices of which none is under the floor, and which rows were.

    Parameters
    ----------
    prices : Prices
    floor : Bounds
        Of the same rows.
    is_seen : bool [P]
        Rows that were measured on this device: their time stays.

    Returns
    -------
    prices : Prices
        Efficiencies are at most 1; a bound of the model's own that its price beats gives way to the floor.
    was_under : bool [P]
    """
    seen_ns = np.fmin(prices.duration_ns, prices.duration_low_ns)
    floor = replace(floor, bound_ns=np.where(is_seen, np.minimum(floor.bound_ns, seen_ns), floor.bound_ns))
    duration = np.maximum(prices.duration_ns, floor.bound_ns)
    was_under = prices.duration_ns < floor.bound_ns - _ROUNDING_NS
    keeps_own = (floor.bound_ns <= prices.bounds.bound_ns) & (prices.bounds.bound_ns <= duration)
    mixed = prices.filled(~keeps_own, replace(prices, bounds=floor).take(~keeps_own)).bounds
    ends = (np.maximum(one, mixed.bound_ns) for one in (prices.duration_high_ns, prices.duration_low_ns))
    low, high = (mixed.efficiency(one) for one in ends)
    return Prices(mixed, _at_most_one(mixed.efficiency(duration)), low, high, prices.level), was_under


def _at_most_one(efficiency: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 where both bound and time are nothing: an operator without elements."""
    return np.where(np.isnan(efficiency), 1.0, np.minimum(efficiency, 1.0))


def require_possible(graph: Graph, tasks: NDArray[np.int64], floor_ns: NDArray[np.float64], device: Device) -> None:
    """Refuse an answer of ours that the device could not give; a last look, so no user's mistake can end here.

    Raises
    ------
    PriceError
        A task takes less than its floor; names pricer, operator, time and bound.
    """
    under = np.flatnonzero(graph.duration_ns[tasks] < floor_ns - _ROUNDING_NS)
    if not len(under):
        return
    worst = under[np.argmax(floor_ns[under] - graph.duration_ns[tasks[under]])]
    pricer, operator = (
        graph.tasks.strings(name).decode(int(tasks[worst])) for name in ("cost_source", _operators(graph))
    )
    raise PriceError(
        f"{pricer} prices {operator} at {graph.duration_ns[tasks[worst]]:,} ns, and {device.name} needs at least "
        f"{floor_ns[worst]:,.0f} ns for it; so it is with {len(under):,} tasks",
        where=f"task {int(tasks[worst])}",
        fix="this is a defect of windtunnel: please report it; until then name another model with --model",
    )


def _operators(graph: Graph) -> str:
    return "op" if "op" in graph.tasks else "name"
