"""``windtunnel serve``: how many instances of a model a processor should run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, suggest
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json, LedgerPath, Output, whole_numbers
from windtunnel.errors import InputError
from windtunnel.systems.serving import verb_run, verb_size  # noqa: F401 - each registers its verbs
from windtunnel.systems.serving.options import (
    FlownPath,
    JobName,
    MemoryLimit,
    NumThreads,
    ProfilePath,
    memory_limit,
    profile_of,
)
from windtunnel.units import format_duration, format_size, parse_duration, parse_ratio

if TYPE_CHECKING:
    from windtunnel.systems.serving.model import Split
    from windtunnel.systems.serving.profile import Profile
    from windtunnel.systems.serving.run import FlownSplit
    from windtunnel.systems.serving.search import Rule


@registry.verb("serve", source="Packrat")
def _group() -> None:
    """Example: windtunnel serve profile resnet50:size=tiny --batch-sizes 1,2,4,8

    Split the threads of a processor among instances of a served model.
    """


@registry.verb("serve profile", source="Packrat")
def profile(
    job: JobName,
    threads: Annotated[
        int,
        typer.Option(
            "--max-threads", min=0, metavar="N", help="Maximum number of threads of an instance; 0: all cores."
        ),
    ] = 0,
    batches: Annotated[
        str, typer.Option("--batch-sizes", metavar="LIST", help="Batch sizes to measure.")
    ] = "1,2,4,8,16,32,64",
    few: Annotated[
        str,
        typer.Option(
            "--max-cells",
            metavar="RATIO",
            help="Measure at most this fraction of the cells, chosen by how much they affect the best splits.",
        ),
    ] = "",
    rounds: Annotated[
        int, typer.Option(min=5, metavar="N", help="Maximum number of rounds, each of which measures every cell once.")
    ] = 20,
    time_limit: Annotated[
        str,
        typer.Option(
            "--time-limit", metavar="TIME", help="Time limit; no round starts after it, except for the first five."
        ),
    ] = "5min",
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel serve profile resnet50:size=tiny --batch-sizes 1,2,4,8

    Measure one instance in isolation, for each number of threads and batch size.

    With --max-cells, only the cells that determine the best splits are measured and written.
    """
    from windtunnel.systems.serving.few_shot import measure_few_cells
    from windtunnel.systems.serving.instances import server_cores
    from windtunnel.systems.serving.profile import Profile, write_profile
    from windtunnel.systems.serving.run import measure_cells, measuring

    path = require_free(output if output is not None else Path(f"{_stem(job)}.profile.csv"), force=force)
    inputs = whole_numbers(batches, "--batch-sizes", least=1)
    if not inputs:
        raise InputError("no batch size is given", where="--batch-sizes", fix="such as --batch-sizes 1,2,4")
    counts = range(1, (threads or len(server_cores())) + 1)
    limit_s = parse_duration(time_limit) / 1e9
    with Progress("profiling") as progress:
        if few:
            num_cells = len(counts) * len(set(inputs))
            share = parse_ratio(few)
            with measuring(job, counts, max(inputs), rounds=rounds, budget_s=limit_s / num_cells) as measure:
                few_cells = measure_few_cells(
                    measure, counts, inputs, counts[-1], max_fraction=share, progress=progress
                )
            result = Profile.of(few_cells)
        else:
            cells = [(t, b) for t in counts for b in sorted(set(inputs))]
            result = measure_cells(job, cells, rounds=rounds, budget_s=limit_s, progress=progress)
    sizes = result.own_bytes
    write_profile(path, result.cells.items(), sizes)
    rows = [
        {"num_threads": t, "batch_size": b, "latency_ns": ns, "memory_bytes": sizes and sizes[t, b]}
        for (t, b), ns in result.cells.items()
    ]
    document = {"schema": "windtunnel.serve-profile/1", "job": job, "cells": rows, "written": str(path)}
    show(document, [_cell_table(result.cells)], as_json=as_json)
    if not as_json:
        advise(f"wrote {path}")
        suggest("windtunnel", "serve", "plan", path, "--batch-size", max(inputs))


