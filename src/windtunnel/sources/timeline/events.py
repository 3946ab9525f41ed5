"""What a reader of timelines fills and this package builds graphs from: events as columns (sources, timeline).

In: what a profiler recorded, whatever its file format. Out: `Events`: times in ns, sizes in bytes, strings as codes.
Not here: the bytes of any format; what follows from the events.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph.meta import ProcessGroup

__all__ = [
    "MISSING",
    "Arrows",
    "Category",
    "CollectiveRecords",
    "Events",
    "MemoryRecords",
    "OperatorRecords",
    "Sparse",
    "Stream",
    "SyncKind",
    "Syncs",
]

# N rows, Y syncs, C collectives, M changes of memory, A arrow ends, K rows that have some argument
MISSING = -(2**63)
"""The value of an integer column where the profiler recorded none."""

Int8s = NDArray[np.int8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Owner = int | str


class Category(IntEnum):
    """What a row is. Rows from ANNOTATION to CALL nest on a host thread; KERNEL and COPY run on a stream."""

    NO_EVENT = 0  # covers no time of a thread or stream, and is skipped
    IGNORED = 1  # covers time, but means nothing here; counted by ``file_category``
    ANNOTATION = 2  # covers other events, and has no work of its own
    MODULE = 3  # an annotation that names a layer
    OPERATOR = 4
    CALL = 5  # a call of the runtime or driver
    KERNEL = 6
    COPY = 7  # a copy or fill of memory by the device
    SYNC = 8  # a note of what a stream or a blocking call waited for; described by a row of `Syncs`
    FRAME = 9  # a function of the user's program; nests on a host thread and only says which line runs


class SyncKind(IntEnum):
    """Who waits for what."""

    STREAM_WAIT = 0  # ``stream`` waits for an event that was recorded on ``awaited_stream``
    EVENT = 1  # a call waits for an event that was recorded on ``awaited_stream``
    STREAM = 2  # a call waits for all that was launched on ``stream``
    DEVICE = 3  # a call waits for all streams of the device of ``stream``
    OTHER = 4


class Stream(NamedTuple):
    """A queue of a device.

    ``device`` and ``number`` are as the file names them, empty where it does not. ``thread`` is the code of the thread
    that device tasks without the one or the other lie on, -1 for none.
    """

    device: str
    number: str
    thread: int = -1


class Sparse(NamedTuple):
    """An argument that few events have: rows [K], ascending, and their values."""

    row: Int32s
    value: Int64s

    def column(self, num_rows: int) -> Int64s:
        """The values as a column [N], MISSING elsewhere."""
        column = np.full(num_rows, MISSING, np.int64)
        column[self.row] = self.value
        return column


@dataclass(frozen=True, slots=True, eq=False)
class Syncs:
    """Notes of waits [Y]: one for each row of category SYNC, in the order of the rows.

    ``kind`` is a `SyncKind`. ``awaited_stream`` is a code into ``Events.streams``, -1 for none. ``record_correlation``
    is the correlation id of the call that recorded the awaited event, MISSING where it was not recorded: then the wait
    is for what was launched before it.
    """

    kind: Int8s
    awaited_stream: Int32s
    record_correlation: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveRecords:
    """What rows say of the collective or message that they issue or run [C].

    ``row`` is an operator, call or device task; what an operator says holds for all that it launches. ``name`` is a
    code into ``names``, ``group`` into ``groups`` or -1. ``message_bytes`` is 0 and ``sequence`` (the number of the
    collective in its group) -1 where unknown. ``peer`` is the other rank of a message, or -1.
    """

    row: Int32s
    name: Int32s
    message_bytes: Int64s
    sequence: Int64s
    group: Int32s
    peer: Int32s
    names: tuple[str, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRecords:
    """Changes of allocated memory [M] by a thread: ``change_bytes`` at ``address``, negative when memory is freed.

    ``total_bytes`` is what is allocated after the change, or MISSING; ``on_device`` tells accelerator and host apart.
    """

    time_ns: Int64s
    thread: Int32s
    change_bytes: Int64s
    total_bytes: Int64s
    address: Int64s
    on_device: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Arrows:
    """Ends [A] of arrows from forward to backward operators: an operator's start on a thread.

    Two ends with one ``id`` make an arrow. They are used where no event has a sequence number.
    """

    time_ns: Int64s
    thread: Int32s
    id: Int64s
    is_head: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class OperatorRecords:
    """What operators were called with [O], and who reads what whom wrote [F].

    ``row`` is an operator's row, ascending. ``schema``, ``shapes``, ``dtypes``, ``strides`` and ``arguments`` are codes
    into ``texts``: JSON as in the graph's columns ``op_schema`` to ``input_args``. ``flops``, ``bytes_read`` and
    ``bytes_written`` are the operator's work, ``node`` its id in an execution trace or -1. ``computes`` is 1 where the
    operator computes itself, 0 where it does not, and -1 where that is not known.

    ``source`` and ``target`` are positions in this table: the target reads ``size_bytes`` that the source wrote; or it
    overwrites what the source reads, where ``size_bytes`` is -1.
    """

    row: Int32s
    schema: Int32s
    shapes: Int32s
    dtypes: Int32s
    strides: Int32s
    arguments: Int32s
    flops: Int64s
    bytes_read: Int64s
    bytes_written: Int64s
    node: Int64s
    computes: Int8s
    source: Int32s
    target: Int32s
    size_bytes: Int64s
    texts: tuple[str, ...] = ("",)

    @classmethod
    def empty(cls) -> Self:
        """No records."""
        ints, longs = np.empty(0, np.int32), np.empty(0, np.int64)
        return cls(*(ints,) * 6, *(longs,) * 4, np.empty(0, np.int8), ints, ints, longs)

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """The events of one process or rank, in any order.

    Attributes
    ----------
    path, source : str
        The file, for messages; the format, for ``meta["source"]`` of the graph.
    category : uint8 [N]
        A `Category`.
    start_ns, duration_ns : int64 [N]
        On one clock for host and devices, which counts from ``base_ns``; of any value in rows that are no event.
    name : int32 [N]
        Code into ``names``, of which the first is empty (no name) and others may be of no event.
    thread : int32 [N]
        Code into ``threads``, (process, thread) pairs.
    stream : int32 [N]
        Code into ``streams``; every device task has one, a sync may, and other rows have -1.
    correlation : int64 [N]
        Id that a call shares with what it launches and with the note of its wait, or MISSING.
    external_id : int64 [N]
        Id that an operator shares with what it launches, for devices without correlation ids; or MISSING.
    index : int32 [N]
        Position in the file, for messages and for the graph's column ``event``.
    file_category : int32 [N]
        What the file calls the category, as a code into ``names``: in counts of what was ignored.
    sequence_number : Sparse
        Autograd's number of an operator: a backward operator has that of its forward operator; negative for none.
    layer : Sparse
        Code into ``layers`` of operators for which the file itself names the layer.
    frame : Sparse
        Code into ``lines`` (FILE:NUMBER) of rows of category FRAME, and of operators whose line is known.
    call : Sparse
        Row of the captured program's calls that an operator, or a node of autograd, belongs to.
    repeated : int32 [R]
        Rows of operators of the forward pass that a checkpoint runs again in the backward pass.
    syncs, collectives, memory, arrows, operators
        Tables of what only some rows have, see there.
    counts : dict
        What is in the file, by kind, for ``meta["trace"]`` of the graph.
    rank : int, optional
        The rank that the file says it is of.
    base_ns : int
        What the clock's zero is since the epoch.
    devices : list
        What the file says about the devices.
    distributed : dict, optional
        What the file says about the job's ranks.
    is_partial : bool
        The file was cut, and these are the events before the cut.
    """

    path: str
    source: str
    category: NDArray[np.uint8]
    start_ns: Int64s
    duration_ns: Int64s
    name: Int32s
    thread: Int32s
    stream: Int32s
    correlation: Int64s
    external_id: Int64s
    index: Int32s
    file_category: Int32s
    sequence_number: Sparse
    layer: Sparse
    syncs: Syncs
    collectives: CollectiveRecords
    memory: MemoryRecords
    arrows: Arrows
    frame: Sparse
    call: Sparse
    repeated: Int32s
    operators: OperatorRecords
    names: tuple[str, ...]
    threads: tuple[tuple[Owner, Owner], ...]
    streams: tuple[Stream, ...] = ()
    layers: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    rank: int | None = None
    base_ns: int = 0
    devices: list[Any] = field(default_factory=list)
    distributed: dict[str, Any] | None = None
    is_partial: bool = False

    @classmethod
    def of(cls, category: Any, start_ns: Any, duration_ns: Any, name: Any, names: tuple[str, ...], **more: Any) -> Self:
        """Events with the columns that a source has; the others say that nothing was recorded."""
        num = len(name)
        ints, longs, flags = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.bool_)
        columns: dict[str, Any] = {
            "path": "",
            "source": "",
            "thread": np.zeros(num, np.int32),
            "stream": np.full(num, -1, np.int32),
            "correlation": np.full(num, MISSING, np.int64),
            "external_id": np.full(num, MISSING, np.int64),
            "index": np.arange(num, dtype=np.int32),
            "file_category": np.zeros(num, np.int32),
            "sequence_number": Sparse(ints, longs),
            "layer": Sparse(ints, longs),
            "syncs": Syncs(np.empty(0, np.int8), ints, longs),
            "collectives": CollectiveRecords(ints, ints, longs, longs, ints, ints),
            "memory": MemoryRecords(longs, ints, longs, longs, longs, flags),
            "arrows": Arrows(longs, ints, longs, flags),
            "frame": Sparse(ints, longs),
            "call": Sparse(ints, longs),
            "repeated": ints,
            "operators": OperatorRecords.empty(),
            "threads": ((0, 0),),
        }
        return cls(
            category=np.asarray(category, np.uint8),
            start_ns=np.asarray(start_ns, np.int64),
            duration_ns=np.asarray(duration_ns, np.int64),
            name=np.asarray(name, np.int32),
            names=names,
            **(columns | more),
        )

    @property
    def num_rows(self) -> int:
        """Number of rows, those without meaning included."""
        return len(self.name)

    @property
    def is_device(self) -> NDArray[np.bool_]:
        """Whether each row [N] is a task of a device."""
        is_device: NDArray[np.bool_] = (self.category == Category.KERNEL) | (self.category == Category.COPY)
        return is_device

    def without_numbers(self) -> Events:
        """The events with names and threads only, for when their times and arguments were read."""
        nothing = np.empty(0, np.int64)
        gone = ("category", "start_ns", "duration_ns", "stream", "correlation", "external_id", "file_category")
        emptied: dict[str, Any] = dict.fromkeys(gone, nothing)
        tables = {"sequence_number", "layer", "syncs", "collectives", "memory", "arrows", "frame", "call", "repeated"}
        bare = type(self).of(nothing, nothing, nothing, nothing, ())
        return replace(self, **emptied, **{table: getattr(bare, table) for table in tables})
