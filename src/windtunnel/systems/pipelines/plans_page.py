"""Every plan of a pipeline as a page: the quickest, its memory, and why others are not possible.

In: a ``PlanTable`` with its replays. Out: a page: the memory of each stage of the best plan by what it is, the plans
that fit, those that do not. Not here: computing plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from windtunnel.reports.charts import escape
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table, table_html
from windtunnel.systems.pipelines.plans_output import table_of_plans
from windtunnel.systems.pipelines.replayed import Played
from windtunnel.systems.pipelines.two_bw import PlanRow, PlanTable
from windtunnel.units import format_duration, format_size

__all__ = ["plans_page"]


def plans_page(
    table: PlanTable, played: Sequence[Played], path: str | Path, *, title: str = "", note: str = "",
    overwrite: bool = False,
) -> Path:  # fmt: skip
    """Write the page.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    best = played[0]
    name = title or "pipeline"
    head = f"<h1>{escape(name)}: {format_duration(round(best.step_ns))} per batch by {escape(str(best.row))}</h1>"
    lead = f'<p class="lead">{len(table.feasible)} of {len(table.rows)} combinations fit. {escape(note)}</p>'
    rows = [row for row in table.rows if not row.is_feasible]
    body = render_table(["plan", "why not"], [[escape(str(row)), escape(row.reason)] for row in rows])
    sections = [
        _memory(best.row),
        _fitting(table, played),
        Section("barred", "what cannot be", f"{len(rows)} plans cannot be", body),
    ]
    return write_text(Path(path), _page(name, head + lead, sections), overwrite=overwrite)


def _memory(row: PlanRow) -> Section:
    """Table of memory with a row for each stage."""
    names = list(asdict(row.memory[0]))
    cells = [
        [str(stage), *(format_size(round(asdict(item)[name])) for name in names), format_size(round(item.total))]
        for stage, item in enumerate(row.memory)
    ]
    head = ["stage", *names, "all"]
    body = render_table(head, cells, numbers=range(1, len(head)))
    return Section("memory", "memory", "What a worker of each stage of the best plan holds at its peak", body)


def _fitting(table: PlanTable, played: Sequence[Played]) -> Section:
    title = f"{len(table.feasible)} plans fit, ranked by their replay where there is one"
    return Section("fits", "what fits", title, table_html(table_of_plans(table, played, shows_all=True)))
