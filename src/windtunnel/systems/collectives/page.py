"""The page about schedules of a program: what they take, and the first ones as timelines on one scale.

In: priced schedules with their graphs and timelines. Out: one page. Not here: prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.base.tables import Table
from windtunnel.graph import Graph, Kind
from windtunnel.reports.charts import Frame, drawing, escape, words
from windtunnel.reports.colors import KIND_COLORS, KIND_LABELS
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, table_html
from windtunnel.simulate import Timeline
from windtunnel.units import format_duration

__all__ = ["DrawnSchedule", "collectives_page"]

_ROW, _MAX_ROWS, _MIN_WIDTH, _MIN_BORDERED_WIDTH, _NUM_TICKS = 22, 12, 0.4, 2.0, 5
_DRAWN_KINDS = (Kind.COMPUTE, Kind.COMM, Kind.COPY)


@dataclass(frozen=True, slots=True)
class DrawnSchedule:
    """A schedule with its timeline."""

    label: str
    graph: Graph
    timeline: Timeline


def collectives_page(
    name: str, table: Table, pictures: Sequence[DrawnSchedule], path: str | Path, *, overwrite: bool = False
) -> Path:
    """Write the page.

    Parameters
    ----------
    name : str
        Of the program and the hardware.
    table : Table
        Schedules with their times.
    pictures : sequence of DrawnSchedule
        The baseline first.
    path : path
    overwrite : bool

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    longest_ns = max((item.timeline.makespan_ns for item in pictures), default=1)
    sections = [Section("schedules", "schedules", "What a step takes by schedule", table_html(table))]
    for index, item in enumerate(pictures):
        factor = pictures[0].timeline.makespan_ns / max(item.timeline.makespan_ns, 1)
        title = f"{item.label} takes {format_duration(item.timeline.makespan_ns)}"
        title += f": {factor:.2f} times as fast as {pictures[0].label}" if index else ""
        sections.append(Section(f"timeline{index}", item.label, title, draw_timeline(item, longest_ns)))
    return write_text(Path(path), _page(name, f"<h1>{escape(name)}</h1>", sections), overwrite=overwrite)


def draw_timeline(item: DrawnSchedule, longest_ns: int) -> str:
    """Tasks of the first resources as boxes over time; each box says what it is when pointed at."""
    graph, timeline = item.graph, item.timeline
    names, kinds = graph.tasks.strings("name").to_numpy(), graph.tasks["kind"]
    resources = [int(row) for row in dict.fromkeys(graph.tasks["resource"].tolist()) if row >= 0]
    resources = sorted(resources)[:_MAX_ROWS]
    titles = graph.resources.strings("name").to_numpy()
    frame = Frame(210, 6, 6 + _ROW * len(resources), 1090)
    body = frame.axes([format_duration(longest_ns * tick / _NUM_TICKS) for tick in range(_NUM_TICKS + 1)], [])
    row_of = {resource: row for row, resource in enumerate(resources)}
    for resource, row in row_of.items():
        body.append(words(frame.left - 6, frame.top + _ROW * row + 15, str(titles[resource]), "end"))
    for task, resource in enumerate(graph.tasks["resource"].tolist()):
        start_ns, finish_ns = int(timeline.start_ns[task]), int(timeline.finish_ns[task])
        if resource in row_of and finish_ns > start_ns:
            left, right = frame.x(start_ns / longest_ns), frame.x(finish_ns / longest_ns)
            label = f"{names[task]}: {format_duration(finish_ns - start_ns)}"
            color = KIND_COLORS[Kind(kinds[task])]
            border = "#fff" if right - left > _MIN_BORDERED_WIDTH else color
            body.append(
                f'<rect x="{left:.1f}" y="{frame.top + _ROW * row_of[resource] + 3}" '
                f'width="{max(right - left, _MIN_WIDTH):.2f}" height="{_ROW - 6}" fill="{color}" '
                f'stroke="{border}" stroke-width="0.5"><title>{escape(label)}</title></rect>'
            )
    key = "".join(
        f'<span><i style="background:{KIND_COLORS[kind]}"></i> {KIND_LABELS[kind]}</span> ' for kind in _DRAWN_KINDS
    )
    return drawing(frame.floor + 24, body, f"timeline of {item.label}") + f'<div class="legend">{key}</div>'
