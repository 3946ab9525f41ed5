"""How a program's time is taken on a machine that others use too.

In: something that can be run ``number`` times and timed, and the canary: a kernel that never changes. Out: ``Look``s,
and from many of them ``Timing``: what the program takes where nothing else runs, and how well that is known. Others
come in bursts of some ten milliseconds, and clocks move, so the canary runs before and after every single look, and a
look counts only where both times it took its usual time; while it does not, nothing else runs. Caches are not emptied.
Not here: compilers, processes, files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

__all__ = [
    "MAX_MOVE",
    "MAX_SPREAD",
    "PROTOCOL",
    "Band",
    "Canary",
    "Look",
    "Timing",
    "densest",
    "looks_at",
    "select_undisturbed_s",
]

WARM_UP_RUNS = 2
SHORT_S = 1e-3
BUDGET_S = 0.010
MAX_LOOKS, MIN_LOOKS = 25, 2
LOOK_S = 2e-4
PATIENCE_S = 0.05
MAX_PASSES = 16
MIN_QUIET, ENOUGH = 3, 9
MAX_SPENT_S = 0.3
MAX_SPREAD = 0.05
MAX_MOVE = 0.05
LEVEL = 0.02
PROTOCOL = {
    "warm_up_runs": WARM_UP_RUNS,
    "budget_s_per_pass": BUDGET_S,
    "looks_per_pass": [MIN_LOOKS, MAX_LOOKS],
    "clock_interval_s": LOOK_S,
    "wait_s_per_pass": PATIENCE_S,
    "max_passes": MAX_PASSES,
    "min_quiet_looks": MIN_QUIET,
    "enough_quiet_looks_per_pass": ENOUGH,
    "max_s_per_program": MAX_SPENT_S,
    "is_cache_flushed": False,
    "label": "median of the looks between two runs of the canary near its usual time",
}

Band = tuple[float, float]
"""Seconds of the canary between which a look counts."""
Evaluate = Callable[[int, int], Sequence[float]]
"""``evaluate(number, repeat)``: mean seconds of ``number`` runs, ``repeat`` times, after one that is not counted."""


class Look(NamedTuple):
    """Mean seconds of a run, and of the canary the shorter and the longer of its two runs before and after."""

    program_s: float
    canary_s: Band

    def is_within(self, band_s: Band) -> bool:
        """Whether nothing disturbed it."""
        return band_s[0] <= self.canary_s[0] and self.canary_s[1] <= band_s[1]


def looks_at(
    evaluate: Evaluate,
    once: Callable[[], float],
    canary: Callable[[], float],
    band_s: Band | None = None,
    budget_s: float = BUDGET_S,
) -> tuple[Look, ...]:
    """One pass over a program.

    Parameters
    ----------
    evaluate : callable
        Of the program: what is shorter than 0.2 ms is run several times in one look.
    once : callable
        Runs the program once and says its seconds: exact enough for what takes a millisecond.
    canary : callable
        Runs the canary once and says its seconds.
    band_s : (float, float), optional
        While the canary is outside, the program waits, for 50 ms in all, and the pass ends at nine looks that are
        within it before and after.
    budget_s : float
        Looks until this is full.

    Examples
    --------
    >>> looks_at(lambda number, repeat: [0.004] * repeat, lambda: 0.004, lambda: 0.001)
    (Look(program_s=0.004, canary_s=(0.001, 0.001)), Look(program_s=0.004, canary_s=(0.001, 0.001)))
    """
    typical_s = max(min(once() for _ in range(WARM_UP_RUNS)), 1e-9)
    is_short = typical_s < SHORT_S
    number = max(1, math.ceil(LOOK_S / typical_s))
    before_s, waited_s = canary(), 0.0
    one_s = (number + 1 if is_short else 1) * typical_s + before_s  # a short look has one run that is not counted
    most = min(MAX_LOOKS, max(MIN_LOOKS, math.floor(budget_s / one_s)))
    enough, (min_s, longest_s) = (most, (0.0, math.inf)) if band_s is None else (ENOUGH, band_s)
    looks: list[Look] = []
    num_quiet = 0
    while len(looks) < most and num_quiet < enough and waited_s <= PATIENCE_S:
        if not min_s <= before_s <= longest_s:
            waited_s += before_s
            before_s = canary()
            continue
        program_s = evaluate(number, 1)[0] if is_short else once()
        after_s = canary()
        looks.append(Look(program_s, (min(before_s, after_s), max(before_s, after_s))))
        num_quiet += looks[-1].is_within((min_s, longest_s))
        before_s = after_s
    return tuple(looks)


def select_undisturbed_s(looks: Iterable[Look], band_s: Band) -> list[float]:
    """Program times of the looks whose canary stayed within a band."""
    return [look.program_s for look in looks if look.is_within(band_s)]


@dataclass(frozen=True)
class Timing:
    """Seconds of one program on one device, look by look."""

    samples_s: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """The label: the median look."""
        return statistics.median(self.samples_s)

    @property
    def std_s(self) -> float:
        """Spread of the looks, of their middle half where there are many: a burst may fall between two canaries."""
        ordered = sorted(self.samples_s)
        cut = len(ordered) // 4
        return statistics.pstdev(ordered[cut : len(ordered) - cut])

    def is_steady(self, max_spread: float = MAX_SPREAD) -> bool:
        """Whether there are looks enough, and their spread is small enough for a label."""
        return len(self.samples_s) >= MIN_QUIET and self.std_s <= max_spread * self.mean_s


@dataclass
class Canary:
    """A kernel that never changes: where it does not take its usual time, something else ran, or the clock changed.

    Its usual time is the one around which most of its runs lie (the densest 2 %): what disturbs scatters, and a clock
    that is raised for moments gives a least time that is not typical of anything.

    Parameters
    ----------
    tolerance : float
        By how much it may take longer or shorter, as a share.
    usual_s : dict of str to float
        What it takes, by number of threads.

    Examples
    --------
    >>> canary = Canary(0.05)
    >>> canary.learn({"1": [0.9] * 2 + [1.0] * 90 + [1.4] * 10})
    >>> canary.band_s("1")
    (0.95, 1.05)
    """

    tolerance: float = MAX_MOVE
    usual_s: dict[str, float] = field(default_factory=dict)

    def learn(self, seen_s: Mapping[str, Sequence[float]]) -> None:
        """Learn what is not known yet, and what was learned while something else ran: others only ever add."""
        for name, values in seen_s.items():
            found_s = densest(values)
            if name not in self.usual_s or found_s < self.band_s(name)[0]:
                self.usual_s[name] = found_s

    def band_s(self, name: str) -> Band:
        """Between which times a look counts."""
        return (1.0 - self.tolerance) * self.usual_s[name], (1.0 + self.tolerance) * self.usual_s[name]

    def is_outdated(self, usual_s: Mapping[str, float]) -> bool:
        """Whether what was judged by these usual times was disturbed, as is known by now."""
        return any(value > self.band_s(name)[1] for name, value in usual_s.items() if name in self.usual_s)


def densest(values: Sequence[float], width: float = LEVEL) -> float:
    """The middle of the range, ``width`` wide as a share, that holds most of the values; of equal ones the lowest.

    Examples
    --------
    >>> densest([5.0, 1.0, 1.01, 1.02, 3.0, 4.0])
    1.01
    """
    ordered = np.sort(np.asarray(values, np.float64))
    ends = np.searchsorted(ordered, ordered * (1.0 + width), side="right")
    first = int(np.argmax(ends - np.arange(len(ordered))))
    return float(np.median(ordered[first : ends[first]]))
