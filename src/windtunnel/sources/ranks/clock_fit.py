"""Offsets and drifts of clocks by robust regression over common ends.

In: when each host saw each collective end. Out: what to add to each host's clock so that the ends coincide. Not here:
what causality allows (``clock_bounds``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fit", "fit_ends", "parts"]

# K collectives, H hosts
Floats = NDArray[np.float64]
_ROUNDS = 50
_HUBER = 1.345  # 95 % as sure as least squares where the noise is normal
_BLOCKS = 16
_MIN_PERIOD_NS = 50.0  # no clock of a trace is finer
_SURE = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """What to add to the clocks.

    Attributes
    ----------
    offset_ns : float [H]
        At the time 0; 0 for the first host of each part of the job that collectives tie together.
    drift : float [H]
        Per unit of time, on top.
    spread_ns : float
        Robust standard deviation of what a host saw later, or sooner, than its peers.
    steady_ns : float
        The same of the medians of blocks of time: noise that comes and goes shows here.
    part : int [H]
        Hosts of one part are tied together.
    """

    offset_ns: Floats
    drift: Floats
    spread_ns: float
    steady_ns: float
    part: NDArray[np.int64]


def fit_ends(end_KH: Floats, *, with_drift: bool, only_sure: bool = True) -> Fit:
    """Offsets, and drifts where they are sure, by Huber's regression of the ends of collectives.

    Minimizes the sum of rho(end + offset + drift * end - common end) over all members; the common ends are eliminated,
    the rest is solved by least squares with weights, again and again.

    Parameters
    ----------
    end_KH : float [K, H]
        Ends in ns on each host's own clock; NaN for hosts that are no members.
    with_drift : bool
        Whether the span is long enough to tell drifts.
    only_sure : bool
        Leave drifts out unless one is far beyond the noise.
    """
    is_member = np.isfinite(end_KH)
    part = parts(is_member)
    # Drifts are fitted, but only used where they are far beyond what noise would show; else offsets alone.
    fit = _regression(end_KH, is_member, part, with_drift)
    if with_drift and only_sure and not _is_sure(fit, end_KH, is_member):
        return _regression(end_KH, is_member, part, with_drift=False)
    return fit


def _is_sure(fit: Fit, end_KH: Floats, is_member: NDArray[np.bool_]) -> bool:
    """Whether the largest drift is far beyond what noise that comes and goes in blocks of time would show."""
    # Noise of a machine comes in stretches, so that single ends are not independent; medians of 16 blocks of
    # time are taken as the independent samples instead.
    seen = np.where(is_member, end_KH, np.nan)
    blocks = [block for block in np.array_split(seen, min(_BLOCKS, len(seen))) if len(block)]
    when = np.array([np.nanmean(block) for block in blocks])
    deviation = max(fit.steady_ns, _MIN_PERIOD_NS) * np.sqrt(2.0 / max(float(((when - when.mean()) ** 2).sum()), 1.0))
    return bool((np.abs(fit.drift) > _SURE * deviation).any())


def parts(is_member: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Which hosts meet, directly or by others: the least number among those that do."""
    # Connected components by spreading the smallest number: hosts that never meet, not even by way of others,
    # cannot be compared.
    meet = is_member.T.astype(np.int64) @ is_member.astype(np.int64) > 0  # [H, H]
    part = np.arange(is_member.shape[1])
    while True:
        lower = np.minimum(part, np.where(meet, part[None, :], len(part)).min(axis=1, initial=len(part)))
        if (lower == part).all():
            return part
        part = lower


def _regression(end_KH: Floats, is_member: NDArray[np.bool_], part: NDArray[np.int64], with_drift: bool) -> Fit:
    num_hosts = end_KH.shape[1]
    end = np.where(is_member, end_KH, 0.0)
    #      end[k, h] + offset[h] + drift[h] * end[k, h] = common[k] + noise          for all members h of k
    # Offsets are only known up to a constant: the first host of each part keeps its clock.
    free = np.flatnonzero(part != np.arange(num_hosts))  # the others are the references of their parts
    unit = 1e9  # drifts in ns per s, so that the equations are well scaled
    weight = is_member.astype(np.float64)
    offset, drift = np.zeros(num_hosts), np.zeros(num_hosts)
    residual = _residual(end, weight, offset, drift)
    rows = np.concatenate([free, num_hosts + free]) if with_drift else free
    # Iteratively reweighted least squares: residuals beyond the limit count less (Huber), so that a rank
    # that was held up in one collective does not shift its clock.
    for _ in range(_ROUNDS if len(free) else 0):
        before = offset + drift * unit
        matrix, right = _equations(end, end / unit, weight)
        solved = np.zeros(2 * num_hosts)
        solved[rows] = np.linalg.lstsq(matrix[np.ix_(rows, rows)], right[rows], rcond=None)[0]
        offset, drift = solved[:num_hosts], solved[num_hosts:] / unit
        residual = _residual(end, weight, offset, drift)
        limit = _HUBER * max(_spread(residual, is_member), _MIN_PERIOD_NS)
        weight = np.where(is_member, 1.0, 0.0) * np.minimum(1.0, limit / np.maximum(np.abs(residual), 1e-9))
        if np.abs(offset + drift * unit - before).max() < 0.1:
            break
    # Root mean square of the medians of each block of time and host.
    shown = np.where(is_member, residual, np.nan)
    blocks = [block for block in np.array_split(shown, min(_BLOCKS, len(shown))) if len(block)]
    medians = [np.nanmedian(column) for block in blocks for column in block.T if np.isfinite(column).any()]
    return Fit(
        offset,
        drift,
        _spread(residual, is_member),
        float(np.sqrt(np.mean(np.square(medians)))) if medians else 0.0,
        part,
    )


def _spread(residual: Floats, is_member: NDArray[np.bool_]) -> float:
    """Standard deviation of most residuals, if they are normal."""
    return 1.4826 * float(np.median(np.abs(residual[is_member]))) if is_member.any() else 0.0


def _equations(end: Floats, time: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Normal equations of offsets and drifts, [2 H, 2 H] and [2 H], with the common ends eliminated."""
    # The common ends are eliminated (they are weighted means), which leaves 2 H unknowns instead of 2 H + K.
    share = 1.0 / np.maximum(weight.sum(axis=1), 1e-30)  # [K]
    sampled = weight * time

    def block(one: Floats, other: Floats, diagonal: Floats) -> Floats:
        result: Floats = np.diag(diagonal.sum(axis=0)) - (one * share[:, None]).T @ other
        return result

    cross = block(weight, sampled, sampled)
    matrix = np.block([[block(weight, weight, weight), cross], [cross.T, block(sampled, sampled, sampled * time)]])
    common = (weight * end).sum(axis=1) * share
    apart = weight * (common[:, None] - end)
    return matrix, np.concatenate([apart.sum(axis=0), (apart * time).sum(axis=0)])


def _residual(end: Floats, weight: Floats, offset: Floats, drift: Floats) -> Floats:
    placed = end + offset + drift * end
    common = (weight * placed).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-30)
    apart: Floats = placed - common[:, None]
    return apart
