"""A split as a picture: the graph in layers, each node in the color of its device.

In: a ``Plan``. Out: the graph, bars of what every device does, a table: as sections of a report, or as a page of their
own. Not here: computing plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from windtunnel import registry
from windtunnel.graph import Graph
from windtunnel.reports.charts import WIDTH, escape
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table
from windtunnel.search.placement.explain import DeviceRow, device_rows
from windtunnel.search.placement.fleet import problem_on
from windtunnel.search.placement.model import Problem
from windtunnel.search.placement.search import place
from windtunnel.search.placement.throughput import Plan
from windtunnel.units import format_duration, format_ratio, format_size, parse_rate

__all__ = ["graph_sections", "placement_page", "placement_sections"]

_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#332288", "#999933", "#882255",
            "#44aa99", "#ddcc77", "#aa4499")  # fmt: skip
_ROW, _LEAST, _MOST = 22.0, 3.0, 12.0
_MAX_DRAWN = 4000


@registry.page("placement", source="optimal device placement")
def graph_sections(graph: Graph, *, devices: str, bandwidth: str) -> list[Section]:
    """Place the layers of a graph on devices and show the split."""
    return placement_sections(place(problem_on(graph, devices, parse_rate(bandwidth))))


def placement_page(plan: Plan, path: str | Path, *, title: str = "", overwrite: bool = False) -> Path:
    """Write the page.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    name = title or "placement"
    value = format_duration(round(plan.value_ns))
    head = f"<h1>{escape(name)}: {value} per sample on {len(plan.kind)} devices</h1>"
    lead = f'<p class="lead">{_proof(plan)}</p>'
    return write_text(Path(path), _page(name, head + lead, placement_sections(plan)), overwrite=overwrite)


def placement_sections(plan: Plan) -> list[Section]:
    """The graph, what every device does, and the devices."""
    rows = device_rows(plan)
    return [_graph(plan), _bars(rows), _table(rows)]


def _proof(plan: Plan) -> str:
    proof = f"no {plan.searched} is better" if plan.is_optimal else f"at most {format_ratio(plan.gap)} above the best"
    return escape(f"By {plan.solver} in {plan.seconds:.2f} s; {proof}. {plan.note}".strip())


def _color(device: int) -> str:
    return _COLORS[device % len(_COLORS)]


def _depths(problem: Problem) -> np.ndarray:
    """Return the number of nodes on the longest path to each, [N]."""
    depth = np.zeros(problem.num_nodes, np.int64)
    for node in problem.order.tolist():
        depth[node] = max((depth[other] + 1 for other in problem.before[node]), default=0)
    return depth


def _places(problem: Problem) -> tuple[np.ndarray, np.ndarray, float]:
    """Across and down by layer; within a layer by the mean place of what is read (barycenters)."""
    depth = _depths(problem)
    layers = [np.flatnonzero(depth == index) for index in range(int(depth.max()) + 1)]
    x = np.zeros(problem.num_nodes)
    before = problem.before
    for layer in layers:
        requested = [float(np.mean(x[before[node]])) if before[node] else 0.5 for node in layer.tolist()]
        order = layer[np.argsort(requested, kind="stable")]
        x[order] = (np.arange(len(order)) + 0.5) / len(order)
    return 20 + (WIDTH - 40) * x, 20 + _ROW * depth, 40 + _ROW * float(depth.max())


def _graph(plan: Plan) -> Section:
    problem = plan.problem
    if problem.num_nodes > _MAX_DRAWN:
        body = f"<p>{problem.num_nodes:,} nodes are too many to draw; the table below has every device.</p>"
        return Section("placement", "placement", "The graph is too large for a picture", body)
    x, y, height = _places(problem)
    times = problem.time_ns[np.arange(problem.num_nodes), plan.kind[plan.device]]
    sizes = _LEAST + (_MOST - _LEAST) * np.sqrt(times / max(times.max(initial=0.0), 1e-300))
    lines = []
    for src, dst in sorted(set(zip(problem.src.tolist(), problem.dst.tolist(), strict=True))):
        crosses = plan.device[src] != plan.device[dst]
        style = 'stroke="#d62728" stroke-width="1.6"' if crosses else 'stroke="#c3c8ce" stroke-width="0.8"'
        lines.append(f'<line x1="{x[src]:.1f}" y1="{y[src]:.1f}" x2="{x[dst]:.1f}" y2="{y[dst]:.1f}" {style}/>')
    marks = []
    for node in range(problem.num_nodes):
        device = int(plan.device[node])
        words = f"{problem.names[node]}: device {device}, {format_duration(round(times[node]))}"
        shape = (
            f'<rect x="{x[node] - sizes[node]:.1f}" y="{y[node] - sizes[node]:.1f}" width="{2 * sizes[node]:.1f}" '
            f'height="{2 * sizes[node]:.1f}" fill="{_color(device)}">'
            if problem.is_backward[node]
            else f'<circle cx="{x[node]:.1f}" cy="{y[node]:.1f}" r="{sizes[node]:.1f}" fill="{_color(device)}">'
        )
        marks.append(f"{shape}<title>{escape(words)}</title></{'rect' if problem.is_backward[node] else 'circle'}>")
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="nodes by device">'
        f"{''.join(lines)}{''.join(marks)}</svg>"
    )
    note = "<p>Circles are forward, squares backward nodes; their area is time. Red edges cross between devices.</p>"
    note += f"<p>{_proof(plan)}</p>"
    return Section("placement", "placement", "Assignment of operators to devices", picture + note)


def _bars(rows: Sequence[DeviceRow]) -> Section:
    """Return one bar per device: compute, sending, receiving."""
    most = max((row.load_ns for row in rows), default=1.0) or 1.0
    body = []
    for index, row in enumerate(rows):
        left, y = 90.0, 10 + 26 * index
        body.append(f'<rect x="4" y="{y}" width="12" height="12" fill="{_color(index)}"/>')
        body.append(f'<text x="22" y="{y + 11}">{escape(f"{index} {row.kind}", 14)}</text>')
        for value, color in ((row.compute_ns, _color(index)), (row.sent_ns, "#8c939b"), (row.received_ns, "#c3c8ce")):
            width = (WIDTH - 180) * value / most
            body.append(f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="14" fill="{color}"/>')
            left += width
        body.append(f'<text x="{left + 6:.1f}" y="{y + 11}">{format_duration(round(row.load_ns))}</text>')
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {20 + 26 * len(rows)}" role="img" aria-label="load by device">{"".join(body)}</svg>'
    )
    note = "<p>Compute in the device's color, then what it sends and receives.</p>"
    return Section("loads", "loads", "Load of each device per sample", picture + note)


def _table(rows: Sequence[DeviceRow]) -> Section:
    cells = [
        (
            str(index),
            escape(row.kind),
            f"{row.num_nodes:,}",
            *(format_duration(round(item)) for item in (row.load_ns, row.compute_ns, row.sent_ns, row.received_ns)),
            format_size(round(row.memory_bytes)),
            row.bound_by,
        )
        for index, row in enumerate(rows)
    ]
    head = ("device", "kind", "nodes", "load", "compute", "send", "receive", "memory", "bound by")
    return Section("devices", "devices", "Devices", render_table(head, cells, numbers=(2, 3, 4, 5, 6, 7)))
