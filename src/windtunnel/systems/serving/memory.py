"""Splits under a memory limit: the smallest memory for a latency, and the shortest latency for a memory.

In: a profile whose cells have memory, threads, inputs. Out: tables of bytes, latencies. Every instance has weights and
work space of its own, so that many small ones need more than one large one. Not here: the split itself (``search``).
"""

# T threads, B inputs, C cells

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.systems.serving.profile import Profile
from windtunnel.systems.serving.tables import Rule, best_table

__all__ = ["min_bytes", "soonest_within"]

Floats = NDArray[np.float64]


def min_bytes(profile: Profile, limit_ns: float, num_threads: int, batch: int, rule: Rule) -> Floats:
    """Return the least memory with which every smaller server answers every smaller batch in time, [T + 1, B + 1].

    Infinite where nothing does. O(T B C).

    Parameters
    ----------
    profile : Profile
    limit_ns : float
        For the slowest instance.
    num_threads, batch : int
    rule : str
        A key of ``RULES``.

    Raises
    ------
    InputError
        The profile says nothing of memory.
    """
    if profile.own_bytes_C is None:
        raise InputError(
            "the profile says nothing of memory",
            where="memory_bytes",
            fix="profile the model once more, without --max-cells, on a host that tells what a process holds (Linux)",
        )
    in_time = profile.latency_ns_C <= limit_ns
    columns = (profile.threads_C[in_time], profile.batch_C[in_time], profile.own_bytes_C[in_time].astype(np.float64))
    return best_table(*columns, num_threads, batch, rule, adds=True)


def soonest_within(profile: Profile, num_threads: int, batch: int, rule: Rule) -> Callable[[int, int, float], float]:
    """Return a function (threads, inputs, bytes) -> shortest latency in ns of a split that fits; infinite if none does.

    A latency will do if the least memory with which it can be kept is there. Errors as for ``min_bytes``.
    """
    # a split is as slow as its slowest instance, so its latency is one of the profile's
    levels = np.unique(profile.latency_ns_C)

    @cache
    def table(level: int) -> Floats:
        return min_bytes(profile, float(levels[level]), num_threads, batch, rule)

    def soonest(threads: int, inputs: int, max_bytes: float) -> float:
        low, high = 0, levels.size
        while low < high:
            # more time never needs more memory: bisect; each table is computed once, for all threads, inputs and bytes
            middle = (low + high) // 2
            least = table(middle)[threads, inputs]
            if least <= max_bytes and least < math.inf:
                high = middle
            else:
                low = middle + 1
        return float(levels[low]) if low < levels.size else math.inf

    return soonest
