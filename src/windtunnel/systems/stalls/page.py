"""The page about the stalls of a job.

In: ``Stalls``. Out: one page: each cause as a step on the way from the time alone to that of everything, runs beside
each other, rates of the data's way. Not here: the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windtunnel.base.tables import Table
from windtunnel.reports.charts import Part, draw_stacked_bar, escape
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, render_table, table_html
from windtunnel.systems.stalls.model import RUNS, Stalls
from windtunnel.units import format_duration, format_ratio

__all__ = ["stalls_page"]

_COLORS = {
    "compute": "#0072b2", "contention": "#56b4e9", "exchange": "#d55e00", "network": "#e69f00", "prep": "#009e73",
    "fetch": "#cc79a7",
}  # fmt: skip


def stalls_page(stalls: Sequence[Stalls], path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    sections = [section for number, item in enumerate(stalls) for section in _sections(item, number)]
    title = f"Stalls of {', '.join(item.job for item in stalls)}"
    return write_text(Path(path), _page(title, f"<h1>{escape(title)}</h1>", sections), overwrite=overwrite)


def _sections(measured: Stalls, number: int) -> list[Section]:
    ranks = f"{measured.job}: {measured.num_ranks} ranks, {measured.batch_size} samples each"
    ranks += f"; {measured.bottleneck} takes most"
    alone_ns = measured.median_ns("alone")
    missing = {stall.cause: stall.per_iteration_ns.value for stall in measured.stalls if stall.is_detected}
    whole = alone_ns + sum(missing.values())
    parts = [Part(name, used, used / whole, _COLORS[name]) for name, used in {"compute": alone_ns, **missing}.items()]
    sections = [
        Section(
            f"causes-{number}",
            "Causes",
            ranks,
            draw_stacked_bar(parts, "time of an iteration by cause") + table_html(table_of_stalls(measured)),
        ),
        Section(f"runs-{number}", "Runs", "Each run leaves out one cause", _runs(measured)),
    ]
    if measured.reading is not None:
        sections.append(Section(f"data-{number}", "Data", "Throughput of the input pipeline", _data(measured)))
    return sections


def table_of_stalls(measured: Stalls) -> Table:
    """Return what each cause costs per iteration."""
    columns = {"stall": str, "per iteration (90 % interval)": str, "fraction": format_ratio, "cause": str}
    return Table(columns, [
        (stall.cause, stall, stall.share if stall.is_detected else None, stall.what) for stall in measured.stalls
    ])  # fmt: skip


def _runs(measured: Stalls) -> str:
    rows = [
        (
            name, format_duration(measured.median_ns(name)), format_duration(float(times.min())),
            format_duration(float(times.max())), f"{measured.samples_per_s(name):,.0f}", RUNS[name],
        )
        for name, times in measured.times_ns.items()
    ]  # fmt: skip
    return render_table(("run", "median", "least", "most", "samples/s", "what runs"), rows, numbers=(1, 2, 3, 4))


def _data(measured: Stalls) -> str:
    assert measured.reading is not None
    rows = [
        ("used by compute with averaging", f"{measured.samples_per_s('together'):,.0f}"),
        ("prepared by one core", f"{measured.reading.prep_per_core_per_s:,.0f}"),
        *(
            (f"read with {share:.0%} in memory", f"{measured.reading.fetch_per_s(share):,.0f}")
            for share in (0.0, 0.5, 0.9, 1.0)
        ),
    ]
    reported = "".join(f"<p>{escape(line)}</p>" for line in measured.advice())
    return render_table(("samples per second", ""), rows, numbers=(1,)) + reported
