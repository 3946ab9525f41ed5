"""The tables that one opens first of a trace: idle, overlap, queues, launches, kernels.

In: what was recorded, one `Recorded` per rank. Out: tables of it, waits included, equal to
HolisticTraceAnalysis's where both have them. They are made here because a graph no longer has the events as they were
recorded. Not here: prediction (a graph of the trace, then `replay`), printing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.sources.timeline.intervals import QUARTILES, describe, exclusive_ns_by_set, length_ns, merge_intervals
from windtunnel.sources.timeline.recorded import NO_CALL, KernelKind, Recorded, Span

__all__ = ["TABLES", "TableRules", "TraceTables", "make_tables"]

# K device events of a rank, S streams
Int64s = NDArray[np.int64]
Row = dict[str, Any]
HOST_WAIT, KERNEL_WAIT, OTHER = "host wait", "kernel wait", "other"
_TEXT, _INT, _FLOAT = pa.string(), pa.int64(), pa.float64()
_SPREAD = {"mean": _FLOAT, "std": _FLOAT, **dict.fromkeys(QUARTILES, _FLOAT)}
_IN_NS = {f"{name}_ns": kind for name, kind in _SPREAD.items()}
_RANK = {"rank": _INT}
_STREAM = {"rank": _INT, "stream": _TEXT}
_PARTS = ("idle", "compute", "non_compute")


@dataclass(frozen=True, slots=True)
class TableRules:
    """Where the tables draw their lines; the defaults are HolisticTraceAnalysis's.

    Parameters
    ----------
    kernel_wait_ns : int
        A shorter gap between two queued kernels is what starting a kernel takes.
    slow_call_ns, late_ns : int
        A launch call that takes longer, and a kernel that starts later after its call, are outliers.
    num_kernels : int
        Kernels of one kind and rank that have a row of their own; the rest share one.
    like_hta : bool
        Round times to whole microseconds as that tool does, and count notes of waits on a stream as events.
    """

    kernel_wait_ns: int = 30_000
    slow_call_ns: int = 50_000
    late_ns: int = 100_000
    num_kernels: int = 10
    like_hta: bool = False


def make_tables(ranks: Sequence[Recorded], rules: TableRules) -> TraceTables:
    """The tables of some ranks, which are numbered in the given order where their files do not tell them apart."""
    reported = [recorded.rank for recorded in ranks]
    if None in reported or len(set(reported)) < len(reported):
        ranks = [replace(recorded, rank=number) for number, recorded in enumerate(ranks)]
    return TraceTables(tuple(sorted(ranks, key=lambda recorded: recorded.rank or 0)), rules)


@dataclass(frozen=True, slots=True, eq=False)
class TraceTables:
    """What some ranks recorded, and the tables of it; times are in ns."""

    ranks: tuple[Recorded, ...]
    rules: TableRules

    def table(self, name: str) -> pa.Table:
        """The table of that name, of :data:`TABLES`.

        Raises
        ------
        InputError
            There is no such table.
        """
        if name not in TABLES:
            raise InputError(f"there is no table {name!r}", fix=f"use one of {', '.join(TABLES)}")
        columns, make = TABLES[name]
        rows = list(make(self.ranks, self.rules))
        return pa.table({column: pa.array([row[column] for row in rows], kind) for column, kind in columns.items()})

    @property
    def note(self) -> str:
        """What was left out, in a sentence; empty if nothing was."""
        left_out = sum(rank.left_out for rank in self.ranks)
        if not left_out:
            return ""
        steps = max(rank.num_steps for rank in self.ranks)
        return f"without the last of {steps} profiler steps, which may be cut ({left_out:,} device events)"


def _temporal(ranks: Sequence[Recorded], _: TableRules) -> Iterator[Row]:
    for rank in ranks:
        busy = merge_intervals(*rank.span)
        span_ns = int(busy.end[-1] - busy.start[0]) if len(busy.start) else 0
        idle_ns = span_ns - length_ns(busy)
        compute_ns = length_ns(_of_kind(rank, KernelKind.COMPUTATION))
        parts = {"idle": idle_ns, "compute": compute_ns, "non_compute": span_ns - idle_ns - compute_ns}
        shares = {f"{part}_ratio": _ratio(part_ns, span_ns) for part, part_ns in parts.items()}
        yield {
            "rank": rank.rank,
            **{f"{part}_ns": value for part, value in parts.items()},
            "kernel_ns": span_ns,
            **shares,
        }


def _of_kind(one: Recorded, kind: KernelKind) -> Span:
    selected = one.kind == kind
    return merge_intervals(one.span.start[selected], one.span.end[selected])


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def _idle(ranks: Sequence[Recorded], rules: TableRules) -> Iterator[Row]:
    for rank in ranks:
        for stream, rows in _streams(rank, ~rank.is_sync):
            begin, end, called = rank.span.start[rows], rank.span.end[rows], rank.call.start[rows]
            gap = begin[1:] - end[:-1]
            by_host = (called[1:] != NO_CALL) & (called[1:] > end[:-1])
            by_kernel = ~by_host & (gap < rules.kernel_wait_ns)
            whole = int(gap.sum())
            for cause, selected in ((HOST_WAIT, by_host), (KERNEL_WAIT, by_kernel), (OTHER, ~by_host & ~by_kernel)):
                spread = {
                    f"{name}_ns" if name != "count" else "num_gaps": v for name, v in describe(gap[selected]).items()
                }
                idle_ns = int(gap[selected].sum())
                yield {"rank": rank.rank, "stream": stream, "cause": cause, "idle_ns": idle_ns} | {
                    "idle_ratio": _ratio(idle_ns, whole),
                    **spread,
                }


def _streams(one: Recorded, among: NDArray[np.bool_]) -> Iterator[tuple[str, Int64s]]:
    """Rows of each stream in order of start; streams in order of first use."""
    rows = np.flatnonzero(among)
    rows = rows[np.lexsort((one.span.start[rows], one.stream[rows]))]
    borders = np.flatnonzero(np.diff(one.stream[rows], prepend=-1, append=-1))
    for begin, end in pairwise(borders.tolist()):
        yield one.streams[one.stream[rows[begin]]], rows[begin:end]


def _overlap(ranks: Sequence[Recorded], _: TableRules) -> Iterator[Row]:
    for rank in ranks:
        spans = [_of_kind(rank, kind) for kind in (KernelKind.COMMUNICATION, KernelKind.COMPUTATION)]
        communication_ns, overlapped_ns = length_ns(spans[0]), int(exclusive_ns_by_set(spans)[3])
        row = {"rank": rank.rank, "communication_ns": communication_ns, "overlapped_ns": overlapped_ns}
        yield {**row, "overlap_ratio": _ratio(overlapped_ns, communication_ns)}


def _queues(one: Recorded) -> Iterator[tuple[str, Int64s, Int64s]]:
    """Stream, times at which its queue changes, and how long it is from then on."""
    for stream, rows in _streams(one, (one.call.start != NO_CALL) & ~one.is_sync):
        times = np.concatenate([one.call.start[rows], one.span.start[rows]])
        change = np.repeat([1, -1], len(rows))
        order = np.lexsort((-change, times))  # at one moment what is launched first, so that none is below 0
        yield stream, times[order], np.cumsum(change[order])


def _queue_series(ranks: Sequence[Recorded], _: TableRules) -> Iterator[Row]:
    origin = min(int(min(item.span.start.min(), _first_call(item))) for item in ranks if len(item.name))
    for rank in ranks:
        for stream, times, lengths in _queues(rank):
            for time_ns, length in zip((times - origin).tolist(), lengths.tolist(), strict=True):
                yield {"rank": rank.rank, "stream": stream, "time_ns": time_ns, "queue_length": length}


def _first_call(one: Recorded) -> int:
    calls = one.call.start[one.call.start != NO_CALL]
    return int(calls.min()) if len(calls) else int(one.span.start.min())


def _queue(ranks: Sequence[Recorded], _: TableRules) -> Iterator[Row]:
    for rank in ranks:
        for stream, _times, lengths in _queues(rank):
            spread = describe(lengths)
            yield {"rank": rank.rank, "stream": stream, "num_changes": spread.pop("count"), **spread}


def _launch_times(one: Recorded) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Rows of events with their launch here, the call's and the event's duration, and the delay between the two."""
    rows = np.flatnonzero((one.call.start != NO_CALL) & ~one.is_sync)
    call_ns = one.call.end[rows] - one.call.start[rows]
    delay_ns = np.maximum(one.span.start[rows] - one.call.end[rows], 0)
    return rows, call_ns, one.span.end[rows] - one.span.start[rows], delay_ns


