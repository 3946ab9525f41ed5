"""Which part of a timeline is wanted, and which training step each moment belongs to (sources, timeline).

In: `Events`, the name of an annotation. Out: intervals of time on the events' clock. A window is one of
launches: device tasks belong to the window in which they were launched, whenever they ran.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import TraceError
from windtunnel.sources.timeline.events import Category, Events
from windtunnel.sources.timeline.names import STEP, matching

__all__ = ["Steps", "Window", "find_steps", "find_window"]

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Intervals [begin, end] in order of time; none of them means the whole trace."""

    begin: Int64s
    end: Int64s
    name: str

    @property
    def is_whole(self) -> bool:
        """Whether the window is the full trace."""
        return not len(self.begin)

    def holds(self, time_ns: Int64s) -> NDArray[np.bool_]:
        """Whether each time lies inside."""
        if self.is_whole:
            return np.ones(len(time_ns), bool)
        place = np.searchsorted(self.begin, time_ns, side="right") - 1
        return (place >= 0) & (time_ns <= self.end[np.maximum(place, 0)])


def find_window(events: Events, name: str | None, occurrence: int | None) -> Window:
    """Find the annotations whose name is ``name``, or else holds it."""
    if not name:
        return Window(np.empty(0, np.int64), np.empty(0, np.int64), "")
    rows = np.flatnonzero((events.category == Category.ANNOTATION) | (events.category == Category.OPERATOR))
    exact = np.array([text == name for text in events.names], bool)
    part = np.array([name in text for text in events.names], bool)
    annotations = rows[events.category[rows] == Category.ANNOTATION]
    result = next(
        (
            r
            for r in (
                annotations[exact[events.name[annotations]]],
                annotations[part[events.name[annotations]]],
                rows[exact[events.name[rows]]],
            )
            if len(r)
        ),
        rows[:0],
    )
    result = result[np.argsort(events.start_ns[result], kind="stable")]
    selected = result if occurrence is None else result[occurrence : occurrence + 1 or None]
    if not len(selected):
        raise _no_window(events, annotations, name, occurrence, len(result))
    ends = np.maximum.accumulate(events.start_ns[selected] + events.duration_ns[selected])
    return Window(events.start_ns[selected], ends, name)


def _no_window(events: Events, annotations: Int64s, name: str, occurrence: int | None, num_found: int) -> TraceError:
    names = sorted({events.names[code] for code in events.name[annotations].tolist()})
    near = difflib.get_close_matches(name, names, 5, 0.1) or names[:5]
    what = f"there is no annotation {name!r}" if not num_found else f"there is no occurrence {occurrence} of {name!r}"
    return TraceError(
        what,
        where=f"{events.path}: {num_found} occurrences, {len(names)} different annotations",
        fix=f"choose one of: {', '.join(near)}" if names else "load the whole trace, without a window",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Training steps that the profiler announced, by time."""

    begin: Int64s
    end: Int64s
    names: tuple[str, ...]

    def of(self, time_ns: Int64s) -> NDArray[np.int32]:
        """Number of the step that each time belongs to, counted from 0."""
        return np.maximum(np.searchsorted(self.begin, time_ns, side="right") - 1, 0).astype(np.int32)

    def durations(self) -> dict[str, object] | None:
        """Median, extremes and samples of the steps, without the first and last of four or more (often cut)."""
        spans = self.end - self.begin
        spans = spans[1:-1] if len(spans) > 3 else spans
        if not len(spans):
            return None
        values = {"median": int(np.median(spans)), "low": int(spans.min()), "high": int(spans.max())}
        return {**values, "samples": spans.tolist()}


def find_steps(events: Events, window: Window) -> Steps:
    """Find the steps that begin inside the window; marks of one step on several threads or processes are one.

    A trace of devices alone has the marks only there.
    """
    is_step = matching(events.names, STEP)[events.name] & (events.category != Category.NO_EVENT)
    rows = np.flatnonzero((events.category == Category.ANNOTATION) & is_step)
    rows = rows if len(rows) else np.flatnonzero(is_step)
    rows = rows[window.holds(events.start_ns[rows])]
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    ends: dict[int, int] = {}  # of the last step of a name
    steps: list[tuple[int, int, str]] = []
    for row in rows.tolist():
        name, begin = int(events.name[row]), int(events.start_ns[row])
        end = begin + int(events.duration_ns[row])
        if begin < ends.get(name, begin):
            continue
        ends[name] = end
        steps.append((begin, end, events.names[name]))
    times = np.array([(begin, end) for begin, end, _ in steps], np.int64).reshape(-1, 2)
    return Steps(times[:, 0], times[:, 1], tuple(name for _, _, name in steps))
