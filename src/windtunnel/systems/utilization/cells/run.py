"""Search of cells by prediction, and measurement of the winners.

In: nothing but the space of cells. Out: ``CellStudy``: the fronts of several searches with equal numbers of trials,
by latency, by flops and utilization, and by flops alone; every winner measured in turn with the others; the area that
each front covers in the plane of parameters and measured latency. Not here: the searches (``search``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost import measure_peak
from windtunnel.cost.kernels import Kernel
from windtunnel.cost.lookup import Overhead, fit_overhead
from windtunnel.measure import ProfileDatabase
from windtunnel.systems.utilization.cells.networks import NUM_CELLS, Cell, network
from windtunnel.systems.utilization.cells.search import (
    CellParts,
    CellPrices,
    CellSearch,
    PricedCell,
    hypervolume,
    search_cells,
)
from windtunnel.systems.utilization.inference import fly_nets

__all__ = ["SEARCHES", "CellFront", "CellStudy", "cell_prices", "fly_searches"]

Clock = Callable[[], int]
SEARCHES = {
    "latency": ("parameters", "latency"),
    "utilization": ("parameters", "flops", "utilization"),
    "flops": ("parameters", "flops"),
}
"""Objectives of each search."""
_NUM_FITTED = 12
_MAX_FLOWN = 12  # of each front, spread evenly


@dataclass(frozen=True)
class CellFront:
    """One search and the measured latencies of its winners.

    Parameters
    ----------
    name : str
    search : CellSearch
    flown : tuple of (PricedCell, float)
        Winners and their measured nanoseconds.
    area_ratio : float
        Area that they cover in the plane of parameters and measured latency, over that of the best search.
    """

    name: str
    search: CellSearch
    flown: tuple[tuple[PricedCell, float], ...]
    area_ratio: float


@dataclass(frozen=True)
class CellStudy:
    """The results of all searches.

    Parameters
    ----------
    fronts : tuple of CellFront
    prices : CellPrices
    num_trials : int
    """

    fronts: tuple[CellFront, ...]
    prices: CellPrices
    num_trials: int


def cell_prices(
    *,
    batch_size: int = 1,
    image_size: int = 32,
    num_threads: int = 1,
    rounds: int = 7,
    seed: int = 0,
    clock: Clock = time.perf_counter_ns,
    database: ProfileDatabase | None = None,
) -> CellPrices:
    """Measure the kernels of the space, interleaved with a dozen nets, and fit the framework's overhead.

    Raises
    ------
    MissingExtraError
        PyTorch is not installed.
    """
    require("torch", extra="torch")
    import torch

    parts = CellParts(batch_size=batch_size, image_size=image_size)
    selected = random.Random(seed).sample(range(1, NUM_CELLS), _NUM_FITTED - 1)
    every = Cell(("nor_conv_3x3", "nor_conv_1x1", "avg_pool_3x3", "skip_connect", "nor_conv_3x3", "avg_pool_3x3"))
    images = torch.rand(batch_size, 3, image_size, image_size)
    # the empty cell and one with every operation: together they hold all kernels of the space
    nets = {str(index): (network(index), [images]) for index in (0, every.index, *selected)}
    table: dict[Kernel, float] = {}
    flown = fly_nets(nets, table, num_threads=num_threads, rounds=rounds, clock=clock)
    overhead: Overhead = fit_overhead([net.kernels for net in flown], table, [net.measured_ns for net in flown])
    return CellPrices(parts, table, overhead, measure_peak("float32", num_threads, database=database))


def fly_searches(
    prices: CellPrices,
    *,
    num_trials: int = 300,
    num_threads: int = 1,
    rounds: int = 7,
    seed: int = 0,
    clock: Clock = time.perf_counter_ns,
    progress: Progress | None = None,
) -> CellStudy:
    """Run every search of ``SEARCHES`` and measure the winners.

    Parameters
    ----------
    prices : CellPrices
    num_trials, num_threads, rounds, seed : int
    clock : callable
        See :class:`windtunnel.cost.lookup.Stand`.
    progress : callable, optional

    Raises
    ------
    MissingExtraError
        The extra ``search`` is not installed.
    """
    import torch

    searches = {
        name: search_cells(prices, objectives, num_trials=num_trials, seed=seed)
        for name, objectives in SEARCHES.items()
    }
    winners = {name: _spread(search.front) for name, search in searches.items()}
    images = torch.rand(prices.parts.batch_size, 3, prices.parts.image_size, prices.parts.image_size)
    distinct = dict.fromkeys(item.cell for row in winners.values() for item in row)
    nets = {cell.name: (network(cell), [images]) for cell in distinct}
    flown = fly_nets(nets, dict(prices.table), num_threads=num_threads, rounds=rounds, clock=clock, progress=progress)
    measured_ns = {net.name: net.measured_ns for net in flown}
    pairs = {name: tuple((item, measured_ns[item.cell.name]) for item in row) for name, row in winners.items()}
    worst = 1.01 * max(measured_ns.values())
    areas = {
        name: hypervolume([(-float(item.parameters), took) for item, took in row], (0.0, worst))
        for name, row in pairs.items()
    }
    best = max(areas.values())
    fronts = tuple(CellFront(name, searches[name], pairs[name], areas[name] / best) for name in searches)
    return CellStudy(fronts, prices, num_trials)


def _spread(front: tuple[PricedCell, ...]) -> list[PricedCell]:
    """Return at most a dozen cells of a front, from the fastest to the largest."""
    ordered = sorted(front, key=lambda cell: cell.parameters)
    if len(ordered) <= _MAX_FLOWN:
        return ordered
    steps = (len(ordered) - 1) / (_MAX_FLOWN - 1)
    return [ordered[round(index * steps)] for index in range(_MAX_FLOWN)]
