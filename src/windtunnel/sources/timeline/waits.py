"""Who waits for device tasks in a timeline: streams for events, host threads in blocking calls (sources, timeline).

In: `Events` and their `Device`. Out: pairs of task and waiter, and how long each blocking call works when it waits for
nothing. What was waited for is read from the notes of waits (`Syncs`) where the profiler made them, else inferred from
times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.timeline.device import NEVER, Device, match_calls
from windtunnel.sources.timeline.events import MISSING, Category, Events, SyncKind
from windtunnel.sources.timeline.names import matching
from windtunnel.sources.timeline.rules import TimelineRules
from windtunnel.sources.timeline.slices import TOLERANCE_NS, find_last_ended_task

__all__ = ["HostWaits", "StreamWaits", "find_host_waits", "find_stream_waits"]

Int64s = NDArray[np.int64]
_SYNC_CALL = r"(Device|Stream|Event|Ctx|Context|Queue)Synchronize"
_DEVICE_CALL = r"(Device|Ctx|Context)Synchronize"


@dataclass(frozen=True, slots=True, eq=False)
class StreamWaits:
    """Pairs of device tasks: ``waiter`` did not start before ``awaited``, which runs on another stream."""

    awaited: Int64s
    waiter: Int64s
    num_contradicted: int

    def latest(self, device: Device) -> Int64s:
        """The awaited task that ended last, of each device task [D]; -1 for none."""
        column = np.full(device.num_tasks, -1, np.int64)
        order = np.argsort(device.end[self.awaited], kind="stable")
        column[self.waiter[order]] = self.awaited[order]
        return column


@dataclass(frozen=True, slots=True, eq=False)
class HostWaits:
    """Blocking calls [C] and what they awaited.

    ``call`` is a row of the events, ``own_ns`` its own work. Pairs [P]: device task ``task`` delays the return of call
    number ``waiter`` by ``lag_ns`` after its end.
    """

    call: Int64s
    own_ns: Int64s
    task: Int64s
    waiter: Int64s
    lag_ns: Int64s
    num_unexplained: int


class _Launched:
    """For each stream its tasks by launch, to ask for the one that ends last among those launched before a time."""

    def __init__(self, device: Device, thread: NDArray[np.integer]) -> None:
        self._thread = thread[device.call]  # that launched each task; of no meaning where no one did
        self._in_order: dict[int, Int64s] = {}
        self._by_stream: dict[int, tuple[Int64s, Int64s]] = {}
        for stream in range(len(device.streams)):
            members = np.flatnonzero((device.stream == stream) & (device.launch_ns != NEVER))
            members = members[np.argsort(device.launch_ns[members], kind="stable")]
            self._in_order[stream] = members
            ends = device.end[members]
            is_later = ends >= np.maximum.accumulate(ends) if len(ends) else np.empty(0, bool)
            latest = np.maximum.accumulate(np.where(is_later, np.arange(len(ends)), 0))
            self._by_stream[stream] = device.launch_ns[members], members[latest]

    def before(self, stream: int, time_ns: int) -> int:
        """The task of a stream launched before a time that ends last; -1 if there is none."""
        launches, latest = self._by_stream[stream]
        place = int(np.searchsorted(launches, time_ns)) - 1
        return int(latest[place]) if place >= 0 else -1

    def after(self, stream: int, time_ns: int, thread: int) -> int:
        """The first task of a stream launched at or after a time by a thread (-1: by any); -1 if there is none."""
        members = self._in_order[stream]
        for index in range(int(np.searchsorted(self._by_stream[stream][0], time_ns)), len(members)):
            if thread in (-1, self._thread[members[index]]):
                return int(members[index])
        return -1


class _Syncs:
    """The notes of waits [Y], resolved to calls, and to those streams of the device that have tasks (else -1)."""

    def __init__(self, events: Events, device: Device) -> None:
        self.row = np.flatnonzero(events.category == Category.SYNC)
        self.kind = events.syncs.kind.tolist()
        self.call = match_calls(events, self.row).tolist()
        numbers = {(stream.device, stream.number): number for number, stream in enumerate(device.streams)}
        by_number = {stream: number for (_, stream), number in numbers.items()}

        def resolve(code: int) -> int:
            if code < 0:
                return -1
            stream = events.streams[code]
            of_any_device = -1 if stream.device else by_number.get(stream.number, -1)
            return numbers.get((stream.device, stream.number), of_any_device)

        streams = events.stream[self.row].tolist()
        owner = ["" if code < 0 else events.streams[code].device for code in streams]
        self.device_streams = [[n for (d, _), n in numbers.items() if o in (d, "")] for o in owner]
        self.stream = [resolve(code) for code in streams]
        self.awaited_stream = [resolve(code) for code in events.syncs.awaited_stream.tolist()]
        index = np.array([row if call < 0 else call for row, call in zip(self.row, self.call, strict=True)], np.int64)
        self.time = events.start_ns[index].tolist()
        self.record_time = self._record_times(events)

    def _record_times(self, events: Events) -> list[int]:
        """When the awaited event was recorded; where the trace does not tell, it was before the wait."""
        record = events.syncs.record_correlation
        calls = np.flatnonzero((events.category == Category.CALL) & np.isin(events.correlation, record))
        times = dict(zip(events.correlation[calls].tolist(), events.start_ns[calls].tolist(), strict=True))
        times.pop(MISSING, None)
        return [times.get(value, time) for value, time in zip(record.tolist(), self.time, strict=True)]


def find_stream_waits(events: Events, device: Device) -> StreamWaits | None:
    """Pairs of tasks from notes of stream waits; None where the profiler made no such notes."""
    syncs = _Syncs(events, device)
    if SyncKind.STREAM_WAIT not in syncs.kind:
        return None
    launched = _Launched(device, events.thread)
    pairs: set[tuple[int, int]] = set()
    contradicted = 0
    for i, kind in enumerate(syncs.kind):
        waiting, awaited_stream = syncs.stream[i], syncs.awaited_stream[i]
        if kind != SyncKind.STREAM_WAIT or waiting < 0 or awaited_stream < 0 or waiting == awaited_stream:
            continue
        caller = int(events.thread[syncs.call[i]]) if syncs.call[i] >= 0 else -1
        waiter = launched.after(waiting, syncs.time[i], caller)
        awaited = launched.before(awaited_stream, syncs.record_time[i])
        if waiter < 0 or awaited < 0:
            continue
        if device.end[awaited] <= device.start[waiter] + TOLERANCE_NS:
            pairs.add((awaited, waiter))
        else:
            contradicted += 1
    table = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return StreamWaits(table[:, 0], table[:, 1], contradicted)


def find_host_waits(events: Events, device: Device, rules: TimelineRules) -> HostWaits:
    """Find the calls that return only after device tasks, at most ``return_ns`` after, and those tasks."""
    return_ns = rules.return_ns
    tasks_of: dict[int, list[int]] = dict(_copies(events, device, return_ns))
    for call, tasks in _iter_recorded_waits(events, device):
        tasks_of.setdefault(call, []).extend(tasks)
    inferred = dict(_infer_waits(events, device, set(tasks_of), return_ns))
    tasks_of |= inferred
    room = [item for item in _waits_for_room(events, device, rules) if item[0] not in tasks_of]
    tasks_of |= {call: [task] for call, task, _ in room}
    return _split_host_waits(
        events, device, tasks_of, set(inferred), {call: own_ns for call, _, own_ns in room}, return_ns
    )


def _waits_for_room(events: Events, device: Device, rules: TimelineRules) -> Iterator[tuple[int, int, int]]:
    """Launches that took long while the queue was full: the call, the task whose end made room, the call's own work."""
    launched = np.flatnonzero(device.call >= 0)
    call, first = np.unique(device.call[launched], return_index=True)
    order = np.argsort(events.start_ns[call], kind="stable")
    call, first = call[order], first[order]
    start, duration = events.start_ns[call], events.duration_ns[call]
    by_end = np.argsort(device.end, kind="stable")
    ends = device.end[by_end]
    queued = np.arange(len(call)) - np.searchsorted(np.sort(device.end[launched[first]]), start)
    is_full = queued >= rules.queued_tasks
    if not is_full.any():
        return
    name = events.name[call]
    usual_ns = {
        code: int(np.median(duration[(name == code) & ~is_full])) for code in np.unique(name[~is_full]).tolist()
    }
    for index in np.flatnonzero(is_full & (duration > rules.return_ns)).tolist():
        finish, own_ns = int(start[index] + duration[index]), usual_ns.get(int(name[index]), 0)
        position = int(np.searchsorted(ends, finish, side="right")) - 1
        if position >= 0 and ends[position] > start[index] + own_ns and finish - ends[position] <= rules.return_ns:
            yield int(call[index]), int(by_end[position]), own_ns


