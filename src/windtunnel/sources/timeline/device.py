"""Device tasks of a timeline: which call launched each, in which order a stream runs them, what each waited for.

In: `Events`. Out: a `Device` (columns over D tasks, ordered by stream and start) and, for every
task, the constraint that explains its start best: its launch, the task before it on the stream, or a task of
another stream. Not here: waiting calls of host threads (``waits``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.timeline.events import MISSING, Category, Events, Stream
from windtunnel.sources.timeline.invalid_records import clip_ends, skew_warning
from windtunnel.sources.timeline.rules import TimelineRules
from windtunnel.sources.timeline.slices import assign_lanes, find_last_ended_task, match_latest

__all__ = ["Cause", "Device", "Starts", "explain_starts", "find_device", "match_calls", "stream_label"]

# D device tasks, Q streams (lanes included)
Int64s = NDArray[np.int64]
NEVER = -(2**62)
_MAX_PROCESSES = 64


class Cause(IntEnum):
    """Why a device task started when it did."""

    LAUNCH_BOUND = 0
    STREAM_BOUND = 1
    EVENT_WAIT = 2
    COLLECTIVE_PEER = 3
    UNEXPLAINED = 4


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """Device tasks [D], ordered by stream and start.

    ``row`` is the row of the events; ``queue`` the lane (a stream, or a shadow of it where tasks overlap); ``call`` the
    row of the launching call or -1; ``launch_ns`` its start (NEVER if unknown); ``previous`` the task before
    on the lane or -1.
    """

    row: Int64s
    stream: NDArray[np.int32]
    queue: NDArray[np.int32]
    start: Int64s
    end: Int64s
    call: Int64s
    launch_ns: Int64s
    previous: NDArray[np.int32]
    streams: tuple[Stream, ...]  # those that have tasks
    queues: tuple[tuple[int, int], ...]  # (stream, lane) of each queue
    warnings: tuple[str, ...] = ()  # of records that cannot be true

    @property
    def num_tasks(self) -> int:
        """Kernels, copies and memsets."""
        return len(self.row)

    @property
    def num_overlapping(self) -> int:
        """Tasks that overlap another task of their stream."""
        shadow = np.array([lane > 0 for _, lane in self.queues], bool)
        return int(shadow[self.queue].sum()) if len(shadow) else 0


def match_calls(events: Events, rows: Int64s) -> Int64s:
    """Row of the call that each row belongs to, by correlation, else by external id; -1 for none."""
    calls = np.flatnonzero((events.category == Category.CALL) & (events.correlation != MISSING))
    result = _match_by_process(events, calls, rows)
    open_rows = result < 0
    result[open_rows] = _match(events.correlation, events.start_ns, calls, rows[open_rows])
    missing = (result < 0) & ((events.correlation[rows] == MISSING) | (events.correlation[rows] == 0))
    missing &= events.external_id[rows] > 0
    if missing.any():  # accelerators that tie their work to the operator only
        may_launch = (events.category == Category.OPERATOR) | (events.category == Category.CALL)
        operators = np.flatnonzero(may_launch & (events.external_id > 0))
        result[missing] = _match(events.external_id, events.start_ns, operators, rows[missing])
    return result


def _match_by_process(events: Events, calls: Int64s, rows: Int64s) -> Int64s:
    """Match within one process per device, the best matching: where a file holds several, their ids overlap."""
    result = np.full(len(rows), -1, np.int64)
    pid_of = {pid: code for code, pid in enumerate(dict.fromkeys(pid for pid, _ in events.threads))}
    process = np.array([pid_of[pid] for pid, _ in events.threads], np.int32)[events.thread[calls]]
    processes = np.unique(process)
    if len(processes) < 2 or len(processes) > _MAX_PROCESSES:
        return result
    device_codes: dict[str, int] = {}
    of_stream = [device_codes.setdefault(stream.device, len(device_codes)) for stream in events.streams]
    device = np.array([*of_stream, -1])[events.stream[rows]]
    for code in np.unique(device):
        members = np.flatnonzero(device == code)
        tries = [_match(events.correlation, events.start_ns, calls[process == p], rows[members]) for p in processes]
        result[members] = max(tries, key=lambda calls_found: _fitness(events, calls_found, rows[members]))
    return result


def _fitness(events: Events, calls: Int64s, rows: Int64s) -> tuple[int, float]:
    """How many rows begin after a call that matches, and how soon."""
    matched = calls >= 0
    delay = events.start_ns[rows[matched]] - events.start_ns[calls[matched]]
    soon = delay[delay >= 0]
    return len(soon), -float(np.median(soon)) if len(soon) else 0.0


def _match(key: Int64s, ts: Int64s, among: Int64s, rows: Int64s) -> Int64s:
    order = among[np.lexsort((ts[among], key[among]))]
    index = match_latest(key[order], ts[order], key[rows], ts[rows])
    result = np.full(len(rows), -1, np.int64)
    result[index >= 0] = order[index[index >= 0]]
    result[key[rows] == MISSING] = -1
    return result


def find_device(events: Events) -> Device:
    """Collect the device tasks."""
    row = np.flatnonzero(events.is_device)
    used, owner = np.unique(events.stream[row].astype(np.int64), return_inverse=True)
    streams = tuple(events.streams[code] for code in used.tolist())
    call = match_calls(events, row)
    launch = np.where(call >= 0, events.start_ns[call], NEVER)
    order = np.lexsort((launch, events.start_ns[row], owner))
    row, owner, call, launch = row[order], owner[order], call[order], launch[order]
    recorded_ns = events.start_ns[row]
    end = recorded_ns + events.duration_ns[row]
    labels = [stream_label(events, stream)[0] for stream in streams]
    doubts = clip_ends(events, row, owner, recorded_ns, end, labels), skew_warning(recorded_ns, launch, call >= 0)
    lane, start, previous = assign_lanes(owner, recorded_ns, end)
    pairs, queue = np.unique(np.stack([owner, lane]), axis=1, return_inverse=True)
    return Device(
        row=row,
        stream=owner.astype(np.int32),
        queue=queue.reshape(-1).astype(np.int32),
        start=start,
        end=end,
        call=call,
        launch_ns=launch,
        previous=previous,
        streams=streams,
        queues=tuple((int(stream), int(number)) for stream, number in pairs.T),
        warnings=tuple(filter(None, doubts)),
    )


def stream_label(events: Events, stream: Stream) -> tuple[str, str]:
    """What to call a stream, and its device; by process and thread where the file names no device or number."""
    process, thread = events.threads[stream.thread] if stream.thread >= 0 else ("", "")
    device = stream.device or str(process)
    return f"GPU {device} stream {stream.number or thread}", device


@dataclass(frozen=True, slots=True, eq=False)
class Starts:
    """Why each device task [D] started when it did, and the lags that say so.

    ``awaited`` is a task of another stream or -1. Lags belong to the edges from the launch (start to start), the
    previous task and the awaited one. ``unexplained_ns`` is the part of the binding lag beyond what is typical of
    that stream.
    """

    cause: NDArray[np.int8]
    awaited: Int64s
    launch_lag: Int64s
    stream_lag: Int64s
    wait_lag: Int64s
    unexplained_ns: Int64s


def explain_starts(device: Device, awaited: Int64s | None, rules: TimelineRules) -> Starts:
    """Choose for every task the constraint that explains its start.

    Parameters
    ----------
    awaited : int64 [D], optional
        Task that the stream has to wait for, -1 for none. Without it (there are no notes of stream waits)
        waits are inferred from the times of tasks whose start nothing else explains.
    """
    before_ns = _end_of(device, device.previous)
    delay = device.start - device.launch_ns
    is_launched = device.launch_ns != NEVER
    is_idle = is_launched & (before_ns <= device.launch_ns)
    floor, usual_delay = _typical_delays(device, delay, is_idle, is_launched, rules.idle_start_ns)
    ready_ns = np.where(is_launched, device.launch_ns + np.minimum(floor, np.maximum(delay, 0)), NEVER)
    gap = device.start - before_ns
    usual_gap = _typical_gaps(device, gap, (device.previous >= 0) & (ready_ns <= before_ns), rules.stream_lag_ns)
    if awaited is None:
        bound_ns = np.maximum(ready_ns, before_ns)
        is_odd = device.start - bound_ns > np.where(ready_ns >= before_ns, usual_delay - floor, usual_gap)
        awaited = _infer_waits(device, bound_ns, is_odd, rules.wait_seen_ns)
    wait_ns = _end_of(device, awaited)
    usual_wait = max(rules.stream_lag_ns, _usual((device.start - wait_ns)[(awaited >= 0) & (wait_ns <= device.start)]))
    excess = np.stack(
        [
            np.where(is_launched, delay - usual_delay, 2**62),
            np.where(device.previous >= 0, gap - usual_gap, 2**62),
            np.where(awaited >= 0, device.start - wait_ns - usual_wait, 2**62),
        ]
    )
    latest = np.argmax(np.stack([ready_ns, before_ns, wait_ns]), axis=0)
    latest = np.where((ready_ns == NEVER) & (before_ns == NEVER) & (wait_ns == NEVER), 3, latest)
    cause = _select_least_excess(latest, excess, rules.noise_ns)
    known = np.minimum(cause, 2)
    unexplained = np.maximum(np.take_along_axis(excess, known[None], axis=0)[0], 0)
    unexplained = np.where((cause == 3) | (unexplained <= rules.noise_ns), 0, unexplained)
    cause = np.where(cause == 3, Cause.UNEXPLAINED, np.where(unexplained > 0, Cause.UNEXPLAINED, cause))
    return Starts(
        cause=cause.astype(np.int8),
        awaited=awaited,
        launch_lag=np.where(known == 0, delay, np.minimum(floor, delay)),
        stream_lag=np.where(known == 1, gap, 0),
        wait_lag=np.where(known == 2, device.start - wait_ns, 0),
        unexplained_ns=unexplained,
    )


def _select_least_excess(latest: Int64s, excess: Int64s, noise_ns: int) -> Int64s:
    """The latest constraint; but if its delay is odd, the one whose delay is least odd."""
    best = np.argmin(excess, axis=0)
    own = np.take_along_axis(excess, np.minimum(latest, 2)[None], axis=0)[0]
    least = np.take_along_axis(excess, best[None], axis=0)[0]
    return np.where((latest < 3) & (own > noise_ns) & (least < own), best, latest)


def _end_of(device: Device, task: NDArray[np.integer]) -> Int64s:
    return np.where(task >= 0, device.end[task], NEVER) if device.num_tasks else np.empty(0, np.int64)


def _typical_delays(
    device: Device, delay: Int64s, is_idle: NDArray[np.bool_], is_launched: NDArray[np.bool_], max_usual_ns: int
) -> tuple[Int64s, Int64s]:
    """Least delay from launch to start of each task's stream, and the usual one of the device.

    Seen on tasks that found their stream idle. Some of those waited for other streams, on some streams all of them
    did (those of collectives): so the usual delay is from the quicker ones of all streams, and a stream whose least
    delay is beyond it takes the device's. Where the host runs far ahead, hardly any found their stream idle but those
    that waited: no delay beyond ``max_usual_ns`` is usual.
    """
    seen = np.flatnonzero((is_idle if is_idle.any() else is_launched) & (delay >= 0))
    usual = min(_usual(delay[seen]), max_usual_ns)
    least = int(delay[seen].min()) if len(seen) else 0
    floor = np.full(device.num_tasks, least, np.int64)
    for members in _by_stream(device):
        own = members[is_idle[members] & (delay[members] >= 0)]
        if len(own) and delay[own].min() <= usual:
            floor[members] = delay[own].min()
    return floor, np.full(device.num_tasks, usual, np.int64)


def _typical_gaps(device: Device, gap: Int64s, is_queued: NDArray[np.bool_], lag_ns: int) -> Int64s:
    """Usual delay between two queued tasks, of each task's stream."""
    usual = np.full(device.num_tasks, lag_ns, np.int64)
    for members in _by_stream(device):
        usual[members] = max(lag_ns, _usual(gap[members[is_queued[members]]]))
    return usual


