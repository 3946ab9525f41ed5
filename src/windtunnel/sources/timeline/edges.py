"""Edges between the tasks of a timeline, each with the lag that the measurement shows (sources, timeline).

In: host slices, device tasks, and who waited for whom. Out: edge columns such that a replay of the unchanged
durations starts every task when it was measured to start. Every edge leads forward in (measured start, task
number), so there is no cycle by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import EdgeKind
from windtunnel.sources.timeline.device import Cause, Device, Starts
from windtunnel.sources.timeline.host import Host, Labels
from windtunnel.sources.timeline.memory import Memory
from windtunnel.sources.timeline.slices import latest_arrival, make_consistent, thread_order, widen_gaps
from windtunnel.sources.timeline.threads import HandOffs
from windtunnel.sources.timeline.waits import HostWaits, StreamWaits

__all__ = ["Edges", "all_edges", "external_start", "is_released_by_wait"]

# S slices (tasks 0 .. S-1), D device tasks (tasks S .. S+D-1), E edges
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Columns [E]."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    kind: NDArray[np.int8]
    lag_ns: Int64s
    from_start: Bools

    @classmethod
    def empty(cls, size: int) -> Edges:
        """Room for edges."""
        dtypes = (np.int32, np.int32, np.int8, np.int64, np.bool_)
        columns: list[Any] = [np.empty(size, dtype) for dtype in dtypes]
        return cls(*columns)

    @classmethod
    def of(
        cls,
        src: NDArray[np.integer],
        dst: NDArray[np.integer],
        kind: EdgeKind,
        lag_ns: Int64s | int = 0,
        from_start: Bools | bool = False,
    ) -> Edges:
        """Edges of one kind."""
        edges = cls.empty(len(src))
        for column, values in zip(edges.columns(), (src, dst, kind, lag_ns, from_start), strict=True):
            column[:] = values
        return edges

    def columns(self) -> tuple[Any, ...]:
        """The columns in order."""
        return self.src, self.dst, self.kind, self.lag_ns, self.from_start

    def columns_by_name(self) -> dict[str, Any]:
        """The columns by name."""
        return dict(zip(self.__slots__, self.columns(), strict=True))

    def arrival(self, start: Int64s, end: Int64s) -> Int64s:
        """When the last predecessor lets each task begin [T], at measured times; far in the past without any."""
        times: Int64s = latest_arrival(self.src, self.dst, self.lag_ns, self.from_start, start, end)
        return times

    def take(self, rows: NDArray[np.integer] | Bools | slice) -> Edges:
        """Some of the edges."""
        return Edges(*(column[rows] for column in self.columns()))


def all_edges(
    host: Host,
    device: Device,
    starts: Starts,
    stream_waits: StreamWaits | None,
    host_waits: HostWaits,
    hand_offs: HandOffs,
    labels: Labels,
    memory: Memory,
) -> tuple[Edges, dict[str, int]]:
    """Build the edges; also counts of what did not fit the measured times, by reason."""
    start, end = host.times(device)
    parts = [
        _launches(host, device, starts),
        *_streams(host, device, starts, stream_waits),
        _returns(host, host_waits),
        _hand_offs(hand_offs),
        _forward_to_backward(host, labels),
        Edges.of(memory.source, memory.target, EdgeKind.DATA),
    ]
    edges = Edges.empty(host.num_slices + sum(len(part.src) for part in parts))
    is_explained = np.zeros(host.num_slices, bool)
    is_explained[hand_offs.explained] = True
    src, dst, kind, lag_ns, from_start = edges.columns()
    used = thread_order(host.thread, host.start, host.end, is_explained, src, dst, kind, lag_ns, from_start)
    for part in parts:
        for column, values in zip(edges.columns(), part.columns(), strict=True):
            column[used : used + len(values)] = values
        used += len(part.src)
    dropped = np.zeros(len(EdgeKind), np.int64)
    kept = make_consistent(used, src, dst, kind, lag_ns, from_start, start, end, dropped)
    edges = edges.take(slice(0, kept))
    # a gap whose explanation fell away is a gap again
    widen_gaps(edges.src, edges.dst, edges.kind, edges.lag_ns, start, end, edges.arrival(start, end))
    return edges, {EdgeKind(kind).name.lower(): int(number) for kind, number in enumerate(dropped) if number}


def _hand_offs(hand_offs: HandOffs) -> Edges:
    return Edges.of(hand_offs.source, hand_offs.target, EdgeKind.CONTROL, hand_offs.lag_ns, hand_offs.from_start)


def _forward_to_backward(host: Host, labels: Labels) -> Edges:
    backward = np.flatnonzero(labels.forward_of >= 0)
    backward = backward[host.first[backward] <= host.last[backward]]
    return Edges.of(host.last[labels.forward_of[backward]], host.first[backward], EdgeKind.DATA)


def _launches(host: Host, device: Device, starts: Starts) -> Edges:
    """Start of the launching slice -> start of the task."""
    task = np.flatnonzero(device.call >= 0)
    event = host.position[device.call[task]]
    source = host.first[event].astype(np.int64)
    early = host.start[source] > device.start[task]  # the clocks of host and device differ a little
    source[early] = _slice_at(host, host.thread[source[early]], device.start[task[early]])
    usable = source >= 0
    task, source = task[usable], source[usable]
    delay = device.start[task] - host.start[source]
    lag = np.minimum(np.maximum(starts.launch_lag[task], 0), delay)
    lag = np.where((starts.cause[task] == Cause.LAUNCH_BOUND) | early[usable], delay, lag)
    return Edges.of(source, host.num_slices + task, EdgeKind.LAUNCH, lag, True)


def _slice_at(host: Host, thread: NDArray[np.integer], time_ns: Int64s) -> Int64s:
    """The last slice of a thread that had begun at a time; -1 if there is none."""
    result = np.full(len(thread), -1, np.int64)
    for item in np.unique(thread):
        begin, finish = np.searchsorted(host.thread, [item, item + 1])
        local = np.flatnonzero(thread == item)
        place = np.searchsorted(host.start[begin:finish], time_ns[local], side="right") - 1
        result[local] = np.where(place >= 0, place + begin, -1)
    return result


def _streams(host: Host, device: Device, starts: Starts, waits: StreamWaits | None) -> list[Edges]:
    """Task after task on each queue, and tasks that wait for those of other streams."""
    after = np.flatnonzero(device.previous >= 0)
    parts = [
        Edges.of(
            host.num_slices + device.previous[after], host.num_slices + after, EdgeKind.ORDER, starts.stream_lag[after]
        )
    ]
    waiter = np.flatnonzero(starts.awaited >= 0)
    parts.append(
        Edges.of(
            host.num_slices + starts.awaited[waiter], host.num_slices + waiter, EdgeKind.SYNC, starts.wait_lag[waiter]
        )
    )
    if waits is not None:
        others = np.flatnonzero(starts.awaited[waits.waiter] != waits.awaited)
        parts.append(
            Edges.of(host.num_slices + waits.awaited[others], host.num_slices + waits.waiter[others], EdgeKind.SYNC)
        )
    return parts


def _returns(host: Host, waits: HostWaits) -> Edges:
    """Awaited task -> return of the waiting call."""
    call = host.last[host.position[waits.call]] if len(waits.call) else np.empty(0, np.int32)
    return Edges.of(host.num_slices + waits.task, call[waits.waiter], EdgeKind.SYNC, waits.lag_ns)


def is_released_by_wait(edges: Edges, start: Int64s, end: Int64s) -> Bools:
    """Tasks [T] that began when what they awaited let them."""
    waits = edges.take(edges.kind == EdgeKind.SYNC)
    released: Bools = waits.arrival(start, end) >= start
    return released


def external_start(
    edges: Edges, inside: Bools, start: Int64s, end: Int64s, unlaunched: Int64s, origin_ns: int
) -> Int64s:
    """Times [T], from the origin, before which tasks may not start because of a cause outside of what is kept.

    That is the end of every wait for a task that is not kept; the measured start of a task that nothing kept
    explains, and of the ``unlaunched`` tasks, whose launch was never seen.
    """
    crossing = edges.take(~inside[edges.src] & inside[edges.dst])
    within = edges if inside.all() else edges.take(inside[edges.src] & inside[edges.dst])
    earliest = crossing.arrival(start, end)
    free = inside & (within.arrival(start, end) < start)
    earliest[free] = start[free]
    earliest[unlaunched] = start[unlaunched]
    earliest -= origin_ns
    return np.maximum(earliest, 0, out=earliest)
