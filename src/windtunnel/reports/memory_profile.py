"""The page of a memory profile.

In: a ``MemoryProfile``. Out: one self-contained HTML file: bytes by category over the step, a tree map of the peak, the
storages alive then, layers and lines. Not here: watching a step (room sources).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from windtunnel.reports.charts import escape
from windtunnel.reports.colors import MEMORY_COLORS
from windtunnel.reports.memory import by_category
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table
from windtunnel.reports.treemap import Leaf, treemap
from windtunnel.sources.memory.profile import CATEGORIES, MemoryProfile, highest_points
from windtunnel.units import format_count, format_duration, format_ratio, format_size

__all__ = ["memory_page"]

MAX_LEAVES = 120
MAX_ROWS = 40
MAX_PLACES = 15
BEFORE = "(before the step)"
OUTSIDE = "outside of any layer"


def memory_page(profile: MemoryProfile, path: str | Path, *, title: str = "", overwrite: bool = False) -> Path:
    """Write the page.

    Parameters
    ----------
    profile : MemoryProfile
    path : path
    title : str
        Name of the job; that of the file if empty.
    overwrite : bool
        Replace a file that is there.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False, or nothing was ever held.
    """
    name = title or Path(path).name.removesuffix(".html").removesuffix(".memory")
    how = "predicted with fake tensors" if profile.meta.get("is_fake") else "measured"
    lead = f"{how}; {profile.meta.get('included', 'storages of tensors')}"
    head = (
        f"<h1>{escape(name)}: {format_size(profile.peak_bytes)} at the peak</h1>"
        f'<p class="lead">{escape(lead)}</p>{_facts(profile)}'
    )
    result = [_over_time(profile), _at_peak(profile), _alive(profile), _places(profile)] if profile.peak_bytes else []
    return write_text(Path(path), _page(name, head, result), overwrite=overwrite)


def _facts(profile: MemoryProfile) -> str:
    cells = [
        ("peak", format_size(profile.peak_bytes), "as requested"),
        ("without workspace", format_size(profile.peak_without_workspace_bytes), "which fake tensors do not have"),
        ("rounded", format_size(profile.peak_rounded_bytes), "every storage to 512 bytes"),
        ("reserved", format_size(profile.peak_reserved_bytes), "by a simulated caching allocator"),
        ("storages alive then", format_count(profile.alive_at_peak().num_rows), "views are not counted again"),
    ]
    body = "".join(f"<div><dt>{name}</dt><dd>{value}<small>{more}</small></dd></div>" for name, value, more in cells)
    return f'<dl class="facts">{body}</dl>'


def _over_time(profile: MemoryProfile) -> Section:
    is_fake = bool(profile.meta.get("is_fake"))
    axis = np.arange(profile.events.num_rows) if is_fake else profile.time_ns
    points = highest_points(axis, profile.total_bytes)
    held = {name: profile.held_bytes[points, row] for row, name in enumerate(CATEGORIES)}
    held = {name: values for name, values in held.items() if values.any()}
    peak = profile.by_category()
    chart = by_category(axis[points], held, peak, show=_event_number if is_fake else format_duration)
    largest = max(peak, key=lambda name: peak[name])
    share = format_ratio(peak[largest] / profile.peak_bytes)
    title = f"{largest.capitalize()} is {share} of the {format_size(profile.peak_bytes)} at the peak"
    note = "Along the axis: births and deaths in order, as nothing was computed." if is_fake else ""
    return Section("time", "over the step", title, f'{chart}<p class="note">{note}</p>')


def _event_number(event: float) -> str:
    return f"event {event:,.0f}"


def _at_peak(profile: MemoryProfile) -> Section:
    """Category, then layer."""
    rows = [row for row in profile.by_layer().to_pylist() if row["peak_bytes"]]
    merged: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row["category"], row["layer"] or OUTSIDE
        merged[key] = merged.get(key, 0) + row["peak_bytes"]
    ranked = sorted(merged.items(), key=lambda item: -item[1])
    leaves = [Leaf(category, layer, size, MEMORY_COLORS[category]) for (category, layer), size in ranked[:MAX_LEAVES]]
    rest: dict[str, int] = {}
    for (category, _), size in ranked[MAX_LEAVES:]:
        rest[category] = rest.get(category, 0) + size
    leaves += [Leaf(category, "other layers", size, MEMORY_COLORS[category]) for category, size in rest.items()]
    (category, layer), size = ranked[0]
    where = layer if layer == OUTSIDE else f"of {layer}"
    title = f"The largest part of the peak is the {category} {where}: {format_size(size)}"
    shares = sorted(profile.by_category().items(), key=lambda item: -item[1])
    legend = "".join(
        f'<span><i style="background:{MEMORY_COLORS[name]}"></i>{name} {format_ratio(held / profile.peak_bytes)}</span>'
        for name, held in shares
        if held
    )
    chart = treemap(leaves, "bytes at the peak by category and layer", show=format_size)
    return Section("peak", "at the peak", title, f'<figure>{chart}</figure><div class="legend">{legend}</div>')


def _alive(profile: MemoryProfile) -> Section:
    alive = profile.alive_at_peak().to_pylist()
    rows = [
        (
            escape(row["name"], 60),
            escape(row["layer"] or "", 50),
            escape(row["line"] or BEFORE, 60),
            row["category"],
            format_size(row["size_bytes"]),
        )
        for row in alive[:MAX_ROWS]
    ]
    if len(alive) > MAX_ROWS:
        left = sum(row["size_bytes"] for row in alive[MAX_ROWS:])
        rows.append((f"{len(alive) - MAX_ROWS:,} others", "", "", "", format_size(left)))
    half = np.cumsum([row["size_bytes"] for row in alive])
    needed = int(np.searchsorted(half, profile.peak_bytes / 2)) + 1
    title = f"{needed} of {len(alive):,} storages hold half of the peak"
    head = ("made by", "layer", "line", "category", "holds")
    return Section("alive", "storages", title, render_table(head, rows, numbers=(4,)))


def _places(profile: MemoryProfile) -> Section:
    lines = [row for row in profile.by_line().to_pylist() if row["peak_bytes"] and row["line"]]
    layers = [row for row in profile.by_layer().to_pylist() if row["peak_bytes"]]
    body = (
        '<div class="columns"><div><h3>Source lines</h3>'
        + _table(lines, "line", ("category",))
        + "</div><div><h3>Layers</h3>"
        + _table(layers, "layer", ("phase", "category"))
        + "</div></div>"
    )
    if not lines:
        return Section("places", "lines and layers", "All of the peak was there before the step", body)
    title = f"Of the program's lines, {lines[0]['line']} holds most at the peak: {format_size(lines[0]['peak_bytes'])}"
    return Section("places", "lines and layers", title, body)


def _table(rows: list[dict[str, object]], name: str, more: tuple[str, ...]) -> str:
    cells = [
        (
            escape(str(row[name] or OUTSIDE), 60),
            *(escape(str(row[key])) for key in more),
            format_size(float(str(row["peak_bytes"]))),
            format_size(float(str(row["most_bytes"]))),
        )
        for row in rows[:MAX_PLACES]
    ]
    width = len(more) + 1
    return render_table((name, *more, "at the peak", "at most"), cells, numbers=(width, width + 1))
