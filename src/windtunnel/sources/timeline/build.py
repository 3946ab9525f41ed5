"""One timeline -> a graph (sources, timeline).

In: `Events`, a window. Out: a `Graph`: host slices, then device tasks. This file only puts together what the others
found: device tasks, waits, slices, labels, hand-offs, edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import TraceError
from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, Phase, ResourceKind, Strings
from windtunnel.sources.timeline.columns import (
    Collectives,
    encode,
    find_collectives,
    kinds,
    op_column,
    phases,
)
from windtunnel.sources.timeline.device import Device, Starts, explain_starts, find_device, stream_label
from windtunnel.sources.timeline.edges import Edges, all_edges, external_start, is_released_by_wait
from windtunnel.sources.timeline.events import MISSING, Category, Events
from windtunnel.sources.timeline.host import Host, Labels, cut_threads, label_events
from windtunnel.sources.timeline.invalid_records import drop_lost_records
from windtunnel.sources.timeline.memory import Memory, find_memory
from windtunnel.sources.timeline.names import HOST_COLLECTIVE, matching, name_threads
from windtunnel.sources.timeline.operators import Operators, find_operators, label_updates, operator_columns
from windtunnel.sources.timeline.rules import TimelineRules
from windtunnel.sources.timeline.slices import TOLERANCE_NS
from windtunnel.sources.timeline.threads import HandOffs, find_hand_offs, follow_progress
from windtunnel.sources.timeline.waits import HostWaits, StreamWaits, find_host_waits, find_stream_waits
from windtunnel.sources.timeline.window import Steps, Window, find_steps, find_window

__all__ = ["build_graph"]

# N rows, S slices, D device tasks, T = S + D
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


class _Columns(NamedTuple):
    """What a graph is built from."""

    tasks: dict[str, Any]
    edges: dict[str, Any]
    resources: dict[str, list[Any]]
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Everything that was found in one timeline."""

    events: Events
    window: Window
    steps: Steps
    host: Host
    device: Device
    labels: Labels
    collectives: Collectives
    starts: Starts
    stream_waits: StreamWaits | None
    host_waits: HostWaits
    kind: NDArray[np.int8]
    memory: Memory
    operators: Operators
    thread_names: list[str]
    counts: dict[str, Any]
    edges: Edges = field(default_factory=lambda: Edges.empty(0))


def build_graph(
    events: Events, *, window: str | None = None, occurrence: int | None = None, rules: TimelineRules | None = None
) -> Graph:
    """Build the graph of a timeline, whose unchanged replay starts every task when it was recorded to start.

    Parameters
    ----------
    events : Events
        Let go of while the graph is built: a caller that keeps no name for them halves the memory that this takes.
    window : str, optional
        Name (or a part of it) of an annotation: only what was launched inside it, with times from its begin.
    occurrence : int, optional
        Which of several annotations of that name, from 0 (negative: from the last); all of them by default.
    rules : TimelineRules, optional
        How near two times must be to be cause and effect, where no record tells.

    Raises
    ------
    TraceError
        There is nothing to run, or no such window.
    """
    rules = rules or TimelineRules()
    result = [_find_parts(events, window, occurrence, rules)]
    del events
    # each step consumes what it is given, so that its columns are gone when the next are made
    columns = _assemble(_connect(result.pop(), rules))
    return Graph.from_columns(columns.tasks, columns.edges, columns.resources, columns.meta)


def _without_work(where: str) -> TraceError:
    return TraceError(
        "the trace has no complete events that do work",
        where=where,
        fix="record operators or kernels, and let the profiler stop before it exports",
    )


