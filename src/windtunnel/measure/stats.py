"""Medians, bootstrap intervals, warm-up and drift of repeated timings.

In: durations of rounds, baseline and changed side by side. Out: estimates with intervals. Every function is
deterministic under its seed. Not here: running anything.
"""

# R rounds, B bootstrap resamples

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Estimate",
    "estimate_median",
    "estimate_speedup",
    "has_trend",
    "is_above_zero",
    "medians_of_resamples",
    "warmup_length",
]

Float = NDArray[np.float64]
_NUM_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the interval in which it lies with the given confidence."""

    value: float
    low: float
    high: float

    @property
    def half_width_ratio(self) -> float:
        """Half of the interval's width over the value; 0.01 is "known to one per cent"."""
        return (self.high - self.low) / 2 / abs(self.value) if self.value else math.inf


def medians_of_resamples(
    samples_R: Float, *, num_resamples: int = _NUM_RESAMPLES, seed: int = 0, block_length: int = 1
) -> Float:
    """Medians of ``num_resamples`` draws of R samples with replacement, [B]; neighbors are drawn in whole blocks.

    Source: Politis and Romano, A circular block-resampling procedure, 1992.
    """
    rng = np.random.default_rng(seed)
    num_samples = len(samples_R)
    first_BK = rng.integers(0, num_samples, size=(num_resamples, -(-num_samples // block_length)))
    rows_BR = ((first_BK[:, :, None] + np.arange(block_length)) % num_samples).reshape(num_resamples, -1)
    rows_BR = rows_BR[:, :num_samples]
    medians: Float = np.median(samples_R[rows_BR], axis=1)
    return medians


def estimate_median(samples: ArrayLike, *, confidence: float = 0.9, seed: int = 0, block_length: int = 1) -> Estimate:
    """Median of samples with its percentile-bootstrap interval; ``block_length`` is that of correlated neighbors.

    Examples
    --------
    >>> estimate_median([5.0, 5.0, 5.0])
    Estimate(value=5.0, low=5.0, high=5.0)
    """
    samples_R = np.asarray(samples, dtype=np.float64)
    assert len(samples_R)
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians_of_resamples(samples_R, seed=seed, block_length=block_length), [tail, 1 - tail])
    return Estimate(float(np.median(samples_R)), float(low), float(high))


def estimate_speedup(baseline: ArrayLike, changed: ArrayLike, *, confidence: float = 0.9, seed: int = 0) -> Estimate:
    """Median over rounds of baseline / changed, with a bootstrap over whole rounds.

    A round's two turns are neighbors in time, so that a machine which slows down for a minute slows both: the
    ratio within a round does not see it, a ratio of two overall medians would.

    Examples
    --------
    >>> estimate_speedup([10.0, 20.0, 30.0], [5.0, 10.0, 15.0]).value
    2.0
    """
    baseline_R, changed_R = np.asarray(baseline, dtype=np.float64), np.asarray(changed, dtype=np.float64)
    assert baseline_R.shape == changed_R.shape
    logs = estimate_median(np.log(baseline_R / changed_R), confidence=confidence, seed=seed)
    return Estimate(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))


def is_above_zero(differences: ArrayLike, *, confidence: float) -> bool:
    """Whether the mean of a few differences is above 0 (Student's t-test, one-sided); False for one alone.

    Bootstrap intervals of five values are too narrow to say so: their ends are the values themselves.

    Examples
    --------
    >>> is_above_zero([2.0, 3.0, 2.5, 2.2], confidence=0.99), is_above_zero([2.0, -1.0, 0.5], confidence=0.99)
    (True, False)
    """
    found_R = np.asarray(differences, dtype=np.float64)
    num_free, mean = len(found_R) - 1, float(found_R.mean())
    if num_free < 1 or mean <= 0:
        return False
    deviation = float(found_R.std(ddof=1))
    if not deviation:
        return True
    return _student_tail(mean / deviation * math.sqrt(num_free + 1), num_free) < 1 - confidence


def _student_tail(t: float, num_free: int) -> float:
    """Probability of more than ``t`` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(num_free))
    term = math.cos(angle) if num_free % 2 else 1.0
    total = 0.0
    for step in range(2 + num_free % 2, num_free + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (step - 1) / step
    inside = math.sin(angle) * total
    if num_free % 2:
        inside = 2 / math.pi * (angle + inside)
    return (1 - inside) / 2


def warmup_length(samples: ArrayLike) -> int:
    """How many leading samples still belong to the warm-up; at most half of them.

    A sample is steady when it is not above the upper fence (the third quartile and one and a half inter-quartile
    ranges more) of the second half; the warm-up ends before the first of two steady ones in a row.

    Examples
    --------
    >>> warmup_length([90, 40, 10, 11, 10, 9, 10, 11, 10, 9])
    2
    """
    samples_R = np.asarray(samples, dtype=np.float64)
    half = len(samples_R) // 2
    if half < 2:
        return 0
    lower, upper = np.quantile(samples_R[half:], [0.25, 0.75])
    steady = samples_R <= upper + 1.5 * (upper - lower)
    both = steady[:-1] & steady[1:]
    first = int(np.argmax(both)) if both.any() else half
    return min(first, half)


def has_trend(samples: ArrayLike, *, confidence: float = 0.99) -> bool:
    """Whether the samples rise or fall over time beyond chance (Mann-Kendall test, with ties).

    Examples
    --------
    >>> has_trend(range(20)), has_trend([1, 2] * 10)
    (True, False)
    """
    samples_R = np.asarray(samples, dtype=np.float64)
    num_samples = len(samples_R)
    if num_samples < 4:
        return False
    score = float(np.sign(samples_R[None, :] - samples_R[:, None])[np.triu_indices(num_samples, 1)].sum())
    _, ties = np.unique(samples_R, return_counts=True)
    pairs = num_samples * (num_samples - 1) * (2 * num_samples + 5)
    variance = float(pairs - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    if variance <= 0:
        return False
    deviations = max(0.0, abs(score) - 1) / math.sqrt(variance)
    return math.erfc(deviations / math.sqrt(2)) < 1 - confidence
