"""``windtunnel suite``: train, list, compare and report the benchmark suite."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, clean, print_json, print_table, say, say_wrapped, suggest
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, HtmlPath, Json, Output, whole_numbers

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
    from windtunnel.units import parse_duration, parse_rate

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
    if as_json:
        print_json({"schema": "windtunnel.suite/1", "folder": str(folder), "results": _documents(done)})
    else:
        _print_run(done)
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
    if as_json:
        print_json({"schema": "windtunnel.suite-list/1", "size": size, "workloads": list(map(_as_dict, entries))})
    else:
        rows = [
            (
                item.name,
                ": ".join(filter(None, (item.domain, item.source))),
                _format_count(item.num_parameters),
                _format_count(item.flops_per_sample),
            )
            for item in entries
        ]
        print_table(("workload", "domain: source", "parameters", "FLOP/sample"), rows, numbers=(2, 3), gives_way=1)
        for entry in entries:
            if entry.note:
                say_wrapped(f"{entry.name}: {entry.note}")
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
    if as_json:
        print_json(_comparison_document(result))
    else:
        _print_comparison(result)
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
    from windtunnel.units import format_size

    done = load_run(folder)
    path = require_free(html or folder / "suite.html", force=force)
    comparison = compare(against, done) if against is not None else None
    write_suite_report(done, path, comparison=comparison, overwrite=force)
    if as_json:
        print_json({"schema": "windtunnel.report/1", "path": str(path), "size_bytes": path.stat().st_size})
    else:
        say(f"{path}: {format_size(path.stat().st_size)}, works offline")
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


def _print_comparison(found: Comparison) -> None:
    rows = [
        (row.label, f"{row.first:.4g}", f"{row.second:.4g}", row.text, _verdict(row))
        for row in (*found.rows, found.overall)
    ]
    print_table(("workload", "before", "now", "speed-up (95 % interval)", "verdict"), rows, numbers=(1, 2, 3))
    for which, labels in (("before", found.only_first), ("now", found.only_second)):
        if labels:
            say_wrapped(f"only {which}: {', '.join(labels)}")
    for note in found.notes:
        say_wrapped(note)


def _verdict(row: Compared) -> str:
    return row.verdict if math.isnan(row.p_value) else f"{row.verdict}, p={row.p_value:.3f}"


def _print_run(done: SuiteRun) -> None:
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
    print_table(("workload", "throughput", "95 %", "compute", "arithmetic", "CPU"), rows, numbers=(1, 2, 3, 4, 5))
    for result in done.results:
        if not result.is_measured:
            say_wrapped(f"{result.cell.workload} {result.status}: {result.message}")
            say_wrapped(f"  fix: {result.fix}") if result.fix else None
        for note in result.notes:
            say_wrapped(f"{result.cell.workload}: {note}")
    disturbed = [result for result in done.measured if result.is_disturbed]
    if disturbed:
        worst = max(result.waited_ratio for result in disturbed)
        say_wrapped(
            f"other programs took up to {worst:.0%} of the cores in {len(disturbed)} cells: repeat on an idle machine"
        )
    sources = {result.energy_source for result in done.measured if result.energy_j is None}
    for source in sorted(filter(None, sources)):
        say(clean(source, 200))


def _label(result: Result) -> str:
    ranks = f" x {result.cell.num_ranks} ranks" if result.cell.num_ranks > 1 else ""
    return f"{result.cell.workload} b{result.batch_size} t{result.cell.num_threads}{ranks}"


def _percent(ratio: float | None) -> str:
    from windtunnel.units import format_ratio

    return "–" if ratio is None else format_ratio(ratio)


def _format_count(count: float | None) -> str:
    from windtunnel.units import format_rate

    return "" if count is None else format_rate(count, "").strip()


def _documents(done: SuiteRun) -> list[dict[str, Any]]:
    import msgspec

    documents: list[dict[str, Any]] = [msgspec.to_builtins(result) for result in done.results]
    return documents


def _as_dict(entry: Any) -> dict[str, Any]:
    return dataclasses.asdict(entry)