def _find_parts(events: Events, window: str | None, occurrence: int | None, rules: TimelineRules) -> _Parts:
    """Find what there is in a timeline, without edges; its own times and arguments are not kept."""
    if not ((events.category >= Category.OPERATOR) & (events.category <= Category.COPY)).any():
        raise _without_work(f"{events.path}: {_format_event_counts(events)}")
    events, missing = drop_lost_records(events)
    selected = find_window(events, window, occurrence)
    device = find_device(events)
    stream_waits = find_stream_waits(events, device)
    host_waits = find_host_waits(events, device, rules)
    device = _clip_task_ends(events, device, stream_waits, host_waits)
    starts = explain_starts(device, None if stream_waits is None else stream_waits.latest(device), rules)
    host = cut_threads(events, host_waits.call)
    labels = label_events(events, host)
    collectives = find_collectives(events, host, device)
    counts = _counts(events, device, host, host_waits, stream_waits)
    if warnings := [text for text in (missing, *device.warnings) if text]:
        counts["warnings"] = warnings
    kind = kinds(events, host, device, collectives)
    operators = find_operators(events, host, device, kind[: host.num_slices] == Kind.COMPUTE)
    return _Parts(
        events=events.without_numbers(),
        window=selected,
        steps=find_steps(events, selected),
        host=host,
        device=device,
        labels=label_updates(operators, host, labels),
        collectives=collectives,
        starts=starts,
        stream_waits=stream_waits,
        host_waits=host_waits,
        kind=kind,
        memory=find_memory(events.memory, host),
        operators=operators,
        thread_names=name_threads(events),
        counts=counts,
    )


def _connect(parts: _Parts, rules: TimelineRules) -> _Parts:
    """Find the edges."""
    host, device, counts = parts.host, parts.device, dict(parts.counts)
    hand_offs = _find_hand_offs(parts.events, host, device, rules)
    edges, dropped = all_edges(
        host, device, parts.starts, parts.stream_waits, parts.host_waits, hand_offs, parts.labels, parts.memory
    )
    if rules.max_gap_ns is not None:
        counts["gaps of threads"] = _long_gaps(edges, host.num_slices, rules.max_gap_ns)
    if dropped:
        counts["edges that contradict the times"] = dropped
    return replace(parts, edges=edges, counts=counts)


def _long_gaps(edges: Edges, num_slices: int, max_gap_ns: int) -> dict[str, int]:
    """Rests of threads that are longer than one wants to accept unexplained."""
    gaps = edges.lag_ns[(edges.kind == EdgeKind.ORDER) & (edges.dst < num_slices) & (edges.lag_ns > max_gap_ns)]
    return {"number": len(gaps), "longest_ns": int(gaps.max(initial=0)), "sum_ns": int(gaps.sum())}


def _find_hand_offs(events: Events, host: Host, device: Device, rules: TimelineRules) -> HandOffs:
    name = events.name[host.row]
    issues = matching(events.names, "^c10d::|^record_param_comms$")[name]
    collective = matching(events.names, HOST_COLLECTIVE)[name]
    works = (host.category == Category.OPERATOR)[host.event]
    given = find_hand_offs(host.thread, host.start, host.end, works, issues[host.event], collective[host.event], rules)
    busy = np.zeros(len(events.threads), bool)
    busy[host.thread[works]] = True
    busy[events.thread[device.call[device.call >= 0]]] = True
    if busy[host.thread].all() or not busy.any():
        return given
    queues = [np.flatnonzero(device.queue == queue) for queue in range(len(device.queues))]
    ends = [(host.num_slices + tasks, device.end[tasks]) for tasks in queues]
    return given + follow_progress(host.thread, host.start, host.end, ~busy[host.thread], ends, rules)


def _format_event_counts(events: Events) -> str:
    result = ", ".join(f"{number:,} {reason}" for reason, number in events.counts.items())
    return result or "no events at all"


def _clip_task_ends(events: Events, device: Device, stream_waits: StreamWaits | None, host_waits: HostWaits) -> Device:
    """End tasks not after what waited for them: rounding of the clocks can make them overlap by up to the tolerance."""
    end = device.end.copy()
    calls = host_waits.call[host_waits.waiter]
    limits = [(host_waits.task, events.start_ns[calls] + events.duration_ns[calls])]
    if stream_waits is not None:
        limits.append((stream_waits.awaited, device.start[stream_waits.waiter]))
    for task, limit in limits:
        late = (end[task] > limit) & (end[task] <= limit + TOLERANCE_NS)
        np.minimum.at(end, task[late], limit[late])
    return replace(device, end=np.maximum(end, device.start))


