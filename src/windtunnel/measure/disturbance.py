"""Whether others kept this process from running while it was timed.

In: a stretch of time. Out: the share of it that a thread of this process was ready and did not run, and the share that
the machine below took (steal); over longer stretches also what other programs took of all cores, which tells neighbors
from a program whose own processes crowd each other. Linux counts all of these; elsewhere nothing is known and nothing
counts as disturbed. Not here: what is done about it.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from windtunnel.hardware import machine

__all__ = [
    "MAX_NEIGHBORS",
    "MAX_WAITED_RATIO",
    "DisturbanceClock",
    "Neighbors",
    "Stretch",
    "disturbance_line",
    "disturbance_log_error",
    "free_share",
    "watch_disturbance",
]

MAX_WAITED_RATIO = 0.03  # of a stretch; a quiet host stays below 0.01
MAX_NEIGHBORS = 0.05  # of all cores; a flight on a busier machine is no evidence for other predictions
_REACH = 0.4  # as a logarithm, per share that others took; the bar ``noise`` judges it
_MIN_TICKS = 20  # of all cores together: counters of the kernel that tick every 10 ms say nothing of less
_MIN_NEIGHBORS = 0.02  # of all cores; what a host does besides, its own kernel included, stays below
_CHUNK_BYTES = 4 << 20  # milliseconds of work for which a thread lets go of the interpreter


@dataclass
class Stretch:
    """What others took of a stretch of time.

    Parameters
    ----------
    waited_ratio : float
        Share for which the unluckiest thread of this process was ready and did not run.
    steal_ratio : float
        Share of all cores that the hypervisor gave to others.
    """

    waited_ratio: float = 0.0
    steal_ratio: float = 0.0

    @property
    def lost_ratio(self) -> float:
        """The larger of both, at most 1."""
        return min(max(self.waited_ratio, self.steal_ratio), 1.0)

    @property
    def is_disturbed(self) -> bool:
        """Whether times of this stretch say more of the neighbors than of the program."""
        return self.lost_ratio > MAX_WAITED_RATIO


class DisturbanceClock:
    """Reads the counters of the kernel at both ends of a stretch."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start a stretch now."""
        self._waited, self._ticks = _run_queue_wait_ns(), _Ticks.now()
        self._begun_s = perf_counter()

    def end(self) -> Stretch:
        """What others took since ``begin``."""
        elapsed_ns = max((perf_counter() - self._begun_s) * 1e9, 1.0)
        waited, ticks = _run_queue_wait_ns(), _Ticks.now()
        longest_ns = max((waited[thread] - self._waited.get(thread, 0) for thread in waited), default=0)
        return Stretch(longest_ns / elapsed_ns, ticks.steal_ratio(self._ticks))


@contextmanager
def watch_disturbance() -> Iterator[Stretch]:
    """Watch a block; the stretch is filled in at its end.

    Examples
    --------
    >>> with watch_disturbance() as stretch:
    ...     total = sum(range(1000))
    >>> 0.0 <= stretch.waited_ratio
    True
    """
    stretch, clock = Stretch(), DisturbanceClock()
    try:
        yield stretch
    finally:
        result = clock.end()
        stretch.waited_ratio, stretch.steal_ratio = result.waited_ratio, result.steal_ratio


def disturbance_log_error(lost_ratio: float) -> float:
    """How far times may be off that were estimated while others took this share, as a logarithm, at 90 %.

    Estimates on a busy host rest on the quiet moments that it still has (``rounds.quiet_rows``). What is left is the
    share of short pieces that had no quiet moment, and what neighbors do to caches.

    Examples
    --------
    >>> disturbance_log_error(0.0), disturbance_log_error(0.5)
    (0.0, 0.2)
    """
    return _REACH * min(max(lost_ratio, 0.0), 1.0)


def disturbance_line(facts: Mapping[str, Any]) -> str:
    """What a reader of a capture must know, from ``meta.disturbance``; empty where it was quiet."""
    missing = float(facts.get("lost_ratio", 0.0))
    if not missing:
        return ""
    return (
        f"this machine was busy during the capture: the step waited for a core {missing:.0%} of the time; times are "
        f"estimates for a quiet machine, known to {math.expm1(disturbance_log_error(missing)):.0%}"
    )


class Neighbors:
    """What other programs took of all cores since this was made.

    A thread also waits for a core where its own process, or a child of it, has more threads than there are cores: a
    loader's workers on a small host. Such waiting is part of the program.
    """

    def __init__(self) -> None:
        self._ticks, self._own = _Ticks.now(), _own_ticks()

    @property
    def cores_ratio(self) -> float | None:
        """Share of all cores' time; None where too little time has passed, or nothing is counted."""
        now = _Ticks.now()
        total = now.total - self._ticks.total
        if total < _MIN_TICKS:
            return None
        others = now.busy - self._ticks.busy - (_own_ticks() - self._own) + now.stolen - self._ticks.stolen
        return min(max(others / total, 0.0), 1.0)

    @property
    def are_quiet(self) -> bool:
        """Whether it is known that others took next to nothing."""
        ratio = self.cores_ratio
        return ratio is not None and ratio < _MIN_NEIGHBORS


def _run_queue_wait_ns() -> dict[str, int]:
    """How long each thread of this process was ready and did not run, since it began."""
    result = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            result[path.parent.name] = int(path.read_text().split()[1])
        except (OSError, IndexError, ValueError):  # it has just ended, or the kernel does not count
            continue
    return result


@dataclass(frozen=True)
class _Ticks:
    """Time of all cores since the host started, in ticks of the kernel: all of it, that of programs, and steal."""

    total: int = 0
    busy: int = 0
    stolen: int = 0

    @classmethod
    def now(cls) -> _Ticks:
        try:
            fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
            user, nice, system, idle, waiting, _, _, stolen = fields
        except (OSError, ValueError):
            return cls()
        return cls(user + nice + system + idle + waiting + stolen, user + nice + system, stolen)

    def steal_ratio(self, before: _Ticks) -> float:
        total = self.total - before.total
        return (self.stolen - before.stolen) / total if total >= _MIN_TICKS else 0.0


def _own_ticks() -> int:
    """Time that this process and what it started have run, in ticks of the kernel."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))  # its own and that of children that ended
        except (OSError, IndexError, ValueError):
            continue
    result, known = 0, {os.getpid()}
    for process in sorted(parents, key=lambda process: (process != os.getpid(), process)):
        if process in known or parents[process] in known:
            known.add(process)
            result += ticks[process]
    return result


def free_share(duration_s: float = 0.3) -> float:
    """Share of the time that a thread on every core gets to run, the least lucky one's: 1 on a quiet host.

    Parameters
    ----------
    duration_s : float
        How long to keep all cores busy.
    """
    num_cores = machine().num_cores
    chunk = bytes(_CHUNK_BYTES)
    until_s = time.perf_counter() + duration_s
    with ThreadPoolExecutor(num_cores) as threads:
        return min(threads.map(lambda _: _run_until(until_s, chunk), range(num_cores)))


def _run_until(until_s: float, chunk: bytes) -> float:
    begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
    while time.perf_counter() < until_s:
        hashlib.sha256(chunk)
    elapsed_s = time.perf_counter() - begun_s
    return min(1.0, (time.thread_time() - begun_cpu_s) / elapsed_s) if elapsed_s > 0 else 1.0
