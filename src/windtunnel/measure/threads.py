"""Run operators on so many threads for a while (room measure).

In: a number of threads. Out: nothing; the number before is put back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["threads"]


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