def _copies(events: Events, device: Device, return_ns: int) -> Iterator[tuple[int, list[int]]]:
    """Copies that return when their device task is done: of pageable memory, or by a call that always waits."""
    if not device.num_tasks:
        return
    is_copy = matching(events.names, "Memcpy|memcpy|Copy")[events.name[device.row]] & (device.call >= 0)
    pageable = matching(events.names, "Pageable")[events.name[device.row]]
    waits = (
        ~matching(events.names, "Async")[events.name[device.call]]
        & matching(events.names, "[Mm]emcpy")[events.name[device.call]]
    )
    finish = events.start_ns[device.call] + events.duration_ns[device.call]
    inside = (device.end <= finish + TOLERANCE_NS) & (finish - device.end <= return_ns)
    inside &= device.end > events.start_ns[device.call]
    for task in np.flatnonzero(is_copy & (pageable | waits) & inside).tolist():
        yield int(device.call[task]), [task]


def _iter_recorded_waits(events: Events, device: Device) -> Iterator[tuple[int, list[int]]]:
    """Yield each waiting call with the tasks that its synchronization records name."""
    syncs, launched = _Syncs(events, device), _Launched(device, events.thread)
    for i, kind in enumerate(syncs.kind):
        if syncs.call[i] < 0:
            continue
        streams, time_ns = [syncs.stream[i]], syncs.time[i]
        if kind == SyncKind.DEVICE:
            streams = syncs.device_streams[i]
        elif kind == SyncKind.EVENT:
            streams, time_ns = [syncs.awaited_stream[i]], syncs.record_time[i]
        elif kind != SyncKind.STREAM:
            continue
        tasks = [launched.before(stream, time_ns) for stream in streams if stream >= 0]
        yield syncs.call[i], [task for task in tasks if task >= 0]


