"""Take the profiler's own cost out of a profile, and say how well the time of the step is known.

The profiler stamps the start as the last thing on entering an event and the end as the first thing on leaving it, so
an operator that calls nothing is measured nearly true and the cost falls into the slices around: before an enter and
after a leave. The cost per event is what a calibration loop shows, corrected by what profiled iterations took longer
than bare ones in the same run, each weighted by its certainty. What then still differs is the residual: it is
recorded and spread over all slices. The precision of a capture is the standard error of the median of its bare
iterations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from windtunnel.sources.torch.profile import LightProfiler
from windtunnel.sources.torch.timeline_points import Points, Stretches
from windtunnel.units import format_ratio

__all__ = ["Correction", "calibrate", "central", "correct", "precision", "select_validation_iterations"]

Int = NDArray[np.int64]
TARGET_ERROR_RATIO, MAX_ERROR_RATIO = 0.02, 0.03
_FEWEST = 6  # durations that say something about their own spread
_NUM_RESAMPLES = 1000
_MAX_TIMES = 20  # as many iterations as were measured, to advise


@dataclass(frozen=True)
class Correction:
    """What was taken out of every iteration.

    ``enter_ns`` and ``leave_ns`` are the cost per event before and after it; ``residual_ratio`` is bare over
    corrected time before the rest was spread (1 is perfect); ``residual_ratios`` says the same by stretch of the
    iteration.
    """

    enter_ns: float
    leave_ns: float
    calibrated_ns: float
    observed_ns: float
    residual_ratio: float
    residual_ratios: dict[str, float]

    def as_meta(self) -> dict[str, Any]:
        """For ``graph.meta``."""
        return {
            "event_enter_ns": float(self.enter_ns),
            "event_leave_ns": float(self.leave_ns),
            "calibrated_event_ns": float(self.calibrated_ns),
            "observed_event_ns": float(self.observed_ns),
            "residual_ratio": float(self.residual_ratio),
            "residual_ratios": self.residual_ratios,
        }


def calibrate(rounds: int = 9, calls: int = 200) -> float:
    """Cost of one event in ns on this machine, at least one: nested small operators, bare and profiled in turn."""
    tensor = torch.ones(2, 3)
    events_per_call = 3  # t, transpose, as_strided
    bare_ns, profiled_ns = [], []
    for _ in range(rounds):
        bare_ns.append(_time_calls(tensor, calls))
        profiler = LightProfiler()
        profiler.start()
        _time_calls(tensor, calls // 4)
        profiled_ns.append(_time_calls(tensor, calls))
        profiler.stop()
    # others on the machine only ever add to either
    return max(1.0, (min(profiled_ns) - min(bare_ns)) / (calls * events_per_call))


def _time_calls(tensor: torch.Tensor, calls: int) -> int:
    begun_ns = time.perf_counter_ns()
    for _ in range(calls):
        tensor.t()
    return time.perf_counter_ns() - begun_ns


def central(totals: NDArray[np.float64]) -> NDArray[np.intp]:
    """Rows of the middle half by length: their mean is robust, and means add up where medians do not."""
    order = np.argsort(totals, kind="stable")
    cut = len(order) // 4
    return order[cut : len(order) - cut]


def select_validation_iterations(count: int) -> NDArray[np.bool_]:
    """Which of the bare iterations the correction must not see, bool [count].

    Every second one; as two follow each other without a change of instrument, first and second take turns.
    """
    number = np.arange(count)
    aside: NDArray[np.bool_] = (number + number // 2) % 2 == 1
    return aside


def correct(
    points: Points,
    slices_IP: Int,
    bare_ns: Int,
    *,
    calibrated_ns: float,
    parts: Stretches | None = None,
    aim_ns: Int | None = None,
) -> tuple[Int, Correction]:
    """Remove the profiler's cost from every slice of every iteration.

    Parameters
    ----------
    points : Points
        The template: P points, P - 1 slices.
    slices_IP : int64 [I, P - 1]
        Measured durations.
    bare_ns : int64
        Times of unprofiled iterations, measured in between; may be empty.
    calibrated_ns : float
        Cost of one event, from :func:`calibrate`.
    parts : Stretches, optional
        The times of ``aim_ns`` by stretch of the iteration, so that each stretch has its own residual.
    aim_ns : int64, optional
        What an iteration takes in a training loop; ``bare_ns`` by default. The cost of an event is the difference of
        iterations measured in turn, which find caches alike; the rest is scaled to this.

    Returns
    -------
    int64 [I, P - 1], and what was done.
    """
    is_enter = np.array([token[0] == "+" for token in points.tokens])
    before_enter, after_leave = is_enter[1:], ~is_enter[:-1]
    num_events = len(points.rows) - 1  # the iteration's own mark is begun and ended outside of the measured time
    totals = slices_IP.sum(axis=1).astype(np.float64)
    event_ns, observed = _event_cost(totals, bare_ns.astype(np.float64), calibrated_ns, num_events)
    share = _enter_share(slices_IP, before_enter, after_leave)
    cost = event_ns * (share * before_enter + (1 - share) * after_leave)  # [P - 1]
    corrected = np.maximum(slices_IP - cost, 0.0)
    aim_ns = bare_ns if aim_ns is None else aim_ns
    ratio = _residual(corrected, aim_ns)
    residuals: dict[str, float] = {}
    if parts is not None:
        of_stretch = parts.ratios(corrected, ratio)
        residuals = dict(zip(parts.titles(), of_stretch.tolist(), strict=True))
        spread = corrected * of_stretch[parts.of_slice]
        spread *= _residual(spread, aim_ns)
    else:
        spread = corrected * ratio
    done = Correction(event_ns * share, event_ns * (1 - share), calibrated_ns, observed, ratio, residuals)
    return np.rint(spread).astype(np.int64), done


def _residual(slices_IP: NDArray[np.float64], bare_ns: Int) -> float:
    """Bare over profiled length of the iteration."""
    if not len(bare_ns):
        return 1.0
    lengths = slices_IP.sum(axis=1)
    return float(np.median(bare_ns) / lengths[central(lengths)].mean())


def _event_cost(
    totals: NDArray[np.float64], bare: NDArray[np.float64], calibrated: float, num_events: int
) -> tuple[float, float]:
    """Calibrated and observed cost per event, joined by inverse variance; and the observed one."""
    if not len(bare) or num_events < 1:
        return calibrated, float("nan")
    observed = (np.median(totals) - np.median(bare)) / num_events
    variance = (_median_variance(totals) + _median_variance(bare)) / num_events**2
    prior_variance = (0.5 * calibrated) ** 2
    weight = prior_variance / (prior_variance + variance + 1e-9)
    joined = weight * observed + (1 - weight) * calibrated
    return _positive_mean(float(joined), math.sqrt(weight * variance)), float(observed)


def _positive_mean(mean: float, std: float) -> float:
    """Mean of a normal variable that is known to be positive: an event costs something, whatever noise shows."""
    if std <= 0 or mean > 8 * std:
        return max(mean, 0.0)
    index = mean / std
    if index < -8:
        return -std / index
    density = math.exp(-0.5 * index * index) / math.sqrt(2 * math.pi)
    return mean + std * density / (0.5 * math.erfc(-index / math.sqrt(2)))


def _median_variance(samples: NDArray[np.float64]) -> float:
    spread = 1.4826 * np.median(np.abs(samples - np.median(samples)))
    return float(1.57 * spread**2 / len(samples)) if len(samples) > 2 else float(samples.mean() ** 2)


def _enter_share(slices_IP: Int, before_enter: NDArray[np.bool_], after_leave: NDArray[np.bool_]) -> float:
    """Part of an event's cost that comes before it: the shortest slices between two enters, against two leaves."""
    only_enter, only_leave = before_enter & ~after_leave, after_leave & ~before_enter
    if not only_enter.any() or not only_leave.any():
        return 0.5
    typical = np.median(slices_IP, axis=0)
    enter, leave = np.percentile(typical[only_enter], 10), np.percentile(typical[only_leave], 10)
    return float(enter / (enter + leave)) if enter + leave > 0 else 0.5


