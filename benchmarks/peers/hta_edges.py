"""Nodes and edges of the critical-path graph of HolisticTraceAnalysis (benchmarks).

In: a `Trace`, a window. Out: edges between starts and ends of events, in the order in which that tool makes them.
Not here: the path (`hta`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from windtunnel.errors import TraceError
from windtunnel.sources.kineto.events import to_events
from windtunnel.sources.kineto.trace import COMPLETE, Trace
from windtunnel.sources.timeline.events import MISSING
from windtunnel.sources.timeline.recorded import times_of

__all__ = ["DEVICE", "Events", "Node", "all_edges"]

_ANNOTATIONS = ("user_annotation", "gpu_user_annotation")
_HOST = frozenset({"cpu_op", "cuda_runtime", "cuda_driver"})
DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"})
_LOCKED = frozenset({"cudaHostAlloc", "cudaLaunchKernel", "cudaMemcpyAsync"})
_BLOCKING = frozenset(
    {
        *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventQuery", "cudaEventSynchronize"),
        *("cudaMemcpy", "cudaMemcpyAsync"),
    }
)
_LONGEST_KERNEL_GAP_NS = 1_500_000

Node = tuple[int, int]  # (position of the event, 0 start or 1 end)


class Events:
    """The complete events of a trace as lists, and which of them the window keeps."""

    def __init__(self, trace: Trace, window: str, occurrence: int | None) -> None:
        rows = np.flatnonzero(trace.letter == COMPLETE)
        self.path = trace.path
        self.index = trace.index[rows].tolist()
        self.name = [trace.strings[code] for code in trace.name[rows].tolist()]
        self.cat = [trace.strings[code] for code in trace.cat[rows].tolist()]
        times = times_of(to_events(trace), in_whole_us=True)
        self.start = times.start[rows].tolist()
        self.end = times.end[rows].tolist()
        self.thread = trace.thread[rows].tolist()
        self.correlation = trace.correlation[rows].tolist()
        self.stream = trace.argument("stream")[rows].tolist()
        self.awaited_stream = trace.argument("wait_on_stream")[rows].tolist()
        self.awaited_record = trace.argument("wait_on_cuda_event_record_corr_id")[rows].tolist()
        self.call_of = {
            self.correlation[i]: i
            for i, cat in enumerate(self.cat)
            if cat in _HOST and cat != "cpu_op" and self.correlation[i] != MISSING
        }
        self.device = [i for i, cat in enumerate(self.cat) if cat in DEVICE]
        self.begin, self.finish = self._interval(window, occurrence)
        self.kept_host = [i for i in range(len(self.cat)) if self._keeps(i, whole=not window)]
        kept = set(self.kept_host)
        self.kept_device = [i for i in self.device if self.call(i) in kept or self.name[i] == "Stream Wait Event"]
        host_nodes = [i for i in self.kept_host if self.cat[i] in _HOST]
        device_nodes = [i for i in self.kept_device if self.call(i) is not None and self.stream[i] >= 0]
        self.with_nodes = {*host_nodes, *device_nodes}

    def call(self, event: int) -> int | None:
        """The runtime call that launched a device event."""
        return self.call_of.get(self.correlation[event])

    def time(self, node: Node) -> int:
        return int(self.end[node[0]] if node[1] else self.start[node[0]])

    def _keeps(self, event: int, whole: bool) -> bool:
        on_host = self.cat[event] not in DEVICE and self.cat[event] not in ("Trace", "gpu_user_annotation")
        inside = whole or self.begin <= self.start[event] <= self.finish
        return on_host and inside and self.end[event] > self.start[event]

    def _interval(self, window: str, occurrence: int | None) -> tuple[int, int]:
        found = [i for i, cat in enumerate(self.cat) if cat in _ANNOTATIONS and window in self.name[i]]
        if not window:
            return min(self.start, default=0), max(self.end, default=0)
        chosen = found if occurrence is None else found[occurrence : occurrence + 1]
        if not chosen:
            raise TraceError(
                f"no annotation {window!r} number {occurrence or 0}",
                where=f"{self.path}: {len(found)} annotations have that text in their name",
                fix="name one of: "
                + ", ".join(sorted({self.name[i] for i, c in enumerate(self.cat) if c == "user_annotation"})[:8]),
            )
        return min(self.start[i] for i in chosen), max(self.end[i] for i in chosen)


Edge = tuple[Node, Node, str, int]


def all_edges(events: Events, zero_weight_launch_edges: bool) -> Iterator[Edge]:
    yield from _lock_edges(events)
    for thread in _threads(events):
        yield from _thread_edges(events, thread)
    yield from _device_edges(events, zero_weight_launch_edges)


def _is_locked(events: Events, node: Node) -> bool:
    return events.name[node[0]] in _LOCKED


def _lock_edges(events: Events) -> Iterator[Edge]:
    """Calls that take the runtime's lock on several threads end one after the other."""
    nodes = [(i, side) for i in events.with_nodes if events.name[i] in _LOCKED for side in (0, 1)]
    nodes.sort(key=lambda node: (events.time(node), events.index[node[0]], node[1]))
    open_starts: list[Node] = []
    previous: Node | None = None
    for node in nodes:
        if node[1] == 0:
            open_starts.append(node)
        else:
            while open_starts:
                start = open_starts.pop()
                own = start[0] == node[0]
                yield (
                    start,
                    node,
                    "operator" if own else "dependency",
                    events.time(node) - events.time(start) if own else 0,
                )
            if previous is not None and previous[1] == 1:
                yield previous, node, "dependency", 0
        previous = node


