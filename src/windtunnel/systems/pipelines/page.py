"""A pipeline's schedule as the usual picture: ranks down, time across, a box per pass.

In: a ``PlayedSchedule``. Out: the diagram and a table of ranks, as sections, or as a page of their own; and the same as
lines of text. Not here: making, checking and replaying schedules.
"""

from __future__ import annotations

from pathlib import Path

from windtunnel.reports.charts import WIDTH, escape
from windtunnel.reports.colors import PASS_COLORS, PASS_LABELS
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table
from windtunnel.systems.pipelines.played import Pass, PlayedSchedule
from windtunnel.systems.pipelines.verify import in_flight, weight_versions
from windtunnel.units import format_duration, format_ratio

__all__ = ["pipeline_lines", "pipeline_page", "pipeline_sections"]

_LEFT, _HIGH, _GAP = 62.0, 24.0, 4.0
_MAX_DRAWN = 20_000
_MAX_COLUMNS = 400
_DARK = "BI"


def pipeline_page(played: PlayedSchedule, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    schedule = played.schedule
    head = f"<h1>{escape(schedule.name)}: {schedule.num_stages} stages on {schedule.num_ranks} ranks</h1>"
    batches = f"{schedule.num_batches} batches of " if schedule.num_batches > 1 else ""
    lead = f"{batches}{schedule.num_microbatches} microbatches take {format_duration(played.makespan_ns)}."
    head += f'<p class="lead">{lead}</p>'
    return write_text(Path(path), _page(schedule.name, head, pipeline_sections(played)), overwrite=overwrite)


def pipeline_sections(played: PlayedSchedule) -> list[Section]:
    """Return sections with the timeline and the memory of every rank."""
    return [_diagram(played), _ranks(played)]


def pipeline_lines(played: PlayedSchedule, columns: int) -> list[str]:
    """Return the diagram as text in blocks of columns: ``F3`` where a pass starts, ``-`` while it goes on."""
    has_chunks = played.schedule.num_stages > played.schedule.num_ranks or bool(played.schedule.replicas)
    labels = {
        item: str(item) if has_chunks else str(item)[len(str(item.stage)) :]
        for row in played.passes
        for item, *_ in row
    }
    # The time of a column: the shortest pass, unless that makes too many columns.
    shortest = min((end - begin for row in played.passes for _, begin, end in row if end > begin), default=1)
    unit = max(shortest, -(-played.makespan_ns // _MAX_COLUMNS), 1)
    width = 1 + max(map(len, labels.values()), default=1)
    num_cells = -(-played.makespan_ns // unit)
    rows = [_cells(row, labels, unit, num_cells, width) for row in played.passes]  # type: ignore[arg-type]
    title = len(f"rank {len(rows) - 1}  ")
    per_block = max(1, (columns - title) // width)
    lines = []
    for first in range(0, num_cells, per_block):
        lines += [""] * (first > 0)
        for rank, cells in enumerate(rows):
            lines.append(f"rank {rank}".ljust(title) + "".join(cells[first : first + per_block]).rstrip())
    return lines


def _cells(row: list[Pass], labels: dict[object, str], unit: int, num_cells: int, width: int) -> list[str]:
    cells = ["." + " " * (width - 1)] * num_cells
    free = 0
    for action, begin, end in row:
        first = max(free, round(begin / unit))
        last = max(first + 1, round(end / unit))
        for index in range(first, min(last, num_cells)):
            cells[index] = (labels[action] if index == first else "-").ljust(width)
        free = last
    return cells


def _diagram(played: PlayedSchedule) -> Section:
    title = f"Ranks are idle {format_ratio(played.idle_ratio)} of the time"
    num = sum(map(len, played.passes))
    if num > _MAX_DRAWN:
        return Section("schedule", "schedule", title, f"<p>{num:,} passes are too many for a drawing.</p>")
    scale = (WIDTH - _LEFT - 4) / max(played.makespan_ns, 1)
    first_stage = [min((item.stage for item, *_ in row), default=0) for row in played.passes]
    marks = []
    for rank, row in enumerate(played.passes):
        y = 6 + rank * (_HIGH + _GAP)
        marks.append(f'<text x="4" y="{y + 16:.0f}">rank {rank}</text>')
        marks += [_box(item, y, scale, is_later=item.action.stage != first_stage[rank]) for item in row]
    height = 12 + len(played.passes) * (_HIGH + _GAP)
    end = format_duration(played.makespan_ns)
    axis = f'<text x="{_LEFT}" y="{height + 8:.0f}">0</text><text x="{WIDTH - 70}" y="{height + 8:.0f}">{end}</text>'
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {height + 16:.0f}" role="img" aria-label="passes of each rank over time">'
        f"{''.join(marks)}{axis}</svg>"
    )
    kinds = sorted({item.kind for row in played.passes for item, *_ in row}, key="FBIW".index)
    keys = " ".join(
        f'<svg width="14" height="14"><rect width="14" height="14" fill="{PASS_COLORS[kind]}"/></svg> {kind} '
        f"{PASS_LABELS[kind]}" for kind in kinds
    )  # fmt: skip
    note = "<p>Numbers are microbatches. Boxes with a white line are of a further stage of that rank.</p>"
    return Section("schedule", "schedule", title, f"{picture}<p>{keys}</p>{note}")


def _box(pass_: Pass, y: float, scale: float, *, is_later: bool) -> str:
    action, begin, end = pass_
    x, wide = _LEFT + begin * scale, max((end - begin) * scale - 0.6, 0.4)
    words = f"{action}: {PASS_LABELS[action.kind]} of microbatch {action.microbatch}, stage {action.stage}, "
    words += f"{format_duration(begin)} to {format_duration(end)}"
    parts = [
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{wide:.1f}" height="{_HIGH:.0f}" fill="{PASS_COLORS[action.kind]}"/>'
    ]
    if is_later:
        parts.append(f'<rect x="{x:.1f}" y="{y + _HIGH - 5:.0f}" width="{wide:.1f}" height="2" fill="#fff"/>')
    if wide > 6 * len(str(action.microbatch)) + 2:
        ink = "#fff" if action.kind in _DARK else "#111"
        parts.append(f'<text x="{x + wide / 2:.1f}" y="{y + 15:.0f}" text-anchor="middle" font-size="11" fill="{ink}">'
                     f"{action.microbatch}</text>")  # fmt: skip
    return f"<g><title>{escape(words)}</title>{''.join(parts)}</g>"


def _ranks(played: PlayedSchedule) -> Section:
    schedule = played.schedule
    stages = [sorted({item.stage for item, *_ in row}) for row in played.passes]
    held = zip(stages, played.idle_ratios, in_flight(schedule), weight_versions(schedule), strict=True)
    cells = [
        (str(rank), ", ".join(map(str, own)), format_ratio(idle), str(passes), str(versions))
        for rank, (own, idle, passes, versions) in enumerate(held)
    ]
    head = ("rank", "stages", "idle", "passes in flight", "weight versions")
    note = "<p>A pass is in flight from its forward pass to the end of its backward pass.</p>"
    body = render_table(head, cells, numbers=(0, 2, 3, 4)) + note
    return Section("ranks", "ranks", "Passes in flight and weight versions by rank", body)
