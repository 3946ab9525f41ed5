"""Put what was recorded together into one graph.

In: a ``Recording``. Out: a ``Graph`` of one iteration: a chain of slices per thread, data edges, columns of what
each does, and every profiled iteration's own durations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, Phase, ResourceKind, Strings
from windtunnel.measure.turns import quiet_rows
from windtunnel.sources.torch.annotate import MODULE
from windtunnel.sources.torch.collectives import transfers, with_transfers
from windtunnel.sources.torch.compiled import REGION, UPDATE_REGION
from windtunnel.sources.torch.dataflow import Flow, MemoryUse, account, trace_flow
from windtunnel.sources.torch.kernels import describe_event, kernel_name, opaque_events
from windtunnel.sources.torch.loader import Loading, with_workers
from windtunnel.sources.torch.ops import Operator, Role, resolve_recipes
from windtunnel.sources.torch.overhead import calibrate, central, correct, select_validation_iterations
from windtunnel.sources.torch.phase_and_layer import layers_of, parameter_storages, phases_of
from windtunnel.sources.torch.profile import ITERATION, Events
from windtunnel.sources.torch.program import (
    calls_of_slices,
    keep_models,
    keep_optimizers,
    keep_program,
    repeats_of_slices,
)
from windtunnel.sources.torch.recording import Recording, disturbance_facts, facts_of
from windtunnel.sources.torch.timeline_points import Points, Stretches, align, by_kind, stretches, walk

__all__ = ["LOADER", "MARKS", "PYTHON", "build_graph"]

Int = NDArray[np.int64]
PYTHON = "python"
LOADER = "enumerate(DataLoader)"
MARKS = (MODULE, REGION, UPDATE_REGION)
_NOTHING = Operator(Role.NONE)


@dataclass(frozen=True)
class _Thread:
    """The template of one thread: P points, E events, and what each event is."""

    number: int
    points: Points
    names: list[str]
    operators: list[Operator]
    phases: list[Phase]
    layers: list[str]
    lines: list[str]
    parameters: frozenset[int]
    opaque: frozenset[int]  # compiled code that shows none of its kernels


def build_graph(recording: Recording) -> Graph:
    """Turn a recording into a graph.

    Raises
    ------
    InputError
        No iteration was recorded whole.
    """
    if recording.rich is None:
        raise InputError(
            "no whole iteration was recorded",
            where=f"{len(recording.bare_ns)} bare and {len(recording.light_ns)} profiled iterations",
            fix="let the script run for more iterations, or ask for less warm-up",
        )
    recording = recording.quietest()
    settled = recording.with_row()
    assert recording.rich is not None
    disturbance = disturbance_facts(recording.bare_lost, recording.light_lost, recording.num_repeated)
    thread = _template(recording.rich, recording.lines)
    times_IP, profiles, num_unlike = _times(recording, thread)
    sent = transfers(thread.names, thread.points, times_IP, profiles, recording.messages, _working(thread))
    slices_IP: Int = np.diff(times_IP)
    if sent is not None:
        slices_IP = slices_IP - sent.waits_ns
    # some bare iterations are held out, to say honestly how well the others predict them
    seen, aim = _fit_durations(recording), _fit_durations(settled)
    parts = _stretches(settled, slices_IP)
    is_disturbed = "lost_ratio" in disturbance
    if sent is not None or is_disturbed:  # what a bare iteration took contains waiting
        seen, aim, parts = seen[:0], aim[:0], None
    corrected_IP, correction = correct(
        thread.points, slices_IP, seen, calibrated_ns=calibrate(), parts=parts, aim_ns=aim
    )
    selected = central(corrected_IP.sum(axis=1).astype(np.float64))
    if is_disturbed:  # a slice is short: even on a busy host it often runs from its begin to its end
        duration = _round_to_sum(quiet_rows(corrected_IP))
        corrected_IP = np.rint(corrected_IP * (duration.sum() / np.median(corrected_IP.sum(axis=1)))).astype(np.int64)
    else:
        duration = _round_to_sum(corrected_IP[selected].mean(axis=0))
    main_slice = _main_slices(thread, duration)
    duration, corrected_IP = _gather_own_time(thread, main_slice, duration, corrected_IP)
    flow = trace_flow(thread.points, thread.operators, main_slice)
    memory = account(recording.rich, thread.points, thread.operators, main_slice, flow, thread.number, thread.names)
    columns = _columns(thread, duration, corrected_IP, main_slice, flow, memory)
    kept = _select_slices(columns, flow)
    program, call_of, repeated = keep_program(recording.rich, recording.discovery, recording.operators)
    columns["call"] = np.array(calls_of_slices(recording.rich, thread.points, call_of), dtype=np.int32)
    if repeated:
        columns["is_recomputed"] = np.array(repeats_of_slices(recording.rich, thread.points, repeated))
    meta = facts_of(recording, settled, correction, disturbance, int(duration.sum()), num_unlike, len(slices_IP))
    meta |= {
        "program": program,
        "optimizers": keep_optimizers(recording.discovery),
        "models": keep_models(recording.discovery),
    }
    loading = Loading(
        recording.num_workers,
        recording.fetch_ns,
        tuple(recording.light_waits_ns),
        tuple(settled.bare_waits_ns),
    )
    graph = with_workers(_assemble(columns, kept, flow, meta), loading)
    return graph if sent is None else with_transfers(graph, sent, kept, selected)


# --- the template and the durations -----------------------------------------------------------------------


def _template(rich: Events, lines: dict[int, str]) -> _Thread:
    marker = rich.markers()[0]
    number = int(rich.thread[marker])
    rows = rich.inside(marker)
    rows = rows[rich.thread[rows] == number]
    marked = walk(rich, rows)  # with module marks
    operators = {
        row: describe_event(rich.nodes.get(int(rich.record_id[row]))) if len(rich.record_id) else Operator(Role.NONE)
        for row in rows.tolist()
    }
    storages = parameter_storages(rich, operators)
    listed = resolve_recipes([operators[row] for row in marked.rows.tolist()], marked.parent.tolist())
    phases = phases_of(rich, marked)
    layers = layers_of(rich, marked, phases, listed, storages)
    points = walk(rich, rows, hidden=MARKS)
    index = {row: event for event, row in enumerate(marked.rows.tolist())}
    kept = [index[row] for row in points.rows.tolist()]
    return _Thread(
        number,
        points,
        [kernel_name(rich.names[row]) for row in points.rows.tolist()],
        [listed[event] for event in kept],
        [phases[event] for event in kept],
        [layers[event] for event in kept],
        [lines.get(int(rich.record_id[row]), "") if lines else "" for row in points.rows.tolist()],
        frozenset(storages),
        opaque_events([rich.names[row] for row in points.rows.tolist()], points, [listed[event] for event in kept]),
    )


def _times(recording: Recording, thread: _Thread) -> tuple[Int, list[tuple[Events, int]], int]:
    """When every point happened in every light iteration [I, P], in which profile it is, and how many were unlike.

    Where most cannot be laid over the template, all take their times by kind; of the rich one if there is no other.
    """
    assert recording.rich is not None
    rows, profiles, num_unlike = [], [], 0
    strange = []
    for events, is_regular in recording.light:
        for marker, regular in zip(events.markers(ITERATION), is_regular, strict=False):
            inside = events.inside(marker)
            other = walk(events, inside[events.thread[inside] == events.thread[marker]], hidden=MARKS)
            times = align(thread.points, other) if regular else None
            num_unlike += regular and (times is None or not np.array_equal(other.tokens, thread.points.tokens))
            if times is not None:
                rows.append(times)
                profiles.append((events, marker))
            elif regular:
                strange.append((other, (events, marker)))
    if len(strange) > len(rows) and not recording.messages:  # a message is waited for where it is, not as others are
        rows += [by_kind(thread.points, other) for other, _ in strange]
        profiles += [index for _, index in strange]
    if not rows:
        rows, profiles = [thread.points.times_ns], [(recording.rich, recording.rich.markers(ITERATION)[0])]
    return np.stack(rows), profiles, num_unlike


def _working(thread: _Thread) -> NDArray[np.bool_]:
    """Slices in which an operator computes [P - 1]."""
    owner = thread.points.owner[: thread.points.num_slices].tolist()
    return np.array([event > 0 and _computes(thread, event) for event in owner], dtype=bool)


def _fit_durations(recording: Recording) -> Int:
    bare = np.array(recording.bare_ns, dtype=np.int64)
    return bare[~select_validation_iterations(len(bare))]


def _stretches(recording: Recording, slices_IP: Int) -> Stretches | None:
    light = list(zip(recording.light_ns, recording.light_marks, strict=True))
    bare = list(zip(recording.bare_ns, recording.bare_marks, strict=True))
    aside = select_validation_iterations(len(bare))
    return stretches(slices_IP, light, [row for row, unseen in zip(bare, aside, strict=True) if not unseen])


def _round_to_sum(values: NDArray[np.float64]) -> Int:
    """Whole numbers whose running sum is nearest to that of the values."""
    whole: Int = np.diff(np.rint(np.concatenate([[0.0], np.cumsum(values)])).astype(np.int64))
    return whole


def _main_slices(thread: _Thread, duration: Int) -> list[int]:
    """The longest slice of every event: where its own work lies."""
    points = thread.points
    best: list[int] = points.enter.tolist()
    longest = duration[points.enter].tolist() if len(duration) else []
    for index in range(points.num_slices):
        event = int(points.owner[index])
        if event >= 0 and duration[index] > longest[event]:
            best[event], longest[event] = index, int(duration[index])
    return best


def _gather_own_time(thread: _Thread, main_slice: list[int], duration: Int, samples_IP: Int) -> tuple[Int, Int]:
    """All own time of an operator that computes in its main slice.

    A convolution's backward pass computes a gradient, asks for room, and computes the other one: one task, one price.
    """
    owner = thread.points.owner[: len(duration)]
    place_P = np.where(_working(thread), np.array(main_slice, dtype=np.int64)[owner], np.arange(len(duration)))
    gathered, gathered_IP = np.zeros_like(duration), np.zeros_like(samples_IP)
    np.add.at(gathered, place_P, duration)
    np.add.at(gathered_IP.T, place_P, samples_IP.T)
    return gathered, gathered_IP


# --- columns ----------------------------------------------------------------------------------------------


def _columns(
    thread: _Thread, duration: Int, samples_IP: Int, main_slice: list[int], flow: Flow, memory: MemoryUse
) -> dict[str, Any]:
    points = thread.points
    count = points.num_slices
    owner = points.owner[:count].tolist()
    shown = [_find_labeling_event(points, index) for index in range(count)]
    is_main = [main_slice[event] == index and event > 0 for index, event in enumerate(owner)]
    works = [main and _computes(thread, event) for event, main in zip(owner, is_main, strict=True)]
    details = [thread.operators[event] if main else _NOTHING for event, main in zip(owner, works, strict=True)]
    names = [thread.names[event] if event > 0 else PYTHON for event in owner]
    return {
        "name": names,
        "op": [name.removeprefix("autograd::engine::evaluate_function: ") for name in names],
        "layer": [thread.layers[event] for event in shown],
        **({"line": [thread.lines[event] for event in shown]} if any(thread.lines) else {}),
        "kind": [_kind(name, work) for name, work in zip(names, works, strict=True)],
        "phase": [int(thread.phases[event]) for event in shown],
        "iteration": np.zeros(count, dtype=np.int32),
        "rank": np.zeros(count, dtype=np.int32),
        "flops": [detail.flops for detail in details],
        "bytes_read": [flow.bytes_read.get(index, 0) if work else 0 for index, work in enumerate(works)],
        "bytes_written": [flow.bytes_written.get(index, 0) for index in range(count)],
        "param_bytes": [_parameter_bytes(detail, thread.parameters) for detail in details],
        "output_bytes": np.maximum(memory.output, 0),
        "workspace_bytes": memory.workspace,
        "freed_bytes": memory.freed,
        "resource": np.zeros(count, dtype=np.int32),
        "order": np.arange(count, dtype=np.int64),
        "duration_ns": duration,
        "duration_std_ns": np.rint(samples_IP.std(axis=0)).astype(np.int64),
        "samples_ns": np.ascontiguousarray(samples_IP.T),
        "start_ns": np.concatenate([[0], np.cumsum(duration)[:-1]]).astype(np.int64),
        "op_schema": [detail.schema for detail in details],
        "input_shapes": [detail.shapes for detail in details],
        "input_dtypes": [detail.dtypes for detail in details],
        "input_strides": [detail.strides for detail in details],
        "input_args": [detail.arguments for detail in details],
    }


def _find_labeling_event(points: Points, index: int) -> int:
    """The event that says phase and layer: Python between operators belongs to the one that it prepares."""
    event = int(points.owner[index])
    if event > 0:
        return event
    following = np.searchsorted(points.enter, index + 1)
    if following < len(points.enter) and points.enter[following] == index + 1:
        return int(following)
    return max(event, 0)


def _computes(thread: _Thread, event: int) -> bool:
    return thread.operators[event].role is Role.COMPUTE or event in thread.opaque


def _kind(name: str, works: bool) -> int:
    if works:
        return int(Kind.COMPUTE)
    return int(Kind.IO if name.startswith(LOADER) else Kind.HOST)


def _parameter_bytes(operator: Operator, parameters: frozenset[int]) -> int:
    spans = {span for span in (*operator.reads, *operator.mutates) if span.storage in parameters}
    return sum(span.num_bytes for span in spans)


def _select_slices(columns: dict[str, Any], flow: Flow) -> NDArray[np.bool_]:
    """Slices that took time or matter for data; the others were only the profiler's."""
    touched = np.zeros(len(columns["name"]), dtype=bool)
    edges = np.array([*flow.data, *flow.control], dtype=np.int64).reshape(-1, 2)
    touched[edges.ravel()] = True
    memory = columns["output_bytes"] + columns["workspace_bytes"] + columns["freed_bytes"]
    return np.asarray((columns["duration_ns"] > 0) | touched | (memory > 0))


