"""How long the garbage collector runs.

In: nothing. Out: nanoseconds that Python's cyclic garbage collector took between two calls.
"""

from __future__ import annotations

import gc
import time
from typing import Any

__all__ = ["CollectorClock"]


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
