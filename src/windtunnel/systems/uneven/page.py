"""The page about strategies on an uneven fleet: loss by time, waiting, traffic, timelines of workers.

In: a comparison. Out: one page. Lines and bars of virtual time are hollow or thin, those of real runs solid. Not here:
training.
"""

from __future__ import annotations

from pathlib import Path

from windtunnel.reports.charts import WIDTH, Frame, drawing, escape, words
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table
from windtunnel.systems.uneven.fleet import Fleet
from windtunnel.systems.uneven.goal import Run
from windtunnel.systems.uneven.search import Comparison, Outcome
from windtunnel.units import format_duration, format_ratio, format_size

__all__ = ["training_page"]

_HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 340.0, 60.0, 36.0, 14.0, 190.0
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333", "#8a6d3b")
_ROW, _SHOWN_STEPS = 16.0, 3000


def training_page(comparison: Comparison, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    title = f"{comparison.job} on {comparison.fleet.name}"
    sections = [
        Section("loss", "Loss", _title(comparison), _losses(comparison)),
        Section("times", "Times", f"Time to a loss of {comparison.target_loss:.3f}", _table(comparison)),
        Section("waiting", "Waiting", "Fraction of the time in which a worker does not compute", _waits(comparison)),
        Section("traffic", "Traffic", "Bytes from node to node", _traffic(comparison)),
        *(
            Section(f"workers-{index}", f"Workers: {outcome.candidate}",
                f"What the workers did under {outcome.candidate}",
                    _gantt(comparison.fleet, outcome.flown[0] if outcome.flown else outcome.predicted))
            for index, outcome in enumerate(comparison.outcomes[:3])
        ),
    ]  # fmt: skip
    return write_text(Path(path), _page(title, f"<h1>{escape(title)}</h1>", sections), overwrite=overwrite)


def _title(comparison: Comparison) -> str:
    best, base = comparison.outcomes[0], comparison.of_baseline
    if best.predicted_ns is None or base.predicted_ns is None:
        return "Loss on samples that were held back"
    ratio = base.predicted_ns / best.predicted_ns
    return f"{best.candidate} reaches {comparison.target_loss:.3f} {ratio:.2f} times as fast as {base.candidate}"


def _losses(comparison: Comparison) -> str:
    runs = [run for item in comparison.outcomes for run in (item.predicted, *item.flown)]
    max_ns = max(run.elapsed_ns for run in runs)
    most = 1.05 * max(run.points[0].loss for run in runs)
    frame = Frame(_LEFT, _TOP, _HEIGHT - _BOTTOM, WIDTH - _RIGHT)
    body = frame.axes([format_duration(step / 4 * max_ns) for step in range(5)],
                      [f"{step / 4 * most:.2f}" for step in range(5)])  # fmt: skip
    y = frame.y(comparison.target_loss / most)
    body.append(f'<path d="M{_LEFT},{y:.1f}H{frame.right}" stroke="#8a9099" stroke-dasharray="2 4"/>')
    for index, outcome in enumerate(comparison.outcomes):
        color = _COLORS[index % len(_COLORS)]
        for run, width, dash in ((outcome.predicted, 1.6, "5 3"), *((run, 2.6, "") for run in outcome.flown)):
            line = " ".join(
                f"{frame.x(point.time_ns / max_ns):.1f},{frame.y(min(point.loss, most) / most):.1f}"
                for point in run.points
            )
            body.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{width}" '
                        f'stroke-dasharray="{dash}"><title>{escape(run.strategy)}</title></polyline>')  # fmt: skip
        key = _TOP + 16 * index
        body.append(f'<rect x="{frame.right + 14:.0f}" y="{key:.0f}" width="10" height="10" fill="{color}"/>')
        body.append(words(frame.right + 30, key + 9, str(outcome.candidate), "start"))
    note = f"<p>Dashed: in virtual time. Solid: really run (links: {escape(comparison.links)}).</p>"
    return drawing(_HEIGHT, body, "loss over time") + note


def _table(comparison: Comparison) -> str:
    rows = [
        (
            str(outcome.candidate),
            _time(outcome.predicted_ns),
            _time(outcome.median_ns) if outcome.flown else "",
            _error(outcome),
            f"{outcome.predicted.points[-1].loss:.3f}",
            f"{outcome.predicted.points[-1].accuracy:.3f}",
            format_size(sum(outcome.predicted.bytes_by_pair().values())),
        )
        for outcome in comparison.outcomes
    ]
    head = ("strategy", "predicted", "measured", "error", "final loss", "accuracy", "traffic")
    return render_table(head, rows, numbers=(1, 2, 3, 4, 5, 6))


def _time(time_ns: float | None) -> str:
    return "not reached" if time_ns is None else format_duration(time_ns)


def _error(outcome: Outcome) -> str:
    if outcome.predicted_ns is None or outcome.median_ns is None:
        return ""
    return format_ratio(outcome.predicted_ns / outcome.median_ns - 1)


def _waits(comparison: Comparison) -> str:
    names = [worker.name for worker in comparison.fleet.workers]
    rows = [
        (f"{outcome.candidate}{how}", *(format_ratio(share) for share in run.wait_shares()))
        for outcome in comparison.outcomes
        for run, how in ((outcome.predicted, ""), *((run, ", really run") for run in outcome.flown))
    ]
    return render_table(("strategy", *names), rows, numbers=tuple(range(1, len(names) + 1)))


def _traffic(comparison: Comparison) -> str:
    pairs = sorted({pair for outcome in comparison.outcomes for pair in outcome.predicted.bytes_by_pair()})
    rows = []
    for source, target in pairs:
        sizes = [outcome.predicted.bytes_by_pair().get((source, target), 0) for outcome in comparison.outcomes]
        names = comparison.fleet.node_name(source), comparison.fleet.node_name(target)
        rows.append((" → ".join(names), *(format_size(size) for size in sizes)))
    head = ("link", *(str(outcome.candidate) for outcome in comparison.outcomes))
    return render_table(head, rows, numbers=tuple(range(1, len(head))))


def _gantt(fleet: Fleet, run: Run) -> str:
    """Draw the first steps of each worker; gaps are idle time."""
    steps = run.steps[run.steps[:, 1].argsort(kind="stable")][:_SHOWN_STEPS]
    if not len(steps):
        return "<p>No step ended.</p>"
    until_ns = int(steps[:, 2].max())
    window_ns = min(until_ns, max(10 * int((steps[:, 2] - steps[:, 1]).max()), 1))
    steps = steps[steps[:, 1] < window_ns]
    scale = (WIDTH - _LEFT - 60) / window_ns
    body = []
    for worker in range(run.num_workers):
        y = _TOP + worker * (_ROW + 4)
        body.append(words(_LEFT - 6, y + 12, fleet.node_name(worker), "end"))
        for _, begin_ns, end_ns, _ in (step for step in steps.tolist() if step[0] == worker):
            left, width = _LEFT + begin_ns * scale, max((min(end_ns, window_ns) - begin_ns) * scale - 0.5, 0.4)
            body.append(f'<rect x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_ROW}" fill="#0072b2"/>')
    height = _TOP + run.num_workers * (_ROW + 4) + 24
    body.append(words(_LEFT, height - 8, "0", "start"))
    body.append(words(WIDTH - 60, height - 8, format_duration(window_ns), "end"))
    return drawing(height, body, "steps of workers")
