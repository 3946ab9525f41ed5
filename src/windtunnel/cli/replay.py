"""``windtunnel replay``: when every task runs, and how busy each resource is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, print_json, print_table, say, say_wrapped, suggest
from windtunnel.cli.files import open_graph, require_free
from windtunnel.cli.options import AlignChoice, AllowMissing, Force, GraphPath, Json, KinetoPath, ReadLimitSize

if TYPE_CHECKING:
    from windtunnel.simulate import Timeline

__all__ = ["replay"]

MAX_RESOURCES = 20


@registry.verb("replay", source="windtunnel")
def replay(
    graph: GraphPath,
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", metavar="FILE", help="Write a trace for Perfetto or chrome://tracing.")
    ] = None,
    force: Force = False,
    kineto: KinetoPath = None,
    read_limit: ReadLimitSize = "",
    align: AlignChoice = "auto",
    allow_missing: AllowMissing = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel replay train.wt --perfetto train.trace.json

    Play the graph: how long it takes, what decides that, how busy each resource is.
    """
    from windtunnel.simulate import replay as replay_graph
    from windtunnel.sources.ranks.clocks import clock_lines
    from windtunnel.units import format_duration, format_ratio

    target = None if perfetto is None else require_free(perfetto, force=force)
    with Progress(f"replaying {graph.name}", heartbeat=True) as progress:
        timeline = replay_graph(
            open_graph(
                graph, progress=progress, kineto=kineto, read_limit=read_limit, align=align, allow_missing=allow_missing
            )
        )
        path = timeline.critical_path()
        uses = sorted(timeline.utilization().to_pylist(), key=lambda use: -use["utilization"])
        if target is not None:
            timeline.to_perfetto(target)
    if as_json:
        counts = {
            "num_tasks": timeline.graph.num_tasks,
            "num_played": timeline.num_played,
            "num_critical": len(path),
            "engine": timeline.engine,
        }
        files = {"perfetto": None if target is None else str(target)}
        clocks = timeline.graph.meta.clocks
        found = {"makespan_ns": timeline.makespan_ns, **counts, "resources": uses, "clocks": clocks}
        print_json({"schema": "windtunnel.replay/1", **found, **files})
    else:
        say(f"{timeline}; critical path: {path}")
        if timeline.fold is not None:
            say(f"equal ranks are played once: {timeline.fold}")
        _print_measured(timeline)
        _print_unmeasured(timeline)
        for line in clock_lines(timeline.graph):
            say_wrapped(line)
        rows = [
            (
                use["resource"],
                f"{use['num_tasks']:,}",
                format_duration(use["busy_ns"]),
                format_ratio(use["utilization"]),
            )
            for use in uses[:MAX_RESOURCES]
        ]
        print_table(("resource", "tasks", "busy", "of the time"), rows, numbers=(1, 2, 3))
        if len(uses) > MAX_RESOURCES:
            say(f"and {len(uses) - MAX_RESOURCES:,} less busy resources")
    if target is not None:
        advise(f"wrote {target}: open it at ui.perfetto.dev")
    suggest("windtunnel", "report", graph)


def _print_measured(timeline: Timeline) -> None:
    """Say how far the replay is from the measurement, where there was one."""
    from windtunnel.units import format_duration

    measured = timeline.graph.meta.iteration_ns
    if not measured.get("median"):
        return
    iteration_ns = timeline.makespan_ns / max(1, timeline.graph.num_iterations)
    off = iteration_ns / measured["median"] - 1
    say(f"measured without a profiler: {format_duration(measured['median'])}, the replay is {off:+.1%} off")


def _print_unmeasured(timeline: Timeline) -> None:
    """Say how many tasks count as 0 because nothing tells their duration."""
    from windtunnel.sources.execution_trace.reader import count_unmeasured

    unmeasured = count_unmeasured(timeline.graph)
    if unmeasured:
        say(f"warning: {unmeasured:,} of {timeline.graph.num_tasks:,} tasks are unmeasured and count as 0")