def precision(bare_ns: Sequence[int]) -> dict[str, Any]:
    """How far the median of the bare iterations that are held out is off by chance, as meta of a capture.

    As many others make the graph, so that its length is known as well as that. The error falls with the square root of
    the number where iterations vary each by itself; where the machine was slower for a while it is larger than this.

    Parameters
    ----------
    bare_ns : sequence of int
        All bare iterations, int64 ns; their common spread stands for that of both halves.

    Returns
    -------
    dict
        ``standard_error_ratio``, and ``iterations_wanted`` for an error of 2 %; ``note`` where it is above 3 %. Empty
        for fewer than six durations.

    Source: Efron, Bootstrap methods, Annals of Statistics 7(1), 1979.
    """
    durations = np.array(bare_ns, dtype=np.float64)
    if len(durations) < _FEWEST or not np.median(durations):
        return {}
    num_aside = int(select_validation_iterations(len(durations)).sum())
    resamples = np.random.default_rng(0).choice(durations, size=(_NUM_RESAMPLES, num_aside))
    error_ratio = float(np.median(resamples, axis=1).std() / np.median(durations))
    requested = math.ceil(len(durations) * (error_ratio / TARGET_ERROR_RATIO) ** 2 / 10) * 10
    result: dict[str, Any] = {"standard_error_ratio": error_ratio, "iterations_wanted": requested}
    if error_ratio > MAX_ERROR_RATIO:
        advice = f"--iterations {requested} would make that ±{format_ratio(TARGET_ERROR_RATIO)}"
        if requested > _MAX_TIMES * len(durations):
            advice = "capture again on a quiet machine, as no number of iterations makes up for what disturbs them"
        result["note"] = (
            f"iterations vary: after {len(durations)} of them the step's time is known to "
            f"±{format_ratio(error_ratio)}; {advice}"
        )
    return result