def _launches(ranks: Sequence[Recorded], _: TableRules) -> Iterator[Row]:
    for rank in ranks:
        rows, *times = _launch_times(rank)
        for row, call_ns, device_ns, delay_ns in zip(rows.tolist(), *(t.tolist() for t in times), strict=True):
            names = {"call": rank.names[rank.call_name[row]], "name": rank.names[rank.name[row]]}
            times_of_one = {"call_ns": call_ns, "device_ns": device_ns, "delay_ns": delay_ns}
            yield {"rank": rank.rank, "correlation": int(rank.correlation[row]), **names, **times_of_one}


def _launch(ranks: Sequence[Recorded], rules: TableRules) -> Iterator[Row]:
    for rank in ranks:
        rows, call_ns, device_ns, delay_ns = _launch_times(rank)
        yield {
            "rank": rank.rank,
            "num_launches": len(rows),
            "num_short": int((device_ns < call_ns).sum()),
            "num_slow_calls": int((call_ns > rules.slow_call_ns).sum()),
            "num_late": int((delay_ns > rules.late_ns).sum()),
            "call_ns": int(call_ns.sum()),
            "device_ns": int(device_ns.sum()),
            "median_call_ns": describe(call_ns)["p50"],
            "median_delay_ns": describe(delay_ns)["p50"],
        }


