"""Detection of the stable phase in a series of step times.

In: durations of steps, in the order in which they ran. Out: a ``StablePhase``: where the warm-up ends (MSER-5), the
median with its bootstrap interval, spikes, and whether a trend forbids to believe any of it. Also the loop that runs
a step until its median is known well enough. Not here: what the steps do, units of work.
"""

# N samples, M groups of five, K batches

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.measure.stats import Estimate, estimate_median, has_trend
from windtunnel.measure.turns import elapsed_ns

__all__ = [
    "StablePhase",
    "Trend",
    "is_known",
    "mser5",
    "run_until_stable",
    "sample_until_stable",
    "spikes",
    "stable_phase",
    "steady",
    "trend",
]

Float = NDArray[np.float64]
GROUP = 5
_NEIGHBORS = 11
_SPIKE_DEVIATIONS = 6.0
_SPIKE_LEAST = 0.05
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of a normal distribution
_MAX_BATCHES, _FEWEST_BATCHES = 64, 12
_CORRELATION_LIMIT = 0.15
_MAX_CORRELATION = 0.9
_GROWTH = 1.2


@dataclass(frozen=True, slots=True)
class Trend:
    """The trend of a series.

    Attributes
    ----------
    change_ratio : float
        Theil-Sen slope times the length, over the median: 0.03 is "the end is three per cent above the start".
    is_significant : bool
        Mann-Kendall on batch means that are no longer correlated.
    batch_length : int
        Samples per batch that it took.
    """

    change_ratio: float
    is_significant: bool
    batch_length: int


@dataclass(frozen=True, slots=True)
class StablePhase:
    """The statistics of a series of step times without its warm-up.

    Attributes
    ----------
    num_samples, cut : int
        All samples, and how many at the start are warm-up.
    median_ns : Estimate
        With its 95 % interval.
    mean_ns, iqr_ns : float
        Mean, and third quartile less the first.
    min_ns, max_ns, p99_ns : float
        Spikes included; median, mean and quartiles leave them out.
    num_spikes : int
    trend : Trend
    is_unstable : bool
        The trend is significant and larger than the tolerance: the number depends on when one looked.
    """

    num_samples: int
    cut: int
    median_ns: Estimate
    mean_ns: float
    iqr_ns: float
    min_ns: float
    max_ns: float
    p99_ns: float
    num_spikes: int
    trend: Trend
    is_unstable: bool

    @property
    def width_ratio(self) -> float:
        """The width of the interval over the median."""
        return 2 * self.median_ns.half_width_ratio


