"""The page of a benchmark run.

In: a run of the suite, and a comparison if there is one. Out: one self-contained HTML file: the table, bars per
metric, curves over batch size, what was not measured. Not here: measuring, deciding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from windtunnel.reports.charts import escape
from windtunnel.reports.curves import Bar, Curve, bars, curves
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table
from windtunnel.systems.suite.comparison import Comparison
from windtunnel.systems.suite.results import Result, SuiteRun
from windtunnel.units import format_count, format_duration, format_rate, format_ratio, format_size

__all__ = ["write_suite_report"]

NONE = "–"


def write_suite_report(
    run: SuiteRun, path: str | Path, *, comparison: Comparison | None = None, title: str = "", overwrite: bool = False
) -> Path:
    """Write the page.

    Parameters
    ----------
    run : SuiteRun
    path : path
    comparison : Comparison, optional
        With an earlier run.
    title : str
        The folder's name if empty.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    name = title or f"suite {run.path.name}"
    machine = run.machine
    where = f"{machine.get('cpu_name', 'unknown machine')}, {machine.get('num_cores', '?')} cores"
    head = f"<h1>{escape(name)}: {len(run.measured)} of {len(run.results)} cells</h1>"
    lead = f'<p class="lead">{escape(where)}. {escape(_versions(run))}</p>'
    result = [
        _table(run.measured),
        _metrics(run.measured),
        _sweeps(run.measured),
        _comparison_section(comparison),
        _missing(run.results),
    ]
    return write_text(Path(path), _page(name, head + lead, [item for item in result if item]), overwrite=overwrite)


def _versions(run: SuiteRun) -> str:
    versions = run.machine.get("versions", {})
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _label(result: Result) -> str:
    ranks = f" x {result.cell.num_ranks} ranks" if result.cell.num_ranks > 1 else ""
    threads = f"{result.cell.num_threads} thread{'s' * (result.cell.num_threads > 1)}"
    link = f" at {format_rate(result.cell.link_bytes_per_s)}" if result.cell.link_bytes_per_s else ""
    return f"{result.cell.workload}, batch {result.batch_size}, {threads}{ranks}{link}"


def _table(measured: Sequence[Result]) -> Section | None:
    if not measured:
        return None
    head = (
        *("workload", "parameters", "throughput", "95 %", "step", "compute", "arithmetic", "CPU", "memory"),
        *("objective", "data"),
    )
    rows = [
        (
            escape(_label(result)) + f"<br><small>{escape(result.domain)}</small>",
            format_count(result.num_parameters),
            escape(f"{result.throughput.value:.4g} {result.unit}/s"),
            f"{result.throughput.low:.4g}-{result.throughput.high:.4g}" + (" unstable" if result.is_unstable else ""),
            format_duration(result.median_ns[0]),
            _ratio(result.compute_utilization),
            _ratio(_arithmetic(result)),
            _ratio(result.cpu_utilization),
            NONE if result.predicted_memory_bytes is None else format_size(result.predicted_memory_bytes),
            _objective(result),
            escape(result.data),
        )
        for result in measured
    ]
    body = render_table(head, rows, numbers=tuple(range(1, 10)))
    note = (
        "Medians of the stable phase: warm-up is cut by MSER-5, spikes are left out, intervals are 95 % by block "
        "bootstrap. Arithmetic utilization is counted FLOP over the best measured matrix product at the same threads. "
        "Memory is what the tensors of a step were predicted to hold at the peak. The objective is what training makes "
        "fall, in the first and the last step; no episode may have ended yet."
    )
    notes = "".join(f'<p class="note">{escape(text, 2000)}</p>' for text in (note, _disturbance(measured)) if text)
    known = [f"{_label(item)}: {item.energy_j:.3g} J per step" for item in measured if item.energy_j is not None]
    reasons = sorted({item.energy_source for item in measured if item.energy_j is None})
    return Section(
        "results",
        "Results",
        "Measurements",
        body + notes + f'<p class="note">{escape("; ".join(known) or "; ".join(reasons), 2000)}</p>',
    )


