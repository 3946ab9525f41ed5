"""How a program's time is taken (room cost, programs).

In: something that can be run ``number`` times and timed, ``repeat`` times. Out: ``Timing``: mean and spread in seconds.
The protocol: two runs to warm up, then until 20 ms are full or 50 times; what is shorter than 0.2 ms is run several
times between two looks at the clock; caches are not emptied. Not here: compilers, processes, files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["MAX_MOVE", "MAX_SPREAD", "PROTOCOL", "Canary", "Timing", "time_program"]

WARM_UP_RUNS = 2
BUDGET_S = 0.020
MAX_REPEATS = 50
MIN_REPEATS = 2
LOOK_S = 2e-4
MAX_SPREAD = 0.05
MAX_MOVE = 0.05
PROTOCOL = {
    "warm_up_runs": WARM_UP_RUNS,
    "budget_s": BUDGET_S,
    "max_repeats": MAX_REPEATS,
    "min_repeats": MIN_REPEATS,
    "clock_interval_s": LOOK_S,
    "is_cache_flushed": False,
    "label": "mean",
}

Evaluate = Callable[[int, int], Sequence[float]]
"""``evaluate(number, repeat)``: mean seconds of ``number`` runs, ``repeat`` times, after one that is not counted."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one program on one device."""

    samples_s: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """The label."""
        return statistics.fmean(self.samples_s)

    @property
    def std_s(self) -> float:
        """Spread of the samples."""
        return statistics.pstdev(self.samples_s)

    def is_steady(self, max_spread: float = MAX_SPREAD) -> bool:
        """Whether the spread is small enough for a label."""
        return self.std_s <= max_spread * self.mean_s


def time_program(evaluate: Evaluate, budget_s: float = BUDGET_S) -> Timing:
    """Take a program's time.

    Examples
    --------
    >>> time_program(lambda number, repeat: [0.004] * repeat).mean_s
    0.004
    """
    typical_s = max(min(evaluate(1, WARM_UP_RUNS - 1)), 1e-9)
    number = max(1, math.ceil(LOOK_S / typical_s)) if typical_s < LOOK_S else 1
    repeat = min(MAX_REPEATS, max(MIN_REPEATS, math.ceil(budget_s / (number * typical_s))))
    return Timing(tuple(evaluate(number, repeat)))


class Canary:
    """A kernel that never changes: when its time moves, something else ran, or the clock changed.

    Parameters
    ----------
    tolerance : float
        By how much its time may differ, as a share.
    history : sequence of mapping
        What earlier batches saw, by target.
    """

    def __init__(self, tolerance: float = MAX_MOVE, history: Sequence[dict[str, float]] = ()) -> None:
        self.tolerance = tolerance
        self.history = list(history)

    def is_quiet(self, before_s: dict[str, float], after_s: dict[str, float]) -> bool:
        """Whether what was timed between these two looks may be kept; remembers both.

        Both must agree with each other, and with the lower quartile of all that was seen: others on the machine only
        ever add time.

        Examples
        --------
        >>> canary = Canary()
        >>> canary.is_quiet({"avx2-1": 1.00}, {"avx2-1": 1.02}), canary.is_quiet({"avx2-1": 1.0}, {"avx2-1": 1.2})
        (True, False)
        """
        self.history += [before_s, after_s]
        return all(
            self._agree(after_s[name], before_s[name]) and self._agree(before_s[name], self._usual(name))
            for name in before_s
        )

    def _usual(self, name: str) -> float:
        return float(np.quantile([seen[name] for seen in self.history if name in seen], 0.25))

    def _agree(self, one_s: float, other_s: float) -> bool:
        return abs(one_s / other_s - 1) <= self.tolerance
