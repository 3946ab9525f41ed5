"""Cores that this process may run on, and staying on some of them (room hardware).

In: nothing, or cores. Out: their numbers. Hosts without a scheduler's mask (macOS, Windows) have cores and no choice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["allowed_cores", "stay_on"]


def allowed_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def stay_on(cores: Iterable[int]) -> None:
    """Keep the calling thread, and what it starts, on some cores; without any, or where there is no choice, nothing."""
    chosen = set(cores)
    if chosen and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, chosen)
