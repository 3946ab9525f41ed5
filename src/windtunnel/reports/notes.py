"""What else a reader of an explanation must know.

In: a graph and what the trace reader left out. Out: short sentences: edits, tasks without durations, forms of the
step, what the heap cost, why device tasks started when they did. Not here: numbers (``explanation``).
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.graph import Graph
from windtunnel.reports.packing import shorten
from windtunnel.simulate import Timeline, waits_for_data
from windtunnel.sources.execution_trace.reader import count_unmeasured_tasks
from windtunnel.sources.ranks.clocks import clock_lines
from windtunnel.sources.timeline.explain import explain_device_tasks
from windtunnel.units import format_count, format_duration, format_ratio
from windtunnel.whatifs.messages import select_untimed_messages

__all__ = ["communication_line", "loading_lines", "notes_of", "profiler_lines"]

_MUCH_HOST = 0.2  # of the critical path
_MUCH_WAITING = 0.02  # of the step, for batches
_MUCH_ELSEWHERE = 0.1  # of all time, in iterations of other forms, from which that is a warning


def notes_of(graph: Graph, left_out: tuple[str, ...]) -> tuple[str, ...]:
    """What else a reader must know."""
    notes = []
    if left_out:
        named = ", ".join(shorten(name, 40) for name in left_out[:3]) + (", …" if len(left_out) > 3 else "")
        notes.append(f"left out, as nothing here waits for it: {named}")
    if graph.edits:
        notes.append(f"this graph was edited: {', '.join(edit.name for edit in graph.edits[:6])}")
    if graph.meta.runs_ahead:
        notes.append(f"the host runs ahead of the device: {graph.num_iterations} iterations in a row are explained")
    notes += _warn_of_unmeasured_tasks(graph)
    if untimed := int(select_untimed_messages(graph).sum()):
        notes.append(
            f"{format_count(untimed)} messages of known size have no time here: predict --on 8xh100 prices them"
        )
    notes += [f"warning: {text}" for text in graph.meta.trace.get("warnings", ())]
    notes += _device_starts(graph)
    notes += clock_lines(graph)
    notes += _forms(graph) or _before_holding(graph)
    notes += filter(None, [graph.meta.overhead.get("note")])
    dropped = graph.meta.trace.get("dropped")
    if isinstance(dropped, Mapping) and dropped:
        total = sum(int(count) for count in dropped.values())
        notes.append(f"{format_count(total)} events of the trace are no tasks: {', '.join(map(str, dropped))}")
    if graph.meta.is_complete is False:
        notes.append("the capture was cut short: what was measured until then is shown")
    return tuple(notes)


def profiler_lines(graph: Graph, host_ratio: float) -> tuple[str, ...]:
    """That a trace holds what its profiler cost the host, where the host is a good part of the critical path."""
    on_device = graph.has_streams
    if graph.meta.source != "kineto" or graph.meta.overhead or not on_device or host_ratio < _MUCH_HOST:
        return ()
    return ("the profiler slows the host, and that is in it: `windtunnel slice --step-time` takes it out",)


def communication_line(communication_ns: float, exposed_ns: float) -> tuple[str, ...]:
    """How long an iteration communicates, and for how much of it nothing computes."""
    if not communication_ns:
        return ()
    return (
        f"communication {format_duration(communication_ns)} an iteration, {format_duration(exposed_ns)} of it exposed: "
        "nothing computes meanwhile",
    )


def loading_lines(timeline: Timeline) -> tuple[str, ...]:
    """How long a step waits for the workers of its loader, where that is worth a line.

    Parameters
    ----------
    timeline : Timeline
        In which waiting for data takes time (:func:`windtunnel.simulate.with_waits_for_data`).
    """
    graph = timeline.graph
    ratio = int(graph.duration_ns[waits_for_data(graph)].sum()) / max(1, timeline.makespan_ns)
    num_workers, fetch_ns = graph.meta.loader.get("num_workers", 0), graph.meta.loader.get("fetch_ns", 0)
    if ratio < _MUCH_WAITING or not num_workers:
        return ()
    workers = "1 loader worker needs" if num_workers == 1 else f"each of {num_workers} loader workers needs"
    why = f": {workers} {format_duration(fetch_ns)} for {'each' if num_workers == 1 else 'one'}" if fetch_ns else ""
    return (f"the step waits {format_ratio(ratio)} of its time for batches{why}",)


def _warn_of_unmeasured_tasks(graph: Graph) -> list[str]:
    """Warn of tasks without a duration: they count as 0."""
    count = count_unmeasured_tasks(graph)
    if not count:
        return []
    whole = "no durations: all" if count == graph.num_tasks else f"{format_count(count)} of"
    return [f"warning: {whole} {format_count(graph.num_tasks)} tasks are unmeasured and count as 0"]


def _forms(graph: Graph) -> list[str]:
    """Where iterations differ by the shapes of their inputs: which of them this is."""
    shapes = graph.meta.shapes
    if not isinstance(shapes, Mapping) or not shapes.get("others"):
        return []
    others = shapes["others"]
    inputs = ", ".join("x".join(map(str, shape)) for shape in shapes["inputs"][:3]) or "no whole model is called"
    num_others = sum(other["count"] for other in others)
    num_alike = num_others * shapes["share"] / (1.0 - shapes["share"])
    which = "the commonest" if round(num_alike) >= max(other["count"] for other in others) else "one of them"
    line = f"iterations have {len(others) + 1} forms; this is {which}, {format_ratio(shapes['share'])}: {inputs}"
    if shapes["is_mixed"]:
        return [f"warning: {line}, but too few had it: iterations of all forms are mixed"]
    timed = [other for other in others if other["median_ns"]]
    if not timed:
        return [line]
    times_ns = sorted(other["median_ns"] for other in timed)
    took = " to ".join(dict.fromkeys(map(format_duration, (times_ns[0], times_ns[-1]))))
    # Time of the other iterations over that of all: a few long ones, as rollouts, may be most of it.
    elsewhere = sum(other["count"] * other["median_ns"] for other in timed)
    here = num_alike * graph.meta.iteration_ns.get("median", 0)
    share = float(elsewhere / (elsewhere + here))
    head = "warning: " if share > _MUCH_ELSEWHERE else ""
    return [f"{head}{line}; others took {took}, {format_ratio(share)} of all time, which is not in this graph"]


def _before_holding(graph: Graph) -> list[str]:
    """What an iteration took before measuring held the heap, where that is more than noise."""
    before = graph.meta.allocator.get("iteration_before_ns") or {}
    held = graph.meta.iteration_ns.get("median")
    if not held or before.get("median", 0) <= 1.03 * held:
        return []
    line = f"measured with the heap held; the script as it is took {format_duration(before['median'])}"
    return [line, "glibc gives memory back in every iteration: MALLOC_TRIM_THRESHOLD_=2000000000 keeps it"]


def _device_starts(graph: Graph) -> list[str]:
    """Why the tasks of devices started when they did, where a trace told."""
    if "start_cause" not in graph.tasks:
        return []
    starts = explain_device_tasks(graph)
    count = len(starts.task)
    if not count:
        return []
    causes = ", ".join(f"{label} {format_ratio(number / count)}" for label, number in starts.count().items() if number)
    line = f"starts of {format_count(count)} device tasks: {causes}"
    return [line, *([f"warning: {starts.warning}"] if starts.warning else [])]