def _counts(
    events: Events,
    device: Device,
    host: Host,
    host_waits: HostWaits,
    stream_waits: StreamWaits | None,
) -> dict[str, Any]:
    """What was left out or bent to fit, by reason; nothing is skipped in silence."""
    ignored, number = np.unique(events.file_category[events.category == Category.IGNORED], return_counts=True)
    correlation = events.correlation[(events.category == Category.CALL) & (events.correlation != MISSING)]
    counts: dict[str, Any] = {
        "events": dict(events.counts),
        "categories that are no tasks": {
            events.names[c] or "(none)": int(n) for c, n in zip(ignored, number, strict=True)
        },
        "device tasks without launch": int((device.call < 0).sum()),
        "device tasks that overlap on one stream": device.num_overlapping,
        "calls with a correlation id used before": len(correlation) - len(np.unique(correlation)),
        "host events cut at the end of their parent": host.num_cut,
        "first of them": f"event {host.first_cut:,}" if host.num_cut else "",
        "waiting calls whose end nothing explains": host_waits.num_unexplained,
        "stream waits that contradict the times": stream_waits.num_contradicted if stream_waits else 0,
    }
    return {reason: value for reason, value in counts.items() if value}


def _assemble(parts: _Parts) -> _Columns:
    """Columns of the tasks, edges and resources inside the window.

    Raises
    ------
    TraceError
        Nothing runs inside the window.
    """
    host, window, edges = parts.host, parts.window, parts.edges
    started = _launch_times(parts)
    inside = window.holds(started)
    if not inside.any() and window.is_whole:
        raise _without_work(parts.events.path)
    if not inside.any():
        raise TraceError(
            f"nothing runs inside the window {window.name!r}",
            where=parts.events.path,
            fix="choose an annotation around the training step",
        )
    columns: dict[str, Any] = {"iteration": parts.steps.of(started)} if len(parts.steps.begin) else {}
    del started
    start, end = host.times(parts.device)
    origin = int(start.min() if window.is_whole else window.begin[0])
    unlaunched = host.num_slices + np.flatnonzero(parts.device.call < 0)
    earliest = external_start(edges, inside, start, end, unlaunched[inside[unlaunched]], origin)
    if earliest.any():
        columns["earliest_ns"] = earliest
    del earliest
    is_released = is_released_by_wait(edges, start, end)
    parts = replace(parts, host=host.without_times())
    del host
    edges, size_bytes = _with_flow(edges, parts.operators, start, end)
    columns["duration_ns"] = _own_durations(parts, np.subtract(end, start, out=end), is_released)
    columns["start_ns"] = np.subtract(start, origin, out=start)
    columns |= _task_columns(parts)
    if not inside.all():
        columns = {name: c.take(inside) if isinstance(c, Strings) else c[inside] for name, c in columns.items()}
        is_kept = inside[edges.src] & inside[edges.dst]
        edges, size_bytes = edges.take(is_kept), size_bytes[is_kept]
        renumbered = np.cumsum(inside, dtype=np.int32) - np.int32(1)
        edges = replace(edges, src=renumbered[edges.src], dst=renumbered[edges.dst])
    meta = _meta(parts, origin)
    meta["other_ratio"] = _other_ratio(columns)
    sizes = {"size_bytes": size_bytes} if size_bytes.any() else {}
    return _Columns(columns, edges.columns_by_name() | sizes, _select_used_resources(parts, columns), meta)


