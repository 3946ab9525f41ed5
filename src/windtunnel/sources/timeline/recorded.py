"""What a profiler recorded of devices, as it stands there, for tables (sources, timeline).

In: the events of one rank. Out: a `Recorded`: names, kinds, streams and times of its device events, and of the call
that launched each. Waits are still inside of them: a graph (``build``) takes them out. Not here: any table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph.kernel_classes import event_class
from windtunnel.sources.timeline.device import find_device, match_calls
from windtunnel.sources.timeline.events import MISSING, Category, Events
from windtunnel.sources.timeline.names import matching

__all__ = ["NO_CALL", "KernelKind", "Recorded", "Span", "find_recorded_events", "times_of"]

# N rows, K device events
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
NO_CALL = -(2**62)
_US = 1_000


class KernelKind(IntEnum):
    """What a device event does, according to its name."""

    COMPUTATION = 0
    COMMUNICATION = 1
    MEMORY = 2
    OTHER = 3


class Span(NamedTuple):
    """Starts and ends [K] in ns."""

    start: Int64s
    end: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The K device events of one rank, in the order of the file.

    ``name`` is a code into ``names``, ``stream`` into ``streams``; ``call_name`` a code into ``names``. A call's times
    are ``NO_CALL`` where its launch lies outside of the trace. ``is_sync`` marks notes of waits, which are no work.
    ``num_steps`` is how many profiler steps the trace has, ``left_out`` how many device events belong to the last of
    them, or to no step before it, and are not here.
    """

    rank: int | None
    name: NDArray[np.int32]
    kind: NDArray[np.int8]
    stream: NDArray[np.int32]
    span: Span
    call: Span
    call_name: NDArray[np.int32]
    correlation: Int64s
    is_sync: Bools
    names: tuple[str, ...]
    streams: tuple[str, ...]
    num_steps: int
    left_out: int


def find_recorded_events(events: Events, *, like_hta: bool) -> Recorded:
    """Find the device events of one rank, without those of its last profiler step, which may be cut.

    Parameters
    ----------
    like_hta : bool
        Times are whole microseconds (starts rounded up, ends down), and notes of waits on a stream count as events.
    """
    device = find_device(events)
    row, call = device.row, device.call
    if like_hta:
        waits = _waits_on_streams(events)
        row, call = np.append(row, waits), np.append(call, match_calls(events, waits))
    order = np.argsort(row, kind="stable")
    row, call = row[order], call[order]
    times = times_of(events, in_whole_us=like_hta)
    kept, num_steps = _in_whole_steps(events, times.start, call)
    row, call, left_out = row[kept], call[kept], int((~kept).sum())
    stream, streams = _streams(events, row)
    return Recorded(
        rank=events.rank,
        name=events.name[row],
        kind=_kinds(events)[events.name[row]],
        stream=stream,
        span=Span(times.start[row], times.end[row]),
        call=Span(np.where(call >= 0, times.start[call], NO_CALL), np.where(call >= 0, times.end[call], NO_CALL)),
        call_name=np.where(call >= 0, events.name[call], 0).astype(np.int32),
        correlation=events.correlation[row],
        is_sync=events.category[row] == Category.SYNC,
        names=events.names,
        streams=streams,
        num_steps=num_steps,
        left_out=left_out,
    )


def _waits_on_streams(events: Events) -> Int64s:
    is_stream = np.array([*(stream.number not in ("", "-1") for stream in events.streams), False], bool)
    return np.flatnonzero((events.category == Category.SYNC) & is_stream[events.stream])


def times_of(events: Events, *, in_whole_us: bool) -> Span:
    """Start and end of every row [N]; in whole microseconds if wanted, as HolisticTraceAnalysis rounds them."""
    end = np.where(events.duration_ns == MISSING, events.start_ns, events.start_ns + events.duration_ns)
    if not in_whole_us or not (events.start_ns[events.category != Category.NO_EVENT] % _US).any():
        return Span(events.start_ns, end)
    # added in floating-point microseconds there
    start_us = events.start_ns // _US + (events.start_ns % _US) / _US
    end_us = start_us + np.where(events.duration_ns == MISSING, 0, events.duration_ns) / _US
    return Span(np.ceil(start_us).astype(np.int64) * _US, np.floor(end_us).astype(np.int64) * _US)


def _in_whole_steps(events: Events, start: Int64s, call: Int64s) -> tuple[Bools, int]:
    """Events [K] that were launched before the last of several profiler steps, and the number of steps."""
    named = matching(events.names, "ProfilerStep")[events.name] & (events.category != Category.NO_EVENT)
    marks = np.flatnonzero(named & ~events.is_device)
    num_steps = len(np.unique(events.name[marks]))
    if num_steps < 2:
        return np.ones(len(call), bool), num_steps
    return (call >= 0) & (start[call] < start[marks].max()), num_steps


def _kinds(events: Events) -> NDArray[np.int8]:
    """Kind by distinct name."""
    return np.array([_KINDS.get(event_class(text), KernelKind.COMPUTATION) for text in events.names], np.int8)


_KINDS = {
    "communication": KernelKind.COMMUNICATION,
    "transfer": KernelKind.MEMORY,
    "synchronization": KernelKind.OTHER,
}


def _streams(events: Events, row: Int64s) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Stream of each event [K] in order of first use, and what each is called; with its device where there are two."""
    keys = [(stream.device, stream.number) for stream in events.streams]
    codes = {key: code for code, key in enumerate(dict.fromkeys(keys))}
    code_of = np.array([codes[key] for key in keys], np.int64)
    result, first, number = np.unique(code_of[events.stream[row]], return_index=True, return_inverse=True)
    order = np.argsort(first)
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order))
    key_of = list(codes)
    labels = [key_of[code] for code in result[order].tolist()]
    several = len({device for device, _ in labels}) > 1
    return position[number], tuple(f"{device}:{stream}" if several else stream for device, stream in labels)
