"""Latencies of nets on a device where only a handful was measured.

In: latencies of the same nets on other devices, features of the nets, and a few latencies of the new device. Out:
mean and spread for every net there, and which nets to measure. A Gaussian process: what the sources agree on is its
mean, how they differ and what the features explain is its covariance. Not here: where
latencies come from (``latencies``), nets that no source has measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError

__all__ = [
    "DEFAULT",
    "FewShot",
    "FewShotSettings",
    "rank_correlation",
    "tune",
]

# N nets, D source devices, P features, S samples on the new device
Floats = NDArray[np.float64]
_PRIOR_SAMPLES = 5.0  # that vouch for the sources' variances when new samples doubt them
_MEAN_VARIANCE, _LEVEL_VARIANCE = 0.1, 0.01  # how far a device may stretch and shift the sources' mean
_LEAST = 0.01  # of the typical latency: below it no net can be


@dataclass(frozen=True, slots=True)
class FewShotSettings:
    """Variances of the parts of the covariance, relative to a mean latency of 1.

    Parameters
    ----------
    sources : float
        Of how the sources differ from their mean.
    features : float
        Of what is linear in the features.
    noise : float
        Of one measurement.
    stretch : float
        Factor on the predicted spread with which intervals of left-out sources held what they promised.
    """

    sources: float = 1.0
    features: float = 0.01
    noise: float = 0.016
    stretch: float = 1.0


DEFAULT = FewShotSettings()
_GRID = tuple(FewShotSettings(*each) for each in product((0.3, 1.0), (0.01, 0.03), (0.008, 0.016, 0.03)))


@dataclass(frozen=True, eq=False)
class FewShot:
    """A prior over devices, made of those that are known.

    Parameters
    ----------
    mean_N : float [N]
        Relative latency of each net, mean over the sources.
    factor_NP : float [N, P]
        The covariance of two nets is the product of their rows.
    settings : FewShotSettings
    """

    mean_N: Floats
    factor_NP: Floats
    settings: FewShotSettings

    @classmethod
    def of(cls, sources_ms: ArrayLike, features: ArrayLike, settings: FewShotSettings = DEFAULT) -> FewShot:
        """Learn from the sources.

        Parameters
        ----------
        sources_ms : float [N, D]
            Latency of every net on every source, all above zero.
        features : float [N, P]
            What is known of the nets; latencies that add up over parts want counts of parts.
        settings : FewShotSettings

        Raises
        ------
        InputError
            Fewer than two sources, or a latency that is not above zero.
        """
        sources_ND = np.asarray(sources_ms, dtype=np.float64)
        _check_sources(sources_ND)
        relative_ND = sources_ND / sources_ND.mean(axis=0)
        mean_N = relative_ND.mean(axis=1)
        differences = (relative_ND - mean_N[:, None]) / np.sqrt(sources_ND.shape[1] - 1)
        factor = np.column_stack(
            [
                np.sqrt(settings.sources) * differences,
                np.sqrt(settings.features) * _standardized(np.asarray(features, dtype=np.float64)),
                np.sqrt(_MEAN_VARIANCE) * (mean_N - 1),
                np.full(len(mean_N), np.sqrt(_LEVEL_VARIANCE)),
            ]
        )
        return cls(mean_N, factor, settings)

    def choose(self, num_samples: int = 10, *, num_candidates: int | None = None, seed: int = 0) -> NDArray[np.int64]:
        """Nets to measure: each takes the most from the uncertainty of all, whatever its latency will be.

        Parameters
        ----------
        num_samples : int
        num_candidates : int, optional
            Nets that are drawn to choose from, and as many whose uncertainty counts; all of them unless given.
        seed : int
            Of the draws.

        Returns
        -------
        int64 [num_samples]
            Rows of nets, most telling first.

        Raises
        ------
        InputError
            More samples than candidates, or none.
        """
        num_nets = len(self.mean_N)
        draw = min(num_candidates or num_nets, num_nets)
        if not 1 <= num_samples <= draw:
            raise InputError(f"{num_samples} samples of {draw} nets", where="num_samples", fix=f"choose 1 to {draw}")
        rng = np.random.default_rng(seed)
        candidates, others = (np.sort(rng.choice(num_nets, draw, replace=False)) for _ in range(2))
        return candidates[self._greedy(self.factor_NP[candidates], self.factor_NP[others], num_samples)]

    def _greedy(self, candidates_CP: Floats, others_OP: Floats, num_samples: int) -> list[int]:
        """Greedy A-optimal design: the posterior covariance of the weights shrinks with each sample."""
        covariance = np.eye(candidates_CP.shape[1])
        spread = others_OP.T @ others_OP
        chosen: list[int] = []
        for _ in range(num_samples):
            moved = candidates_CP @ covariance
            variance = self.settings.noise + np.einsum("cp,cp->c", moved, candidates_CP)
            gain = np.einsum("cp,cp->c", moved @ spread, moved) / variance
            gain[chosen] = -1.0
            best = int(gain.argmax())
            chosen.append(best)
            covariance -= np.outer(moved[best], moved[best]) / variance[best]
        return chosen

    def transfer(self, rows: ArrayLike, latency_ms: ArrayLike) -> tuple[Floats, Floats]:
        """Predict every net from a few measured ones.

        Parameters
        ----------
        rows : int [S]
            Nets that were measured on the new device.
        latency_ms : float [S]
            What they took there.

        Returns
        -------
        mean_ms, std_ms : float [N]
            Posterior mean, and standard deviation of a new measurement.

        Raises
        ------
        InputError
            The numbers of rows and latencies differ, there are none, or a latency is not above zero.
        """
        chosen, latency = np.asarray(rows, dtype=np.int64), np.asarray(latency_ms, dtype=np.float64)
        _check_samples(chosen, latency)
        factor_SP = self.factor_NP[chosen]
        scale = float((latency / self.mean_N[chosen]).mean())
        residual_S = latency / scale - self.mean_N[chosen]
        inverse_SS = np.linalg.inv(factor_SP @ factor_SP.T + self.settings.noise * np.eye(len(chosen)))
        crossed_NS = self.factor_NP @ factor_SP.T
        mean_N = self.mean_N + crossed_NS @ (inverse_SS @ residual_S)
        explained_N = np.einsum("ns,st,nt->n", crossed_NS, inverse_SS, crossed_NS)
        variance_N = np.einsum("np,np->n", self.factor_NP, self.factor_NP) - explained_N + self.settings.noise
        surprise = (_PRIOR_SAMPLES + residual_S @ inverse_SS @ residual_S) / (_PRIOR_SAMPLES + len(chosen))
        std_N = self.settings.stretch * np.sqrt(surprise * np.maximum(variance_N, self.settings.noise))
        return scale * np.maximum(mean_N, _LEAST), scale * np.asarray(std_N, dtype=np.float64)


def _check_sources(sources_ND: Floats) -> None:
    if sources_ND.ndim != 2 or sources_ND.shape[1] < 2:
        raise InputError("a prior needs two or more source devices", where=f"sources of shape {sources_ND.shape}")
    bad = np.argwhere(~(np.isfinite(sources_ND) & (sources_ND > 0)))
    if len(bad):
        net, source = bad[0].tolist()
        raise InputError(
            f"{len(bad)} latencies are not above zero, the first is {sources_ND[net, source]}",
            where=f"net {net}, source {source}",
        )


def _check_samples(rows: NDArray[np.int64], latency: Floats) -> None:
    if rows.shape != latency.shape or not rows.size:
        raise InputError(f"{rows.size} nets and {latency.size} latencies do not belong together", where="samples")
    bad = np.flatnonzero(~(np.isfinite(latency) & (latency > 0)))
    if bad.size:
        raise InputError(
            f"the latency {latency[bad[0]]} is not above zero", where=f"sample {bad[0]}, net {rows[bad[0]]}"
        )


def _standardized(features_NP: Floats) -> Floats:
    """Centered, with rows of mean square 1 in all."""
    centered = features_NP - features_NP.mean(axis=0)
    size = np.sqrt((centered**2).sum(axis=1).mean())
    return np.asarray(centered / size if size > 0 else centered, dtype=np.float64)


# --- choosing the settings --------------------------------------------------------------------------------


def tune(
    sources_ms: ArrayLike,
    features: ArrayLike,
    *,
    num_samples: int = 10,
    grid: Sequence[FewShotSettings] = _GRID,
    coverage: float = 0.9,
    num_nets: int = 1500,
    seed: int = 0,
) -> FewShotSettings:
    """Settings that rank best when each source in turn is the new device; the real one is never seen.

    Parameters
    ----------
    sources_ms : float [N, D]
    features : float [N, P]
    num_samples : int
    grid : sequence of FewShotSettings
    coverage : float
        That intervals of mean +- 1.645 standard deviations should have; ``stretch`` makes it so on the sources.
    num_nets : int
        Drawn to tune on.
    seed : int

    Raises
    ------
    InputError
        Fewer than three sources.
    """
    sources_ND = np.asarray(sources_ms, dtype=np.float64)
    if sources_ND.ndim != 2 or sources_ND.shape[1] < 3:
        raise InputError("tuning leaves one source out and needs three", where=f"sources of shape {sources_ND.shape}")
    some = np.random.default_rng(seed).choice(len(sources_ND), min(num_nets, len(sources_ND)), replace=False)
    some_ND, features_NP = sources_ND[some], np.asarray(features, dtype=np.float64)[some]
    tried = [_left_out(some_ND, features_NP, each, num_samples) for each in grid]
    best = max(range(len(grid)), key=lambda place: tried[place][0])
    return replace(grid[best], stretch=float(np.quantile(tried[best][1], coverage)) / 1.645)


def _left_out(
    sources_ND: Floats, features_NP: Floats, settings: FewShotSettings, num_samples: int
) -> tuple[float, Floats]:
    """Mean rank correlation over left-out sources, and all errors in standard deviations."""
    correlations, errors = [], []
    for target in range(sources_ND.shape[1]):
        prior = FewShot.of(np.delete(sources_ND, target, axis=1), features_NP, settings)
        rows, truth = prior.choose(num_samples), sources_ND[:, target]
        mean, std = prior.transfer(rows, truth[rows])
        correlations.append(rank_correlation(mean, truth))
        errors.append(np.abs(mean - truth) / std)
    return float(np.mean(correlations)), np.concatenate(errors)


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's: Pearson's correlation of mean ranks.

    Examples
    --------
    >>> round(rank_correlation([1, 2, 3, 4], [10, 30, 20, 40]), 3)
    0.8
    """
    return float(np.corrcoef(_mean_ranks(np.asarray(first)), _mean_ranks(np.asarray(second)))[0, 1])


def _mean_ranks(values: NDArray[np.generic]) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], dtype=np.float64)
