"""``windtunnel explain --table resources``: the replay of a graph, and how busy each resource is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.cli.console import advise, print_json, print_table, say, say_wrapped

if TYPE_CHECKING:
    from windtunnel.simulate import Timeline

__all__ = ["print_resource_table", "write_perfetto"]

MAX_RESOURCES = 20


def write_perfetto(timeline: Timeline, path: Path) -> None:
    """Write the replay as a trace for Perfetto or chrome://tracing."""
    timeline.to_perfetto(path)
    advise(f"wrote {path}: open it at ui.perfetto.dev")


def print_resource_table(timeline: Timeline, perfetto: Path | None, *, as_json: bool) -> None:
    """Print how long the graph takes, what decides that, and how busy each resource is."""
    from windtunnel.sources.ranks.clocks import clock_lines
    from windtunnel.units import format_duration, format_ratio

    path = timeline.critical_path()
    uses = sorted(timeline.utilization().to_pylist(), key=lambda use: -use["utilization"])
    if as_json:
        counts = {
            "num_tasks": timeline.graph.num_tasks,
            "num_played": timeline.num_played,
            "num_critical": len(path),
            "engine": timeline.engine,
        }
        files = {"perfetto": None if perfetto is None else str(perfetto)}
        clocks = timeline.graph.meta.clocks
        result = {"makespan_ns": timeline.makespan_ns, **counts, "resources": uses, "clocks": clocks}
        print_json({"schema": "windtunnel.replay/1", **result, **files})
        return
    say(f"{timeline}; critical path: {path}")
    if timeline.fold is not None:
        say(f"identical ranks are simulated once: {timeline.fold}")
    _print_measured(timeline)
    _print_unmeasured(timeline)
    for line in clock_lines(timeline.graph):
        say_wrapped(line)
    rows = [
        (use["resource"], f"{use['num_tasks']:,}", format_duration(use["busy_ns"]), format_ratio(use["utilization"]))
        for use in uses[:MAX_RESOURCES]
    ]
    print_table(("resource", "tasks", "busy", "utilization"), rows, numbers=(1, 2, 3))
    if len(uses) > MAX_RESOURCES:
        say(f"and {len(uses) - MAX_RESOURCES:,} less busy resources")


def _print_measured(timeline: Timeline) -> None:
    """Say how far the replay is from the measurement, where there was one."""
    from windtunnel.units import format_duration

    measured = timeline.graph.meta.iteration_ns
    if not measured.get("median"):
        return
    iteration_ns = timeline.makespan_ns / max(1, timeline.graph.num_iterations)
    off = iteration_ns / measured["median"] - 1
    say(f"measured without profiler: {format_duration(measured['median'])} (error of the replay {off:+.1%})")


def _print_unmeasured(timeline: Timeline) -> None:
    """Say how many tasks count as 0 because nothing tells their duration."""
    from windtunnel.sources.execution_trace.reader import count_unmeasured_tasks

    unmeasured = count_unmeasured_tasks(timeline.graph)
    if unmeasured:
        say(f"warning: {unmeasured:,} of {timeline.graph.num_tasks:,} tasks have no measured duration and count as 0")
