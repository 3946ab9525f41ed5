"""Who reads what whom wrote, and which task allocates, keeps and frees how much.

In: the operators of one iteration with the spans of storage that they touch, and the allocator's events. Out: edges
from the last writer of a span to its readers (DATA), from readers to the next in-place writer (CONTROL), the bytes that
each task moves; bytes per slice: kept by its result, needed only while it runs, freed. Nothing is guessed from
order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.torch.kernels import COMPILED
from windtunnel.sources.torch.ops import Operator, Role, Span
from windtunnel.sources.torch.profile import Events
from windtunnel.sources.torch.timeline_points import Points

__all__ = ["Flow", "MemoryUse", "account", "follow", "trace_flow"]

Access = tuple[int, int, int]  # low, high, slice
Int = NDArray[np.int64]


@dataclass
class Flow:
    """Edges between slices, and what each slice moves."""

    data: dict[tuple[int, int], int] = field(default_factory=dict)  # (writer, reader) -> bytes
    control: set[tuple[int, int]] = field(default_factory=set)
    bytes_read: dict[int, int] = field(default_factory=dict)
    bytes_written: dict[int, int] = field(default_factory=dict)
    first_writer: dict[tuple[int, int], int] = field(default_factory=dict)  # (storage, allocation slice) -> slice


@dataclass
class _Storage:
    writers: list[Access] = field(default_factory=list)
    readers: list[Access] = field(default_factory=list)
    allocated_by: int = -1


class _Tracker:
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.storages: dict[int, _Storage] = defaultdict(_Storage)

    def read(self, span: Span, reader: int) -> None:
        storage = self.storages[span.storage]
        for low, high, writer in storage.writers:
            overlap = min(high, span.high) - max(low, span.low)
            if overlap > 0 and writer != reader:
                key = (writer, reader)
                self.flow.data[key] = max(self.flow.data.get(key, 0), min(overlap, span.num_bytes))
        storage.readers.append((span.low, span.high, reader))

    def write(self, span: Span, writer: int, *, entered: int, in_place: bool) -> None:
        storage = self.storages[span.storage]
        if storage.allocated_by >= 0:
            self.flow.first_writer.setdefault((span.storage, storage.allocated_by), writer)
        for low, high, earlier in storage.writers:
            if earlier >= entered and low < span.high and high > span.low:  # an operator called by this one wrote it
                if earlier > writer:
                    return
                if earlier < writer:
                    self.flow.data.setdefault((earlier, writer), span.num_bytes)
        if in_place:
            self.flow.control |= {
                (reader, writer)
                for low, high, reader in storage.readers
                if low < span.high and high > span.low and reader < writer
            }
        else:  # a fresh result: what lay in this storage before the call is another, freed tensor
            storage.writers = [access for access in storage.writers if access[2] >= entered]
            storage.readers = [access for access in storage.readers if access[2] >= entered]
        storage.writers = [part for access in storage.writers for part in _left_of(access, span)]
        storage.readers = [part for access in storage.readers for part in _left_of(access, span)]
        storage.writers.append((span.low, span.high, writer))

    def allocate(self, span: Span, by: int) -> None:
        self.storages[span.storage] = _Storage(allocated_by=by)


def _left_of(access: Access, span: Span) -> list[Access]:
    """What a write leaves of an earlier access; one with gaps leaves all that it does not reach over."""
    low, high, by = access
    if span.high <= low or high <= span.low:
        return [access]
    if span.num_bytes < span.high - span.low:
        return [] if span.low <= low and high <= span.high else [access]
    return [(first, last, by) for first, last in ((low, span.low), (span.high, high)) if first < last]


def trace_flow(points: Points, operators: list[Operator], main_slice: list[int]) -> Flow:
    """Follow one thread's operators (one per event of ``points``); ``main_slice`` [E] is where the own work lies."""
    flow = Flow()
    tracker = _Tracker(flow)
    is_enter = {int(point): event for event, point in enumerate(points.enter)}
    is_leave = {int(point): event for event, point in enumerate(points.leave)}
    for point in range(len(points.times_ns)):
        if point in is_enter:
            _enter(tracker, operators[is_enter[point]], main_slice[is_enter[point]])
        else:
            event = is_leave[point]
            _leave(tracker, operators[event], main_slice[event], int(points.enter[event]))
    return flow


def follow(operators: Iterable[Operator], tasks: Iterable[int]) -> Flow:
    """Follow operators that call no others, in the order of their calls; ``tasks`` says where the work of each lies."""
    flow = Flow()
    tracker = _Tracker(flow)
    for operator, task in zip(operators, tasks, strict=True):
        _enter(tracker, operator, task)
        _leave(tracker, operator, task, task)
    return flow


def _enter(tracker: _Tracker, operator: Operator, task: int) -> None:
    if operator.role in (Role.COMPUTE, Role.READ):
        for span in operator.reads:
            tracker.read(span, task)
        tracker.flow.bytes_read[task] = sum({span: span.num_bytes for span in operator.reads}.values())


