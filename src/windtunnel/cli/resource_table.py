"""``windtunnel explain --table resources``: the replay of a graph, and how busy each resource is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.base.tables import Table
from windtunnel.cli.console import advise, show
from windtunnel.units import format_duration, format_ratio

if TYPE_CHECKING:
    from windtunnel.simulate import Timeline

__all__ = ["show_resource_table", "write_perfetto"]

MAX_RESOURCES = 20


def write_perfetto(timeline: Timeline, path: Path) -> None:
    """Write the replay as a trace for Perfetto or chrome://tracing."""
    timeline.to_perfetto(path)
    advise(f"wrote {path}: open it at ui.perfetto.dev")


def show_resource_table(timeline: Timeline, perfetto: Path | None, *, as_json: bool) -> None:
    """Show how long the graph takes, what decides that, and how busy each resource is."""
    path = timeline.critical_path()
    uses = sorted(timeline.utilization().to_pylist(), key=lambda use: -use["utilization"])
    document = {
        "schema": "windtunnel.replay/1",
        "makespan_ns": timeline.makespan_ns,
        "num_tasks": timeline.graph.num_tasks,
        "num_played": timeline.num_played,
        "num_critical": len(path),
        "engine": timeline.engine,
        "resources": uses,
        "clocks": timeline.graph.meta.clocks,
        "perfetto": None if perfetto is None else str(perfetto),
    }

    def lines() -> Iterator[str | Table]:
        yield f"{timeline}; critical path: {path}"
        if timeline.fold is not None:
            yield f"identical ranks are simulated once: {timeline.fold}"
        yield from _describe_fit(timeline)
        columns = {"resource": str, "tasks": "{:,}", "busy": format_duration, "utilization": format_ratio}
        rows = [(use["resource"], use["num_tasks"], use["busy_ns"], use["utilization"]) for use in uses]
        yield Table(columns, rows[:MAX_RESOURCES])
        if len(uses) > MAX_RESOURCES:
            yield f"and {len(uses) - MAX_RESOURCES:,} less busy resources"

    show(document, lines(), as_json=as_json)


def _describe_fit(timeline: Timeline) -> Iterator[str]:
    """How far the replay is from the measurement, how many tasks count as 0, and how clocks were aligned."""
    from windtunnel.sources.execution_trace.reader import count_unmeasured_tasks
    from windtunnel.sources.ranks.clocks import clock_lines

    measured_ns = timeline.graph.meta.iteration_ns.get("median")
    if measured_ns:
        off = timeline.makespan_ns / max(1, timeline.graph.num_iterations) / measured_ns - 1
        yield f"measured without profiler: {format_duration(measured_ns)} (error of the replay {off:+.1%})"
    unmeasured = count_unmeasured_tasks(timeline.graph)
    if unmeasured:
        yield f"warning: {unmeasured:,} of {timeline.graph.num_tasks:,} tasks have no measured duration and count as 0"
    yield from clock_lines(timeline.graph)
