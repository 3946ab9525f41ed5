"""Which way of carrying latencies to a new device is the best one here.

In: latencies of nets on known devices, and a few of the new device. Out: ``Transferred``: every net there with its
interval, by the way that predicts the measured nets best when each is left out in turn; one common factor unless
another way is surely better. Nets differ by orders of magnitude, so errors are ratios and all ways but one work with
logarithms. Not here: the process over relative latencies (``model``), files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.systems.utilization.cells.model import FewShot, FewShotSettings, tune

__all__ = ["FACTOR", "METHODS", "Transfer", "Transferred"]

# N nets, D source devices, P features, S samples on the new device
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
_SPREADS = 1.645  # that an interval of 90 % reaches to either side
_MOST_FOLDS = 10
_MEAN_VARIANCE, _LEVEL_VARIANCE = 0.1, 0.01
_NOISE = 0.01  # of the logarithm of one measurement, squared: a tenth
_LEAST_STD = 0.01
_MEAN_OF_NORMAL = 0.798  # mean absolute value of a normal distribution over its deviation
_FURTHEST = 1.0  # an error of the logarithm counts no more: one artefact must not choose the method

FACTOR = "one factor"
METHODS = (FACTOR, "one factor from the nearest device", "process over logarithms", "process over latencies")
"""The simplest first: a later one has to be better by more than chance."""


@dataclass(frozen=True, eq=False)
class Transferred:
    """Every net on the new device.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    mean_ms, low_ms, high_ms : float [N]
        With a 90 % interval.
    errors : mapping of str to float
        Mean absolute error of the logarithm of each method on measured nets that were left out, one at most each.
    """

    method: str
    mean_ms: Floats
    low_ms: Floats
    high_ms: Floats
    errors: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Transfer:
    """Known devices, ready to tell of a new one.

    Parameters
    ----------
    log_ND : float [N, D]
        Logarithms of the latencies, each device's mean taken off.
    factor_NP : float [N, P]
        The covariance of two nets' logarithms is the product of their rows.
    prior : FewShot
        The same over relative latencies.
    """

    log_ND: Floats
    factor_NP: Floats
    prior: FewShot

    @classmethod
    def of(cls, sources_ms: ArrayLike, features: ArrayLike, *, num_samples: int = 10, seed: int = 0) -> Transfer:
        """Learn from three or more known devices.

        Parameters
        ----------
        sources_ms : float [N, D]
        features : float [N, P]
        num_samples : int
            That will be measured: the settings are those that are best for so many.
        seed : int

        Raises
        ------
        InputError
            Fewer devices, or a latency that is not above zero.
        """
        sources_ND, features_NP = np.asarray(sources_ms, dtype=np.float64), np.asarray(features, dtype=np.float64)
        settings = tune(sources_ND, features_NP, num_samples=num_samples, seed=seed)
        prior = FewShot.of(sources_ND, features_NP, settings)
        logs = np.log(sources_ND)
        logs = logs - logs.mean(axis=0)
        mean_N = logs.mean(axis=1)
        differences = (logs - mean_N[:, None]) / np.sqrt(sources_ND.shape[1] - 1)
        of_features = prior.factor_NP[:, sources_ND.shape[1] : -2]  # as the other process scales them
        stretch, level = np.sqrt(_MEAN_VARIANCE) * mean_N, np.full(len(mean_N), np.sqrt(_LEVEL_VARIANCE))
        return cls(logs, np.column_stack([differences, of_features, stretch, level]), prior)

    def choose(self, num_samples: int = 10, *, num_candidates: int | None = None, seed: int = 0) -> Rows:
        """Nets to measure, the most telling first; raises as ``FewShot.choose``."""
        design = FewShot(self.log_ND.mean(axis=1), self.factor_NP, FewShotSettings(noise=_NOISE))
        return design.choose(num_samples, num_candidates=num_candidates, seed=seed)

    def predict(self, rows: ArrayLike, latency_ms: ArrayLike) -> Transferred:
        """Predict every net from a few measured ones.

        Parameters
        ----------
        rows : int [S]
            Nets that were measured on the new device.
        latency_ms : float [S]

        Raises
        ------
        InputError
            As of ``FewShot.transfer``.
        """
        chosen, latency = np.asarray(rows, dtype=np.int64), np.asarray(latency_ms, dtype=np.float64)
        self.prior.transfer(chosen, latency)  # refuses what cannot be
        off_MS = self._left_out(chosen, np.log(latency))
        errors = {name: float(off.mean()) for name, off in off_MS.items() if len(off)}
        method = _best(off_MS)
        mean, std = _WAYS[method](self, chosen, np.log(latency))
        std = np.maximum(std * _stretch(off_MS[method], std[chosen]), _LEAST_STD)
        wide = np.exp(_SPREADS * std)
        return Transferred(method, np.exp(mean), np.exp(mean) / wide, np.exp(mean) * wide, errors)

    def _left_out(self, rows: Rows, logs: Floats) -> dict[str, Floats]:
        """Absolute error of each measured net when it and its fold are left out [S], by method; at least three."""
        if len(rows) < 3:
            return {FACTOR: np.zeros(0)}
        fold_S = np.arange(len(rows)) % min(len(rows), _MOST_FOLDS)
        found = {name: np.zeros(len(rows)) for name in METHODS}
        for fold in range(int(fold_S.max()) + 1):
            seen, unseen = np.flatnonzero(fold_S != fold), np.flatnonzero(fold_S == fold)
            for name in METHODS:
                mean, _ = _WAYS[name](self, rows[seen], logs[seen])
                found[name][unseen] = np.minimum(np.abs(mean[rows[unseen]] - logs[unseen]), _FURTHEST)
        return found


def _best(off_MS: Mapping[str, Floats]) -> str:
    """The method with the least error; one factor, where no other is better by more than a standard error."""
    best = FACTOR
    for name, off in off_MS.items():
        gain = off_MS[FACTOR] - off
        is_sure = len(gain) > 1 and gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain))
        if is_sure and off.mean() < off_MS[best].mean():
            best = name
    return best


def _stretch(off_S: Floats, std_S: Floats) -> float:
    """How much wider than it says a method's spread has to be for nets that were left out; never narrower."""
    if not len(off_S) or not std_S.mean() > 0:
        return 1.0
    return max(1.0, float(off_S.mean() / (_MEAN_OF_NORMAL * std_S.mean())))