def _kernels(ranks: Sequence[Recorded], rules: TableRules) -> Iterator[Row]:
    for rank in ranks:
        duration = rank.span.end - rank.span.start
        for kind in KernelKind:
            rows = np.flatnonzero((rank.kind == kind) & ~rank.is_sync)
            names, number = np.unique(rank.name[rows], return_inverse=True)
            total = np.zeros(len(names), np.int64)
            np.add.at(total, number, duration[rows])
            order = np.argsort(-total, kind="stable")
            index = np.empty(len(names), np.int64)
            index[order] = np.arange(len(names))
            index = np.minimum(index, rules.num_kernels)[number]
            sorted_rows = rows[np.argsort(index, kind="stable")]
            ends = np.cumsum(np.bincount(index)).tolist() if len(rows) else []
            for position, (begin, end) in enumerate(pairwise([0, *ends])):
                same = sorted_rows[begin:end]
                name = rank.names[names[order[position]]] if position < rules.num_kernels else "others"
                yield {"rank": rank.rank, "kind": kind.name.lower(), "name": name, **_sums(duration[same])}


def _sums(duration: Int64s) -> Row:
    std = float(duration.std(ddof=1)) if len(duration) > 1 else 0.0
    extremes = {"max_ns": int(duration.max()), "min_ns": int(duration.min())}
    return {
        "num": len(duration),
        "sum_ns": int(duration.sum()),
        **extremes,
        "mean_ns": float(duration.mean()),
        "std_ns": std,
    }


def _kinds(ranks: Sequence[Recorded], _: TableRules) -> Iterator[Row]:
    kinds = (KernelKind.COMPUTATION, KernelKind.COMMUNICATION, KernelKind.MEMORY)
    total = np.sum([exclusive_ns_by_set([_of_kind(rank, kind) for kind in kinds]) for rank in ranks], axis=0)
    for mask in np.argsort(-total, kind="stable").tolist():
        if total[mask]:
            named = [kind.name.lower() for index, kind in enumerate(kinds) if mask >> index & 1]
            row = {"kinds": " overlapping ".join(named), "sum_ns": int(total[mask])}
            yield {**row, "ratio": float(total[mask] / total.sum())}


Makes = Callable[[Sequence[Recorded], TableRules], Iterator[Row]]
TABLES: Mapping[str, tuple[dict[str, pa.DataType], Makes]] = {
    "temporal": (
        {**_RANK, **{f"{p}_ns": _INT for p in _PARTS}, "kernel_ns": _INT, **{f"{p}_ratio": _FLOAT for p in _PARTS}},
        _temporal,
    ),
    "idle": ({**_STREAM, "cause": _TEXT, "idle_ns": _INT, "idle_ratio": _FLOAT, "num_gaps": _INT, **_IN_NS}, _idle),
    "overlap": ({**_RANK, "communication_ns": _INT, "overlapped_ns": _INT, "overlap_ratio": _FLOAT}, _overlap),
    "queue": ({**_STREAM, "num_changes": _INT, **_SPREAD}, _queue),
    "queue-series": ({**_STREAM, "time_ns": _INT, "queue_length": _INT}, _queue_series),
    "launch": (
        {
            **_RANK,
            **dict.fromkeys(("num_launches", "num_short", "num_slow_calls", "num_late", "call_ns", "device_ns"), _INT),
            **dict.fromkeys(("median_call_ns", "median_delay_ns"), _FLOAT),
        },
        _launch,
    ),
    "launches": (
        {
            **_RANK,
            "correlation": _INT,
            **dict.fromkeys(("call", "name"), _TEXT),
            **dict.fromkeys(("call_ns", "device_ns", "delay_ns"), _INT),
        },
        _launches,
    ),
    "kernels": (
        {
            **_RANK,
            **dict.fromkeys(("kind", "name"), _TEXT),
            **dict.fromkeys(("num", "sum_ns", "max_ns", "min_ns"), _INT),
            **dict.fromkeys(("mean_ns", "std_ns"), _FLOAT),
        },
        _kernels,
    ),
    "kinds": ({"kinds": _TEXT, "sum_ns": _INT, "ratio": _FLOAT}, _kinds),
}
