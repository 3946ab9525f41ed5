"""Runs of a cluster as a page: who ran where, how long jobs took, where communication went.

In: outcomes of policies. Out: one page. All of it is predicted, so all of it is hollow or thin. Not here: simulating.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.reports.charts import WIDTH, Frame, drawing, escape, words
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table
from windtunnel.systems.cluster.layout import TIERS
from windtunnel.systems.cluster.metrics import communication_ns, honest_notes, use_over_time
from windtunnel.systems.cluster.model import ClusterRun
from windtunnel.systems.cluster.search import Outcome
from windtunnel.units import format_ratio

__all__ = ["cluster_page"]

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
_HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 320.0, 120.0, 36.0, 14.0, 190.0
_FRAME = Frame(_LEFT, _TOP, _HEIGHT - _BOTTOM, WIDTH - _RIGHT)
_PERCENT = [f"{100 * step // 4} %" for step in range(5)]
_ROW, _MAX_RECTANGLES, _MAX_MACHINES = 13.0, 6000, 64
_HOUR_NS = 3.6e12


def cluster_page(
    outcomes: Sequence[Outcome], path: str | Path, *, notes: Sequence[str] = (), overwrite: bool = False
) -> Path:
    """Write the page.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Of the same jobs on one cluster, the best first.
    path : str or Path
    notes : sequence of str
        About the trace.
    overwrite : bool

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    run = outcomes[0].run
    title = f"{len(run.jobs):,} jobs on {run.cluster}"
    outcomes = list(outcomes)
    sections = [
        Section("policies", "Policies", _headline(outcomes), _table(outcomes)),
        Section("jct", "Completion times", "Fraction of jobs by completion time", _curves(outcomes)),
        Section("notes", "Notes", "Assumptions behind these numbers", _notes(outcomes, notes)),
        Section("comm", "Communication", "Hours of communication of all jobs, by model and tier",
                _communication(outcomes)),
        Section("use", "Utilization", "Fraction of GPUs that are allocated", _use(outcomes)),
        *(
            Section(f"machines-{index}", f"Machines: {item.name}", f"What machines ran under {item.name}",
                _gantt(item.run))
            for index, item in enumerate(outcomes[:3])
        ),
    ]  # fmt: skip
    return write_text(Path(path), _page(title, f"<h1>{escape(title)}</h1>", sections), overwrite=overwrite)


def _headline(outcomes: Sequence[Outcome]) -> str:
    best, worst = outcomes[0], outcomes[-1]
    if len(outcomes) == 1:
        return f"{best.name}: {best.summary.mean_jct_h:,.1f} h from arrival to end on average"
    ratio = worst.summary.mean_jct_h / best.summary.mean_jct_h
    return f"{best.name} ends jobs {ratio:.2f} times as soon as {worst.name} on average"


def _table(outcomes: Sequence[Outcome]) -> str:
    head = ("policy", "mean JCT", "of 1 GPU", "of several", "p50", "p90", "p99", "mean wait", "max wait",
            "makespan", "communication", "in use", "preemptions")  # fmt: skip
    rows = []
    for item in outcomes:
        s = item.summary
        hours = (s.mean_jct_h, s.mean_jct_single_h, s.mean_jct_multi_h, s.jct_h[50], s.jct_h[90], s.jct_h[99],
                 s.mean_queueing_h, s.longest_wait_h, s.makespan_h)  # fmt: skip
        shares = (format_ratio(s.communication_share), format_ratio(s.utilization))
        rows.append((item.name, *(f"{value:,.1f} h" for value in hours), *shares, f"{s.num_preemptions:,}"))
    return render_table(head, rows, numbers=tuple(range(1, len(head))))


def _notes(outcomes: Sequence[Outcome], notes: Sequence[str]) -> str:
    reported = [*notes, *(f"{item.name}: {text}" for item in outcomes for text in honest_notes(item.run))]
    return "<ul>" + "".join(f"<li>{escape(text, 400)}</li>" for text in reported) + "</ul>"


def _curves(outcomes: Sequence[Outcome]) -> str:
    min_h = max(min(float(entry.run.jct_ns.min()) for entry in outcomes) / _HOUR_NS, 1e-3)
    max_h = max(float(entry.run.jct_ns.max()) for entry in outcomes) / _HOUR_NS
    low, high = np.log10(min_h), max(np.log10(max_h), np.log10(min_h) + 0.1)
    body = _FRAME.axes((), _PERCENT)
    for power in range(int(np.ceil(low)), int(np.floor(high)) + 1):
        body.append(words(_FRAME.x((power - low) / (high - low)), _FRAME.floor + 15, f"{10.0**power:g} h", "middle"))
    levels = np.linspace(0, 1, 101)
    for index, item in enumerate(outcomes[: len(_COLORS)]):
        hours = np.quantile(item.run.jct_ns / _HOUR_NS, levels)
        body += _line((np.log10(np.maximum(hours, min_h)) - low) / (high - low), levels, index, item.name)
    return drawing(_HEIGHT, body, "distribution of completion times") + "<p>The axis of time is logarithmic.</p>"


def _use(outcomes: Sequence[Outcome]) -> str:
    max_h = max(entry.run.makespan_ns for entry in outcomes) / _HOUR_NS
    body = _FRAME.axes([f"{max_h * step / 4:,.0f} h" for step in range(5)], _PERCENT)
    for index, item in enumerate(outcomes[: len(_COLORS)]):
        hours, share = use_over_time(item.run)
        body += _line(hours / max_h, share, index, item.name)
    return drawing(_HEIGHT, body, "GPUs held over time")


