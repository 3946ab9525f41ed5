"""``windtunnel suite``: train, list, compare and report the benchmark suite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, suggest
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, HtmlPath, Json, Output, whole_numbers
from windtunnel.units import format_rate, format_ratio, format_size, parse_duration, parse_rate

if TYPE_CHECKING:
    from windtunnel.systems.suite.comparison import Compared, Comparison
    from windtunnel.systems.suite.results import Result, SuiteRun

SOME_FAILED = 1

Names = Annotated[list[str] | None, typer.Argument(metavar="NAMES", help="Workloads (default: the whole suite).")]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help="Model size: tiny, small or paper.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder written by `suite run`.")]


@registry.verb("suite", source="TBD")
def _group() -> None:
    """Example: windtunnel suite run --out today

    Run the benchmark suite, and show and compare results.
    """


@registry.verb("suite run", source="TBD")
def run(
    names: Names = None,
    size: Size = "tiny",
    batch_sizes: Annotated[str, typer.Option(metavar="LIST", help="Batch sizes to sweep, such as 1,2,4,8.")] = "",
    threads: Annotated[
        str, typer.Option(metavar="LIST", help="Thread counts per rank to sweep (default: all cores).")
    ] = "",
    ranks: Annotated[
        str, typer.Option(metavar="LIST", help="Numbers of data-parallel processes (Gloo) to sweep.")
    ] = "1",
    bandwidth: Annotated[
        str,
        typer.Option(
            "--bandwidth", metavar="RATE", help="Bandwidth of the emulated link between ranks, such as 125MB/s."
        ),
    ] = "",
    time_limit: Annotated[
        str, typer.Option("--time-limit", metavar="TIME", help="Time limit for sampling each cell.")
    ] = "20s",
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="TIME",
            help="Time after which a silent process is stopped (default: 600 s plus 4 times --time-limit).",
        ),
    ] = "",
    output: Output = None,
    graphs: Annotated[bool, typer.Option("--graphs", help="Write the captured graph of each workload.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Keep existing results and measure the rest.")] = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel suite run --size tiny --out today

    Train each workload in its own process and measure throughput and utilization.
    """
    from windtunnel.systems.suite.run import run_suite

    folder = output or Path(f"suite-{size}")
    with Progress("training the suite", heartbeat=True) as progress:
        done = run_suite(
            names,
            output=folder,
            size=size,
            batch_sizes=whole_numbers(batch_sizes, "--batch-sizes"),
            num_threads=whole_numbers(threads, "--threads"),
            num_ranks=whole_numbers(ranks, "--ranks"),
            link_bytes_per_s=round(parse_rate(bandwidth)) if bandwidth else 0,
            budget_s=parse_duration(time_limit) / 1e9,
            patience_s=parse_duration(timeout) / 1e9 if timeout else None,
            keep_graphs=graphs,
            resume=resume,
            progress=progress,
        )
    document = {"schema": "windtunnel.suite/1", "folder": str(folder), "results": _documents(done)}
    show(document, _lines(done), as_json=as_json)
    suggest("windtunnel", "suite", "show", folder)
    if len(done.measured) < len(done.results):
        raise typer.Exit(SOME_FAILED)


@registry.verb("suite show", source="TBD", default="results")
def _show_group() -> None:
    """Example: windtunnel suite show today

    Show the results of a run (default) or the workloads of the suite.
    """


@registry.verb("suite show workloads", source="TBD")
def list_suite(names: Names = None, size: Size = "tiny", as_json: Json = False) -> None:
    """Example: windtunnel suite show workloads

    List the workloads with domain, source, parameter count and FLOP per sample.
    """
    from windtunnel.systems.suite.model import list_workloads

    with Progress("counting", heartbeat=True) as progress:
        entries = list_workloads(size, names, progress=progress)
    columns = {"workload": str, "domain: source": str, "parameters": _format_count, "FLOP/sample": _format_count}
    rows = [
        (item.name, ": ".join(filter(None, (item.domain, item.source))), item.num_parameters, item.flops_per_sample)
        for item in entries
    ]
    notes = [f"{entry.name}: {entry.note}" for entry in entries if entry.note]
    document = {"schema": "windtunnel.suite-list/1", "size": size, "workloads": list(map(dataclasses.asdict, entries))}
    show(document, [Table(columns, rows, wraps="domain: source"), *notes], as_json=as_json)
    advise(f"next: windtunnel suite run --size {size}")


