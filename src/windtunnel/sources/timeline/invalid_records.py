"""Records of a timeline that cannot be true (sources, timeline).

In: `Events`, device tasks. Out: what is left out or clipped, and a sentence for the reader of each kind:
records that the profiler lost, that run past later ones of their stream, and that start before they were launched.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.sources.timeline.events import Category, Events
from windtunnel.sources.timeline.slices import TOLERANCE_NS
from windtunnel.units import format_duration

__all__ = ["clip_ends", "drop_lost_records", "skew_warning"]

# D device tasks, ordered by stream and start
Int64s = NDArray[np.int64]


def drop_lost_records(events: Events) -> tuple[Events, str]:
    """Ignore device records of time 0 and duration 0, which stand for records that were lost; says how many."""
    category = events.category
    is_lost = events.is_device & (events.start_ns == 0) & (events.duration_ns == 0)
    if not is_lost.any() or not (category[~is_lost] > Category.IGNORED).any() or events.start_ns[~is_lost].min() <= 0:
        return events, ""
    first = int(events.index[np.flatnonzero(is_lost)[0]])
    warning = (
        f"{int(is_lost.sum()):,} records of device work were lost by the profiler (time 0, duration 0) and are left "
        f"out; the first is event {first:,}"
    )
    return replace(events, category=np.where(is_lost, np.uint8(Category.IGNORED), category)), warning


def clip_ends(events: Events, row: Int64s, stream: Int64s, start: Int64s, end: Int64s, names: list[str]) -> str:
    """End records that last beyond two later ones of their stream where the next one starts, in place.

    A stream runs one task after the other, and what overlaps by design reaches into its successor alone. ``names`` are
    those of the streams. Says how many records were clipped, and names the longest.
    """
    claimed = end - start
    clipped = _clip(stream.astype(np.int64), start, end)
    tasks = np.flatnonzero(clipped)
    if not len(tasks):
        return ""
    worst = tasks[np.argmax(claimed[tasks])]
    name = events.names[events.name[row[worst]]][:60]
    return (
        f"{len(tasks):,} records run past later ones of their stream, which is impossible, and end where the next one "
        f"starts: the longest is event {int(events.index[row[worst]]):,} ({name}) on {names[int(stream[worst])]}, "
        f"which claims {format_duration(float(claimed[worst]))}"
    )


def skew_warning(start: Int64s, launch_ns: Int64s, is_launched: NDArray[np.bool_]) -> str:
    """How many device tasks start before the call that launches them, which only clocks that differ can explain."""
    early = np.where(is_launched, launch_ns - start, 0)
    count = int((early > 0).sum())
    if not count:
        return ""
    return (
        f"{count:,} device tasks start before the call that launches them, by up to "
        f"{format_duration(float(early.max()))}: the clocks of host and device differ by at least that much"
    )


@njit(cache=True)
def _clip(stream: Int64s, start: Int64s, end: Int64s) -> NDArray[np.bool_]:
    num = len(start)
    clipped = np.zeros(num, np.bool_)
    for task in range(num - 3, -1, -1):  # backwards, so that later ends are right already
        if stream[task + 2] != stream[task]:
            continue
        if end[task] > max(end[task + 1], end[task + 2]) + TOLERANCE_NS:
            end[task] = max(start[task], start[task + 1])
            clipped[task] = True
    return clipped
