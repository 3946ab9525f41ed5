"""``windtunnel explain``: where the time of an iteration goes, in plain words."""

from __future__ import annotations

from typing import Annotated

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, print_json, print_table, say_wrapped, suggest
from windtunnel.cli.files import open_graph
from windtunnel.cli.options import AlignChoice, AllowMissing, GraphPath, Json, KinetoPath, ReadLimitSize
from windtunnel.cli.trace_table import print_trace_table
from windtunnel.errors import InputError

__all__ = ["explain"]


@registry.verb("explain", source="windtunnel")
def explain(
    graph: GraphPath,
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="DIVISION", help="Also list every part by phase, kind, layer, line, op, source or task."
        ),
    ] = "",
    depth: Annotated[
        int, typer.Option(min=0, metavar="N", help="Add layers up by the first N parts of their path; 0 for none.")
    ] = 0,
    top: Annotated[int, typer.Option(min=1, help="How many parts to list.")] = 15,
    table: Annotated[
        str,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Of traces: temporal, idle, overlap, queue, queue-series, launch, launches, kernels or kinds.",
        ),
    ] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV with raw units.")] = False,
    like_hta: Annotated[
        bool, typer.Option("--like-hta", help="In the table, round times as HolisticTraceAnalysis does.")
    ] = False,
    kineto: KinetoPath = None,
    read_limit: ReadLimitSize = "",
    align: AlignChoice = "auto",
    allow_missing: AllowMissing = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel explain train.wt

    Say where the time of an iteration goes, which tasks decide it, and what stays unexplained.
    """
    from windtunnel.reports import explain as explain_graph

    if table:
        shown = {"as_json": as_json, "as_csv": as_csv}
        print_trace_table(graph, table, top=top, like_hta=like_hta, read_limit=read_limit, **shown)
        suggest("windtunnel", "explain", graph)
        return
    if depth and by not in ("", "layer"):
        raise InputError(f"--depth adds layers up, not {by!r}", fix="use --by layer, or leave out --by")
    by = by or ("layer" if depth else "")
    if as_csv or like_hta:
        raise InputError("--csv and --like-hta are for a table", fix="add --table NAME")
    with Progress(f"explaining {graph.name}", heartbeat=True) as progress:
        explanation = explain_graph(
            open_graph(
                graph, progress=progress, kineto=kineto, read_limit=read_limit, align=align, allow_missing=allow_missing
            )
        )
    if as_json:
        print_json(explanation.to_dict())
    else:
        for line in str(explanation).splitlines():
            say_wrapped(line)
        if by:
            _list_parts(explanation.parts(by, depth), top)
    suggest("windtunnel", "whatif", graph, "--all")


def _list_parts(parts: list[tuple[str, float, float, int]], top: int) -> None:
    from windtunnel.units import format_count, format_duration, format_ratio

    rows = [
        (label, format_duration(time_ns), format_ratio(ratio), format_count(count))
        for label, time_ns, ratio, count in parts[:top]
    ]
    rest = parts[top:]
    if rest:
        time_ns, ratio = sum(part[1] for part in rest), sum(part[2] for part in rest)
        count = sum(part[3] for part in rest)
        rows.append((f"{len(rest):,} others", format_duration(time_ns), format_ratio(ratio), format_count(count)))
    print_table(("part", "time", "share", "tasks"), rows, numbers=(1, 2, 3))