def _communication(outcomes: Sequence[Outcome]) -> str:
    models = sorted(set(outcomes[0].run.jobs.model.tolist()))
    head = ("policy", *(model or "no model" for model in models), *TIERS)
    rows = []
    for item in outcomes:
        missing = communication_ns(item.run) / _HOUR_NS
        by_model = [f"{missing[item.run.jobs.model == model].sum():,.1f}" for model in models]
        segments = item.run.segments
        exposed = np.maximum(segments["end"] - segments["begin"] - segments["done"], 0) / _HOUR_NS
        by_tier = np.bincount(segments["tier"], exposed, minlength=len(TIERS))
        rows.append((item.name, *by_model, *(f"{hours:,.1f}" for hours in by_tier)))
    return render_table(head, rows, numbers=tuple(range(1, len(head))))


def _gantt(run: ClusterRun) -> str:
    """A row per machine, as high as its GPUs; segments by job, darker where they span a rack or the network."""
    first_ns, span_ns = int(run.jobs.arrival_ns.min()), max(run.makespan_ns, 1)
    machines = min(run.cluster.num_machines, _MAX_MACHINES)
    scale, per = (WIDTH - _LEFT - 20) / span_ns, run.cluster.gpus_per_machine
    # A row per segment and machine that it spans: ``within`` counts the machines of each segment from 0.
    rows = np.repeat(np.arange(len(run.segments)), run.segments["width"])
    within = np.arange(len(rows)) - np.repeat(
        np.cumsum(run.segments["width"]) - run.segments["width"], run.segments["width"]
    )
    index = run.placements[run.segments["placement"][rows] + within]
    width_ns = run.segments["end"][rows] - run.segments["start"][rows]
    # Only the rectangles with the largest areas are drawn, which keeps the page small.
    shown = np.flatnonzero(index["machine"] < machines)
    shown = shown[np.argsort(-width_ns[shown] * index["gpus"][shown], kind="stable")[:_MAX_RECTANGLES]]
    # GPUs of a machine have no numbers in the simulation. Drawn in the order of starts, each segment takes
    # the lowest free stripe of its machine, so that rectangles never overlap.
    used: list[list[tuple[int, int, int]]] = [[] for _ in range(machines)]
    body = []
    for position in sorted(shown.tolist(), key=lambda row: int(run.segments["start"][rows[row]])):
        segment, machine, count = (
            run.segments[rows[position]],
            int(index["machine"][position]),
            int(index["gpus"][position]),
        )
        begin, end, job = int(segment["start"]), int(segment["end"]), int(segment["job"])
        used[machine] = [held for held in used[machine] if held[0] > begin]
        slot = _lowest([held[1:] for held in used[machine]], count)
        used[machine].append((end, slot, count))
        x, y = _LEFT + (begin - first_ns) * scale, _TOP + machine * (_ROW + 3) + _ROW * slot / per
        reported = escape(
            f"{run.jobs.job_id[job]} {run.jobs.model[job]}, {run.jobs.gpus[job]} GPUs, S {segment['speed']:.2f}"
        )
        opacity = (0.35, 0.65, 1.0)[int(segment["tier"])]
        body.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max((end - begin) * scale, 0.3):.1f}" '
            f'height="{_ROW * count / per:.1f}" fill="{_COLORS[job % len(_COLORS)]}" fill-opacity="{opacity}">'
            f"<title>{reported}</title></rect>"
        )
    for machine in range(machines):
        y = _TOP + machine * (_ROW + 3) + 10
        body.append(words(_LEFT - 6, y, run.cluster.machine_name(machine), "end"))
    height = _TOP + machines * (_ROW + 3) + 24
    body.append(words(_LEFT, height - 8, "0", "start"))
    body.append(words(WIDTH - 20, height - 8, f"{span_ns / _HOUR_NS:,.0f} h", "end"))
    left_out = len(rows) - len(shown)
    note = (
        f"<p>{left_out:,} short segments or machines beyond the first {machines} are not drawn.</p>" if left_out else ""
    )
    key = "<p>Pale: in one machine. Darker: in one rack. Full: over racks.</p>"
    return drawing(height, body, "segments by machine") + key + note


def _lowest(held: Sequence[tuple[int, int]], count: int) -> int:
    """Return the lowest row with ``count`` free rows between those that are held (first, number)."""
    slot = 0
    for first, number in sorted(held):
        if first - slot >= count:
            break
        slot = max(slot, first + number)
    return slot


def _line(xs: NDArray[np.float64], ys: NDArray[np.float64], curve: int, name: str) -> list[str]:
    """Draw a curve whose points are fractions of both axes."""
    points = " ".join(f"{_FRAME.x(x):.1f},{_FRAME.y(y):.1f}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True))
    right, key = _FRAME.right, _TOP + 16 * curve
    return [
        f'<polyline points="{points}" fill="none" stroke="{_COLORS[curve]}" stroke-width="1.6" '
        'stroke-dasharray="5 3"/>',
        f'<rect x="{right + 14:.0f}" y="{key:.0f}" width="10" height="10" fill="{_COLORS[curve]}"/>',
        words(right + 30, key + 9, name, "start"),
    ]
