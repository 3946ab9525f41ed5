"""Who waits for device tasks in a Kineto trace: streams for events, host threads in blocking calls (sources, Kineto).

In: a `Trace`, its roles and its `Device`. Out: pairs of task and waiter, and how long each blocking call works when
it waits for nothing. What was waited for is read from `cuda_sync` events where the trace has them, else inferred
from times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.kineto.roles import Role, matching
from windtunnel.sources.kineto.trace import MISSING, Trace
from windtunnel.sources.timeline.device import NEVER, Device, match_calls, stream_values
from windtunnel.sources.timeline.rules import KinetoRules
from windtunnel.sources.timeline.slices import TOLERANCE_NS, latest_ended

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

    ``call`` is a trace row, ``own_ns`` its own work. Pairs [P]: device task ``task`` delays the return of call
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
        for place in range(int(np.searchsorted(self._by_stream[stream][0], time_ns)), len(members)):
            if thread in (-1, self._thread[members[place]]):
                return int(members[place])
        return -1


class _Syncs:
    """The `cuda_sync` events of a trace [Y] with what they say, resolved to streams and calls."""

    def __init__(self, trace: Trace, role: NDArray[np.uint8], device: Device) -> None:
        self.row = np.flatnonzero(role == Role.SYNC)
        self.name = [trace.strings[code] for code in trace.name[self.row].tolist()]
        self.call = match_calls(trace, role, self.row).tolist()
        owner = trace.argument("device")[self.row].tolist()
        numbers = {key: number for number, key in enumerate(device.stream_keys)}
        alone = {stream: number for (_, stream), number in numbers.items()}

        def resolve(streams: Int64s) -> list[int]:
            pairs = zip(owner, streams.tolist(), strict=True)
            return [numbers.get(pair, alone.get(pair[1], -1) if pair[0] == MISSING else -1) for pair in pairs]

        self.device_streams = [[n for (d, _), n in numbers.items() if d == o or o == MISSING] for o in owner]
        self.stream = resolve(stream_values(trace, self.row))
        self.awaited_stream = resolve(trace.argument("wait_on_stream")[self.row])
        at = np.array([row if call < 0 else call for row, call in zip(self.row, self.call, strict=True)], np.int64)
        self.time = trace.ts[at].tolist()
        self.record_time = self._record_times(trace, role)

    def _record_times(self, trace: Trace, role: NDArray[np.uint8]) -> list[int]:
        """When the awaited event was recorded; where the trace does not tell, it was before the wait."""
        record = trace.argument("wait_on_cuda_event_record_corr_id")[self.row]
        calls = np.flatnonzero((role == Role.CALL) & np.isin(trace.correlation, record))
        times = dict(zip(trace.correlation[calls].tolist(), trace.ts[calls].tolist(), strict=True))
        times.pop(MISSING, None)
        return [times.get(value, time) for value, time in zip(record.tolist(), self.time, strict=True)]


def find_stream_waits(trace: Trace, role: NDArray[np.uint8], device: Device) -> StreamWaits | None:
    """Pairs of tasks from `Stream Wait Event`; None where the trace has no such events."""
    syncs = _Syncs(trace, role, device)
    if "Stream Wait Event" not in syncs.name:
        return None
    launched = _Launched(device, trace.thread)
    pairs: set[tuple[int, int]] = set()
    contradicted = 0
    for i, name in enumerate(syncs.name):
        waiting, awaited_stream = syncs.stream[i], syncs.awaited_stream[i]
        if name != "Stream Wait Event" or waiting < 0 or awaited_stream < 0 or waiting == awaited_stream:
            continue
        caller = int(trace.thread[syncs.call[i]]) if syncs.call[i] >= 0 else -1
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


def find_host_waits(trace: Trace, role: NDArray[np.uint8], device: Device, rules: KinetoRules) -> HostWaits:
    """Find the calls that return only after device tasks, at most ``return_ns`` after, and those tasks."""
    return_ns = rules.return_ns
    tasks_of: dict[int, list[int]] = dict(_copies(trace, device, return_ns))
    for call, tasks in _told_waits(trace, role, device):
        tasks_of.setdefault(call, []).extend(tasks)
    inferred = dict(_inferred_waits(trace, role, device, set(tasks_of), return_ns))
    tasks_of |= inferred
    room = [one for one in _waits_for_room(trace, device, rules) if one[0] not in tasks_of]
    tasks_of |= {call: [task] for call, task, _ in room}
    return _reduced(trace, device, tasks_of, set(inferred), {call: own_ns for call, _, own_ns in room}, return_ns)


def _waits_for_room(trace: Trace, device: Device, rules: KinetoRules) -> Iterator[tuple[int, int, int]]:
    """Launches that took long while the queue was full: the call, the task whose end made room, the call's own work."""
    launched = np.flatnonzero(device.call >= 0)
    call, first = np.unique(device.call[launched], return_index=True)
    order = np.argsort(trace.ts[call], kind="stable")
    call, first = call[order], first[order]
    start, duration = trace.ts[call], trace.dur[call]
    by_end = np.argsort(device.end, kind="stable")
    ends = device.end[by_end]
    queued = np.arange(len(call)) - np.searchsorted(np.sort(device.end[launched[first]]), start)
    is_full = queued >= rules.queued_tasks
    if not is_full.any():
        return
    name = trace.name[call]
    usual_ns = {
        code: int(np.median(duration[(name == code) & ~is_full])) for code in np.unique(name[~is_full]).tolist()
    }
    for at in np.flatnonzero(is_full & (duration > rules.return_ns)).tolist():
        finish, own_ns = int(start[at] + duration[at]), usual_ns.get(int(name[at]), 0)
        place = int(np.searchsorted(ends, finish, side="right")) - 1
        if place >= 0 and ends[place] > start[at] + own_ns and finish - ends[place] <= rules.return_ns:
            yield int(call[at]), int(by_end[place]), own_ns