def _usual(delays: Int64s) -> int:
    """Twice the lower quartile: beyond that something else must have held the task back."""
    return 2 * int(np.percentile(delays, 25, method="lower")) if len(delays) else 0


def _by_stream(device: Device) -> list[Int64s]:
    """Rows of each stream; they are together because tasks are ordered by stream."""
    borders = np.flatnonzero(np.diff(device.stream)) + 1
    return [part for part in np.split(np.arange(device.num_tasks), borders) if len(part)]


def _infer_waits(device: Device, bound_ns: Int64s, is_odd: NDArray[np.bool_], seen_ns: int) -> Int64s:
    """Find for oddly late tasks one of another stream, launched earlier, that ended just before them."""
    awaited = np.full(device.num_tasks, -1, np.int64)
    if len(device.streams) < 2:
        return awaited
    late = np.flatnonzero(is_odd)
    asked_ns = np.where(device.launch_ns != NEVER, device.launch_ns, device.start)  # launched before the trace began
    for stream in np.unique(device.stream):
        order = np.flatnonzero(device.stream != stream)
        order = order[np.argsort(device.end[order], kind="stable")]
        asking = late[device.stream[late] == stream]
        since = np.maximum(device.start[asking] - seen_ns, bound_ns[asking])
        result = find_last_ended_task(
            device.end[order],
            device.start[order],
            device.launch_ns[order],
            device.start[asking],
            since,
            asked_ns[asking],
        )
        awaited[asking[result >= 0]] = order[result[result >= 0]]
    return awaited
