"""What a trace recorded of its devices, as it stands there, for tables (sources, Kineto).

In: the trace of one rank. Out: a `Recorded`: names, kinds, streams and times of its device events, and of the call
that launched each. Waits are still inside of them: a graph (`reader`) takes them out. Not here: any table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.sources.kineto.roles import Role, collective_of, matching, roles
from windtunnel.sources.kineto.trace import COMPLETE, MISSING, Trace, read_trace
from windtunnel.sources.timeline.build import told_rank
from windtunnel.sources.timeline.device import find_device, match_calls, stream_values

__all__ = ["NO_CALL", "KernelKind", "Recorded", "Span", "read_recorded", "times_of"]

# N rows of the trace, K device events
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
NO_CALL = -(2**62)
_US = 1_000


class KernelKind(IntEnum):
    """What a device event does, told by its name."""

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


def read_recorded(path: Path, *, like_hta: bool, read_limit: int | None, progress: Progress | None) -> Recorded:
    """Read the device events of one trace, without those of its last profiler step, which may be cut.

    Parameters
    ----------
    like_hta : bool
        Times are whole microseconds (starts rounded up, ends down), and notes of waits on a stream count as events.

    Raises
    ------
    TraceError
        The file is cut, or no trace.
    """
    trace = read_trace(path, read_limit=read_limit, progress=progress)
    role = roles(trace)
    device = find_device(trace, role)
    row, call = device.row, device.call
    if like_hta:
        waits = _waits_on_streams(trace, role)
        row, call = np.append(row, waits), np.append(call, match_calls(trace, role, waits))
    order = np.argsort(row, kind="stable")
    row, call = row[order], call[order]
    times = times_of(trace, in_whole_us=like_hta)
    kept, num_steps = _in_whole_steps(trace, role, times.start, call)
    row, call, left_out = row[kept], call[kept], int((~kept).sum())
    stream, streams = _streams(trace, row)
    return Recorded(
        rank=told_rank(trace),
        name=trace.name[row],
        kind=_kinds(trace)[trace.name[row]],
        stream=stream,
        span=Span(times.start[row], times.end[row]),
        call=Span(np.where(call >= 0, times.start[call], NO_CALL), np.where(call >= 0, times.end[call], NO_CALL)),
        call_name=np.where(call >= 0, trace.name[call], 0).astype(np.int32),
        correlation=trace.correlation[row],
        is_sync=role[row] == Role.SYNC,
        names=trace.strings,
        streams=streams,
        num_steps=num_steps,
        left_out=left_out,
    )


def _waits_on_streams(trace: Trace, role: NDArray[np.uint8]) -> Int64s:
    stream = trace.argument("stream")
    return np.flatnonzero((role == Role.SYNC) & (stream != MISSING) & (stream != -1))


def times_of(trace: Trace, *, in_whole_us: bool) -> Span:
    """Start and end of every row [N]; in whole microseconds if wanted, as HolisticTraceAnalysis rounds them."""
    end = np.where(trace.dur == MISSING, trace.ts, trace.ts + trace.dur)
    if not in_whole_us or not (trace.ts[trace.letter == COMPLETE] % _US).any():
        return Span(trace.ts, end)
    # added in floating-point microseconds there
    start_us = trace.ts // _US + (trace.ts % _US) / _US
    end_us = start_us + np.where(trace.dur == MISSING, 0, trace.dur) / _US
    return Span(np.ceil(start_us).astype(np.int64) * _US, np.floor(end_us).astype(np.int64) * _US)


def _in_whole_steps(trace: Trace, role: NDArray[np.uint8], start: Int64s, call: Int64s) -> tuple[Bools, int]:
    """Events [K] that were launched before the last of several profiler steps, and the number of steps."""
    named = matching(trace, "ProfilerStep")[trace.name] & (trace.letter == COMPLETE)
    marks = np.flatnonzero(named & (role != Role.DEVICE))
    num_steps = len(np.unique(trace.name[marks]))
    if num_steps < 2:
        return np.ones(len(call), bool), num_steps
    return (call >= 0) & (start[call] < start[marks].max()), num_steps


def _kinds(trace: Trace) -> NDArray[np.int8]:
    """Kind by distinct name."""
    return np.array([_kind(text) for text in trace.strings], np.int8)


_MEMORY = re.compile(r"^(Memcpy|Memset|dma|Copy[A-Z])")
_NO_WORK = re.compile(r"Memcpy|Sync")


def _kind(name: str) -> KernelKind:
    if collective_of(name):
        return KernelKind.COMMUNICATION
    if _MEMORY.match(name):
        return KernelKind.MEMORY
    return KernelKind.OTHER if _NO_WORK.search(name) else KernelKind.COMPUTATION


def _streams(trace: Trace, row: Int64s) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Stream of each event [K] in order of first use, and what each is called; with its device where there are two."""
    keys = np.stack([trace.argument("device")[row], stream_values(trace, row)])
    found, first, number = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    several = len(np.unique(found[0])) > 1
    labels = [(_text(trace, device), _text(trace, stream)) for device, stream in found[:, order].T.tolist()]
    return place[number.reshape(-1)], tuple(f"{device}:{stream}" if several else stream for device, stream in labels)


def _text(trace: Trace, value: int) -> str:
    return "" if value == MISSING else trace.text(value)