# --- ways: rows and logarithms of latencies in, mean and spread of all nets' logarithms out ------------------------


def _one_factor(transfer: Transfer, rows: Rows, logs: Floats) -> tuple[Floats, Floats]:
    return _shifted(transfer.log_ND.mean(axis=1), rows, logs)


def _nearest(transfer: Transfer, rows: Rows, logs: Floats) -> tuple[Floats, Floats]:
    differences = logs[:, None] - transfer.log_ND[rows]
    return _shifted(transfer.log_ND[:, int(differences.std(axis=0).argmin())], rows, logs)


def _shifted(known_N: Floats, rows: Rows, logs: Floats) -> tuple[Floats, Floats]:
    differences = logs - known_N[rows]
    spread = float(differences.std(ddof=1)) if len(rows) > 1 else 0.0
    middle = np.median(differences)
    shift = np.clip(differences, middle - _FURTHEST, middle + _FURTHEST).mean()
    return known_N + shift, np.full(len(known_N), spread)


def _over_logs(transfer: Transfer, rows: Rows, logs: Floats) -> tuple[Floats, Floats]:
    """Gaussian process: mean and covariance of the known devices' logarithms."""
    mean_N, factor_NP = transfer.log_ND.mean(axis=1), transfer.factor_NP
    residual_S = logs - mean_N[rows]
    level = residual_S.mean()
    factor_SP = factor_NP[rows]
    inverse_SS = np.linalg.inv(factor_SP @ factor_SP.T + _NOISE * np.eye(len(rows)))
    crossed_NS = factor_NP @ factor_SP.T
    mean = mean_N + level + crossed_NS @ (inverse_SS @ (residual_S - level))
    explained_N = np.einsum("ns,st,nt->n", crossed_NS, inverse_SS, crossed_NS)
    variance_N = np.einsum("np,np->n", factor_NP, factor_NP) - explained_N + _NOISE
    return mean, np.sqrt(np.maximum(variance_N, _NOISE))


def _over_latencies(transfer: Transfer, rows: Rows, logs: Floats) -> tuple[Floats, Floats]:
    mean, std = transfer.prior.transfer(rows, np.exp(logs))
    return np.log(mean), std / mean


_WAYS: Mapping[str, Callable[[Transfer, Rows, Floats], tuple[Floats, Floats]]] = dict(
    zip(METHODS, (_one_factor, _nearest, _over_logs, _over_latencies), strict=True)
)
