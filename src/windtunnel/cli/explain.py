"""``windtunnel explain``: where the time of an iteration goes, as text, tables, a trace or a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.progress import Stages
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, show, suggest
from windtunnel.cli.files import open_graph, require_free, stem
from windtunnel.cli.html_report import write_html_report
from windtunnel.cli.options import (
    AlignChoice,
    AllowMissing,
    Force,
    GraphPath,
    Json,
    KinetoPath,
    LedgerPath,
    ReadLimitSize,
)
from windtunnel.cli.resource_table import show_resource_table, write_perfetto
from windtunnel.cli.trace_table import show_trace_table
from windtunnel.errors import InputError
from windtunnel.units import format_count, format_duration, format_ratio

if TYPE_CHECKING:
    from windtunnel.reports import Explanation

__all__ = ["explain"]

_RESOURCES = "resources"


@registry.verb("explain", source="windtunnel")
def explain(
    graph: GraphPath,
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="DIVISION", help="Also list all parts by phase, kind, layer, line, op, source or task."
        ),
    ] = "",
    depth: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Aggregate layers by the first N components of their path; 0: do not aggregate."
        ),
    ] = 0,
    top: Annotated[int, typer.Option(min=1, help="Number of parts or rows to show.")] = 15,
    table: Annotated[
        str,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Print a table instead: resources (utilization in the replay), or for traces: temporal, idle, "
            "overlap, queue, queue-series, launch, launches, kernels, kinds.",
        ),
    ] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table of a trace as CSV with raw units.")] = False,
    like_hta: Annotated[
        bool, typer.Option("--like-hta", help="Round times in the table as HolisticTraceAnalysis does.")
    ] = False,
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", metavar="FILE", help="Write a trace for Perfetto or chrome://tracing.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with timeline, memory, what-ifs and receipts."),
    ] = None,
    whatifs: Annotated[
        bool, typer.Option("--whatifs/--no-whatifs", help="Include predictions of all what-ifs in the page.")
    ] = True,
    utilization: Annotated[
        bool,
        typer.Option(
            "--utilization", help="Measure peaks of this host and include the utilization waterfall in the page."
        ),
    ] = False,
    place: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Include a placement of the layers on this hardware in the page, such as 4xh100,1xcpu."
        ),
    ] = "",
    place_bandwidth: Annotated[
        str,
        typer.Option(
            "--place-bandwidth",
            metavar="RATE",
            help="Bandwidth of the links that --place uses, between accelerator and host.",
        ),
    ] = "16 GB/s",
    ledger: LedgerPath = None,
    force: Force = False,
    kineto: KinetoPath = None,
    read_limit: ReadLimitSize = "",
    align: AlignChoice = "auto",
    allow_missing: AllowMissing = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel explain train.wt --html train.html

    Show where the time of an iteration goes, its critical path, and the unexplained rest.
    """
    from windtunnel.reports import explain as explain_graph
    from windtunnel.simulate import replay

    if table and html is not None:
        raise InputError(
            "--table prints text and --html writes a page", where="--table --html", fix="leave out one of them"
        )
    if table and table != _RESOURCES:
        shown = {"as_json": as_json, "as_csv": as_csv}
        show_trace_table(graph, table, top=top, like_hta=like_hta, read_limit=read_limit, **shown)
        suggest("windtunnel", "explain", graph)
        return
    if depth and by not in ("", "layer"):
        raise InputError(f"--depth adds layers up, not {by!r}", fix="use --by layer, or leave out --by")
    by = by or ("layer" if depth else "")
    if as_csv or like_hta:
        raise InputError("--csv and --like-hta are for a table of a trace", fix="add --table NAME")
    pages = [("utilization", {"name": stem(graph)})] * utilization
    pages += [("placement", {"devices": place, "bandwidth": place_bandwidth})] * bool(place)
    if pages and html is None:
        raise InputError("these sections are part of a page", where="--utilization, --place", fix="add --html FILE")
    for path in (perfetto, html):
        if path is not None:
            require_free(path, force=force)
    with Progress(f"explaining {graph.name}", heartbeat=True) as progress:
        stages = Stages(progress)
        opened = open_graph(
            graph,
            progress=stages.stage(0, 100 if html is None else 5),
            kineto=kineto,
            read_limit=read_limit,
            align=align,
            allow_missing=allow_missing,
        )
        if html is not None:
            given: dict[str, Any] = {
                "whatifs": whatifs,
                "pages": pages,
                "ledger": ledger,
                "force": force,
                "as_json": as_json,
            }
            write_html_report(opened, graph, html, **given, progress=stages.stage(5, 100))
        timeline = replay(opened) if perfetto is not None or html is None else None
        explanation = explain_graph(opened, timeline) if html is None and not table else None
    if timeline is not None and perfetto is not None:
        write_perfetto(timeline, perfetto)
    if timeline is not None and table:
        show_resource_table(timeline, perfetto, as_json=as_json)
    if explanation is not None:
        show(explanation.to_dict(), _lines(explanation, by, depth, top), as_json=as_json)
    suggest("windtunnel", "whatif", graph, "--all")


def _lines(explanation: Explanation, by: str, depth: int, top: int) -> Iterator[str | Table]:
    yield from str(explanation).splitlines()
    if by:
        parts = explanation.parts(by, depth)
        rows, rest = parts[:top], parts[top:]
        if rest:
            _, times_ns, ratios, counts = zip(*rest, strict=True)
            rows.append((f"{len(rest):,} other parts", sum(times_ns), sum(ratios), sum(counts)))
        yield Table({"part": str, "time": format_duration, "share": format_ratio, "tasks": format_count}, rows)
