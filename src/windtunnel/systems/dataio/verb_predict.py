"""``windtunnel dataio predict`` and ``plan``: AU of a job that nobody runs, and what to change about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, suggest
from windtunnel.cli.options import Force, HtmlPath, Json, LedgerPath, whole_numbers
from windtunnel.errors import InputError
from windtunnel.systems.dataio.options import (
    BatchSizes,
    Cache,
    ConfigPath,
    CostsPath,
    DiskBandwidth,
    Folder,
    Formats,
    MaxMemory,
    MayCache,
    NumRanks,
    Overrides,
    PrefetchFactors,
    StoreCosts,
    TargetAu,
    WorkerCounts,
    job_and_costs,
    load,
    require_cache,
    require_results,
)
from windtunnel.units import format_duration, format_size, parse_ratio, parse_size

if TYPE_CHECKING:
    from windtunnel.flights.intervals import Backing
    from windtunnel.systems.dataio.predict import Prediction
    from windtunnel.systems.dataio.search import Plan

__all__ = ["plan", "predict", "prediction_lines"]


@registry.verb("dataio predict", source="DLIO")
def predict(
    config: ConfigPath,
    overrides: Overrides = None,
    ranks: NumRanks = 1,
    cache: Cache = "cold",
    folder: Folder = None,
    disk: DiskBandwidth = "",
    costs_path: CostsPath = None,
    output: StoreCosts = None,
    ledger: LedgerPath = None,
    html: HtmlPath = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel dataio predict unet3d_h100 --ranks 2

    Predict accelerator utilization and throughput from short measurements, without running the job.

    The measurements take about 30 seconds: samples, storage, loader. --out saves them, --costs uses them again.
    """
    from windtunnel.systems.dataio.calibrate import write_costs
    from windtunnel.systems.dataio.flight import with_receipts
    from windtunnel.systems.dataio.page import dataio_page
    from windtunnel.systems.dataio.predict import predict_job

    require_cache(cache)
    book = require_results(ledger, html, output, force=force)
    with job_and_costs(load(config, overrides, folder), ranks, disk, costs_path) as (job, costs):
        prediction = with_receipts(predict_job(job, costs, cache=cache), book)
    if output is not None:
        write_costs(output, costs)
    if html is not None:
        dataio_page(html, prediction=prediction, overwrite=force)
    document = {
        "schema": "windtunnel.dataio-prediction/1",
        "workload": job.name,
        "num_ranks": job.num_ranks,
        "cache": cache,
        **prediction.to_dict(),
    }
    show(document, prediction_lines(prediction, cache), as_json=as_json)
    if not as_json:
        for path in (html, output):
            if path is not None:
                advise(f"wrote {path}")
        suggest("windtunnel", "dataio", "verify" if prediction.meets_target else "plan", config, "--ranks", ranks)


def prediction_lines(prediction: Prediction, cache: str) -> Iterator[str | Table]:
    """Yield what is predicted, for people."""
    from windtunnel.systems.dataio.job import describe_job
    from windtunnel.systems.dataio.model import CAUSES

    job = prediction.job
    yield describe_job(job, cache)
    yield ""
    if prediction.au_ratio is None:
        yield (
            f"AU is undefined: an epoch has {job.num_steps} steps, of which {job.num_start} at the start and "
            f"{job.num_end} at the end are excluded"
        )
    else:
        backing = f", {prediction.num_receipts} receipts" if prediction.num_receipts else ""
        span = f"{prediction.au_low:.1%} to {prediction.au_high:.1%}, 90 %{backing}"
        interval = "" if prediction.au_low is None else f" ({span})"
        reached = "reached" if prediction.meets_target else "missed"
        yield f"AU {prediction.au_ratio:.1%}{interval}; target {job.target_au:.0%} {reached}"
        yield f"throughput {prediction.samples_per_s:,.1f} samples/s; step {format_duration(prediction.step_ns)}"
    found = prediction.bottleneck
    if found is not None:
        yield f"bottleneck: {CAUSES[found.cause]}"
        yield ""
        rows = sorted(((name, gain) for name, gain in found.gains.items()), key=lambda row: -row[1])
        yield Table({"without": str, "epoch is faster by": "{:.2f}x"}, rows)
    if prediction.num_replayed < job.num_steps:
        yield f"replayed {prediction.num_replayed:,} of {job.num_steps:,} steps of an epoch; the rest is like them"


