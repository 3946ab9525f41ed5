"""How fast a loss falls: a curve through noisy losses, and its speed at a loss level.

In: (time, loss) samples. Out: the curve 1 / (b t + c) + floor, and rewards that are comparable across windows. Source:
ADSP (AAAI 2020), section "online search", after Peng et al., Optimus, EuroSys 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LossCurve", "Window", "fit_curves", "reward_pair"]

_MIN_POINTS = 3
_HIGHEST_FLOOR = 0.99
_NUM_FLOORS, _NUM_ZOOMS = 24, 6


@dataclass(frozen=True)
class LossCurve:
    """``loss(t) = 1 / (slope * t + offset) + floor``; in the paper slope is a1**2, offset a2, floor a3."""

    slope: float
    offset: float
    floor: float

    def loss_at(self, time_s: float) -> float:
        """Return the loss at a time."""
        return 1 / (self.slope * time_s + self.offset) + self.floor

    def reward(self, level: float) -> float:
        """Return the inverse of the time to a loss, as published; it depends on when the curve began."""
        if level <= self.floor or self.slope <= 0:
            return 0.0
        time_s = (1 / (level - self.floor) - self.offset) / self.slope
        return 1 / time_s if time_s > 0 else float("inf")

    def speed(self, level: float) -> float:
        """Return how fast the loss falls at a level; it does not depend on when the curve began."""
        return self.slope * (level - self.floor) ** 2 if level > self.floor and self.slope > 0 else 0.0


@dataclass(frozen=True)
class Window:
    """The samples of one period.

    Attributes
    ----------
    num_commits : int
        Per worker.
    samples : tuple of (time s, mean loss, weight)
    """

    num_commits: int
    samples: tuple[tuple[float, float, float], ...]


def fit_curves(windows: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> list[LossCurve]:
    """Fit a curve to each window of (times, losses), all with one floor.

    For a given floor the curve is a weighted line through 1 / (loss - floor), whose weights put the residuals into
    units of loss. The floor is searched over 0 to 0.99 of the smallest loss. A window that does not fall, or has fewer
    than three points, gets a slope of 0.
    """
    least = min((float(losses.min()) for _, losses in windows if len(losses)), default=0.0)
    most = _HIGHEST_FLOOR * least
    if most <= 0:
        return [_line(times, losses, 0.0)[0] for times, losses in windows]

    def error_at(floor: float) -> float:
        return sum(_line(times, losses, floor)[1] for times, losses in windows)

    # Given the floor, the curve is a line in 1 / (loss - floor), with a closed form; only the floor is searched:
    # a grid of 24, six times refined around its best point.
    low, high, floor = 0.0, most, 0.0
    for _ in range(_NUM_ZOOMS):
        grid = np.linspace(low, high, _NUM_FLOORS)
        best = int(np.argmin([error_at(float(item)) for item in grid]))
        floor, low, high = float(grid[best]), float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    return [_line(times, losses, floor)[0] for times, losses in windows]


def reward_pair(first: Window, second: Window) -> tuple[float, float]:
    """Return the rewards of two consecutive windows: the speeds of their curves at the final loss of the first."""
    data = [_arrays(item) for item in (first, second)]
    curves = fit_curves(data)
    times = data[0][0]
    if len(times) < _MIN_POINTS or curves[0].slope <= 0:
        return 0.0, curves[1].slope
    level = curves[0].loss_at(float(times.max()))
    return curves[0].speed(level), curves[1].speed(level)


def _arrays(window: Window) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the times since the beginning of the window, and the losses."""
    if not window.samples:
        return np.empty(0), np.empty(0)
    rows = np.array(window.samples)
    return rows[:, 0] - rows[0, 0], rows[:, 1]


def _line(times: NDArray[np.float64], losses: NDArray[np.float64], floor: float) -> tuple[LossCurve, float]:
    """Return the best curve with a given floor, and the sum of its squared errors."""
    if len(times) < _MIN_POINTS:
        return LossCurve(0.0, 1.0, floor), 0.0
    over = np.maximum(losses - floor, 1e-12)
    inverse, weights = 1 / over, over**2  # the error of a loss is that of its inverse times over**2
    mean_t, mean_y = np.average(times, weights=weights**2), np.average(inverse, weights=weights**2)
    spread = float((weights**2 * (times - mean_t) ** 2).sum())
    slope = float((weights**2 * (times - mean_t) * (inverse - mean_y)).sum()) / spread if spread > 0 else 0.0
    slope = max(slope, 0.0)
    curve = LossCurve(slope, max(float(mean_y - slope * mean_t), 1e-12), floor)
    predicted = 1 / (slope * times + curve.offset) + floor
    return curve, float(((predicted - losses) ** 2).sum())
