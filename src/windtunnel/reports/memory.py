"""The section of the report about memory (room reports).

In: a timeline. Out: a ``Section``: bytes held over time by the part of the step that made them, and the largest at the
peak. Not here: adding up (``Timeline.memory``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Phase
from windtunnel.reports.charts import areas, escape
from windtunnel.reports.colours import PHASE_COLOURS
from windtunnel.reports.sections import Section, render_table, text_of
from windtunnel.simulate import Timeline
from windtunnel.simulate.memory import MemoryCurve
from windtunnel.units import format_ratio, format_size

__all__ = ["highest_points", "memory"]

NUM_POINTS = 500
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
    if "output_bytes" not in graph.tasks:
        return None
    curve = timeline.memory()
    if not len(curve.time_ns) or not curve.peak_bytes:
        return None
    points = highest_points(curve.time_ns, curve.size_bytes)
    series = _series(timeline, curve, curve.time_ns[points])
    peak = int(np.argmax(curve.size_bytes[points]))
    at_peak = sorted(((int(values[peak]), name, colour) for name, values, colour in series), reverse=True)
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{name}: {format_size(size)} at the peak</span>'
        for size, name, colour in at_peak
        if size
    )
    chart = areas(curve.time_ns[points], series, "memory held over time, by what made it", peak_ns=curve.peak_ns)
    body = f'<figure>{chart}</figure><div class="legend">{legend}</div>{_largest(timeline, curve)}'
    share = at_peak[0][0] / curve.peak_bytes
    title = f"At the peak {format_size(curve.peak_bytes)} are held, {format_ratio(share)} of it {at_peak[0][1]}"
    return Section("memory", "memory", title, body)


def highest_points(time_ns: NDArray[np.int64], size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the changes to draw: of every short span of time the largest, so that no peak is lost."""
    count = len(time_ns)
    if count <= NUM_POINTS:
        return np.arange(count)
    span = max(int(time_ns[-1] - time_ns[0]), 1)
    bins = np.minimum((time_ns - time_ns[0]) * NUM_POINTS // span, NUM_POINTS - 1)
    order = np.lexsort((-size_bytes, bins))
    first = np.flatnonzero(np.diff(bins[order], prepend=-1))
    return np.sort(order[first])


def _series(timeline: Timeline, curve: MemoryCurve, times: NDArray[np.int64]) -> Series:
    """One curve per category at the given times, from the bottom up."""
    graph = timeline.graph
    found: Series = []
    if curve.base_bytes:
        found.append(("parameters and other lasting state", np.full(len(times), curve.base_bytes), _BASE))
    phases = graph.tasks.get("phase")
    codes = np.full(graph.num_tasks, int(Phase.OTHER)) if phases is None else phases
    for phase, name in _MADE_BY.items():
        part = timeline.memory(where=codes == int(phase))
        if not len(part.time_ns):
            continue
        at = np.searchsorted(part.time_ns, times, side="right") - 1
        values = np.where(at >= 0, part.size_bytes[np.maximum(at, 0)] - part.base_bytes, 0)
        if values.any():
            found.append((name, values, PHASE_COLOURS[phase]))
    return found


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
