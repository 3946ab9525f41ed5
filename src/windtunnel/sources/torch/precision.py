"""How well a capture knows the time of the step.

In: durations of bare iterations. Out: the standard error of their median, how many iterations would know it well, and
a line that says so. Not here: what the profiler costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from windtunnel.sources.torch.overhead import select_validation_iterations
from windtunnel.units import format_ratio

__all__ = ["precision"]

TARGET_ERROR_RATIO, MAX_ERROR_RATIO = 0.02, 0.03
_FEWEST = 6  # durations that say something about their own spread
_NUM_RESAMPLES = 1000
_MAX_TIMES = 20  # as many iterations as were measured, to advise


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
