"""Offsets of clocks by messages that go one way only.

In: when messages left and came, how long each receive took, and the limits of causality. Out: the offsets for which
equal messages took equally long. A receive that waited for its sender took, once clipped, ``received - sent + offset``;
one that did not took its own time: the variance over a family of equal messages is least where both agree. Not here:
messages both ways, whose quickest tell more (``clock_evidence``).

Source: dPRO, MLSys 2022, alignment of timelines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.ranks.clock_bounds import nearest
from windtunnel.sources.ranks.clock_evidence import Evidence

__all__ = ["fit_clipped_durations"]

# P messages, H hosts
Floats = NDArray[np.float64]
_ROUNDS = 50
_CLOSE_NS = 1.0
_RIDGE = 1e-6  # what messages do not determine stays as it is


def fit_clipped_durations(evidence: Evidence, offset: Floats, limit_HH: Floats) -> Floats:
    """Least variance of clipped durations within the limits, by projected Newton steps from ``offset`` [H] on."""
    placed = nearest(offset, limit_HH)
    best = _variance(evidence, placed)
    for _ in range(_ROUNDS):
        gradient, hessian = _derivatives(evidence, placed)
        step = np.zeros_like(placed)
        # the first clock is the reference; the ridge keeps the matrix regular where no message joins two hosts
        step[1:] = np.linalg.solve(hessian[1:, 1:] + _RIDGE * np.eye(len(placed) - 1), -gradient[1:])
        moved = False
        # clipping makes the sum only piecewise smooth: halve the step until it helps
        while np.abs(step).max() > _CLOSE_NS:
            tried = nearest(placed + step, limit_HH)
            value = _variance(evidence, tried)
            if value < best:
                placed, best, moved = tried, value, True
                break
            step /= 2
        if not moved:
            break
    return placed


def _clip_durations(evidence: Evidence, offset: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Duration of each receive [P] from the later of its own begin and the send on, and whether it waited."""
    since_sent = evidence.received - evidence.sent + offset[evidence.target] - offset[evidence.source]
    return np.minimum(since_sent, evidence.took), since_sent < evidence.took


def _center_by_family(values: Floats, family: NDArray[np.int64]) -> Floats:
    count = np.bincount(family)
    centered: Floats = values - (np.bincount(family, values) / np.maximum(count, 1))[family]
    return centered


def _variance(evidence: Evidence, offset: Floats) -> float:
    clipped, _ = _clip_durations(evidence, offset)
    return float((_center_by_family(clipped, evidence.family) ** 2).sum())


def _derivatives(evidence: Evidence, offset: Floats) -> tuple[Floats, Floats]:
    """Of half the variance, with who waits held fixed: gradient [H], and the Hessian [H, H], never negative."""
    clipped, waits = _clip_durations(evidence, offset)
    slope = np.zeros((len(clipped), len(offset)))
    rows = np.flatnonzero(waits)
    slope[rows, evidence.target[rows]] += 1
    slope[rows, evidence.source[rows]] -= 1
    slope = np.stack([_center_by_family(column, evidence.family) for column in slope.T], axis=1)
    gradient: Floats = slope.T @ _center_by_family(clipped, evidence.family)
    hessian: Floats = slope.T @ slope
    return gradient, hessian