def _leave(tracker: _Tracker, operator: Operator, task: int, entered: int) -> None:
    if operator.role is Role.ALLOCATE:
        for span in operator.writes:
            tracker.allocate(span, task)
    elif operator.role is Role.COMPUTE:
        for span in operator.mutates:
            tracker.write(span, task, entered=entered, in_place=True)
        for span in operator.writes:
            tracker.write(span, task, entered=entered, in_place=False)
        written = {span: span.num_bytes for span in (*operator.mutates, *operator.writes)}
        tracker.flow.bytes_written[task] = sum(written.values())


@dataclass
class MemoryUse:
    """Bytes per slice, int64 [P - 1] each."""

    output: Int
    workspace: Int
    freed: Int


@dataclass(frozen=True, slots=True)
class _Block:
    task: int
    operator: int  # event of the operator that computes, -1 outside of any
    num_bytes: int


def account(
    events: Events,
    points: Points,
    operators: list[Operator],
    main_slice: list[int],
    flow: Flow,
    thread: int,
    names: list[str],
) -> MemoryUse:
    """Lay the allocator's events of one thread over its slices."""
    use = MemoryUse(*(np.zeros(points.num_slices, dtype=np.int64) for _ in range(3)))
    if len(events.memory_address) != len(events.memory_ns):
        return use
    local = (events.memory_thread == thread) & (events.memory_ns >= points.times_ns[0])
    local &= events.memory_ns < points.times_ns[-1]
    compiled = _CompiledBuffers(points, operators, main_slice, names)
    live: dict[int, _Block] = {}
    held: dict[int, int] = {}  # operator -> bytes of its own that it holds now
    for row in np.flatnonzero(local).tolist():
        place = int(np.searchsorted(points.times_ns, events.memory_ns[row], side="right")) - 1
        place = min(max(place, 0), points.num_slices - 1)
        num_bytes, address = int(events.memory_bytes[row]), int(events.memory_address[row])
        if num_bytes > 0:
            block = compiled.block(place, num_bytes)
            block = block or _assign_allocation(points, operators, main_slice, flow, place, num_bytes)
            live[address] = block
            use.output[block.task] += num_bytes
            held[block.operator] = held.get(block.operator, 0) + num_bytes
        else:
            _free(use, points, live.pop(address, None), held, place, -num_bytes)
    return use


class _CompiledBuffers:
    """Finds who fills a buffer that compiled code has made: the first operator behind that writes a storage so large.

    Such code makes its buffers without an operator that could name their storage.
    """

    def __init__(self, points: Points, operators: list[Operator], main_slice: list[int], names: list[str]) -> None:
        self._points = points
        self._region = [event if name.startswith(COMPILED) else -1 for event, name in enumerate(names)]
        self._writes: dict[int, list[tuple[int, int, int]]] = {}  # region -> (slice, size, event), in order
        for event, parent in enumerate(points.parent.tolist()):
            if self._region[event] < 0 and parent >= 0:
                self._region[event] = self._region[parent]
            if self._region[event] >= 0 and operators[event].role is Role.COMPUTE:
                sizes = {span.storage: span.high for span in (*operators[event].mutates, *operators[event].writes)}
                rows = self._writes.setdefault(self._region[event], [])
                rows += [(main_slice[event], size, event) for size in sizes.values()]

    def block(self, place: int, num_bytes: int) -> _Block | None:
        """Whose block one is that is made in this slice; None where it belongs to no compiled code itself."""
        event = int(self._points.owner[place])
        if event < 0 or self._region[event] != event:
            return None
        for row in self._writes.get(event, []):
            if row[0] >= place and row[1] == num_bytes:
                self._writes[event].remove(row)
                return _Block(row[0], -1, num_bytes)
        return None


def _assign_allocation(
    points: Points, operators: list[Operator], main_slice: list[int], flow: Flow, index: int, num_bytes: int
) -> _Block:
    """Memory belongs to the operator that computes around it, or to the first that writes into it."""
    event = int(points.owner[index])
    allocator = event
    while event >= 0 and operators[event].role is not Role.COMPUTE:
        event = int(points.parent[event])
    if event >= 0:
        return _Block(main_slice[event], event, num_bytes)
    if allocator >= 0:
        for span in operators[allocator].writes:
            key = (span.storage, main_slice[allocator])
            if key in flow.first_writer:
                return _Block(flow.first_writer[key], -1, num_bytes)
    return _Block(index, -1, num_bytes)


def _free(
    use: MemoryUse, points: Points, block: _Block | None, held: dict[int, int], place: int, num_bytes: int
) -> None:
    if block is not None and block.operator >= 0 and place < points.leave[block.operator]:
        # came and went inside of one operator
        use.workspace[block.task] = max(int(use.workspace[block.task]), held[block.operator])
        held[block.operator] -= num_bytes
        use.output[block.task] -= num_bytes
        return
    use.freed[place] += num_bytes
