"""``windtunnel dataio run`` and ``verify``: a job's input pipeline, really run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, suggest
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, HtmlPath, Json, LedgerPath
from windtunnel.systems.dataio.options import (
    Cache,
    Changes,
    ConfigPath,
    CostsPath,
    DiskBandwidth,
    Folder,
    NumRanks,
    Overrides,
    job_and_costs,
    load,
    require_cache,
    require_results,
    running_place,
)
from windtunnel.systems.dataio.verb_checkpoint import run_checkpoint_job
from windtunnel.units import format_duration, parse_duration

if TYPE_CHECKING:
    from windtunnel.systems.dataio.flight import LoaderFlight
    from windtunnel.systems.dataio.run import RunResult

__all__ = ["run", "verify"]


@registry.verb("dataio run", source="DLIO")
def run(
    config: ConfigPath,
    overrides: Overrides = None,
    ranks: NumRanks = 1,
    cache: Cache = "cold",
    folder: Folder = None,
    disk: DiskBandwidth = "",
    compute: Annotated[
        str,
        typer.Option("--compute", metavar="WORKLOAD", help="Run a real step, such as mlp, instead of sleeping."),
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Write result files in DLIO's format.")
    ] = None,
    dlio_compatible: Annotated[
        bool, typer.Option("--dlio-compatible", help="Report DLIO's throughput, which counts n - 2 steps.")
    ] = False,
    html: HtmlPath = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel dataio run unet3d_h100 --ranks 2 --cache cold

    Run the input pipeline: real files, real loader workers, one process per accelerator, without MPI.

    Computing is a sleep of the step time unless --compute names a workload. Files are generated where they are missing.
    """
    from windtunnel.systems.dataio.page import dataio_page
    from windtunnel.systems.dataio.run import run_job

    require_cache(cache)
    if html is not None:
        require_free(html, force=force)
    loaded = load(config, overrides, folder)
    if loaded.is_checkpoint_only:
        run_checkpoint_job(loaded, ranks, is_cold=cache == "cold", as_json=as_json)
        return
    folder = Path(loaded.checkpoint.checkpoint_folder) if loaded.workflow.checkpoint else None
    with running_place(loaded, ranks, disk, compute) as job, Progress("running") as progress:
        result = run_job(job, cache=cache, checkpoint_folder=folder, progress=progress)
    written = result.write(output) if output is not None else []
    if html is not None:
        dataio_page(html, result=result, overwrite=force)
    metrics = result.metrics(is_dlio=dlio_compatible)
    document: dict[str, Any] = {
        "schema": "windtunnel.dataio-run/1",
        "workload": result.job.name,
        "num_ranks": result.job.num_ranks,
        "cache": cache,
        **metrics.to_dict(),
        "target_au": result.job.target_au,
        "step_s": [item.step_s for item in result.epochs],
        "device_ratios": [item.device_ratio for item in result.epochs],
        "evaluation_s": [_seconds(item.ranks[0]) for item in result.evaluations],
        "checkpoint_s": result.checkpoint_s,
        "notes": result.notes(),
        "written": [str(path) for path in written],
    }
    show(document, _run_lines(result, cache, is_dlio=dlio_compatible), as_json=as_json)
    if not as_json:
        if written:
            advise(f"wrote {written[0].parent}")
        suggest("windtunnel", "dataio", "predict", config, "--ranks", ranks)


def _seconds(record: Any) -> float:
    return float(record.end_ns[-1] - record.start_ns) / 1e9 if record.end_ns else 0.0