def _threads(events: Events) -> list[list[int]]:
    """Events of each thread by start, the longer first; the autograd thread joins the forward thread."""
    threads: dict[int, list[int]] = {}
    for event in events.kept_host:
        threads.setdefault(events.thread[event], []).append(event)

    def holding(word: str) -> list[int]:
        return [thread for thread, members in threads.items() if any(word in events.name[i] for i in members)]

    backward, forward = holding("autograd"), holding("forward")
    if len(backward) == 1 and len(forward) == 1 and backward != forward:
        threads[forward[0]] += threads.pop(backward[0])
    for members in threads.values():
        members.sort(key=lambda i: (events.start[i], -events.end[i], events.index[i]))
    return list(threads.values())


def _walk(events: Events, thread: list[int]) -> Iterator[Node]:
    """Starts and ends of a thread's nested events in the order in which they happen."""
    stack: list[int] = []
    for event in thread:
        while stack and events.end[stack[-1]] <= events.start[event]:
            yield stack.pop(), 1
        yield event, 0
        stack.append(event)
    while stack:
        yield stack.pop(), 1


def _thread_edges(events: Events, thread: list[int]) -> Iterator[Edge]:
    last: Node | None = None
    depth = 0
    for node in _walk(events, thread):
        event, side = node
        if event not in events.with_nodes:
            continue
        may_join = last is not None and (
            not (_is_locked(events, last) and _is_locked(events, node)) or (last[1] == 1 and side == 0)
        )
        if may_join and last is not None:
            is_free = (depth == 0 and side == 0) or (side == 1 and events.name[event] in _BLOCKING)
            kind = "dependency" if depth == 0 and side == 0 else "operator"
            yield last, node, kind, 0 if is_free else events.time(node) - events.time(last)
        depth += 1 if side == 0 else -1
        last = node


