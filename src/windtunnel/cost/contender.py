"""A process that uses a core or the memory for a short time, concurrently with others.

In: what is shared, when to begin and end by the clock that all processes of a host share, bytes to stream through.
Out: how often per second it did its piece of work.
"""

from __future__ import annotations

import hashlib

from windtunnel.measure.together import rate_between
from windtunnel.measure.workers import Place

__all__ = ["main"]


def main(worker: Place) -> None:
    """Work from one moment to another, and tell the rate."""
    what, begin_ns, end_ns, size_bytes = worker.config
    if what == "memory":
        import numpy as np

        first = np.ones(size_bytes // 16)
        second = np.empty_like(first)

        def work() -> None:
            np.copyto(second, first)
    else:
        chunk = bytes(1 << 16)

        def work() -> None:
            hashlib.sha256(chunk).digest()

    work()
    worker.tell(rate_between(begin_ns, end_ns, work))
