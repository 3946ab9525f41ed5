"""Fit Gaussian processes: scales of features by the likelihood of some timings.

In: features and labels of timings. Out: a ``GaussianProcess`` of all of them. How fast the covariance falls along each
feature, and how much of the labels no feature explains, are those under which labels of at most ``MAX_TIMINGS`` drawn
timings are likeliest, with priors that keep few timings from trusting many features. Needs SciPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.operators.learned_process import GaussianProcess, covariance, distances

__all__ = ["fit_process", "unlikelihood"]

# N timings, F features
Floats = NDArray[np.float64]

SEED, MAX_TIMINGS, MAX_STEPS = 2026, 500, 40
PRIOR_LENGTH, PRIOR_NOISE = 1.5, 0.15  # standard deviations, of a feature over root F and of the labels
WIDTH_OF_SCALES, WIDTH_OF_NOISE = 1.0, 0.7  # of the priors, in logarithms
_JITTER = 1e-6


def fit_process(features: NDArray[Any], labels: Floats, trust: Floats) -> GaussianProcess:
    """A process of timings, of which some are trusted more than others."""
    from scipy.linalg import cho_factor, cho_solve

    spread = features.astype(np.float64).std(axis=0)
    is_used = spread > 1e-6
    values = features[:, is_used].astype(np.float64) / spread[is_used]
    center, width = float(np.median(labels)), float(labels.std()) + 1e-9
    drawn = np.random.default_rng(SEED).permutation(len(labels))[:MAX_TIMINGS]
    scales, variance, noise = _fit_scales(values[drawn], (labels[drawn] - center) / width)
    whole = variance * covariance(distances(values * scales, values * scales))
    whole[np.diag_indices_from(whole)] += noise / trust + _JITTER
    weights = variance * cho_solve(cho_factor(whole, lower=True), labels - center)
    all_scales = np.zeros(features.shape[1])
    all_scales[is_used] = scales / spread[is_used]
    return GaussianProcess(
        features.astype(np.float32), weights.astype(np.float32), all_scales.astype(np.float32), center
    )


def _fit_scales(values: Floats, labels: Floats) -> tuple[Floats, float, float]:
    """Scale of each feature, variance of the process and of the noise."""
    from scipy.optimize import minimize

    count = values.shape[1]
    start = np.append(np.full(count, -np.log(PRIOR_LENGTH * np.sqrt(count))), [0.0, np.log(PRIOR_NOISE)])
    widths = np.append(np.full(count, WIDTH_OF_SCALES), [1.0, WIDTH_OF_NOISE])

    def loss(logs: Floats) -> tuple[float, Floats]:
        value, slopes = unlikelihood(logs, values, labels)
        off = (logs - start) / widths
        return value + 0.5 * float(off @ off), slopes + off / widths

    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": MAX_STEPS}).x
    return np.exp(found[:-2]), float(np.exp(2 * found[-2])), float(np.exp(2 * found[-1]))


def unlikelihood(logs: Floats, values: Floats, labels: Floats) -> tuple[float, Floats]:
    """Negative logarithm of the likelihood of labels, and its slopes by the logarithms of scales and deviations."""
    from scipy.linalg import cho_factor, cho_solve

    scaled, variance, noise = values * np.exp(logs[:-2]), np.exp(2 * logs[-2]), np.exp(2 * logs[-1])
    apart = distances(scaled, scaled)
    own = covariance(apart)
    factor = cho_factor(variance * own + (noise + _JITTER) * np.eye(len(labels)), lower=True)
    inverse, weights = cho_solve(factor, np.eye(len(labels))), cho_solve(factor, labels)
    outer = inverse - np.outer(weights, weights)
    # d covariance / d log scale = -3 exp(-root 3 distance) (scaled difference along the feature)**2
    pull = 3.0 * variance * outer * np.exp(-np.sqrt(3.0) * apart)
    along = (scaled * (pull @ scaled)).sum(axis=0) - (scaled**2 * pull.sum(axis=1)[:, None]).sum(axis=0)
    slopes = np.append(along, [variance * (outer * own).sum(), noise * np.trace(outer)])
    return 0.5 * float(labels @ weights) + float(np.log(np.diag(factor[0])).sum()), slopes
