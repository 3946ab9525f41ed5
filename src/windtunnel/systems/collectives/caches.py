"""Which data of an instruction have left the cache when it runs.

In: ranges of memory that instructions touch, in the order in which they run. Out: the ratio of their bytes that come
from memory. Not here: what that costs (``calibration``).

All ranks of a host share one cache of the bytes that were touched last:

    memory -> w[0:8]  g[0:4]  m[0:4] -> touched now         a range is in the cache until as many bytes as fit into it
              |-- bytes that came since --|                 have come from memory since it was touched
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable

__all__ = ["Range", "SharedCache"]

Range = tuple[Hashable, int, int]
"""A range of memory: what it lies in, its first byte there, and the byte behind its last."""


class SharedCache:
    """The cache between a host's cores and its memory; empty at first, as a step finds it.

    Parameters
    ----------
    size_bytes : int

    Examples
    --------
    >>> cache = SharedCache(100)
    >>> cache.touch([("x", 0, 60)]), cache.touch([("x", 30, 90)]), cache.touch([("y", 0, 90)])
    (1.0, 0.5, 1.0)
    >>> cache.touch([("x", 0, 60)])
    1.0
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes, self._loaded_bytes = size_bytes, 0
        self._touched: dict[Hashable, deque[tuple[int, int, int]]] = {}

    def touch(self, ranges: Iterable[Range]) -> float:
        """Read or write ranges; the ratio of their bytes that come from memory."""
        total_bytes = missed_bytes = 0
        for memory, start, stop in dict.fromkeys(ranges):
            total_bytes += stop - start
            row = self._touched.setdefault(memory, deque())
            while row and row[0][2] + self.size_bytes <= self._loaded_bytes:
                row.popleft()
            missed_bytes += _missing_bytes(start, stop, row)
            row.append((start, stop, self._loaded_bytes))
        self._loaded_bytes += missed_bytes
        return missed_bytes / total_bytes if total_bytes else 0.0


def _missing_bytes(start: int, stop: int, touched: Iterable[tuple[int, int, int]]) -> int:
    """Bytes of a range that none of the others covers."""
    covered, end = 0, start
    for first, last, _ in sorted(touched):
        first = max(first, end)
        last = min(last, stop)
        if last > first:
            covered, end = covered + last - first, last
    return stop - start - covered