def _with_flow(edges: Edges, operators: Operators, start: Int64s, end: Int64s) -> tuple[Edges, Int64s]:
    """The edges with those of data between recorded operators, and how many bytes each carries.

    What contradicts the measured times is left out: a kernel may begin before a host clock says that it may.
    """
    records = operators.records
    src, dst = operators.task[records.source], operators.task[records.target]
    usable = np.flatnonzero((src >= 0) & (dst >= 0) & (src != dst))
    usable = usable[(end[src[usable]] <= start[dst[usable]]) & (start[src[usable]] < start[dst[usable]])]
    if not len(usable):
        return edges, np.zeros(len(edges.src), np.int64)
    kind = np.where(records.size_bytes[usable] < 0, EdgeKind.CONTROL, EdgeKind.DATA).astype(np.int8)
    flow = replace(Edges.of(src[usable], dst[usable], EdgeKind.DATA), kind=kind)
    sizes = np.concatenate([np.zeros(len(edges.src), np.int64), np.maximum(records.size_bytes[usable], 0)])
    columns = zip(edges.columns(), flow.columns(), strict=True)
    return Edges(*(np.concatenate(pair) for pair in columns)), sizes


def _launch_times(parts: _Parts) -> Int64s:
    """When each task [T] was begun by its thread: slices at their start, device tasks at that of their launch."""
    host, device = parts.host, parts.device
    launched = np.flatnonzero(device.call >= 0)
    launch = device.start.copy()
    launch[launched] = host.start[host.first[host.position[device.call[launched]]]]
    return np.concatenate([host.start, launch])


def _other_ratio(columns: dict[str, Any]) -> float:
    """Share of the tasks' time in no known phase of training."""
    duration = columns["duration_ns"]
    return float(duration[columns["phase"] == Phase.OTHER].sum() / max(int(duration.sum()), 1))


def _select_used_resources(parts: _Parts, columns: dict[str, Any]) -> dict[str, list[Any]]:
    """Resources that some task uses; renumbers the tasks' column."""
    resources = _resource_columns(parts)
    used = np.bincount(columns["resource"], minlength=len(resources["name"])) > 0
    columns["resource"] = (np.cumsum(used, dtype=np.int32) - np.int32(1))[columns["resource"]]
    return {name: [values[row] for row in np.flatnonzero(used)] for name, values in resources.items()}


def _task_columns(parts: _Parts) -> dict[str, Any]:
    """All columns over [T]."""
    events, host, device, labels = parts.events, parts.host, parts.device, parts.labels
    launched = np.flatnonzero(device.call >= 0)
    launch_event = host.position[device.call[launched]]
    row = np.concatenate([host.row[host.event], device.row.astype(np.int32)])
    slice_phase = phases(host, labels)
    phase = np.concatenate([slice_phase, np.full(device.num_tasks, Phase.OTHER, np.int8)])
    phase[host.num_slices + launched] = slice_phase[host.first[launch_event]]
    columns = {
        "name": encode(events.name[row], events.names),
        "op": op_column(events, host, device, labels, parts.collectives),
        "kind": parts.kind,
        "phase": phase,
        "resource": np.concatenate([host.thread, np.int32(len(events.threads)) + device.queue]),
        "event": events.index[row],
    }
    if labels.layers:
        layer = np.zeros(len(row), np.int32)
        layer[: host.num_slices] = labels.layer[host.event] + 1
        layer[host.num_slices + launched] = labels.layer[launch_event] + 1
        columns["layer"] = encode(layer, ("", *labels.layers))
    if events.lines:
        line = np.zeros(len(row), np.int32)
        line[: host.num_slices] = labels.line[host.event] + 1
        line[host.num_slices + launched] = labels.line[launch_event] + 1
        columns["line"] = encode(line, ("", *events.lines))
    if (labels.call >= 0).any():
        columns["call"] = np.full(len(row), -1, np.int32)
        columns["call"][: host.num_slices] = labels.call[host.event]
        columns["call"][host.num_slices + launched] = labels.call[launch_event]
    if (labels.is_repeated > 0).any():
        columns["is_recomputed"] = np.zeros(len(row), bool)
        columns["is_recomputed"][: host.num_slices] = labels.is_repeated[host.event] > 0
        columns["is_recomputed"][host.num_slices + launched] = labels.is_repeated[launch_event] > 0
    if events.rank is not None:
        columns["rank"] = np.full(len(row), events.rank, np.int32)
    return {**columns, **_optional_columns(parts, row)}


