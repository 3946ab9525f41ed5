"""Work that was measured on one device, priced on another (room cost, pricer "elsewhere").

In: a captured graph and the device that it was captured on. Out: ``Elsewhere``, a pricer: the same work is taken to
reach the same efficiency against its bound on any other device. Not here: kernels with counters
(``wave``), work that the graph does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.bounds import Bounds, bounds_on
from windtunnel.cost.pricer import Prices, exact_prices
from windtunnel.cost.work import Work, work_of
from windtunnel.errors import PriceError
from windtunnel.graph import Graph
from windtunnel.hardware import Device

__all__ = ["Elsewhere", "measured_elsewhere"]

# T tasks, P distinct pieces of work
_KEY = ("operator", "shapes", "dtypes", "strides", "arguments")


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """A pricer of work that was measured on another device.

    Parameters
    ----------
    origin : Device
    efficiencies : dict
        Of each piece of work against its bound on the origin.
    name : str
    """

    origin: Device
    efficiencies: dict[tuple[object, ...], float]
    name: str = "elsewhere"

    def covers(self, work: Work, device: Device) -> NDArray[np.bool_]:
        """Rows that were measured, with a bound on this device, bool [P]."""
        has_peak = np.array([name in device.peak_flops_per_s for name in work.dtype.tolist()], dtype=bool)
        measured = np.array([key in self.efficiencies for key in _keys(work)], dtype=bool)
        return np.asarray(measured & has_peak & ((work.flops > 0) | (work.bytes_moved > 0)), dtype=np.bool_)

    def price(self, work: Work, device: Device) -> Prices:
        """The bound here at the efficiency there; no interval: one measurement says nothing of other devices."""
        return exact_prices(_bounds(work, device), np.array([self.efficiencies[key] for key in _keys(work)]))


def measured_elsewhere(graph: Graph, origin: Device) -> Elsewhere:
    """Learn the efficiency of every piece of work of a graph.

    Parameters
    ----------
    graph : Graph
        Captured on the origin; equal work counts with the mean of its tasks.
    origin : Device

    Raises
    ------
    PriceError
        No task that computes states its flops or bytes and took any time.
    InputError
        The origin has no peak for a type.

    Examples
    --------
    ``price(graph, hardware.device("h100"), [measured_elsewhere(graph, hardware.device("t4"))])``
    """
    work, row_T = work_of(graph)
    tasks = np.flatnonzero(row_T >= 0)
    total_ns = np.bincount(row_T[tasks], graph.duration_ns[tasks].astype(np.float64), len(work))
    mean_ns = total_ns / np.maximum(work.num_tasks, 1)
    known = (mean_ns > 0) & ((work.flops > 0) | (work.bytes_moved > 0))
    if not known.any():
        raise PriceError(f"nothing that computes was measured with its flops or bytes on {origin.name}")
    there = _bounds(work.take(known), origin)
    found = dict(zip(_keys(work.take(known)), there.efficiency(mean_ns[known]).tolist(), strict=True))
    return Elsewhere(origin, found)


def _bounds(work: Work, device: Device) -> Bounds:
    return bounds_on(device, work.flops, work.bytes_moved, dtype=work.dtype.tolist())


def _keys(work: Work) -> list[tuple[object, ...]]:
    return list(
        zip(*(getattr(work, one.name).tolist() for one in fields(work) if one.name in (*_KEY, "flops")), strict=True)
    )
