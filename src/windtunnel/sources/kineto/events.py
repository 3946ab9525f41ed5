"""A Kineto trace as the events of a timeline (sources, Kineto).

In: a `Trace`. Out: `Events`: categories, streams, notes of waits, collectives, memory, autograd's numbers. Here is all
that is known of Kineto's arguments. Not here: bytes (``trace``), what follows from the events (``sources.timeline``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.graph.kernel_classes import collective_of
from windtunnel.graph.meta import ProcessGroup
from windtunnel.sources.kineto.operators import find_operators
from windtunnel.sources.kineto.roles import find_categories, find_frames
from windtunnel.sources.kineto.trace import Trace, is_string, read_trace
from windtunnel.sources.timeline.events import (
    MISSING,
    Arrows,
    Category,
    CollectiveRecords,
    Events,
    MemoryRecords,
    Sparse,
    Stream,
    SyncKind,
    Syncs,
)
from windtunnel.sources.timeline.names import matching

__all__ = ["read_events", "to_events"]

# N rows, Y syncs, C collectives, M changes of memory
Int64s = NDArray[np.int64]
_SYNC_KINDS = {
    "Stream Wait Event": SyncKind.STREAM_WAIT,
    "Event Sync": SyncKind.EVENT,
    "Stream Sync": SyncKind.STREAM,
    "Context Sync": SyncKind.DEVICE,
}
_DTYPES = {
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2", "uint8", "int8"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16"), 2),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("double", "long", "float64", "int64", "complexfloat"), 8),
}


def read_events(
    path: str | Path, *, partial: bool = False, read_limit: int | None = None, progress: Progress | None = None
) -> Events:
    """Read the events of a Kineto trace; parameters and errors are those of `read_trace`."""
    return to_events(read_trace(path, partial=partial, read_limit=read_limit, progress=progress))


def to_events(trace: Trace) -> Events:
    """Say what a trace holds in the terms of a timeline."""
    category = find_categories(trace)
    frame, lines = find_frames(trace)
    category[frame.row] = Category.FRAME
    stream, awaited_stream, streams = _find_streams(trace, category)
    layer, layers = _find_layers(trace)
    info, host, base = (trace.meta.get(key) for key in ("distributedInfo", "host_name", "baseTimeNanoseconds"))
    named_host = {"host_name": host} if isinstance(host, str) else {}
    return Events(
        path=trace.path,
        source="kineto",
        category=category,
        start_ns=trace.ts,
        duration_ns=trace.dur,
        name=trace.name,
        thread=trace.thread,
        stream=stream,
        correlation=trace.correlation,
        external_id=trace.external_id,
        index=trace.index,
        file_category=trace.cat,
        sequence_number=Sparse(*trace.rare("Sequence number")),
        layer=layer,
        syncs=_find_syncs(trace, category, awaited_stream),
        collectives=_find_collectives(trace),
        memory=_find_memory(trace),
        arrows=_find_arrows(trace),
        frame=frame,
        call=Sparse(np.empty(0, np.int32), np.empty(0, np.int64)),
        repeated=np.empty(0, np.int32),
        operators=find_operators(trace, category),
        names=trace.strings,
        threads=trace.threads,
        streams=streams,
        layers=layers,
        lines=lines,
        counts=trace.counts,
        rank=_rank(info),
        base_ns=base if isinstance(base, int) and abs(base) < 2**62 else 0,
        devices=_devices(trace.meta.get("deviceProperties")),
        distributed=named_host | info if isinstance(info, dict) else None,
        is_partial=bool(trace.meta.get("partial")),
    )


def _devices(entries: Any) -> list[Any]:
    """What a trace says about its devices; entries that name none, or have no number for a size, are left out."""
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return [
        entry
        for entry in known
        if isinstance(entry.get("name", ""), str) and isinstance(entry.get("totalGlobalMem", 0), int)
    ]


def _values(trace: Trace, key: str, rows: NDArray[np.integer]) -> Int64s:
    """The argument `key` of some rows, MISSING where an event lacks it."""
    return trace.argument(key)[rows] if len(rows) else np.empty(0, np.int64)


def _rank(info: Any) -> int | None:
    """The rank that a trace says it is of."""
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 2**31 else None


def _find_streams(
    trace: Trace, category: NDArray[np.uint8]
) -> tuple[NDArray[np.int32], NDArray[np.int32], tuple[Stream, ...]]:
    """Stream of each row [N], awaited stream of each sync [Y], and the streams."""
    is_task = (category == Category.KERNEL) | (category == Category.COPY)
    rows, syncs = np.flatnonzero(is_task | (category == Category.SYNC)), np.flatnonzero(category == Category.SYNC)
    device, number = trace.argument("device"), _stream_numbers(trace)
    is_unnamed = is_task & ((number == MISSING) | (device == MISSING))
    thread = np.where(is_unnamed, trace.thread, -1).astype(np.int64)
    awaited = np.stack([device[syncs], _values(trace, "wait_on_stream", syncs), np.full(len(syncs), -1)])
    keys = np.concatenate([np.stack([device[rows], number[rows], thread[rows]]), awaited], axis=1)
    result, inverse = np.unique(keys, axis=1, return_inverse=True)
    codes = inverse.reshape(-1).astype(np.int32)
    stream = np.full(trace.num_rows, -1, np.int32)
    stream[rows] = codes[: len(rows)]

    def text(value: int) -> str:
        return "" if value == MISSING else trace.text(value)

    streams = tuple(Stream(text(device), text(number), thread) for device, number, thread in result.T.tolist())
    return stream, codes[len(rows) :], streams


def _stream_numbers(trace: Trace) -> Int64s:
    """The argument `stream` of every row [N], as an integer also where it is text such as "0x0"."""
    stream = trace.argument("stream")
    for value in np.unique(trace.rare("stream")[1]):
        text = trace.text(int(value)) if is_string(int(value)) else ""
        if text.startswith("0x"):
            try:
                stream[stream == value] = int(text, 16) % 2**61
            except ValueError:
                continue
    return stream


def _find_layers(trace: Trace) -> tuple[Sparse, tuple[str, ...]]:
    """Layers that operators of old profilers name."""
    rows, values = trace.rare("Module Hierarchy")
    strings = {value: trace.text(value) for value in np.unique(values).tolist() if is_string(value)}
    codes = {value: code for code, value in enumerate(value for value, text in strings.items() if text)}
    layer = np.array([codes.get(value, -1) for value in values.tolist()], np.int64)
    return Sparse(rows[layer >= 0], layer[layer >= 0]), tuple(strings[value] for value in codes)


def _find_syncs(trace: Trace, category: NDArray[np.uint8], awaited_stream: NDArray[np.int32]) -> Syncs:
    """Notes of waits: the events of category `cuda_sync`."""
    rows = np.flatnonzero(category == Category.SYNC)
    kinds = [_SYNC_KINDS.get(trace.strings[code], SyncKind.OTHER) for code in trace.name[rows].tolist()]
    return Syncs(np.array(kinds, np.int8), awaited_stream, _values(trace, "wait_on_cuda_event_record_corr_id", rows))


def _find_collectives(trace: Trace) -> CollectiveRecords:
    """What the arguments of `record_param_comms` and of kernels say of collectives."""
    row, reported = trace.rare("Collective name")
    names_of = {value: collective_of(trace.text(value), is_collective=True) for value in np.unique(reported).tolist()}
    names = tuple(dict.fromkeys(names_of.values()))
    name = np.array([names.index(names_of[value]) for value in reported.tolist()], np.int32)
    size = np.maximum(_values(trace, "In msg nelems", row), _values(trace, "Out msg nelems", row))
    group, groups = _find_groups(trace, row)
    is_send = np.array([text == "send" for text in names], bool)[name]
    return CollectiveRecords(
        row=row,
        name=name,
        message_bytes=np.maximum(size, 0) * _dtype_bytes(trace, _values(trace, "dtype", row)),
        sequence=np.maximum(_values(trace, "Seq", row), -1),
        group=group,
        peer=np.array(_peers(trace, row, is_send, group, groups), np.int32),
        names=names,
        groups=groups,
    )


def _dtype_bytes(trace: Trace, values: Int64s) -> Int64s:
    """Bytes of one element for `dtype` arguments [R]; 0 where it is not known."""
    size = {int(v): _DTYPES.get(trace.text(int(v)).lower(), 0) for v in np.unique(values) if is_string(int(v))}
    return np.array([size.get(int(value), 0) for value in values], np.int64)


def _find_groups(trace: Trace, of_rows: NDArray[np.int32]) -> tuple[NDArray[np.int32], tuple[ProcessGroup, ...]]:
    """Process group of the collectives in some rows, -1 for none, and what the trace says of all groups."""
    if not len(of_rows):
        return np.empty(0, np.int32), ()
    names, ranks = trace.argument("Process Group Name"), trace.argument("Process Group Ranks")
    rows = np.flatnonzero((names != MISSING) | (ranks != MISSING))
    group = np.full(trace.num_rows, -1, np.int32)
    pairs, number = np.unique(np.stack([names[rows], ranks[rows]]), axis=1, return_inverse=True)
    group[rows] = number.reshape(-1)

    def text(value: int) -> str:
        return "" if value == MISSING else trace.text(value)

    return group[of_rows], tuple(ProcessGroup.read(text(name), text(members)) for name, members in pairs.T.tolist())


def _peers(
    trace: Trace,
    rows: NDArray[np.int32],
    is_send: NDArray[np.bool_],
    group: NDArray[np.int32],
    groups: tuple[ProcessGroup, ...],
) -> list[int]:
    """The other rank of each message: profilers give its position in the group."""
    reported = np.where(is_send, _values(trace, "Dst Rank", rows), _values(trace, "Src Rank", rows))
    positions = np.where((reported >= 0) & (reported < 2**31), reported, -1).tolist()
    peers = []
    for position, number in zip(positions, group.tolist(), strict=True):
        members = groups[number].ranks if number >= 0 else ()
        peers.append(members[position] if 0 <= position < len(members) else position)
    return peers


def _find_memory(trace: Trace) -> MemoryRecords:
    """Changes of memory: the instants `[memory]`."""
    rows = trace.rare("Bytes")[0]
    rows = rows[matching(trace.strings, r"^\[memory\]$")[trace.name[rows]]]
    rows = rows[_values(trace, "Addr", rows) != MISSING]
    keys = ("Bytes", "Total Allocated", "Addr", "Device Type")
    change, total, address, kind = (_values(trace, key, rows) for key in keys)
    return MemoryRecords(trace.ts[rows], trace.thread[rows], change, total, address, kind > 0)


def _find_arrows(trace: Trace) -> Arrows:
    """Arrows from forward to backward operators: flow events `fwdbwd`."""
    rows, ids = trace.rare("flow id")
    return Arrows(trace.ts[rows], trace.thread[rows], ids, trace.letter[rows] == ord("f"))