def _optional_columns(parts: _Parts, row: NDArray[np.int32]) -> dict[str, Any]:
    """Columns that only some traces have: starts of device tasks, collectives, memory."""
    columns: dict[str, Any] = operator_columns(parts.operators, len(row))
    num_slices = parts.host.num_slices
    if parts.device.num_tasks:
        columns["start_cause"] = np.full(len(row), -1, np.int8)
        columns["start_cause"][num_slices:] = parts.starts.cause
        columns["unexplained_ns"] = np.zeros(len(row), np.int64)
        columns["unexplained_ns"][num_slices:] = parts.starts.unexplained_ns
    result = parts.collectives
    if result.message_bytes.any():
        columns["message_bytes"] = result.spread(result.message_bytes, len(row), 0)
    if result.groups:
        columns["group"] = result.spread(result.group, len(row), -1)
    if (result.sequence >= 0).any():
        columns["sequence"] = result.spread(result.sequence, len(row), -1)
    if (result.peer >= 0).any():
        columns["peer"] = result.spread(result.peer, len(row), -1)
    for name, held in parts.memory.columns.items():
        columns[name] = np.concatenate([held, np.zeros(parts.device.num_tasks, np.int64)])
    return columns


def _own_durations(parts: _Parts, duration: Int64s, is_released: Bools) -> Int64s:
    """Own work of every task [T]: calls that waited keep only what they do when nothing is awaited."""
    host, waits = parts.host, parts.host_waits
    if len(waits.call):
        event = host.position[waits.call]
        body = host.last[event].astype(np.int64) - 1  # the slice before the return
        own = (body >= 0) & (host.event[body] == event) & is_released[body + 1]
        duration[body[own]] = np.minimum(duration[body[own]], waits.own_ns[own])
    return duration


def _resource_columns(parts: _Parts) -> dict[str, list[Any]]:
    """Threads first, then queues."""
    events, device = parts.events, parts.device
    names = list(parts.thread_names)
    owner = [0 for _ in events.threads]
    for stream, lane in device.queues:
        label, chip = stream_label(events, device.streams[stream])
        names.append(label + (f" lane {lane}" if lane else ""))
        owner.append(int(chip) if chip.isdigit() and len(chip) < 10 else 0)
    num_threads = len(events.threads)
    return {
        "name": names,
        "kind": [ResourceKind.HOST_THREAD] * num_threads + [ResourceKind.STREAM] * len(device.queues),
        "device": owner,
        "discipline": [Discipline.FIFO] * len(names),
        "slots": [1] * len(names),
    }


def _meta(parts: _Parts, origin: int) -> dict[str, Any]:
    events = parts.events
    meta: dict[str, Any] = {
        "source": events.source,
        "trace": {"path": events.path, **parts.counts},
        "origin_ns": events.base_ns + origin,
        "hardware": {"devices": events.devices},
    }
    if not parts.window.is_whole:
        meta["window"] = {"name": parts.window.name, "duration_ns": int((parts.window.end - parts.window.begin).sum())}
    if events.distributed is not None:
        meta["distributed"] = events.distributed
    if parts.memory.base_bytes:
        meta["memory_base_bytes"] = parts.memory.base_bytes
    if parts.collectives.groups:
        meta["groups"] = list(parts.collectives.groups)
    durations = parts.steps.durations()
    if durations is not None:
        meta["profiled_iteration_ns"] = durations
        meta["iterations"] = list(parts.steps.names)
    if events.is_partial:
        meta["trace"]["partial"] = True
    return meta
