"""Whether others kept this process from running while it was timed (room measure).

In: a stretch of time. Out: the share of it that a thread of this process was ready and did not run, and the share that
the machine below took (steal). Linux counts both; elsewhere nothing is known and nothing counts as disturbed. Not
here: what is done about it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MOST_WAITED", "Stretch", "watched"]

MOST_WAITED = 0.03  # of a stretch; a quiet host stays below 0.01


@dataclass
class Stretch:
    """What others took of a stretch of time.

    Parameters
    ----------
    waited_ratio : float
        Share for which the unluckiest thread of this process was ready and did not run.
    stolen_ratio : float
        Share of all cores that the hypervisor gave to others.
    """

    waited_ratio: float = 0.0
    stolen_ratio: float = 0.0

    @property
    def lost_ratio(self) -> float:
        """The larger of both, at most 1."""
        return min(max(self.waited_ratio, self.stolen_ratio), 1.0)

    @property
    def is_disturbed(self) -> bool:
        """Whether times of this stretch say more of the neighbors than of the program."""
        return self.lost_ratio > MOST_WAITED


@contextmanager
def watched() -> Iterator[Stretch]:
    """Watch a block; the stretch is filled in at its end.

    Examples
    --------
    >>> with watched() as stretch:
    ...     total = sum(range(1000))
    >>> 0.0 <= stretch.waited_ratio
    True
    """
    stretch = Stretch()
    begun_s, waited, stolen = time.perf_counter(), _waited_ns(), _stolen_ratio_since(None)
    try:
        yield stretch
    finally:
        elapsed_ns = max((time.perf_counter() - begun_s) * 1e9, 1.0)
        now = _waited_ns()
        stretch.waited_ratio = max((now[thread] - waited.get(thread, 0) for thread in now), default=0) / elapsed_ns
        stretch.stolen_ratio = _stolen_ratio_since(stolen)[0]


def _waited_ns() -> dict[str, int]:
    """How long each thread of this process was ready and did not run, since it began."""
    found = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            found[path.parent.name] = int(path.read_text().split()[1])
        except (OSError, IndexError, ValueError):  # it has just ended, or the kernel does not count
            continue
    return found


def _stolen_ratio_since(before: tuple[float, int, int] | None) -> tuple[float, int, int]:
    """Share of all cores' time that was stolen since, and the counters as they are now."""
    try:
        fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0.0, 0, 0
    total, stolen = sum(fields), fields[7] if len(fields) > 7 else 0
    if before is None or total <= before[1]:
        return 0.0, total, stolen
    return (stolen - before[2]) / (total - before[1]), total, stolen
