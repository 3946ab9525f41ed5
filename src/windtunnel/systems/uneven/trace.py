"""A speed or a rate that changes while a job runs, as a piecewise constant function of time.

In: times and values, or a CSV file ``t_s,value``. Out: the value at a time, and when some work will be finished.
"""

from __future__ import annotations

import bisect
import csv
import math
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import InputError

__all__ = ["Trace", "read_trace"]

_NS = 1_000_000_000


@dataclass(frozen=True)
class Trace:
    """A piecewise constant function of time whose values are above 0.

    Parameters
    ----------
    times_ns : tuple of int
        From when each value holds; the first is 0.
    values : tuple of float

    Examples
    --------
    >>> speed = Trace((0, 100), (1.0, 0.5))
    >>> speed.value_at(99), speed.value_at(100), speed.finish_ns(50, 100)
    (1.0, 0.5, 200)
    """

    times_ns: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        rises = all(item < other for item, other in zip(self.times_ns, self.times_ns[1:], strict=False))
        if not self.times_ns or self.times_ns[0] != 0 or not rises or len(self.times_ns) != len(self.values):
            raise InputError(
                f"a trace of {len(self.values)} values needs as many moments that rise from 0",
                where=f"moments {self.times_ns[:5]} ns",
                fix="begin at 0 and sort the rows by time",
            )
        bad = [value for value in self.values if not (math.isfinite(value) and value > 0)]
        if bad:
            raise InputError(f"a speed or rate must be above 0, not {bad[0]:g}", fix="leave the worker out instead")

    @classmethod
    def constant(cls, value: float) -> Trace:
        """Return a trace with one value at all times."""
        return cls((0,), (float(value),))

    def value_at(self, now_ns: int) -> float:
        """Return the value at a time."""
        return self.values[bisect.bisect_right(self.times_ns, now_ns) - 1]

    def finish_ns(self, now_ns: int, work_ns: float) -> int:
        """Return when work that takes ``work_ns`` at value 1 is finished, if it starts at ``now_ns``."""
        index = bisect.bisect_right(self.times_ns, now_ns) - 1
        position = float(now_ns)
        while index + 1 < len(self.times_ns):
            room = (self.times_ns[index + 1] - position) * self.values[index]
            if work_ns <= room:
                break
            work_ns -= room
            index += 1
            position = float(self.times_ns[index])
        return max(round(position + work_ns / self.values[index]), now_ns + 1)


def read_trace(path: Path, column: str) -> Trace:
    """Read a trace from a CSV file with the columns ``t_s`` and ``column``.

    Raises
    ------
    InputError
        A column is missing, or a cell is not a number; the message names the line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the trace cannot be read: {error}", where=str(path), fix="check the path") from error
    times, values = [], []
    for line, row in enumerate(rows, start=2):
        try:
            times.append(round(float(row["t_s"]) * _NS))
            values.append(float(row[column]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            fix = f"give it the columns t_s,{column}, both numbers"
            raise InputError(f"no row of a trace: {error}", where=f"{path}, line {line}", fix=fix) from error
    try:
        return Trace(tuple(times), tuple(values))
    except InputError as error:
        raise InputError(error.message, where=str(path), fix=error.fix) from error
