"""``windtunnel diff``: what changed between two graphs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, show, suggest
from windtunnel.cli.files import open_graph
from windtunnel.cli.options import GraphPath, Json, ReadLimitSize
from windtunnel.units import format_duration

if TYPE_CHECKING:
    from windtunnel.graph import Graph

__all__ = ["diff"]

_WHEN = ("before", "after")
_CONDITIONS = (("processor", "processor"), ("number of threads", "num_threads"), ("version of torch", "torch"))


@registry.verb("diff", source="windtunnel")
def diff(
    before: GraphPath,
    after: Annotated[Path, typer.Argument(metavar="OTHER", help="Graph to compare with the first.")],
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="DIVISION", help="Division of the iteration: phase, kind, layer, line, op or source."
        ),
    ] = "op",
    top: Annotated[int, typer.Option(min=1, help="Number of differences to list.")] = 15,
    read_limit: ReadLimitSize = "",
    as_json: Json = False,
) -> None:
    """Example: windtunnel diff before.wt after.wt

    Compare two graphs: total time, the parts that differ most, and differing conditions.
    """
    from windtunnel.simulate import replay

    with Progress("replaying both", heartbeat=True):
        graphs = [open_graph(path, read_limit=read_limit) for path in (before, after)]
        difference = replay(graphs[0]).diff(replay(graphs[1]), by=by)
        intervals = [_interval(graph) for graph in graphs]
        changes = [change for change in difference.table().to_pylist() if change["change_ns"]]
    unlike = _unlike_conditions(*graphs)

    def lines() -> Iterator[str | Table]:
        yield f"{difference}" if changes else f"{difference}, no difference"
        for when, (low_ns, high_ns, count) in zip(_WHEN, intervals, strict=True):
            if high_ns > low_ns:
                yield f"  {when}: {format_duration(low_ns)} to {format_duration(high_ns)} (90 %, {count} iterations)"
        if changes and _overlap(*intervals):
            yield "  these intervals overlap: the difference may be noise"
        yield from (f"  different {name}: {old} before, {new} after" for name, (old, new) in unlike.items())
        if changes:
            columns = {by: str, "before": format_duration, "after": format_duration, "change": _format_change}
            yield Table(columns, [
                (f"waiting ({change['label']})" if change["is_wait"] else change["label"] or f"(no {by})",
                 *(change[name] for name in ("before_ns", "after_ns", "change_ns")))
                for change in changes[:top]
            ])  # fmt: skip
        if len(changes) > top:
            yield f"and {len(changes) - top:,} smaller changes"

    whole = {"before_ns": difference.before_ns, "after_ns": difference.after_ns, "by": by}
    spans = {f"{when}_interval_ns": interval[:2] for when, interval in zip(_WHEN, intervals, strict=True)}
    document = {"schema": "windtunnel.diff/1", **whole, **spans, "conditions": unlike, "changes": changes}
    show(document, lines(), as_json=as_json)
    suggest("windtunnel", "explain", after)


def _format_change(change_ns: int) -> str:
    return f"{'+' if change_ns > 0 else ''}{format_duration(change_ns)}"


def _interval(graph: Graph) -> tuple[int, int, int]:
    """Ends of the 90 % interval of the iteration, wider where others disturbed the capture, and its iterations.

    Prices of another device are no iterations: their interval is that of ``predict``.
    """
    if graph.meta.priced_for:
        return 0, 0, 0
    from windtunnel.measure.disturbance import disturbance_log_error
    from windtunnel.simulate import prediction_interval

    result = prediction_interval(graph)
    factor = math.exp(disturbance_log_error(float(graph.meta.disturbance.get("lost_ratio", 0.0))))
    return round(result.low_ns / factor), round(result.high_ns * factor), len(result.makespans_ns)


def _overlap(before: tuple[int, int, int], after: tuple[int, int, int]) -> bool:
    return all(high > low for low, high, _ in (before, after)) and before[0] <= after[1] and after[0] <= before[1]


def _unlike_conditions(before: Graph, after: Graph) -> dict[str, tuple[str, str]]:
    """What differs between the two captures besides their tasks: the difference may be its, not the program's."""
    facts = {"script": (_program_of(before), _program_of(after))}
    for name, key in _CONDITIONS:
        facts[name] = (str(before.meta.hardware.get(key, "")), str(after.meta.hardware.get(key, "")))
    return {name: (old, new) for name, (old, new) in facts.items() if old and new and old != new}


def _program_of(graph: Graph) -> str:
    """The script or workload with its arguments."""
    origin = graph.meta.origin
    if "workload" in origin:
        return f"{origin['workload']} {dict(origin.get('parameters', {})) or ''}".rstrip()
    name = Path(str(origin.get("script", ""))).name
    return shlex.join([name, *map(str, origin.get("argv", ()))]) if name else ""