def _infer_waits(events: Events, device: Device, known: set[int], return_ns: int) -> Iterator[tuple[int, list[int]]]:
    """Yield each call whose name says that it waits and that has no record, with the tasks that ended just before."""
    calls = np.flatnonzero((events.category == Category.CALL) & matching(events.names, _SYNC_CALL)[events.name])
    calls = calls[~np.isin(calls, list(known))] if known else calls
    start, finish = events.start_ns[calls], events.start_ns[calls] + events.duration_ns[calls]
    order = np.argsort(device.end, kind="stable")
    result = find_last_ended_task(
        device.end[order],
        device.start[order],
        device.launch_ns[order],
        finish + TOLERANCE_NS,
        np.maximum(start + 1, finish - return_ns),
        start,
    )
    launched = _Launched(device, events.thread)
    all_streams = matching(events.names, _DEVICE_CALL)[events.name[calls]]
    for call, index, position, waits_for_all in zip(
        calls.tolist(), start.tolist(), result.tolist(), all_streams, strict=True
    ):
        if waits_for_all:
            tasks = [launched.before(stream, index) for stream in range(len(device.streams))]
            yield call, [task for task in tasks if task >= 0]
        else:
            yield call, [int(order[position])] if position >= 0 else []


def _split_host_waits(
    events: Events,
    device: Device,
    tasks_of: dict[int, list[int]],
    inferred: set[int],
    known_ns: dict[int, int],
    return_ns: int,
) -> HostWaits:
    """Split each call's duration into its own work, where that is not known, and the wait."""
    free_ns: dict[int, int] = {}  # shortest call of each name that waited for nothing
    own = dict(known_ns)
    pairs: list[tuple[int, int, int]] = []
    unexplained = 0
    for number, (call, tasks) in enumerate(tasks_of.items()):
        start, finish = int(events.start_ns[call]), int(events.start_ns[call] + events.duration_ns[call])
        seen = [task for task in tasks if device.end[task] <= finish + TOLERANCE_NS]
        last = max((int(device.end[task]) for task in seen), default=NEVER)
        waited = last > start and (call not in inferred or finish - last <= return_ns)
        if not waited:
            name = int(events.name[call])
            free_ns[name] = min(free_ns.get(name, finish - start), finish - start)
            own[call] = finish - start
            unexplained += (call in inferred and finish - start > return_ns) or len(seen) < len(tasks)
        lag = max(finish - last, 0) if waited else 0
        pairs += [(task, number, lag) for task in seen]
    for call in tasks_of:
        own.setdefault(call, min(free_ns.get(int(events.name[call]), 0), int(events.duration_ns[call])))
    table = np.array(pairs, np.int64).reshape(-1, 3)
    calls = np.array(list(tasks_of), np.int64)
    own_ns = np.array([own[call] for call in tasks_of], np.int64)
    return HostWaits(calls, own_ns, table[:, 0], table[:, 1], table[:, 2], int(unexplained))
