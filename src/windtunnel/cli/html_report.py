"""``windtunnel explain --html``: one HTML file that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.progress import Progress, Stages
from windtunnel.cli.console import advise, show
from windtunnel.cli.files import prepare_reruns, stem
from windtunnel.units import format_size

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.reports.sections import Section

__all__ = ["write_html_report"]


def write_html_report(
    graph: Graph,
    source: Path,
    path: Path,
    *,
    whatifs: bool,
    pages: Sequence[tuple[str, dict[str, str]]],
    ledger: Path | None,
    force: bool,
    as_json: bool,
    progress: Progress,
) -> None:
    """Write the page: time, critical path, timeline, memory, what-ifs, receipts and the sections of ``pages``.

    Parameters
    ----------
    graph : Graph
    source, path : Path
        Where the graph came from, which names the page, and where the page goes.
    whatifs : bool
        Whether to include predictions of every what-if and past receipts.
    pages : sequence of (str, dict)
        Registered pages to include, each with its options.
    """
    if whatifs:
        prepare_reruns(graph)  # before anything imports torch
    from windtunnel.flights import Ledger, with_intervals
    from windtunnel.reports import report
    from windtunnel.whatifs import whatif

    past, stages = Ledger(ledger), Stages(progress)
    result = whatif(graph, "all", progress=stages.stage(0, 90)) if whatifs and graph.num_tasks else []
    answers = with_intervals(result, past)
    receipts = past.receipts() if whatifs else []
    stages.stage(90, 100)("writing the page", 0, 1)
    more: list[Section] = []
    for name, options in pages:
        more += registry.get("page", name).function(graph, **options)
    report(graph, path, answers=answers, receipts=receipts, title=stem(source), more=more, overwrite=force)
    size_bytes = path.stat().st_size
    document = {"schema": "windtunnel.report/1", "path": str(path), "size_bytes": size_bytes,
                "num_tasks": graph.num_tasks, "num_answers": len(answers)}  # fmt: skip
    show(document, [f"{path}: {format_size(size_bytes)}, works offline"], as_json=as_json)
    advise(f"next: open {path} in a browser")