def _copies(trace: Trace, device: Device, return_ns: int) -> Iterator[tuple[int, list[int]]]:
    """Copies that return when their device task is done: of pageable memory, or by a call that always waits."""
    if not device.num_tasks:
        return
    is_copy = matching(trace, "Memcpy|memcpy|Copy")[trace.name[device.row]] & (device.call >= 0)
    pageable = matching(trace, "Pageable")[trace.name[device.row]]
    waits = ~matching(trace, "Async")[trace.name[device.call]] & matching(trace, "[Mm]emcpy")[trace.name[device.call]]
    finish = trace.ts[device.call] + trace.dur[device.call]
    inside = (device.end <= finish + TOLERANCE_NS) & (finish - device.end <= return_ns)
    inside &= device.end > trace.ts[device.call]
    for task in np.flatnonzero(is_copy & (pageable | waits) & inside).tolist():
        yield int(device.call[task]), [task]


def _told_waits(trace: Trace, role: NDArray[np.uint8], device: Device) -> Iterator[tuple[int, list[int]]]:
    """Calls and their tasks as `cuda_sync` events tell them."""
    syncs, launched = _Syncs(trace, role, device), _Launched(device, trace.thread)
    for i, name in enumerate(syncs.name):
        if syncs.call[i] < 0:
            continue
        streams, time_ns = [syncs.stream[i]], syncs.time[i]
        if name == "Context Sync":
            streams = syncs.device_streams[i]
        elif name == "Event Sync":
            streams, time_ns = [syncs.awaited_stream[i]], syncs.record_time[i]
        elif name != "Stream Sync":
            continue
        tasks = [launched.before(stream, time_ns) for stream in streams if stream >= 0]
        yield syncs.call[i], [task for task in tasks if task >= 0]


def _inferred_waits(
    trace: Trace, role: NDArray[np.uint8], device: Device, known: set[int], return_ns: int
) -> Iterator[tuple[int, list[int]]]:
    """Calls whose name says that they wait, without `cuda_sync` event, and the tasks that ended just before."""
    calls = np.flatnonzero((role == Role.CALL) & matching(trace, _SYNC_CALL)[trace.name])
    calls = calls[~np.isin(calls, list(known))] if known else calls
    start, finish = trace.ts[calls], trace.ts[calls] + trace.dur[calls]
    order = np.argsort(device.end, kind="stable")
    found = latest_ended(
        device.end[order],
        device.start[order],
        device.launch_ns[order],
        finish + TOLERANCE_NS,
        np.maximum(start + 1, finish - return_ns),
        start,
    )
    launched = _Launched(device, trace.thread)
    all_streams = matching(trace, _DEVICE_CALL)[trace.name[calls]]
    for call, at, place, waits_for_all in zip(calls.tolist(), start.tolist(), found.tolist(), all_streams, strict=True):
        if waits_for_all:
            tasks = [launched.before(stream, at) for stream in range(len(device.streams))]
            yield call, [task for task in tasks if task >= 0]
        else:
            yield call, [int(order[place])] if place >= 0 else []


def _reduced(
    trace: Trace,
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
        start, finish = int(trace.ts[call]), int(trace.ts[call] + trace.dur[call])
        seen = [task for task in tasks if device.end[task] <= finish + TOLERANCE_NS]
        last = max((int(device.end[task]) for task in seen), default=NEVER)
        waited = last > start and (call not in inferred or finish - last <= return_ns)
        if not waited:
            name = int(trace.name[call])
            free_ns[name] = min(free_ns.get(name, finish - start), finish - start)
            own[call] = finish - start
            unexplained += (call in inferred and finish - start > return_ns) or len(seen) < len(tasks)
        lag = max(finish - last, 0) if waited else 0
        pairs += [(task, number, lag) for task in seen]
    for call in tasks_of:
        own.setdefault(call, min(free_ns.get(int(trace.name[call]), 0), int(trace.dur[call])))
    table = np.array(pairs, np.int64).reshape(-1, 3)
    calls = np.array(list(tasks_of), np.int64)
    own_ns = np.array([own[call] for call in tasks_of], np.int64)
    return HostWaits(calls, own_ns, table[:, 0], table[:, 1], table[:, 2], int(unexplained))
