"""``windtunnel report``: one HTML file that works offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, print_json, say
from windtunnel.cli.files import derived, open_graph, require_free, stem
from windtunnel.cli.options import (
    AlignChoice,
    AllowMissing,
    Force,
    GraphPath,
    Json,
    KinetoPath,
    LedgerPath,
    Output,
    ReadLimitSize,
)

if TYPE_CHECKING:
    from windtunnel.reports.sections import Section

__all__ = ["report"]


@registry.verb("report", source="windtunnel")
def report(
    graph: GraphPath,
    ask: Annotated[bool, typer.Option("--whatifs/--no-whatifs", help="Include predictions of every what-if.")] = True,
    peaks: Annotated[bool, typer.Option("--utilization", help="Measure peaks here; include the waterfall.")] = False,
    place: Annotated[
        str, typer.Option(metavar="LIST", help="Include a placement of the layers, such as on 4xh100,1xcpu.")
    ] = "",
    bandwidth: Annotated[str, typer.Option(metavar="RATE", help="Of a placement: accelerator to host.")] = "16 GB/s",
    output: Output = None,
    ledger: LedgerPath = None,
    force: Force = False,
    kineto: KinetoPath = None,
    read_limit: ReadLimitSize = "",
    align: AlignChoice = "auto",
    allow_missing: AllowMissing = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel report train.wt

    Write a page with the time, the critical path, a timeline, memory, what-ifs and receipts.
    """
    from windtunnel.flights import Ledger, with_intervals
    from windtunnel.reports import report as write_report
    from windtunnel.units import format_size
    from windtunnel.whatifs import whatif

    path = require_free(derived(graph, ".report.html", output), force=force)
    past = Ledger(ledger)
    with Progress(f"writing {path.name}", heartbeat=True) as progress:
        opened = open_graph(
            graph, progress=progress, kineto=kineto, read_limit=read_limit, align=align, allow_missing=allow_missing
        )
        found = whatif(opened, "all", progress=progress) if ask and opened.num_tasks else []
        answers = with_intervals(found, past)
        receipts = past.receipts() if ask else []
        more: list[Section] = []
        if peaks:
            more += registry.get("page", "utilization").function(opened, name=stem(graph))
        if place:
            more += registry.get("page", "placement").function(opened, devices=place, bandwidth=bandwidth)
        write_report(opened, path, answers=answers, receipts=receipts, title=stem(graph), more=more, overwrite=force)
    if as_json:
        document = {"schema": "windtunnel.report/1", "path": str(path), "size_bytes": path.stat().st_size}
        print_json(document | {"num_tasks": opened.num_tasks, "num_answers": len(answers)})
    else:
        say(f"{path}: {format_size(path.stat().st_size)}, works offline")
    advise(f"next: open {path} in a browser")
