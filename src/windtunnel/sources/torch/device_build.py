"""A recording of a step on a GPU as a graph.

In: a ``Recording`` with traces of light iterations and of a rich one. Out: a ``Graph`` of the light iterations: host
threads and streams as they were traced, operators as the rich iteration knows them, without what the profiler cost.
Not here: how a timeline becomes a graph (``sources.timeline``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.sources.execution_trace.kineto import join_by_id
from windtunnel.sources.execution_trace.nodes import read_document
from windtunnel.sources.kineto.events import to_events
from windtunnel.sources.kineto.trace import read_trace
from windtunnel.sources.kineto.unprofiled import without_profiler
from windtunnel.sources.timeline.build import build_graph
from windtunnel.sources.timeline.events import Category, Events
from windtunnel.sources.torch import profile
from windtunnel.sources.torch.annotate import Discovery
from windtunnel.sources.torch.device_traces import DeviceTraces
from windtunnel.sources.torch.loader import WAITING, with_workers_in_trace
from windtunnel.sources.torch.overhead import precision
from windtunnel.sources.torch.profile import plain
from windtunnel.sources.torch.program import keep_models, keep_optimizers
from windtunnel.sources.torch.recording import Recording, host_facts, summary_ns
from windtunnel.sources.torch.same_operators import add_program, profile_events, share_operators

__all__ = ["build_device_graph", "read_rich"]

_MIN_SHARE = 0.1  # of the host's traced time: bare iterations ran right before


def build_device_graph(recording: Recording) -> Graph:
    """Turn a recording of a step on a device into a graph.

    Raises
    ------
    InputError
        No iterations were traced.
    TraceError
        The profiler's own traces cannot be read, or do not belong together.
    """
    traces = recording.device
    if traces is None or not (traces.trace("rich").exists() or traces.trace("light").exists()):
        raise InputError(
            "no whole iteration was traced",
            where=f"{len(recording.bare_ns)} bare iterations",
            fix="let the script run for more iterations, or ask for less warm-up",
        )
    events: Events | None = None
    program: dict[str, Any] = {}
    matched = 0.0
    if traces.trace("rich").exists():
        events, program = read_rich(traces.trace("rich"), traces.execution_trace("rich"), recording.discovery,
                                    _read_operators(traces))  # fmt: skip
    if traces.trace("light").exists():
        light = _select_marks(_with_plain_names(to_events(read_trace(traces.trace("light")))), traces)
        events, matched = (light, 0.0) if events is None else share_operators(light, events)
    assert events is not None
    traced = build_graph(_with_loader_waits(events), window=profile.ITERATION)
    traces.remove()
    step_ns = float(np.median(recording.bare_ns)) if recording.bare_ns else None
    graph = _without_profiler(traced, step_ns)
    graph = with_workers_in_trace(graph, recording.num_workers, recording.fetch_ns)
    known = precision(recording.bare_ns) if recording.bare_ns else {}
    notes = [item["note"] for item in (graph.meta.overhead, known) if "note" in item]
    overhead = {
        **graph.meta.overhead,
        **known,
        "note": "; ".join(notes),
        "num_irregular_iterations": recording.num_dropped,
        "rich_iteration_ns": recording.rich_ns,
        "matched_operator_ratio": matched,
    }
    return graph.with_meta(
        trace={name: value for name, value in graph.meta.trace.items() if name != "path"},
        hardware={**host_facts(), **graph.meta.hardware},
        iteration_ns=summary_ns(recording.bare_ns),
        overhead=overhead,
        allocator=traces.allocator,
        shapes=recording.shapes,
        program=program,
        optimizers=_set_default_foreach(keep_optimizers(recording.discovery)),
        models=keep_models(recording.discovery),
        memory={} if recording.memory is None else recording.memory.summary(),
        memory_base_bytes=recording.discovery.resident_bytes(),
        is_complete=recording.is_complete,
    )


def _with_loader_waits(events: Events) -> Events:
    """Let waits for batches of workers be tasks: the profiler's note of them is an annotation, which has no time."""
    is_wait = np.array([name.startswith(WAITING) for name in events.names], dtype=bool)[events.name]
    category = events.category.copy()
    category[is_wait & (category == Category.ANNOTATION)] = Category.OPERATOR
    return replace(events, category=category)


def _read_operators(traces: DeviceTraces) -> profile.Events | None:
    """The iteration in which compiled code ran operator by operator."""
    if not traces.trace("operators").exists():
        return None
    trace = read_trace(traces.trace("operators"))
    return profile_events(trace, profile.execution_nodes(traces.execution_trace("operators")))[0]


def _select_marks(events: Events, traces: DeviceTraces) -> Events:
    """Without the marks of iterations that do not count."""
    is_mark = np.array([name == profile.ITERATION for name in events.names], bool)[events.name]
    rows = np.flatnonzero(is_mark & (events.category == Category.ANNOTATION))
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    first = traces.first_light
    dropped = [*rows[:first].tolist(), *rows[first + traces.num_light :].tolist()]
    category = events.category.copy()
    category[dropped] = Category.NO_EVENT
    return replace(events, category=category)


def read_rich(
    path: Path, execution: Path, discovery: Discovery, operators: profile.Events | None = None
) -> tuple[Events, dict[str, Any]]:
    """Read the timeline of a rich iteration, whose operators know their inputs and calls; and its program."""
    trace = read_trace(path)
    events = join_by_id(trace, to_events(trace), read_document(execution, allow_missing=True))
    events, program = add_program(trace, events, profile.execution_nodes(execution), discovery, operators)
    return _with_plain_names(events), program


def _with_plain_names(events: Events) -> Events:
    return replace(events, names=tuple(map(plain, events.names)), lines=tuple(map(plain, events.lines)))


def _without_profiler(traced: Graph, step_ns: float | None) -> Graph:
    try:
        return without_profiler(traced, step_ns, min_share=_MIN_SHARE)
    except InputError as error:  # traced and bare iterations do not fit together
        result = without_profiler(traced)
        note = f"{result.meta.overhead['note']}: the machine was disturbed ({error.message})"
        return result.with_meta(overhead={**result.meta.overhead, "note": note})


def _set_default_foreach(optimizers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the implementation that torch takes on a device where none is asked for."""
    for optimizer in optimizers:
        for group in optimizer["groups"]:
            options = group["options"]
            if "foreach" in options and options["foreach"] is None and not options.get("fused"):
                options["foreach"] = True
    return optimizers
