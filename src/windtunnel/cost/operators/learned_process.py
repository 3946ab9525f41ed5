"""Gaussian processes as plain arrays: what timings near a row of work say of it.

In: features of timed work with their scales and weights, which training found. Out: the mean of the process at rows of
features. The covariance is Matérn's of order 3/2, rough enough for libraries that choose among kernels; far from all
timings the mean is that of the family. Not here: what the mean says (``learned_model``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["GaussianProcess", "covariance", "distances"]

# P rows, N timings, F features
Floats = NDArray[np.float64]
_ROWS = 2048  # at a time


def distances(rows: Floats, others: Floats) -> Floats:
    """Between features that are scaled [P, N]."""
    squares = (rows**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None] - 2 * rows @ others.T
    result: Floats = np.sqrt(np.maximum(squares, 0.0))
    return result


def covariance(apart: Floats) -> Floats:
    """By distance, with a variance of 1."""
    falling = np.sqrt(3.0) * apart
    result: Floats = (1.0 + falling) * np.exp(-falling)
    return result


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """The mean of a process given timings.

    Parameters
    ----------
    features : float32 [N, F]
        Of the timings.
    weights : float32 [N]
        Inverse covariance of the timings times what was measured.
    scales : float32 [F]
        How fast the covariance falls along a feature; 0 where the timings do not differ.
    center : float
        Mean far from all timings.
    """

    features: NDArray[np.float32]
    weights: NDArray[np.float32]
    scales: NDArray[np.float32]
    center: float

    def predict(self, features: NDArray[Any]) -> Floats:
        """Mean of each row [P]."""
        scaled = self._scale(features)
        parts = [
            covariance(distances(scaled[first : first + _ROWS], self._own)) @ self.weights
            for first in range(0, len(scaled), _ROWS)
        ]
        # sums of products differ in their last bits with the number of rows: a price must not hang on its neighbors
        mean: Floats = np.round(self.center + np.concatenate([np.zeros(0), *parts]), 6)
        return mean

    @cached_property
    def _own(self) -> Floats:
        return self._scale(self.features)

    def _scale(self, features: NDArray[Any]) -> Floats:
        is_used = self.scales > 0
        scaled: Floats = features[:, is_used].astype(np.float64) * self.scales[is_used]
        return scaled
