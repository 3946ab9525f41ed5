"""Unions and overlaps of intervals, and how numbers are spread (sources, timeline).

In: starts and ends, or values with the group of each. Out: merged intervals, lengths, statistics. Not here: what the
intervals are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.timeline.recorded import Span

__all__ = ["QUARTILES", "describe", "exclusive_ns_by_set", "length_ns", "merge_intervals"]

Int64s = NDArray[np.int64]
QUARTILES = {"min": 0.0, "p25": 25.0, "p50": 50.0, "p75": 75.0, "max": 100.0}


def merge_intervals(start: Int64s, end: Int64s) -> Span:
    """Intervals without overlap that cover the same time, in order; those that touch are one."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if not len(start):
        return Span(start, end)
    first = np.flatnonzero(np.append(True, start[1:] > np.maximum.accumulate(end)[:-1]))
    return Span(start[first], np.maximum.reduceat(end, first))


def length_ns(span: Span) -> int:
    """Sum of the intervals' lengths."""
    return int((span.end - span.start).sum())


def exclusive_ns_by_set(spans: list[Span]) -> Int64s:
    """Time in which only certain sets of merged intervals run: entry ``m`` is for those of the bits of ``m``."""
    bits = np.concatenate([np.repeat([1 << index, -(1 << index)], len(span.start)) for index, span in enumerate(spans)])
    times = np.concatenate([np.concatenate(span) for span in spans])
    order = np.argsort(times, kind="stable")
    running, lasting = np.cumsum(bits[order])[:-1], np.diff(times[order])
    total = np.zeros(1 << len(spans), np.int64)
    known = running > 0  # an interval that ends before it starts, as rounding makes them, runs at no time
    np.add.at(total, running[known], lasting[known])
    return total


def describe(values: NDArray[np.integer]) -> dict[str, float]:
    """Number, mean, sample standard deviation and quartiles of values [K]; NaN where there are too few."""
    count = len(values)
    quartiles = np.percentile(values, list(QUARTILES.values())) if count else np.full(len(QUARTILES), np.nan)
    return {
        "count": count,
        "mean": float(values.mean()) if count else np.nan,
        "std": float(values.std(ddof=1)) if count > 1 else np.nan,
        **dict(zip(QUARTILES, quartiles.tolist(), strict=True)),
    }
