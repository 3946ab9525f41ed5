"""A profile from a few measured cells: the choice of the next cell, and estimates of the rest.

In: the cells that there could be, a way to measure one, batches that will be asked for. Out: the measured cells, when
the chosen splits rest on measured ones alone, or when as many are measured as may be. Not here: how a cell is measured
(``run``), which split is best (``search``).
"""

# C cells

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.systems.serving.profile import Cell, Profile
from windtunnel.systems.serving.search import best_split

__all__ = ["estimate_profile", "measure_few_cells"]

_POWERS = np.linspace(0.2, 1.4, 13)  # of threads, by which the time of an input falls
_REACH = 0.7  # octaves over which a measured cell corrects its neighbors
_LEAST = 5

Floats = NDArray[np.float64]


def measure_few_cells(
    measure: Callable[[Cell], float],
    threads: Sequence[int],
    batches: Sequence[int],
    num_threads: int,
    *,
    max_fraction: float = 0.25,
    progress: Progress | None = None,
) -> dict[Cell, float]:
    """Measure the cells on which the choice of splits depends.

    The corners and the center come first. Then the unmeasured cell that occurs in most of the best splits for these
    batches is measured, repeatedly: a cell whose estimate is too optimistic is thus measured and then avoided.

    Parameters
    ----------
    measure : callable
        (threads, batch) -> latency in ns.
    threads, batches : sequences of int
        Of the cells that there could be.
    num_threads : int
        Of the server.
    max_fraction : float
        Of all cells that may be measured; at least five are.
    progress : callable, optional

    Raises
    ------
    InputError
        There is no cell.
    """
    grid = [(t, b) for t in sorted(set(threads)) for b in sorted(set(batches))]
    if not grid:
        raise InputError("there is no cell to measure", fix="give threads and batches")
    most = min(max(_LEAST, int(max_fraction * len(grid))), len(grid))
    result: dict[Cell, float] = {}

    def add(cell: Cell) -> None:
        result[cell] = measure(cell)
        if progress is not None:
            progress("profiling", len(result), most)

    # The corners of the grid, and the cell nearest to their logarithmic center.
    few, many = grid[0][0], grid[-1][0]
    small, large = grid[0][1], grid[-1][1]
    middle = (math.log(few * many) / 2, math.log(small * large) / 2)
    center = min(grid, key=lambda cell: math.dist(np.log(cell), middle))
    for cell in list(dict.fromkeys([(few, small), (few, large), (many, small), (many, large), center])):
        add(cell)
    while len(result) < most:
        profile = estimate_profile(result, grid)
        splits = [best_split(profile, num_threads, batch) for batch in sorted(set(batches))]
        needed = Counter(cell for split in splits for cell in set(split.cells) if cell not in result)
        if not needed:
            break
        add(max(needed, key=lambda cell: (needed[cell], cell)))
    return result


def estimate_profile(measured: dict[Cell, float], grid: Sequence[Cell]) -> Profile:
    """Return a full profile: measured cells, and the others by the law a + b (c / t^g + d), corrected by near cells.

    The law is a start, work that threads share, and work that they do not. It is fitted by relative error; what is left
    of a measured cell is carried over to its neighbors, less with their distance in octaves.
    """
    cells = np.array(list(measured), dtype=np.float64)
    times = np.array(list(measured.values()))
    fits = [_fit(cells, times, power) for power in _POWERS]
    _, power, weights = min(fits, key=lambda fit: fit[0])
    rest = np.log(times / _law(cells, power, weights))
    all_cells = np.array(grid, dtype=np.float64)
    apart = np.log2(all_cells)[:, None] - np.log2(cells)[None]
    near = np.exp(-0.5 * (apart**2).sum(axis=2) / _REACH**2)
    carried = (near * rest).sum(axis=1) / (near.sum(axis=1) + 0.1)
    guesses = _law(all_cells, power, weights) * np.exp(carried)
    return Profile.of({cell: measured.get(cell, float(guess)) for cell, guess in zip(grid, guesses, strict=True)})


def _terms(cells: Floats, power: float) -> Floats:
    threads, batch = cells.T
    return np.stack([np.ones_like(batch), batch / threads**power, batch], axis=1)


def _law(cells: Floats, power: float, weights: Floats) -> Floats:
    result: Floats = _terms(cells, power) @ weights
    return result


def _fit(cells: Floats, times: Floats, power: float) -> tuple[float, float, Floats]:
    """Fit non-negative weights by relative error; at least one of them is above 0."""
    from scipy.optimize import nnls

    weights, error = nnls(_terms(cells, power) / times[:, None], np.ones(len(times)))
    return float(error), power, weights