def _stem(job: str) -> str:
    name = job.partition(":")[0]
    return Path(name).stem if name.endswith(".py") else name


def _cell_table(found: dict[tuple[int, int], float]) -> Table:
    counts, inputs = (sorted({cell[index] for cell in found}) for index in (0, 1))
    threads = {f"{count} thread{'s' * (count > 1)}": format_duration for count in counts}
    return Table({"batch": "{}", **threads}, [(b, *(found.get((t, b)) for t in counts)) for b in inputs])


@registry.verb("serve plan", source="Packrat", default="splits")
def _plan_group() -> None:
    """Example: windtunnel serve plan resnet50.profile.csv --batch-size 8

    Choose how instances split a batch (default), or how many threads meet a latency SLO.
    """


@registry.verb("serve plan splits", source="Packrat")
def plan(
    profile: ProfilePath,
    batch: Annotated[
        str, typer.Option("--batch-size", metavar="LIST", help="Batch sizes to plan for, such as 8,16,32.")
    ],
    threads: NumThreads = 0,
    rule: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Rule for splits: ragged (any batch sizes), at-most (equal batches) or exact (and no idle threads).",
        ),
    ] = "ragged",
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=TEXT", help="Use only rows of the profile with this value; may be repeated."),
    ] = None,
    flown: FlownPath = None,
    memory: MemoryLimit = "",
    page: Annotated[
        Path | None, typer.Option("--html", metavar="HTML", help="Write predicted latencies as a page.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel serve plan resnet50.profile.csv --batch-size 8,16 --threads 2

    Find the instances with the lowest latency for a batch.
    """
    if page is not None:
        require_free(page, force=force)
    known = profile_of(profile, flown, where)
    num_threads = threads or known.max_threads
    batches = whole_numbers(batch, "--batch-size", least=1)
    if not batches:
        raise InputError("no batch size is given", where="--batch-size", fix="such as --batch-size 8,16")
    max_bytes = memory_limit(memory)
    plans = [_plan(known, num_threads, item, rule, max_bytes) for item in batches]  # type: ignore[arg-type]
    if page is not None:
        from windtunnel.systems.serving.page import serving_page

        serving_page(profile.name, num_threads, plans, page, overwrite=force)
    document = {"schema": "windtunnel.serve-plan/1", "threads": num_threads, "rule": rule,
                "plans": [_document(known, plan_) for plan_ in plans]}  # fmt: skip
    show(document, [_plan_table(known, plans)], as_json=as_json)
    if page is not None:
        advise(f"wrote {page}")


def _plan(known: Profile, num_threads: int, batch: int, rule: Rule, max_bytes: float) -> dict[str, Split | None]:
    """The best split, and the two that are usual."""
    from windtunnel.systems.serving.search import best_split, equal_split

    return {
        "best": best_split(known, num_threads, batch, rule, max_bytes),
        "one": equal_split(known, num_threads, 1, batch),
        "thin": equal_split(known, num_threads, num_threads, batch),
    }


def _document(known: Profile, plans: dict[str, Split | None]) -> dict[str, Any]:
    return {
        name: None if plan_ is None else {
            "batch": plan_.batch, "latency_ns": plan_.latency_ns, "threads": plan_.threads,
            "memory_bytes": known.bytes_of(plan_.cells),
            "instances": [{"threads": it.threads, "batch": share, "latency_ns": it.latency_ns}
                          for it, share in zip(plan_.instances, plan_.shares(), strict=True)],
        }
        for name, plan_ in plans.items()
    }  # fmt: skip


def _plan_table(known: Profile, plans: Sequence[dict[str, Split | None]]) -> Table:
    rows = []
    for plan_ in plans:
        best, others = plan_["best"], (plan_["one"], plan_["thin"])
        assert best is not None
        gains = [None if other is None else other.latency_ns / best.latency_ns for other in others]
        size = known.bytes_of(best.cells)
        rows.append([best.batch, best, best.latency_ns, *gains, *([] if size is None else [size])])
    columns = {"batch": "{:,}", "instances <threads,batch>": str, "latency": format_duration,
               "vs. one instance": "{:.2f}x", "vs. one per thread": "{:.2f}x"}  # fmt: skip
    columns |= {} if known.own_bytes is None else {"memory": format_size}
    return Table(columns, rows, wraps="instances <threads,batch>")


@registry.verb("serve verify", source="Packrat")
def fly(
    job: JobName,
    profile: ProfilePath,
    batch: Annotated[int, typer.Option("--batch-size", min=1, metavar="N", help="Batch size.")],
    threads: NumThreads = 0,
    flown: FlownPath = None,
    memory: MemoryLimit = "",
    most: Annotated[
        int,
        typer.Option(
            "--max-splits", min=1, metavar="N", help="Maximum number of splits to run, best predictions first."
        ),
    ] = 8,
    rounds: Annotated[
        int, typer.Option(min=5, metavar="N", help="Maximum number of rounds, each of which runs every split once.")
    ] = 20,
    time_limit: Annotated[
        str,
        typer.Option(
            "--time-limit", metavar="TIME", help="Time limit; no round starts after it, except for the first five."
        ),
    ] = "2min",
    ledger: LedgerPath = None,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel serve verify resnet50:size=tiny resnet50.profile.csv --batch-size 8

    Run the best splits interleaved and compare each with its prediction.
    """
    from windtunnel.flights import Ledger
    from windtunnel.systems.serving.flight import receipts_of_splits
    from windtunnel.systems.serving.profile import write_profile
    from windtunnel.systems.serving.run import fly_splits
    from windtunnel.systems.serving.search import shortlist

    path = require_free(output if output is not None else Path(f"{_stem(job)}.flown.csv"), force=force)
    known = profile_of(profile, flown)
    num_threads = threads or known.max_threads
    splits = shortlist(known, num_threads, batch, most, memory_limit(memory))
    with Progress("flying") as progress:
        result = fly_splits(job, splits, rounds=rounds, budget_s=parse_duration(time_limit) / 1e9, progress=progress)
    whole = next((item for item in result if [num_threads] == [it.threads for it in item.split.instances]), None)
    if whole is not None:
        kept = Ledger(ledger)
        for receipt in receipts_of_splits(job, result, whole):
            kept.add(receipt)
    busy = [row for item in result if item.split.threads == num_threads for row in _full(item)]
    if busy:
        write_profile(path, busy)
    rows = [
        {
            "split": str(item.split),
            "predicted_ns": item.split.latency_ns,
            "latency_ns": item.latency.value,
            "low_ns": item.latency.low,
            "high_ns": item.latency.high,
            "error_ratio": item.error_ratio,
        }
        for item in result
    ]
    document = {"schema": "windtunnel.serve-flight/1", "job": job, "batch": batch, "flights": rows,
                "written": str(path) if busy else None}  # fmt: skip
    show(document, _lines(result), as_json=as_json)
    if as_json:
        return
    if whole is None:
        advise("no receipts: the profile has no instance with all threads for this batch size")
    if not busy:
        advise("no file was written: no split with all threads busy had full batches")
        return
    advise(f"wrote {path}")
    if flown is None:
        suggest("windtunnel", "serve", "plan", profile, "--batch-size", batch, "--measured", path)


def _full(one: FlownSplit) -> list[tuple[tuple[int, int], float]]:
    """Instances that had whole batches."""
    rows = zip(one.split.instances, one.split.shares(), one.instances_ns, strict=True)
    return [((it.threads, it.batch), ns) for it, share, ns in rows if share == it.batch]


def _lines(found: Sequence[FlownSplit]) -> Iterator[str | Table]:
    columns = {"instances <threads,batch>": str, "predicted": format_duration, "measured": format_duration,
               "90 % interval": "{}", "error": "{:+.1%}"}  # fmt: skip
    yield Table(columns, [
        (item.split, item.split.latency_ns, item.latency.value,
         f"{format_duration(item.latency.low)} to {format_duration(item.latency.high)}", item.error_ratio)
        for item in found
    ])  # fmt: skip
    yield ""
    yield f"lowest measured latency: {min(found, key=lambda flown: flown.latency.value).split}"
