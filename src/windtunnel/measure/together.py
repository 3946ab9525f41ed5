"""Processes that begin at one moment.

In: how soon; an action. Out: the moment; how long after it the action was done, or how often until another one. All
processes of a host share the clock. Not here: telling them (``workers``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["moment_in", "rate_between", "time_since_ns", "wait_for"]


def moment_in(delay_ns: int) -> int:
    """A moment that is so far ahead, by the clock of all processes."""
    return time.perf_counter_ns() + delay_ns


def wait_for(moment_ns: int) -> None:
    """Sleep until that moment, so that others have the core; return at once if it is over."""
    left_ns = moment_ns - time.perf_counter_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)


def time_since_ns(moment_ns: int, action: Callable[[], Any]) -> int:
    """Wait for the moment without sleeping, act, and say how long after it that was done."""
    _spin_until(moment_ns)
    action()
    return time.perf_counter_ns() - moment_ns


def rate_between(begin_ns: int, end_ns: int, action: Callable[[], Any]) -> float:
    """How often per second an action is done from one moment to another; it is done once at least."""
    _spin_until(begin_ns)
    count, began_ns = 0, time.perf_counter_ns()
    while not count or time.perf_counter_ns() < end_ns:
        action()
        count += 1
    return 1e9 * count / (time.perf_counter_ns() - began_ns)


def _spin_until(moment_ns: int) -> None:
    while time.perf_counter_ns() < moment_ns:
        pass
