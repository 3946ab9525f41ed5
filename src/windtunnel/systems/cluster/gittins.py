"""Gittins index of jobs of unknown size.

In: a sample of service times. Out: the index by attained service, as a table. Not here: policies (``policies``).

References
----------
Gu et al., Tiresias, NSDI 2019, section 3.2: with a service quantum D, a job that attained ``a`` has the index
P(X - a <= D | X > a) / E[min(X - a, D) | X > a].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from windtunnel.base.columns import number, read_rows
from windtunnel.errors import InputError

__all__ = ["gittins_index", "heavy_tail_index", "read_sizes"]

QUANTUM_GPU_S = 3250.0


def gittins_index(
    sizes_gpu_s: ArrayLike, quantum_gpu_s: float = QUANTUM_GPU_S
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the Gittins index by attained GPU-seconds, at quantiles of the sizes.

    Raises
    ------
    InputError
        A size is not above 0.

    Examples
    --------
    >>> ages, index = gittins_index([100.0, 100.0, 10_000.0])
    >>> index[0] > index[1]
    True
    """
    sizes = np.sort(np.asarray(sizes_gpu_s, np.float64))
    if not len(sizes) or not (np.isfinite(sizes).all() and sizes[0] > 0 and quantum_gpu_s > 0):
        raise InputError("a sample of service times has numbers above 0", fix="give GPU-seconds of past jobs")
    total = np.concatenate([[0.0], np.cumsum(sizes)])
    ages = np.unique(np.concatenate([[0.0], np.quantile(sizes, np.linspace(0, 1, 200), method="lower")]))
    ages = ages[ages < sizes[-1]]
    first = np.searchsorted(sizes, ages, side="right")
    last = np.searchsorted(sizes, ages + quantum_gpu_s, side="right")
    longer = len(sizes) - first
    ends = (last - first) / longer
    served = (total[last] - total[first] - ages * (last - first) + (len(sizes) - last) * quantum_gpu_s) / longer
    return tuple(ages.tolist()), tuple((ends / served).tolist())


def heavy_tail_index() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the index of a heavy tail, where a job takes longer the more it was served; ages double."""
    ages = np.concatenate([[0.0], 60.0 * 2.0 ** np.arange(24)])
    return tuple(ages.tolist()), tuple((1.0 / (60.0 + ages)).tolist())


def read_sizes(path: Path) -> list[float]:
    """Read the GPU-seconds of past jobs from the column ``gpu_time_s`` of a CSV file.

    Raises
    ------
    InputError
        There is no such column, or a value is not a number.
    """
    return [number(row, "gpu_time_s", path, line) for line, row in enumerate(read_rows(path, ("gpu_time_s",)), 2)]