# --- the graph --------------------------------------------------------------------------------------------


def _assemble(columns: dict[str, Any], kept: NDArray[np.bool_], flow: Flow, meta: dict[str, Any]) -> Graph:
    new_row = np.cumsum(kept) - 1
    tasks = {
        name: Strings.of(text for text, keep in zip(column, kept, strict=True) if keep)
        if isinstance(column, list) and column and isinstance(column[0], str)
        else np.asarray(column)[kept]
        for name, column in columns.items()
    }
    tasks["cost_source"] = Strings.repeat("measured", int(kept.sum()))
    data = np.array(list(flow.data), dtype=np.int64).reshape(-1, 2)
    control = np.array(sorted(flow.control), dtype=np.int64).reshape(-1, 2)
    count = int(kept.sum())
    chain = np.stack([np.arange(count - 1), np.arange(1, count)], axis=1)
    pairs = np.concatenate([chain, new_row[data], new_row[control]])
    kinds = [EdgeKind.ORDER, EdgeKind.DATA, EdgeKind.CONTROL]
    sizes = [len(chain), len(data), len(control)]
    edges = {
        "src": pairs[:, 0].astype(np.int32),
        "dst": pairs[:, 1].astype(np.int32),
        "kind": np.repeat(np.array(kinds, dtype=np.int8), sizes),
        "size_bytes": np.concatenate([np.zeros(sizes[0]), list(flow.data.values()), np.zeros(sizes[2])]).astype(
            np.int64
        ),
        "lag_ns": np.zeros(len(pairs), dtype=np.int64),
    }
    resources = {
        "name": ["main thread"],
        "kind": [ResourceKind.HOST_THREAD],
        "discipline": [Discipline.FIFO],
        "slots": [1],
    }
    return Graph.from_columns(tasks=tasks, edges=edges, resources=resources, meta=meta)
