"""Run operators on a given number of threads for a while, and see what other threads take.

In: a number of threads. Out: nothing; the number before is put back. Loops that numba compiled run on as many threads
as torch's operators do, and leave torch's number as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["helpers_cpu_ns", "match_torch_threads", "threads"]


def helpers_cpu_ns() -> int:
    """Processor time of this process until now that its other threads took, such as those that send."""
    return time.process_time_ns() - time.thread_time_ns()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Threads within operators; 0 leaves them as they are."""
    import torch

    before = torch.get_num_threads()
    if count and count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


@contextmanager
def match_torch_threads() -> Iterator[int]:
    """Let compiled loops run on as many threads as torch's operators; gives that number."""
    import numba
    import torch

    before = torch.get_num_threads()
    count = min(before, int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    if count > 1:
        numba.set_num_threads(count)
    try:
        yield count
    finally:
        if torch.get_num_threads() != before:  # numba's first launch gives OpenMP all cores, torch's part of it too
            torch.set_num_threads(before)
