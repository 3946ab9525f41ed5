"""``windtunnel slice``: some tasks of a graph as a graph of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, show, suggest
from windtunnel.cli.files import derive_path, open_graph, require_free
from windtunnel.cli.options import AlignChoice, AllowMissing, Force, GraphPath, Json, KinetoPath, Output, ReadLimitSize
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.units import parse_duration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from windtunnel.graph import Graph

    Mask = NDArray[np.bool_]

__all__ = ["slice_graph"]

_TYPICAL = "typical"  # of --step-time
# measured of the whole, so untrue of a part
_WHOLE = ("iteration_ns", "profiled_iteration_ns", "overhead")


@registry.verb("slice", source="windtunnel")
def slice_graph(
    graph: GraphPath,
    iteration: Annotated[int | None, typer.Option(min=0, help="Select tasks of this training iteration.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Select tasks of this rank.")] = None,
    phase: Annotated[
        str, typer.Option(help="Select tasks of this phase: data, forward, backward, update or other.")
    ] = "",
    layer: Annotated[str, typer.Option(metavar="REGEX", help="Select layers whose full path matches.")] = "",
    name: Annotated[str, typer.Option(metavar="REGEX", help="Select tasks whose full name matches.")] = "",
    since: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Select tasks that end after this time, such as 2ms.")
    ] = "",
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="Select tasks that start before this time.")] = "",
    window: Annotated[
        str, typer.Option(metavar="NAME", help="Trace only: select what was launched within this annotation.")
    ] = "",
    partial: Annotated[
        bool, typer.Option("--partial", help="Trace only: accept a trace that is truncated, up to its end.")
    ] = False,
    step_time: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Trace only: duration of a step without the profiler, such as 24ms, or typical."
        ),
    ] = "",
    align: AlignChoice = "auto",
    allow_missing: AllowMissing = False,
    output: Output = None,
    force: Force = False,
    kineto: KinetoPath = None,
    read_limit: ReadLimitSize = "",
    as_json: Json = False,
) -> None:
    """Example: windtunnel slice train.wt --layer 'encoder[.]3[.].*'

    Select the tasks of a window, an iteration or a layer, with their dependencies.
    """
    from windtunnel.graph import save

    path = require_free(derive_path(graph, ".slice.wt", output), force=force)
    cut: dict[str, Any] = {"window": window or None, "partial": partial}
    cut |= {"align": align, "allow_missing": allow_missing}
    with Progress(f"slicing {graph.name}", heartbeat=True) as progress:
        whole = open_graph(graph, progress=progress, needs_times=False, kineto=kineto, read_limit=read_limit, **cut)
        if step_time:
            whole = _remove_profiler_cost(whole, step_time)
        mask = whole.select(iteration=iteration, rank=rank, phase=_phase(phase), layer=layer or None, name=name or None)
        if since or until:
            whole, mask = _in_window(whole, mask, since, until)
        if not mask.any():
            raise NotApplicableError("no task matches all conditions", where=str(graph), fix="drop a condition")
        part = whole if mask.all() else _part(whole, mask)
        save(part, path, overwrite=force)
    document = {"schema": "windtunnel.slice/1", "path": str(path), "num_tasks": part.num_tasks, "of": whole.num_tasks}
    show(document, [f"{path}: {part.num_tasks:,} of {whole.num_tasks:,} tasks"], as_json=as_json)
    suggest("windtunnel", "explain", path)


def _remove_profiler_cost(graph: Graph, step_time: str) -> Graph:
    from windtunnel.sources.kineto.unprofiled import without_profiler

    return without_profiler(graph, None if step_time == _TYPICAL else parse_duration(step_time))


def _phase(name: str) -> int | None:
    from windtunnel.graph import Phase

    if not name:
        return None
    if name.upper() not in Phase.__members__:
        known = ", ".join(phase.name.lower() for phase in Phase)
        raise InputError(f"there is no phase {name!r}", fix=f"use one of {known}")
    return Phase[name.upper()]


def _in_window(graph: Graph, mask: Mask, since: str, until: str) -> tuple[Graph, Mask]:
    """Tasks at work in a window; those whose cause lies before it start no earlier than they did."""
    import numpy as np

    from windtunnel.simulate import replay

    timeline = replay(graph)
    mask = mask & (timeline.finish_ns > parse_duration(since or "0s"))
    if until:
        mask &= timeline.start_ns < parse_duration(until)
    src, dst = graph.edges["src"], graph.edges["dst"]
    is_cut = np.zeros(graph.num_tasks, dtype=bool)
    is_cut[dst[mask[dst] & ~mask[src]]] = True
    begin_ns = int(timeline.start_ns[mask].min(initial=timeline.makespan_ns))
    earliest_ns = np.where(is_cut, np.maximum(timeline.start_ns - begin_ns, 0), 0)
    return graph.with_columns(earliest_ns=earliest_ns), mask


def _part(graph: Graph, mask: Mask) -> Graph:
    part = graph.remove(~mask)
    meta = part.meta.with_entries({key: {} for key in _WHOLE} | {"slice_of": graph.num_tasks})
    return type(part)(part.tasks, part.edges, part.resources, meta).validate()