@registry.verb("suite verify", source="TBD")
def compare_runs(
    first: Annotated[
        str,
        typer.Argument(
            metavar="BEFORE", help="Results of `suite run`; with --interleave, a checkout, commit or command."
        ),
    ],
    second: Annotated[
        str, typer.Argument(metavar="NOW", help="Results, checkout, commit or command to compare with the first.")
    ],
    interleave: Annotated[
        bool, typer.Option("--interleave", help="Run both programs interleaved and test paired differences.")
    ] = False,
    workloads: Annotated[
        str, typer.Option(metavar="NAMES", help="With --interleave: workloads to run, separated by commas.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=2, help="With --interleave: number of rounds after warm-up.")] = 8,
    time_limit: Annotated[
        str,
        typer.Option(
            "--time-limit", metavar="TIME", help="With --interleave: time limit for sampling a workload per round."
        ),
    ] = "3s",
    size: Size = "tiny",
    as_json: Json = False,
) -> None:
    """Example: windtunnel suite verify yesterday today

    Compare two runs by workload, or two program versions interleaved.
    """
    from windtunnel.systems.suite.comparison import compare
    from windtunnel.systems.suite.interleaved import compare_interleaved_runs, side_of

    if not interleave:
        result = compare(first, second)
    else:
        names = [name for name in workloads.split(",") if name]
        with Progress("running interleaved") as progress, side_of(first) as before, side_of(second) as now:
            arguments = ("--time-limit", time_limit, "--size", size)
            result = compare_interleaved_runs(
                before, now, workloads=names, arguments=arguments, rounds=rounds, progress=progress
            )
    show(_comparison_document(result), _comparison_lines(result), as_json=as_json)
    advise("next: windtunnel suite show NOW --against BEFORE" if not interleave else "next: windtunnel suite run")


@registry.verb("suite show results", source="TBD")
def report_suite(
    folder: Folder,
    against: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder of results to compare with.")] = None,
    html: HtmlPath = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel suite show today

    Write the results as a page with tables, metrics and batch sweeps.
    """
    from windtunnel.systems.suite.comparison import compare
    from windtunnel.systems.suite.page import write_suite_report
    from windtunnel.systems.suite.results import load_run

    done = load_run(folder)
    path = require_free(html or folder / "suite.html", force=force)
    comparison = compare(against, done) if against is not None else None
    write_suite_report(done, path, comparison=comparison, overwrite=force)
    size_bytes = path.stat().st_size
    document = {"schema": "windtunnel.report/1", "path": str(path), "size_bytes": size_bytes}
    show(document, [f"{path}: {format_size(size_bytes)}, works offline"], as_json=as_json)
    advise(f"next: open {path} in a browser")


def _comparison_document(found: Comparison) -> dict[str, Any]:
    def plain(row: Compared) -> dict[str, Any]:
        low, high = row.speedup.low, row.speedup.high
        facts = {"speedup": row.speedup.value, "low": low, "high": high, "verdict": row.verdict}
        p_value = None if math.isnan(row.p_value) else row.p_value
        return {
            "label": row.label,
            "unit": row.unit,
            "first": row.first,
            "second": row.second,
            "p_value": p_value,
        } | facts

    return {
        "schema": "windtunnel.comparison/1",
        "rows": [plain(row) for row in found.rows],
        "overall": plain(found.overall),
        "only_first": found.only_first,
        "only_second": found.only_second,
        "notes": found.notes,
    }


def _comparison_lines(found: Comparison) -> Iterator[str | Table]:
    columns = {"workload": str, "before": "{:.4g}", "now": "{:.4g}", "speed-up (95 % interval)": "{}", "verdict": str}
    rows = [(row.label, row.first, row.second, row.text, _verdict(row)) for row in (*found.rows, found.overall)]
    yield Table(columns, rows)
    for which, labels in (("before", found.only_first), ("now", found.only_second)):
        if labels:
            yield f"only {which}: {', '.join(labels)}"
    yield from found.notes


def _verdict(row: Compared) -> str:
    return row.verdict if math.isnan(row.p_value) else f"{row.verdict}, p={row.p_value:.3f}"


def _lines(done: SuiteRun) -> Iterator[str | Table]:
    numbers = ("throughput", "95 %", "compute", "arithmetic", "CPU")
    rows = [
        (
            _label(result),
            f"{result.throughput.value:.4g} {result.unit}/s",
            f"±{result.throughput.half_width_ratio:.1%}" + (" unstable" if result.is_unstable else ""),
            _percent(result.compute_utilization),
            _percent(sum(result.arithmetic_utilization.values()) if result.flops else None),
            _percent(result.cpu_utilization),
        )
        for result in done.measured
    ]
    yield Table({"workload": str, **dict.fromkeys(numbers, "{}")}, rows)
    for result in done.results:
        if not result.is_measured:
            yield f"{result.cell.workload} {result.status}: {result.message}"
            if result.fix:
                yield f"  fix: {result.fix}"
        yield from (f"{result.cell.workload}: {note}" for note in result.notes)
    disturbed = [result for result in done.measured if result.is_disturbed]
    if disturbed:
        worst = max(result.waited_ratio for result in disturbed)
        yield (
            f"other programs took up to {worst:.0%} of the cores in {len(disturbed)} cells: repeat on an idle machine"
        )
    sources = {result.energy_source for result in done.measured if result.energy_j is None}
    yield from sorted(filter(None, sources))


def _label(result: Result) -> str:
    ranks = f" x {result.cell.num_ranks} ranks" if result.cell.num_ranks > 1 else ""
    return f"{result.cell.workload} b{result.batch_size} t{result.cell.num_threads}{ranks}"


def _percent(ratio: float | None) -> str:
    return "–" if ratio is None else format_ratio(ratio)


def _format_count(count: float) -> str:
    return format_rate(count, "").strip()


def _documents(done: SuiteRun) -> list[dict[str, Any]]:
    import msgspec

    documents: list[dict[str, Any]] = [msgspec.to_builtins(result) for result in done.results]
    return documents