@registry.verb("dataio plan", source="DLIO")
def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    ranks: NumRanks = 1,
    cache: Cache = "cold",
    target: TargetAu = "",
    workers: WorkerCounts = "0,1,2,4,8",
    prefetch: PrefetchFactors = "1,2,4",
    batches: BatchSizes = "",
    formats: Formats = "",
    may_cache: MayCache = True,
    memory: MaxMemory = "",
    folder: Folder = None,
    disk: DiskBandwidth = "",
    costs_path: CostsPath = None,
    ledger: LedgerPath = None,
    html: HtmlPath = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel dataio plan unet3d_h100 --ranks 2 --formats npy,indexed_binary:64

    Find the fewest workers and the least memory that keep the accelerators busy.

    Each format is measured with a few generated samples; every setting is judged by a replay.
    """
    from windtunnel.flights.intervals import interval_of
    from windtunnel.systems.dataio.flight import WHATIF
    from windtunnel.systems.dataio.page import dataio_page
    from windtunnel.systems.dataio.search import Space, plan_loader
    from windtunnel.systems.dataio.stores import costs_of_stores, parse_stores

    require_cache(cache)
    book = require_results(ledger, html, force=force)
    stores = parse_stores(formats)
    target_au = parse_ratio(target) if target else None
    if target_au is not None and target_au > 1:
        raise InputError(f"no utilization is {target_au:.0%}", where="--target-au", fix="such as 0.9, or 90%")
    max_memory_bytes = parse_size(memory) if memory else float("inf")
    space = Space(
        tuple(whole_numbers(workers, "--workers")),
        tuple(whole_numbers(prefetch, "--prefetch", least=1)),
        tuple(whole_numbers(batches, "--batch-sizes", least=1)),
        stores,
        may_cache,
    )
    loaded = load(config, overrides, folder)
    with job_and_costs(loaded, ranks, disk, costs_path) as (job, costs), Progress("planning") as bar:
        by_store = costs_of_stores(job, costs, stores, progress=bar)
        result = plan_loader(
            job,
            by_store,
            space,
            cache=cache,
            target_au=target_au,
            max_memory_bytes=max_memory_bytes,
            progress=bar,
        )
    if html is not None:
        dataio_page(html, plan=result, prediction=result.recommended.prediction, overwrite=force)
    backing = interval_of(WHATIF, result.speedup, book)
    document: dict[str, Any] = {
        "schema": "windtunnel.dataio-plan/1",
        "workload": job.name,
        "num_ranks": job.num_ranks,
        "target_au": result.target_au,
        "is_reached": result.is_reached,
        "baseline": result.baseline.to_dict(),
        "recommended": result.recommended.to_dict(),
        "predicted_speedup": result.speedup,
        "receipts": asdict(backing),
        "max_accelerators": result.max_accelerators,
        "candidates": [item.to_dict() for item in result.candidates],
    }
    show(document, _plan_lines(result, backing), as_json=as_json)
    if not as_json and html is not None:
        advise(f"wrote {html}")


def _plan_lines(plan: Plan, backing: Backing) -> Iterator[str | Table]:
    columns = {
        "setting": str, "AU": "{:.1%}", "samples/s": "{:,.1f}", "memory": format_size, "new data set": str,
    }  # fmt: skip
    yield Table(
        columns,
        [
            (str(item.setting), item.au_ratio, item.prediction.samples_per_s or 0.0, item.memory_bytes,
             "yes" if item.rewrites else "")
            for item in plan.candidates
        ],
        wraps="setting",
    )  # fmt: skip
    yield ""
    reached = "reaches" if plan.is_reached else "does not reach"
    yield f"now: {plan.baseline.setting}: AU {plan.baseline.au_ratio:.1%}"
    yield f"recommended: {plan.recommended.setting}: AU {plan.recommended.au_ratio:.1%}, {backing}"
    yield f"this {reached} the target of {plan.target_au:.0%}"
    yield f"accelerators that the storage feeds at this target: {plan.max_accelerators}"