def _run_lines(result: RunResult, cache: str, *, is_dlio: bool) -> Iterator[str | Table]:
    from windtunnel.systems.dataio.job import describe_job

    job, metrics = result.job, result.metrics(is_dlio=is_dlio)
    yield describe_job(job, cache)
    yield ""
    rows = [
        (item.epoch, "undefined" if au is None else f"{au:.1%}", rate, 1e9 * item.step_s, item.device_ratio)
        for item, au, rate in zip(result.epochs, metrics.au_ratios, metrics.samples_per_s, strict=True)
    ]
    columns = {
        "epoch": "{}", "AU": str, "samples/s": "{:,.1f}", "step": format_duration, "bytes from the device": "{:.0%}",
    }  # fmt: skip
    yield Table(columns, rows)
    yield ""
    if metrics.au_ratio is not None:
        reached = "reached" if metrics.au_ratio >= job.target_au else "missed"
        yield f"AU {metrics.au_ratio:.1%}, target {job.target_au:.0%} {reached}; {metrics.throughput:,.1f} samples/s"
    if result.checkpoint_s:
        yield f"{len(result.checkpoint_s)} checkpoints, {format_duration(1e9 * max(result.checkpoint_s))} at most"
    yield from (f"note: {note}" for note in result.notes())


@registry.verb("dataio verify", source="DLIO")
def verify(
    config: ConfigPath,
    overrides: Overrides = None,
    change: Changes = None,
    ranks: NumRanks = 1,
    cache: Cache = "cold",
    changed_cache: Annotated[
        str, typer.Option("--changed-cache", metavar="STATE", help="Page cache of the changed job: cold or warm.")
    ] = "",
    folder: Folder = None,
    disk: DiskBandwidth = "",
    costs_path: CostsPath = None,
    rounds: Annotated[int, typer.Option(min=3, metavar="N", help="Maximum number of rounds.")] = 5,
    time_limit: Annotated[
        str, typer.Option("--time-limit", metavar="TIME", help="No round starts later, except for the first three.")
    ] = "2min",
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel dataio verify unet3d_h100 --change reader.read_threads=4

    Run the job and a changed one in turns, and compare their times with the predictions.

    The result is kept in the ledger of receipts.
    """
    from windtunnel.systems.dataio.flight import fly_settings
    from windtunnel.systems.dataio.predict import predict_job
    from windtunnel.systems.dataio.stores import change_config, change_job

    state = changed_cache or cache
    require_cache(cache)
    require_cache(state)
    book, loaded = require_results(ledger), load(config, overrides, folder)
    changes = change_config(config, overrides or [], change or [], folder)
    with job_and_costs(loaded, ranks, disk, costs_path) as (job, costs):
        changed, changed_costs = change_job(changes, loaded, job, costs)
        predictions = [predict_job(job, costs, cache=cache), predict_job(changed, changed_costs, cache=state)]
        with Progress("flying") as progress:
            flight = fly_settings(
                (predictions[0], cache), (predictions[1], state), max_rounds=rounds,
                time_limit_s=parse_duration(time_limit) / 1e9, progress=progress,
            )  # fmt: skip
    receipt = flight.receipt()
    book.add(receipt)
    document = {"schema": "windtunnel.dataio-flight/1", "workload": job.name, **flight.to_dict()}
    show(document, _flight_lines(flight), as_json=as_json)


def _flight_lines(flight: LoaderFlight) -> Iterator[str | Table]:
    columns = {"": str, "predicted": format_duration, "measured": format_duration, "AU predicted": "{:.1%}",
               "AU measured": "{:.1%}", "from the device": "{:.0%}"}  # fmt: skip
    values = flight.to_dict()
    keys = ("predicted_step_ns", "measured_step_ns", "predicted_au_ratio", "measured_au_ratio", "device_ratios")
    yield f"baseline: {values['baseline']}"
    yield f"changed:  {values['changed']}"
    yield ""
    rows = [(name, *(values[key][index] for key in keys)) for index, name in enumerate(("baseline", "changed"))]
    yield Table(columns, rows)
    yield ""
    speedup = flight.speedup
    yield (
        f"predicted {flight.predicted_speedup:.2f}x, measured {speedup.value:.2f}x "
        f"({speedup.low:.2f} to {speedup.high:.2f}, 90 %); step predicted with an error of {flight.error_ratio:+.1%}"
    )
