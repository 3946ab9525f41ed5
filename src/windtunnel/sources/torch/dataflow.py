"""Who reads what whom wrote.

In: the operators of one iteration with the spans of storage that they touch. Out: edges from the last writer of a
span to its readers (DATA), from readers to the next in-place writer (CONTROL), and the bytes that each task moves.
Nothing is guessed from order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from windtunnel.sources.torch.ops import Operator, Role, Span
from windtunnel.sources.torch.timeline_points import Points

__all__ = ["Flow", "follow", "trace_flow"]

Access = tuple[int, int, int]  # low, high, slice


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