def mser5(samples: ArrayLike) -> int:
    """Return the number of leading warm-up samples, by the marginal standard error rule over groups of five.

    With ``z`` the means of consecutive groups, the cut ``d <= m / 2`` that minimizes
    ``sum((z[d:] - mean(z[d:])) ** 2) / (m - d) ** 2``. Source: White, Simulation 69(6), 1997; White, Cobb, Spratt,
    WSC 2000.

    Examples
    --------
    >>> mser5([90.0] * 5 + [10.0, 11.0, 10.0, 9.0, 10.0] * 5)
    5
    """
    samples_N = np.asarray(samples, dtype=np.float64)
    num_groups = len(samples_N) // GROUP
    if num_groups < 2:
        return 0
    #      cut     0         5        10        15 ...       for each: standard error of the mean of what is left
    #      samples |group 0  |group 1 |group 2  |
    # The cut with the smallest error ends the warm-up: slow first steps raise the variance, dropping too many
    # raises the error again. Sums from the back give all cuts in one pass.
    means_M = samples_N[: num_groups * GROUP].reshape(num_groups, GROUP).mean(axis=1)
    means_M = means_M - means_M.mean()  # keeps the difference of squares below from canceling
    left_M = np.arange(num_groups, 0, -1)
    sums_M = means_M[::-1].cumsum()[::-1]
    squares_M = (means_M**2)[::-1].cumsum()[::-1]
    errors_M = np.maximum(squares_M - sums_M**2 / left_M, 0.0) / left_M**2
    errors_M = errors_M[: num_groups // 2 + 1]
    rounding = 1e-12 * float(squares_M[0]) / num_groups**2  # of equally good cuts the first
    return int(np.argmax(errors_M <= errors_M.min() + rounding)) * GROUP


def spikes(samples: ArrayLike) -> NDArray[np.bool_]:
    """Return which samples exceed their neighbors, bool [N], by a one-sided Hampel filter over eleven samples.

    A spike lies six robust standard deviations, and at least 5 %, above the median of its neighborhood.

    Examples
    --------
    >>> spikes([10, 11, 10, 50, 10, 11, 10]).nonzero()[0].tolist()
    [3]
    """
    samples_N = np.asarray(samples, dtype=np.float64)
    local_N = _local_medians(samples_N)
    # Against neighbors, not against the whole series: a slow drift is no spike.
    residual_N = samples_N - local_N
    deviation = _NORMAL_MAD * float(np.median(np.abs(residual_N))) if len(samples_N) else 0.0
    result: NDArray[np.bool_] = residual_N > np.maximum(_SPIKE_DEVIATIONS * deviation, _SPIKE_LEAST * np.abs(local_N))
    return result


def steady(samples: ArrayLike, cut: int) -> NDArray[np.bool_]:
    """Return which samples are neither warm-up nor spikes, bool [N]."""
    kept_N = ~spikes(samples)
    kept_N[:cut] = False
    return kept_N


def _replace_spikes(samples_N: Float) -> tuple[Float, NDArray[np.bool_]]:
    """Replace spikes by the median of their neighbors; also return which samples are spikes."""
    is_spike_N = spikes(samples_N)
    return np.where(is_spike_N, _local_medians(samples_N), samples_N), is_spike_N


def _local_medians(samples_N: Float) -> Float:
    if not len(samples_N):
        return samples_N
    half = min(_NEIGHBORS // 2, (len(samples_N) - 1) // 2)
    padded = np.pad(samples_N, half, mode="reflect") if half else samples_N
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    medians: Float = np.median(windows, axis=1)
    return medians


def trend(samples: ArrayLike, *, confidence: float = 0.99) -> Trend:
    """Mann-Kendall test and Theil-Sen slope of a series whose neighbors may be correlated.

    The test takes its samples for independent; step times are not, and it would cry at every second stationary
    series. So it runs on means of batches, doubled in length until neighboring batches are (nearly) uncorrelated.

    Examples
    --------
    >>> trend(range(100, 200)).is_significant, round(trend(range(100, 200)).change_ratio, 2)
    (True, 0.67)
    >>> trend([1.0, 2.0] * 50).is_significant
    False
    """
    samples_N = np.asarray(samples, dtype=np.float64)
    length = max(1, math.ceil(len(samples_N) / _MAX_BATCHES))
    # The Mann-Kendall test assumes independent samples: batches grow until their residuals hardly correlate.
    while True:
        num_batches = len(samples_N) // length
        batches_K: Float = samples_N[len(samples_N) - num_batches * length :].reshape(num_batches, length).mean(axis=1)
        # The median of the slopes between all pairs.
        before, after = np.triu_indices(len(batches_K), 1)
        slope = float(np.median((batches_K[after] - batches_K[before]) / (after - before))) if len(before) else 0.0
        residual_K = batches_K - slope * np.arange(len(batches_K))
        if len(batches_K) < 2 * _FEWEST_BATCHES or _correlation(residual_K) <= _CORRELATION_LIMIT:
            break
        length *= 2
    middle = float(np.median(samples_N)) if len(samples_N) else 0.0
    change_ratio = slope * len(batches_K) / middle if middle else 0.0
    return Trend(change_ratio, has_trend(batches_K, confidence=confidence), length)


def _correlation(values_K: Float) -> float:
    """Return the lag-one autocorrelation."""
    centered = values_K - values_K.mean()
    power = float(centered @ centered)
    return float(centered[1:] @ centered[:-1]) / power if power > 0 else 0.0


def block_length(samples: ArrayLike) -> int:
    """Return the block length of a bootstrap that preserves the correlation of neighbors.

    ``(2 r / (1 - r**2)) ** (2/3) * N ** (1/3)`` for a lag-one autocorrelation r: Carlstein, Annals of Statistics
    14(3), 1986. At least the length at which batch means are no longer correlated, at most an eighth of the samples.

    Examples
    --------
    >>> block_length([1.0, 2.0] * 50)
    2
    """
    samples_N = np.asarray(samples, dtype=np.float64)
    correlation = min(max(0.0, _correlation(samples_N)), _MAX_CORRELATION)
    # The optimal length for an AR(1) series (Carlstein): longer blocks for stronger correlation.
    best = (2 * correlation / (1 - correlation**2)) ** (2 / 3) * len(samples_N) ** (1 / 3)
    return max(trend(samples_N).batch_length, min(int(np.ceil(best)), len(samples_N) // 8))


def stable_phase(
    durations_ns: ArrayLike, *, tolerance: float = 0.02, confidence: float = 0.95, seed: int = 0
) -> StablePhase:
    """Remove the warm-up and compute the statistics of the rest.

    Spikes are replaced by their neighbors' median before the cut is looked for, as one spike in the second half
    would move it. They are no part of the mean nor of the median: they only lengthen steps, and would push it up.

    Parameters
    ----------
    durations_ns : array_like [N]
    tolerance : float
        A significant trend that changes the level by more than this share over the window makes it unstable.
    confidence : float
        Of the median's interval; blocks are resampled, as long as neighbors are correlated.

    Raises
    ------
    InputError
        There are no durations.

    Examples
    --------
    >>> phase = stable_phase([900.0] * 10 + [100.0, 101.0, 99.0, 100.0, 100.0] * 12)
    >>> phase.cut, phase.median_ns.value, phase.is_unstable
    (10, 100.0, False)
    """
    samples_N = np.asarray(durations_ns, dtype=np.float64)
    if not len(samples_N):
        raise InputError("no step was measured", fix="run at least one step")
    smooth_N, is_spike_N = _replace_spikes(samples_N)
    cut = mser5(smooth_N)
    kept_N, is_spike_N, smooth_N = samples_N[cut:], is_spike_N[cut:], smooth_N[cut:]
    result = trend(smooth_N)
    steady_N = kept_N[~is_spike_N] if not is_spike_N.all() else kept_N
    lower, upper = np.quantile(steady_N, [0.25, 0.75])
    return StablePhase(
        num_samples=len(samples_N),
        cut=cut,
        median_ns=estimate_median(steady_N, confidence=confidence, seed=seed, block_length=block_length(steady_N)),
        mean_ns=float(steady_N.mean()),
        iqr_ns=float(upper - lower),
        min_ns=float(kept_N.min()),
        max_ns=float(kept_N.max()),
        p99_ns=float(np.quantile(kept_N, 0.99)),
        num_spikes=int(is_spike_N.sum()),
        trend=result,
        is_unstable=result.is_significant and abs(result.change_ratio) > tolerance,
    )


def is_known(durations_ns: ArrayLike, phase: StablePhase, precision: float) -> bool:
    """Whether sampling may end: the level is known to ``precision``, and is not still settling.

    The interval alone would end it in the middle of a slow warm-up, where few steps differ little. So nothing may
    indicate a trend, warm-up may be at most a quarter of the samples, and two thirds of them must agree.

    Parameters
    ----------
    durations_ns : array_like [N]
    phase : StablePhase
        Of these durations.
    precision : float
        The most that the median's interval may be wide, over the median.
    """
    if phase.width_ratio > precision or phase.trend.is_significant or 4 * phase.cut > phase.num_samples:
        return False
    # What was known after two thirds must agree with what is known now; else the level is still settling.
    earlier_N = np.asarray(durations_ns, dtype=np.float64)[: 2 * phase.num_samples // 3]
    smooth_N, is_spike_N = _replace_spikes(earlier_N)
    cut = mser5(smooth_N)
    earlier_ns = float(earlier_N[cut:][~is_spike_N[cut:]].mean())
    return abs(earlier_ns / phase.mean_ns - 1) <= precision / 2


def sample_until_stable(
    durations_ns: Iterable[float], *, precision: float = 0.01, min_steps: int = 50, max_steps: int = 2000
) -> tuple[Float, StablePhase]:
    """Consume durations until their level is known, or there are no more.

    It must be known at two looks in a row, the second at a fifth more samples: an interval is uncertain too, and of
    many looks one is lucky.

    Parameters
    ----------
    durations_ns : iterable of float
        In the order in which the steps run; no more are taken than are needed.
    precision : float
        See :func:`is_known`.
    min_steps, max_steps : int
        When the level is looked at for the first time, and when it ends in any case.

    Returns
    -------
    durations_ns : float64 [N]
    phase : StablePhase
    """
    used: list[float] = []
    look_at, was_known = float(min_steps), False
    for duration_ns in islice(durations_ns, max_steps):
        used.append(duration_ns)
        if len(used) >= look_at:
            phase = stable_phase(used)
            before, was_known = was_known, is_known(used, phase, precision)
            if before and was_known:
                return np.asarray(used, dtype=np.float64), phase
            look_at = len(used) * _GROWTH
    return np.asarray(used, dtype=np.float64), stable_phase(used)


def run_until_stable(
    step: Callable[[], object],
    *,
    budget_s: float = 30.0,
    precision: float = 0.01,
    min_steps: int = 50,
    max_steps: int = 2000,
    fewest: int = 3,
    after_step: Callable[[int], object] = lambda _duration_ns: None,
) -> tuple[NDArray[np.int64], StablePhase]:
    """Run ``step`` until its time is known to ``precision``, or the budget ends.

    Parameters
    ----------
    step : callable
        One whole iteration.
    budget_s : float
        Counted from the end of the first step, which may start processes; no step begins later, but ``fewest`` are
        always run.
    precision, min_steps, max_steps
        As in :func:`until_known`.
    fewest : int
    after_step : callable
        Called with the duration in ns, outside of what is timed.

    Returns
    -------
    durations_ns : int64 [N]
    phase : StablePhase
    """

    def step_durations() -> Iterator[int]:
        begun_s = math.inf
        for number in count(1):
            duration_ns = elapsed_ns(step)
            after_step(duration_ns)
            yield duration_ns
            # The first step often compiles or allocates: it does not use up the budget.
            if number == 1:
                begun_s = time.monotonic()
            if time.monotonic() - begun_s > budget_s and number >= fewest:
                return

    durations_ns, phase = sample_until_stable(
        step_durations(), precision=precision, min_steps=min_steps, max_steps=max_steps
    )
    return durations_ns.astype(np.int64), phase
