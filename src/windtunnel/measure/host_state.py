"""Keep the host in one state while we measure: the C allocator; and how long the garbage collector runs.

glibc gives freed memory at the top of the heap back to the kernel and takes it again in the next iteration, page fault
by page fault; whether it does hangs on what else happens to lie at the top. A training step can be a quarter slower for
it, and a profiler that allocates anything switches it off or on. So runs that are to be compared hold the heap; what it
cost before is measured and reported.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from typing import Any

__all__ = ["CollectorClock", "hold_heap", "page_faults"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER, _LARGEST = 2**31 - 1, 32 * 1024 * 1024  # glibc refuses a larger threshold


class CollectorClock:
    """Adds up the collector's pauses while it is watched.

    Examples
    --------
    >>> clock = CollectorClock()
    >>> clock.watch()
    >>> _ = gc.collect()
    >>> clock.unwatch() > 0
    True
    """

    def __init__(self) -> None:
        self._begun_ns = 0
        self._total_ns = 0

    def watch(self) -> None:
        """Start from zero."""
        self._begun_ns, self._total_ns = 0, 0
        if self._note not in gc.callbacks:
            gc.callbacks.append(self._note)

    def unwatch(self) -> int:
        """Nanoseconds since :meth:`watch` that the collector took; 0 if it was not watched."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)
        return self._total_ns

    def _note(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._begun_ns = time.perf_counter_ns()
        elif self._begun_ns:
            self._total_ns += time.perf_counter_ns() - self._begun_ns
            self._begun_ns = 0


def hold_heap() -> bool:
    """Tell the allocator to keep freed memory for the rest of this process; False where it has no such switch."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST))


def page_faults() -> int:
    """Pages that the kernel has handed to this process so far without reading a disk."""
    try:
        import resource
    except ImportError:  # not a Unix
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
