"""The section of the report about memory.

In: a timeline. Out: a ``Section``: bytes held over time and the largest at the peak. Where the capture followed every
storage, that is drawn, by category; of an edited graph, and of other sources, what its tasks make and free, by phase.
Not here: adding up (``Timeline.memory``), the page of a whole memory profile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Phase
from windtunnel.reports.charts import areas, escape
from windtunnel.reports.colors import MEMORY_COLORS, PHASE_COLORS
from windtunnel.reports.sections import Section, render_table, text_of
from windtunnel.simulate import Timeline
from windtunnel.simulate.memory import MemoryCurve
from windtunnel.sources.memory.profile import highest_points
from windtunnel.units import format_duration, format_ratio, format_size

__all__ = ["by_category", "memory"]

MAX_ROWS = 10
_BASE = "#b9bfc6"
_MADE_BY = {
    Phase.DATA: "input batches",
    Phase.FORWARD: "activations (forward)",
    Phase.BACKWARD: "gradients (backward)",
    Phase.UPDATE: "the update's own",
    Phase.OTHER: "other",
}
Series = list[tuple[str, NDArray[np.int64], str]]


def memory(timeline: Timeline) -> Section | None:
    """Bytes over time and at the peak; None where the graph does not know memory."""
    graph = timeline.graph
    # Memory that the capture recorded; empty if it recorded none, or if the graph was changed since.
    seen: Mapping[str, Any] = graph.meta.memory
    is_whole = not graph.edits and graph.meta.slice_of is None
    if recorded := (seen if is_whole and seen.get("curve") and seen["peak_bytes"] else {}):
        return _section_of_capture(recorded)
    if "output_bytes" not in graph.tasks:
        return None
    curve = timeline.memory()
    if not len(curve.time_ns) or not curve.peak_bytes:
        return None
    points = highest_points(curve.time_ns, curve.size_bytes)
    series = _series(timeline, curve, curve.time_ns[points])
    peak = int(np.argmax(curve.size_bytes[points]))
    at_peak = sorted(((int(values[peak]), name, color) for name, values, color in series), reverse=True)
    legend = "".join(
        f'<span><i style="background:{color}"></i>{name}: {format_size(size)} at the peak</span>'
        for size, name, color in at_peak
        if size
    )
    chart = areas(curve.time_ns[points], series, "memory held over time, by what made it", peak_ns=curve.peak_ns)
    body = f'<figure>{chart}</figure><div class="legend">{legend}</div>{_largest(timeline, curve)}'
    return Section("memory", "memory", _title(curve.peak_bytes, at_peak[0][0], at_peak[0][1]), body)


def _title(peak_bytes: int, size_bytes: int, name: str) -> str:
    return f"At the peak {format_size(peak_bytes)} are held, {format_ratio(size_bytes / peak_bytes)} of it {name}"


def _section_of_capture(seen: Mapping[str, Any]) -> Section:
    time_ns = np.array(seen["curve"]["time_ns"], dtype=np.int64)
    held = {name: np.array(values, dtype=np.int64) for name, values in seen["curve"]["by_category"].items()}
    name, size = max(seen["by_category"].items(), key=lambda item: item[1])
    rows = [
        (escape(row["name"], 90), escape(row["layer"], 60), row["category"], format_size(row["size_bytes"]))
        for row in seen["largest"]
    ]
    if seen["num_alive"] > len(rows):
        rest = seen["peak_bytes"] - sum(row["size_bytes"] for row in seen["largest"])
        rows.append((f"{seen['num_alive'] - len(rows):,} others", "", "", format_size(rest)))
    body = (
        by_category(time_ns, held, seen["by_category"])
        + '<p class="note">Every storage of one iteration, followed; that made the iteration longer.</p>'
        + "<h3>Largest at the peak</h3>"
        + render_table(("made by", "layer", "category", "holds"), rows, numbers=(3,))
    )
    return Section("memory", "memory", _title(seen["peak_bytes"], size, name), body)


def by_category(
    position: NDArray[np.int64],
    held: Mapping[str, NDArray[np.int64]],
    at_peak: Mapping[str, int],
    *,
    show: Callable[[float], str] = format_duration,
) -> str:
    """Bytes of every category of a memory profile over the step, stacked, with a legend.

    Parameters
    ----------
    position : int64 [N]
        Where on the axis, ascending.
    held : mapping of category to int64 [N]
    at_peak : mapping of category to bytes
    show : callable
        How a place is written.
    """
    series = [(name, held[name], color) for name, color in MEMORY_COLORS.items() if name in held]
    legend = "".join(
        f'<span><i style="background:{color}"></i>{name}: {format_size(at_peak[name])} at the peak</span>'
        for name, _, color in series
    )
    peak = position[int(np.argmax(np.sum([values for _, values, _ in series], axis=0)))]
    chart = areas(position, series, "bytes held over the step, by category", peak_ns=int(peak), show=show)
    return f'<figure>{chart}</figure><div class="legend">{legend}</div>'


def _series(timeline: Timeline, curve: MemoryCurve, times: NDArray[np.int64]) -> Series:
    """One curve per category at the given times, from the bottom up."""
    graph = timeline.graph
    result: Series = []
    if curve.base_bytes:
        result.append(("parameters and other lasting state", np.full(len(times), curve.base_bytes), _BASE))
    phases = graph.tasks.get("phase")
    codes = np.full(graph.num_tasks, int(Phase.OTHER)) if phases is None else phases
    for phase, name in _MADE_BY.items():
        part = timeline.memory(where=codes == int(phase))
        if not len(part.time_ns):
            continue
        index = np.searchsorted(part.time_ns, times, side="right") - 1
        values = np.where(index >= 0, part.size_bytes[np.maximum(index, 0)] - part.base_bytes, 0)
        if values.any():
            result.append((name, values, PHASE_COLORS[phase]))
    return result


def _largest(timeline: Timeline, curve: MemoryCurve) -> str:
    """The tasks that hold most at the peak."""
    held = curve.alive_at_peak()
    if not held.num_rows:
        return ""
    tasks, sizes = held.column("task").to_pylist(), held.column("size_bytes").to_pylist()
    rows = [
        (
            escape(text_of(timeline.graph, "name", task), 90),
            escape(text_of(timeline.graph, "layer", task), 60),
            format_size(size),
        )
        for task, size in zip(tasks[:MAX_ROWS], sizes, strict=False)
    ]
    if len(tasks) > MAX_ROWS:
        rows.append((f"{len(tasks) - MAX_ROWS:,} others", "", format_size(sum(sizes[MAX_ROWS:]))))
    return "<h3>Largest at the peak</h3>" + render_table(("made by", "layer", "holds"), rows, numbers=(2,))
