"""How far off whole steps are that were predicted from graphs that were never run.

In: a GPU. Out: ends of the interval of log(measured / predicted) of a step. Intervals of prices do not hold what the
host takes, nor what the price model has never seen; recorded steps do. Of n steps that are alike, the next one lies
between the least and the largest with a probability of (n - 1) / (n + 1): split conformal, Lei et al., JASA 2018.
"""

from __future__ import annotations

import math

from windtunnel.cost.operators.learned_model import WIDTH_PER_OCTAVE, read_shipped_model
from windtunnel.hardware import Device

__all__ = ["STEP_ENDS", "step_ends"]

STEP_ENDS = (-0.189, 0.355)
"""Least and largest log(measured / predicted) of 18 steps on an H100 and an H200 (``benchmarks.gpu_predict``)."""


def step_ends(device: Device) -> tuple[float, float]:
    """Ends of log(measured / predicted) on a GPU, wider the further it is from the measured ones."""
    further = WIDTH_PER_OCTAVE * read_shipped_model().distance(device)
    low, high = STEP_ENDS
    return -math.hypot(low, further), math.hypot(high, further)
