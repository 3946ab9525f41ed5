"""The sections of the report that come from one graph.

In: an explanation and its timeline. Out: ``Section``s of HTML, titled by sentences. Everything from outside goes
through ``escape``. Not here: predictions (``answers.py``), the page around them (``page.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.base.tables import Table
from windtunnel.graph import Graph, Kind, Phase, Strings
from windtunnel.reports.charts import Part, draw_stacked_bar, escape
from windtunnel.reports.colors import IDLE, KIND_COLORS, KIND_LABELS, PHASE_COLORS, PHASE_LABELS
from windtunnel.reports.device_use import cause_of, device_lines, efficiency_of
from windtunnel.reports.explanation import Explanation, Share
from windtunnel.reports.packing import pack
from windtunnel.simulate import Timeline
from windtunnel.units import format_count, format_duration, format_ratio
from windtunnel.whatifs.device_use import DeviceUse

__all__ = [
    "Section",
    "critical_path",
    "device_use",
    "edits",
    "facts",
    "render_table",
    "text_of",
    "timeline_view",
    "where_time_goes",
]

MAX_ROWS = 8
MAX_DRAWN = 5_000_000  # about 35 MB of page; a browser unpacks that in seconds
_IDLE_NOTE = "Idle is time in which the path waits and no task of it runs."
_PHASES = {PHASE_LABELS[phase]: color for phase, color in PHASE_COLORS.items()} | {"idle": IDLE}
_KINDS = {KIND_LABELS[kind]: color for kind, color in KIND_COLORS.items()} | {"idle": IDLE}
assert set(Phase) == set(PHASE_COLORS)
assert set(Kind) == set(KIND_COLORS)


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page: an anchor, its name in the menu, a sentence as title, and HTML."""

    anchor: str
    menu: str
    title: str
    body: str


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """An HTML table of cells that are already escaped; columns ``numbers`` are set to the right."""

    def row(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="number"' if index in numbers else "" for index in range(len(cells))]
        return (
            "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)) + "</tr>"
        )

    body = "".join(row(cells, "td") for cells in rows)
    return f'<div class="scroll"><table><thead>{row(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def table_html(table: Table) -> str:
    """A table that the console shows too, as HTML."""
    rows = [[escape(cell) for cell in row] for row in table.cells()]
    return render_table([escape(title) for title in table.titles], rows, numbers=table.numbers)


def facts(explanation: Explanation) -> str:
    """The numbers at the top of the page."""
    result = [
        ("time per iteration", format_duration(explanation.iteration_ns), _format_measured_time(explanation)),
        ("replayed", format_duration(explanation.replayed_ns), _format_unexplained_ratio(explanation)),
        (
            "tasks",
            format_count(explanation.num_tasks),
            f"{format_count(explanation.num_critical)} on the critical path",
        ),
    ]
    if explanation.overhead_ratio is not None:
        cost = explanation.overhead_ratio
        shown = format_ratio(cost) if cost > 0 else "lost in the spread"
        result.append(("cost of measuring", shown, "taken out of every time here"))
    if explanation.num_ranks > 1:
        result.append(("workers", format_count(explanation.num_ranks), "ranks in one graph"))
    cells = "".join(
        f"<div><dt>{label}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for label, value, more in result
    )
    return f'<dl class="facts">{cells}</dl>'


def _format_measured_time(explanation: Explanation) -> str:
    if not explanation.measured:
        return "as replayed; the source holds no bare measurement"
    low, high = explanation.measured.get("low"), explanation.measured.get("high")
    spread = f"{format_duration(low)} to {format_duration(high)}, " if low and high else ""
    return f"{spread}measured without a profiler"


def _format_unexplained_ratio(explanation: Explanation) -> str:
    if explanation.unexplained_ratio is None:
        return "nothing measured to compare with"
    return f"{format_ratio(explanation.unexplained_ratio)} off the measured time"


def where_time_goes(explanation: Explanation) -> Section:
    """Shares by phase and kind as bars, layers and operators as tables."""
    phases = [_part(share, _PHASES) for share in explanation.phases if share.duration_ns > 0]
    kinds = [_part(share, _KINDS) for share in explanation.kinds if share.duration_ns > 0]
    body = [
        "<h3>By part of the training step</h3>",
        f"<figure>{draw_stacked_bar(phases, 'share of the iteration by phase')}</figure>" if phases else "",
        "<h3>By what is being done</h3>",
        f"<figure>{draw_stacked_bar(kinds, 'share of the iteration by kind of task')}</figure>" if kinds else "",
        '<p class="note">All shares are counted along the critical path, so they sum to the iteration. '
        f"{_IDLE_NOTE if any(part.is_hatched for part in phases) else ''}</p>",
        '<div class="columns">',
        _shares("Operators", explanation.ops),
        _shares("Layers", explanation.layers),
        _shares("On whose word", explanation.sources) if len(explanation.sources) > 1 else "",
        "</div>",
    ]
    return Section("time", "where the time goes", _time_title(phases), "".join(body))


def device_use(use: DeviceUse | None) -> Section | None:
    """What a device waits for, what its kernels achieve, what to change first; None where nothing runs on one."""
    if use is None:
        return None
    waits = [
        (escape(cause_of(wait)), format_duration(wait.duration_ns), format_ratio(wait.ratio))
        for wait in use.waits[:MAX_ROWS]
    ]
    kernels = [
        (
            escape(kernel.kernel_class),
            format_duration(kernel.duration_ns),
            format_ratio(kernel.ratio),
            escape(efficiency_of(kernel)),
        )
        for kernel in use.kernels[:MAX_ROWS]
    ]
    changes = [
        (f"<code>windtunnel whatif {escape(change.whatif)}</code>", f"{change.speedup:.2f}x",
         format_duration(change.gain_ns))
        for change in use.changes
    ]  # fmt: skip
    note = device_lines(use)[0] if use.host_ratio < 1.0 else ""
    body = [
        f'<p class="note">{escape(note)}</p>' if note else "",
        "<h3>What to change first</h3>" if changes else "",
        render_table(("what-if", "predicted", "saves"), changes, numbers=(1, 2)) if changes else "",
        "<h3>What it waits for</h3>" if waits else "",
        render_table(("cause", "per iteration", "share"), waits, numbers=(1, 2)) if waits else "",
        "<h3>What it computes</h3>" if kernels else "",
        render_table(("class", "per iteration", "share", "achieved"), kernels, numbers=(1, 2)) if kernels else "",
    ]
    title = f"The device waits {format_ratio(use.waiting_ratio)} of the iteration"
    return Section("device", "device", title, "".join(body))


def _part(share: Share, colors: dict[str, str]) -> Part:
    return Part(share.label, share.duration_ns, share.ratio, colors[share.label], share.label == "idle")


def _time_title(phases: Sequence[Part]) -> str:
    if not phases:
        return "No task takes any time"
    first = max(phases, key=lambda part: part.ratio)
    names = {"forward": "The forward pass", "backward": "The backward pass", "update": "The optimizer's update"}
    names |= {"data": "Loading data", "idle": "Waiting", "other": "Work outside of the known phases"}
    return f"{names[first.label]} takes {format_ratio(first.ratio)} of the iteration"


def _shares(title: str, shares: Sequence[Share]) -> str:
    """The largest shares, and all others as one sum."""
    if not shares:
        return f'<div><h3>{title}</h3><p class="note">This graph does not say.</p></div>'
    shown, rest, others = list(shares[:MAX_ROWS]), shares[MAX_ROWS:], None
    if rest:
        count = sum(share.num_tasks for share in rest)
        others = Share(f"{len(rest):,} others", sum(s.duration_ns for s in rest), sum(s.ratio for s in rest), count)
        shown.append(others)
    most = max(share.ratio for share in shown) or 1.0
    rows = [
        (
            escape(share.label, 90),
            format_count(share.num_tasks),
            format_duration(share.duration_ns),
            format_ratio(share.ratio),
            f'<i class="bar{" rest" if share is others else ""}" style="width:{100 * share.ratio / most:.1f}%"></i>',
        )
        for share in shown
    ]
    return f"<div><h3>{title}</h3>{render_table(('', 'tasks', 'time', 'share', ''), rows, numbers=(1, 2, 3))}</div>"


def critical_path(explanation: Explanation) -> Section:
    """How long the path is, its longest tasks, and what they waited for."""
    count, whole = explanation.num_critical, explanation.num_tasks
    if count == whole:
        title = f"Every one of the {format_count(whole)} tasks is on the critical path"
        note = "Nothing overlaps here: whatever is made shorter, anywhere, shortens the iteration by as much."
    else:
        title = f"{format_count(count)} of {format_count(whole)} tasks decide how long the iteration takes"
        note = "Only what is made shorter on this path shortens the iteration; the rest hides behind it."
    rows = [
        (
            escape(task.name, 90),
            escape(task.layer, 60),
            escape(task.phase),
            format_duration(task.duration_ns),
            f"{format_duration(task.wait_ns)} ({escape(task.wait)})" if task.wait_ns else "",
        )
        for task in explanation.longest
    ]
    table = render_table(("longest tasks", "layer", "phase", "takes", "waits before"), rows, numbers=(3,))
    return Section("path", "critical path", title, f"<p>{note}</p>{table}")


def timeline_view(graph: Graph, timeline: Timeline) -> Section:
    """The zoomable picture of all tasks."""
    if graph.num_tasks > MAX_DRAWN:
        note = "slice the graph to see its tasks: windtunnel slice GRAPH --from 0ms --to 10ms"
        title = f"{format_count(graph.num_tasks)} tasks are too many to draw on one page"
        return Section("tasks", "timeline", title, f"<p>{note}</p>")
    path = timeline.critical_path()
    _, binding, _ = timeline.execution.bindings
    blob = pack(
        graph,
        timeline.start_ns,
        timeline.finish_ns,
        critical=path.task.astype(np.int64),
        slack_ns=timeline.slack_ns(),
        binding=binding.astype(np.int64),
    )
    phases = graph.tasks.get("phase")
    by_phase = phases is not None and len(np.unique(phases)) > 1 and graph.num_resources <= 2
    options = "".join(
        f'<option value="{value}"{" selected" if by_phase == (value == "phase") else ""}>{label}</option>'
        for value, label in (("kind", "what a task does"), ("phase", "part of the step"))
    )
    body = f"""<p class="note" id="timeline-note">Wheel zooms, drag moves, shift and wheel move sideways, the wheel over
the names moves up and down; click a task to see why it started when it did. Keys: W A S D, arrows, +, -, 0 for all.</p>
<div class="tools">
<input type="search" id="timeline-search" placeholder="find tasks or layers by name" aria-label="find tasks">
<span id="timeline-found" class="note" aria-live="polite"></span>
<label>color by <select id="timeline-by">{options}</select></label>
<label><input type="checkbox" id="timeline-path"> only the critical path</label>
<button type="button" id="timeline-whole">show all</button></div>
<div id="timeline"><canvas id="timeline-canvas" tabindex="0" role="img" aria-label="timeline of all tasks"></canvas>
<div id="timeline-tooltip" role="status" hidden></div></div>
<div class="legend" id="timeline-legend" style="margin-top:10px"></div><div id="timeline-detail" hidden></div>
<script type="application/octet-stream" id="timeline-data">{blob}</script>"""
    return Section("tasks", "timeline", _timeline_title(graph, timeline), body)


def _timeline_title(graph: Graph, timeline: Timeline) -> str:
    busy = timeline.finish_ns - timeline.start_ns
    used = np.bincount(graph.tasks["resource"] + 1, weights=busy, minlength=graph.num_resources + 1)[1:]
    if not len(used) or not timeline.makespan_ns:
        return "The replayed iteration, task by task"
    top = int(np.argmax(used))
    name = graph.resources.strings("name").decode(top)
    slots = int(graph.resources["slots"][top])
    ratio = float(used[top]) / timeline.makespan_ns / slots
    return f"{name} is the busiest resource, at work for {format_ratio(min(ratio, 1.0))} of the time"


def edits(graph: Graph) -> Section | None:
    """What was done to the measured graph, oldest first."""
    if not graph.edits:
        return None
    items = "".join(f"<li><code>{escape(str(edit), 400)}</code></li>" for edit in graph.edits)
    count = len(graph.edits)
    title = f"This is not what was measured: {count} edit{'s' if count > 1 else ''} changed it"
    return Section("edits", "edits", title, f"<ol>{items}</ol>")


def text_of(graph: Graph, column: str, row: int) -> str:
    """The text of one task in a column that may be absent."""
    strings = graph.tasks.get(column)
    return strings.decode(row) if isinstance(strings, Strings) else ""
