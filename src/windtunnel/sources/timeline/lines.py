"""Which line of the user's program runs each host event of a timeline (sources, timeline).

In: `Events` with rows of category FRAME, host events, the forward operator of each backward one. Out: a line per host
event. A backward operator takes the line of its forward operator; what a thread without frames runs takes the line at
which the program is meanwhile.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.timeline.events import Events
from windtunnel.sources.timeline.slices import cut_slices, inherit

__all__ = ["find_lines"]

# H host events, F frames
Int32s = NDArray[np.int32]


def find_lines(events: Events, row: Int32s, parent: Int32s, forward_of: Int32s) -> Int32s:
    """Code into ``events.lines`` of each host event [H], -1 for none; ``row`` and ``parent`` are those of `Host`."""
    num = len(row)
    if not len(events.frame.row):
        return np.full(num, -1, np.int32)
    rows = np.concatenate([row, events.frame.row])
    own = np.concatenate([np.full(num, -1), events.frame.value]).astype(np.int32)
    line = _innermost(events, rows, own)[:num]
    # what a backward node runs belongs to the line of its forward operator, unless a frame of its own runs inside
    inherited = np.where(forward_of >= 0, line[forward_of], -1)
    borrowed = inherit(parent, np.where(line >= 0, -1, inherited).astype(np.int32))
    line = np.where(line >= 0, line, borrowed).astype(np.int32)
    open_events = np.flatnonzero(line < 0)
    line[open_events] = _line_meanwhile(events, row[open_events])
    return line


def _innermost(events: Events, rows: Int32s, own: Int32s) -> Int32s:
    """The value of the nearest row around each row that has one, itself included."""
    start = events.start_ns[rows]
    end, thread = start + events.duration_ns[rows], events.thread[rows]
    order = np.lexsort((own < 0, start - end, start, thread))  # of equal extent, a frame is around
    no_tasks = np.zeros(len(rows), bool)
    parent = cut_slices(thread[order], start[order], end[order], no_tasks, no_tasks)[6]
    result = np.empty(len(rows), np.int32)
    result[order] = inherit(parent, own[order])
    return result


def _line_meanwhile(events: Events, rows: Int32s) -> Int32s:
    """The innermost frame of the program's busiest thread at the start of each row; -1 where none runs."""
    frames, codes = events.frame
    thread = np.bincount(events.thread[frames]).argmax()
    frames, codes = frames[events.thread[frames] == thread], codes[events.thread[frames] == thread]
    queries = np.argsort(events.start_ns[rows], kind="stable")
    order = np.lexsort((-events.duration_ns[frames], events.start_ns[frames]))
    starts = events.start_ns[frames[order]]
    ends = starts + events.duration_ns[frames[order]]
    result, stack, index = np.full(len(rows), -1, np.int32), [], 0
    for query in queries.tolist():
        time_ns = int(events.start_ns[rows[query]])
        while index < len(order) and starts[index] <= time_ns:
            stack.append(index)
            index += 1
        while stack and ends[stack[-1]] < time_ns:
            stack.pop()
        if stack:
            result[query] = codes[order[stack[-1]]]
    return result