def _disturbance(measured: Sequence[Result]) -> str:
    """Return the section about the load by other programs."""
    disturbed = [result for result in measured if result.is_disturbed]
    if not disturbed:
        return ""
    worst = max(result.waited_ratio for result in disturbed)
    return (
        f"Other programs had the cores for up to {worst:.0%} of the time in {len(disturbed)} of {len(measured)} cells: "
        "these times are not the workloads' own."
    )


def _arithmetic(result: Result) -> float | None:
    return sum(result.arithmetic_utilization.values()) if result.arithmetic_utilization else None


def _ratio(value: float | None) -> str:
    return NONE if value is None else format_ratio(value)


def _objective(result: Result) -> str:
    if not result.objective:
        return NONE
    first, last = (NONE if value is None else f"{value:.3g}" for value in (result.objective[0], result.objective[-1]))
    return f"{first} to {last}"


def _metrics(measured: Sequence[Result]) -> Section | None:
    metrics: list[tuple[str, Callable[[Result], float | None], Callable[[float], str]]] = [
        ("Compute utilization", lambda result: result.compute_utilization, format_ratio),
        ("Arithmetic utilization", _arithmetic, format_ratio),
        ("CPU utilization", lambda result: result.cpu_utilization, format_ratio),
        ("Memory of the process at its peak", lambda result: result.peak_resident_bytes, format_size),
        ("FLOP per second", lambda result: result.flops / result.median_ns[0] * 1e9 or None, _flop_rate),
    ]
    body = ""
    for title, ask, show in metrics:
        values = [(result, ask(result)) for result in measured]
        rows = [Bar(_label(result), value, show(value)) for result, value in values if value is not None]
        if rows:
            body += f"<figure><h3>{title}</h3>{bars(rows, title, show=show)}</figure>"
    return Section("metrics", "Metrics", "Utilization of the machine", body) if body else None


def _flop_rate(value: float) -> str:
    return format_rate(value, "FLOP/s")


def _sweeps(measured: Sequence[Result]) -> Section | None:
    """Throughput over batch size, each line relative to its first point: the units differ."""
    by_line: dict[str, dict[int, float]] = defaultdict(dict)
    for result in measured:
        if result.cell.num_ranks == 1:
            by_line[f"{result.cell.workload}, {result.cell.num_threads} threads"][result.batch_size] = (
                result.throughput.value
            )
    lines = [
        Curve(label, [(batch, value / points[min(points)]) for batch, value in sorted(points.items())])
        for label, points in by_line.items()
        if len(points) > 1
    ]
    if not lines:
        return None
    drawing = curves(lines, "throughput over batch size", x_label="batch size", y_label="throughput over the first")
    return Section("sweeps", "Batch size", "Throughput by batch size", f"<figure>{drawing}</figure>")


def _comparison_section(comparison: Comparison | None) -> Section | None:
    if comparison is None:
        return None
    rows = [
        (escape(row.label), f"{row.first:.4g}", f"{row.second:.4g}", row.text, row.verdict) for row in comparison.rows
    ]
    rows.append(("geometric mean", "", "", comparison.overall.text, comparison.overall.verdict))
    body = render_table(("workload", "before, units/s", "now, units/s", "speed-up", ""), rows, numbers=(1, 2, 3))
    notes = "".join(f'<p class="note">{escape(note, 400)}</p>' for note in comparison.notes)
    return Section("compared", "Compared", "Changes since the reference run", body + notes)


def _missing(results: Sequence[Result]) -> Section | None:
    missing = [result for result in results if not result.is_measured]
    if not missing:
        return None
    rows = [(escape(item.cell.key), item.status, escape(item.message, 400), escape(item.fix, 400)) for item in missing]
    return Section(
        "missing", "Not measured", "What was not measured", render_table(("cell", "", "why", "what to do"), rows)
    )
