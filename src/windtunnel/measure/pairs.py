"""Two functions of this process timed in turn: A B, B A, A B, ....

In: two functions, and what puts their inputs back. Out: nanoseconds of each, pair by pair. The clock is read outside of
both; inputs are put back before each, untimed. Not here: what is made of the pairs (``stats``), programs of their own
(``turns``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import FlightError

__all__ = ["SHORTEST_NS", "Timed", "inner_repeats", "take_pairs"]

SHORTEST_NS = 2_000
"""A shorter time cannot be distinguished from the resolution of the clock."""
_STEADY, _WINDOW = 0.02, 5

Timed = Callable[[Callable[[], object], int], int]
"""Nanoseconds of a function called so often."""


def inner_repeats(function: Callable[[], object], prepare: Callable[[], object], timed: Timed | None = None) -> int:
    """How often a function must run within one timing, so that a clock can tell it: 1 unless it is very short."""
    timed = timed or _once
    prepare()
    used = min(timed(function, 1) for _ in range(5))
    return 1 if used >= 2 * SHORTEST_NS else -(-4 * SHORTEST_NS // max(used, 50))


def take_pairs(
    first: Callable[[], object],
    second: Callable[[], object],
    prepare: Callable[[], object],
    num_pairs: int,
    *,
    inner: int = 1,
    max_warmup: int = 3,
    timed: Timed | None = None,
) -> NDArray[np.int64]:
    """Times of both in turn, [R, 2] ns of one run of ``inner`` calls.

    Parameters
    ----------
    first, second : callable
    prepare : callable
        Puts the inputs back; runs before each, untimed.
    num_pairs : int
    inner : int
        Calls per timing.
    max_warmup : int
        Pairs before those that count; they end early once the last five differ by less than 2 %.
    timed : callable, optional
        Nanoseconds of a given number of calls, by the clock of this host.

    Raises
    ------
    FlightError
        Both take less than 2 µs and ``inner`` is 1.
    """
    functions, early, timed = (first, second), [], timed or _once
    for _ in range(max_warmup):
        for function in functions:
            prepare()
            early.append(timed(function, inner))
        last = early[-2 * _WINDOW :: 2]
        if len(last) == _WINDOW and max(last) - min(last) < _STEADY * min(last):
            break
    used = np.empty((num_pairs, 2), dtype=np.int64)
    for pair in range(num_pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            prepare()
            used[pair, which] = timed(functions[which], inner)
    if inner == 1 and (used.min(axis=0) < SHORTEST_NS).all():
        raise FlightError(
            f"both functions take less than {SHORTEST_NS / 1000:g} µs", where="paired timing",
            fix="time more than one call at once: give inner",
        )  # fmt: skip
    return used


def _once(function: Callable[[], object], inner: int) -> int:
    begun_ns = time.perf_counter_ns()
    for _ in range(inner):
        function()
    return time.perf_counter_ns() - begun_ns