class _Launches:
    """Device events by the time of their launch, and which of them wait for which."""

    def __init__(self, events: Events) -> None:
        self.events = events
        launched = [(k, events.call(k)) for k in events.device if events.cat[k] != "cuda_sync"]
        self.pairs = sorted(
            ((call, k) for k, call in launched if call is not None), key=lambda pair: (events.start[pair[0]], *pair)
        )
        self.queue = self._queue_lengths()
        self.waits = dict(self._stream_waits())

    def _queue_lengths(self) -> dict[int, int]:
        """Launched but not begun, per stream, just after each launch call and each device event's start."""
        events = self.events
        changes = [
            (events.stream[k], events.start[i], events.index[i], i, step)
            for c, k in self.pairs
            for i, step in ((c, 1), (k, -1))
        ]
        running: Counter[int] = Counter()
        queue = {}
        for stream, _, _, event, step in sorted(changes):
            running[stream] += step
            queue[event] = running[stream]
        return queue

    def before_record(self, record: int, stream: int) -> int | None:
        """The device event launched last on a stream before the record call with this correlation."""
        call = self.events.call_of.get(record)
        if call is None:
            return None
        earlier = [
            k
            for c, k in self.pairs
            if self.events.start[c] < self.events.start[call] and self.events.stream[k] == stream
        ]
        return earlier[-1] if earlier else None

    def _stream_waits(self) -> Iterator[tuple[int, int]]:
        events = self.events
        for wait in events.kept_device:
            call = events.call(wait)
            if events.name[wait] != "Stream Wait Event" or call is None:
                continue
            awaited = self.before_record(events.awaited_record[wait], events.awaited_stream[wait])
            later = (
                k
                for c, k in self.pairs
                if events.start[c] >= events.start[call]
                and events.stream[k] == events.stream[wait]
                and events.thread[c] == events.thread[call]
            )
            waiting = next(later, None)
            if awaited is not None and waiting is not None:
                yield waiting, awaited


def _device_edges(events: Events, zero_weight_launch_edges: bool) -> Iterator[Edge]:
    launches = _Launches(events)
    last: dict[int, Node] = {}

    def visit_time(k: int) -> tuple[int, int]:
        return (events.end[k] if events.cat[k] == "cuda_sync" else events.start[k]), events.index[k]

    for k in sorted(events.kept_device, key=visit_time):
        if events.cat[k] == "cuda_sync":
            yield from _sync_edges(events, launches, last, k)
        elif k in events.with_nodes:
            yield from _kernel_edges(events, launches, last.get(events.stream[k]), k, zero_weight_launch_edges)
            last[events.stream[k]] = (k, 1)


def _kernel_edges(events: Events, launches: _Launches, last: Node | None, k: int, zero_weight: bool) -> Iterator[Edge]:
    call = events.call(k)
    assert call is not None
    start, end, launch = (k, 0), (k, 1), (call, 0)
    awaited = launches.waits.get(k)
    wait = (awaited, 1) if awaited in events.with_nodes else None
    yield start, end, "operator", events.time(end) - events.time(start)
    if wait is not None:
        yield wait, start, "sync", 0
    wait_ns = None if wait is None else events.time(wait)
    call_ns, last_ns = events.time(launch), None if last is None else events.time(last)
    is_idle = launches.queue[call] == 1 and launches.queue[k] == 0
    if is_idle and (last_ns is None or last_ns < call_ns) and (wait_ns is None or wait_ns < call_ns):
        yield launch, start, "launch", events.time(start) - call_ns
        return
    if (
        last is not None
        and last_ns is not None
        and events.time(start) - last_ns < _LONGEST_KERNEL_GAP_NS
        and (wait_ns is None or wait_ns < last_ns)
    ):
        yield last, start, "kernel-kernel", events.time(start) - last_ns
    if zero_weight:
        yield launch, start, "launch", 0


def _sync_edges(events: Events, launches: _Launches, last: dict[int, Node], sync: int) -> Iterator[Edge]:
    call = events.call(sync)
    if call not in events.with_nodes or call is None:
        return
    sources: Iterable[Node] = ()
    if events.name[sync] == "Stream Sync":
        sources = [last[events.stream[sync]]] if events.stream[sync] in last else []
    elif events.name[sync] == "Context Sync":
        sources = list(last.values())
    elif events.name[sync] == "Event Sync":
        awaited = launches.before_record(events.awaited_record[sync], events.awaited_stream[sync])
        sources = [(awaited, 1)] if awaited is not None and awaited in events.with_nodes else []
    for source in sources:
        yield source, (call, 1), "sync", 0
