"""Rounds in which candidates take turns, and what is made of their times.

In: what is timed. Out: nanoseconds, and the one quiet estimate of them. On a shared machine everything else only ever
makes a run longer, and a clock is coarse: so the estimate is the lower quartile, which a disturbed half of the rounds
does not move, and which one lucky round does not decide as it would a minimum. Where a ratio of two programs is
wanted, ``turns`` and ``stats`` take medians of rounds instead, which see both at the same moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.progress import Progress

__all__ = ["elapsed_ns", "quiet", "quiet_rows", "rounds", "spread_of_quiet", "spread_ratio"]

_NUM_RESAMPLES = 64


def elapsed_ns(action: Callable[[], Any]) -> int:
    """Wall-clock time of one call, in ns."""
    begun_ns = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - begun_ns


def rounds(
    fewest: int, most: int, budget_s: float, *, warmup: int = 0, progress: Progress | None = None, what: str = "rounds"
) -> Iterator[int]:
    """Numbers of the rounds to run, one after the other: negative ones warm up and do not count.

    Parameters
    ----------
    fewest, most : int
        Rounds that count.
    budget_s : float
        No round begins later, but the fewest are always run.
    warmup : int
    progress : callable, optional
        Called with (what, done, total) after each round.
    what : str
    """
    begun_s = time.perf_counter()
    for turn in range(-warmup, most):
        yield turn
        spent_s = time.perf_counter() - begun_s
        if progress is not None and turn >= 0:
            total = most if spent_s <= 0 else min(most, max(fewest, int(budget_s * (turn + 1) / spent_s)))
            progress(what, turn + 1, max(total, turn + 1))
        if turn + 1 >= fewest and spent_s > budget_s:
            return


def quiet(samples: ArrayLike) -> float:
    """The lower quartile of times; NaN where there are none."""
    used = np.asarray(samples, dtype=np.float64)
    return float(np.percentile(used, 25)) if used.size else float("nan")


def quiet_rows(samples: ArrayLike) -> NDArray[np.float64]:
    """The lower quartile over rounds of each column of [R, N], float [N]."""
    result: NDArray[np.float64] = np.percentile(np.asarray(samples, dtype=np.float64), 25, axis=0)
    return result


def spread_ratio(samples: ArrayLike) -> float:
    """Interquartile range over the median; 0 where the median is 0."""
    low, median, high = np.percentile(np.asarray(samples, dtype=np.float64), [25, 50, 75])
    return float((high - low) / median) if median > 0 else 0.0


def spread_of_quiet(old_RN: ArrayLike, new_RN: ArrayLike, *, seed: int = 0) -> float:
    """How far the ratio of two quiet estimates varies by chance: its ``spread_ratio`` over resampled rounds.

    Single rounds while other programs run vary far more than the lower quartile of all of them does.

    Parameters
    ----------
    old_RN, new_RN : float [R, N]
        Times of N pieces in R rounds, of both programs in the same rounds.
    """
    old, new = (np.asarray(samples, dtype=np.float64) for samples in (old_RN, new_RN))
    rows = np.random.default_rng(seed).integers(0, len(old), (_NUM_RESAMPLES, len(old)))
    ratios = [quiet_rows(new[row]).sum() / max(quiet_rows(old[row]).sum(), 1.0) for row in rows]
    return spread_ratio(ratios)
