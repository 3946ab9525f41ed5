"""``windtunnel stalls``: what a job loses to its surroundings, by runs that each leave out one cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, stdout_to_stderr
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json
from windtunnel.errors import InputError
from windtunnel.units import format_duration, format_ratio, format_size, parse_duration, parse_rate

if TYPE_CHECKING:
    from windtunnel.systems.stalls.features import StallModel
    from windtunnel.systems.stalls.layers import NetworkForecast
    from windtunnel.systems.stalls.model import Stalls
    from windtunnel.systems.stalls.run import Surroundings

__all__ = ["stalls"]

_SHOWN_LAYERS = 4


@registry.verb("stalls", source="Stash", default="run")
def _group() -> None:
    """Example: windtunnel stalls relu-network:family=vgg --bandwidth 50MB/s

    Measure how long a job stalls on interconnects, networks and storage.
    """


@registry.verb("stalls run", source="Stash")
def stalls(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...", help="Workloads, such as relu-network:family=vgg, or 'my_job.py:make --its arguments'."
        ),
    ],
    bandwidth: Annotated[
        str,
        typer.Option(
            metavar="RATE",
            help="Bandwidth of the emulated network between ranks, such as 50MB/s (default: no network runs).",
        ),
    ] = "",
    latency: Annotated[str, typer.Option(metavar="TIME", help="One-way latency of the emulated network.")] = "0us",
    disk: Annotated[
        str,
        typer.Option(
            "--disk-bandwidth", metavar="RATE", help="Bandwidth to which reads are limited (default: that of the disk)."
        ),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder on the disk to measure; its files are removed at the end."),
    ] = None,
    files: Annotated[bool, typer.Option("--files/--no-files", help="Include the runs that read input files.")] = True,
    ranks: Annotated[int, typer.Option(min=2, metavar="N", help="Number of ranks, one core each.")] = 2,
    batches: Annotated[int, typer.Option(min=1, metavar="N", help="Number of batches per turn.")] = 20,
    turns: Annotated[
        int,
        typer.Option(
            "--rounds", min=2, metavar="N", help="Number of interleaved rounds; more rounds narrow the intervals."
        ),
    ] = 5,
    layers: Annotated[
        bool,
        typer.Option("--layers", help="Also predict the network run by replay: layers that wait, and what would help."),
    ] = False,
    output: Annotated[Path | None, typer.Option("--html", metavar="PAGE", help="Write the stalls as a page.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel stalls relu-network:family=vgg --bandwidth 50MB/s --disk-bandwidth 20MB/s

    Run a job with and without each cause of stalls, interleaved, and show what each costs.

    With four or more jobs, it also fits the time per collective and per byte.
    """
    from windtunnel.systems.stalls.features import fit_tiers
    from windtunnel.systems.stalls.run import Surroundings, measure_stalls

    path = None if output is None else require_free(output, force=force)
    around = Surroundings(
        parse_rate(bandwidth) if bandwidth else None,
        parse_duration(latency),
        folder,
        parse_rate(disk) if disk else 0.0,
        files,
    )
    if layers and not bandwidth:
        raise InputError("--layers needs a network", where="--layers", fix="add --bandwidth 50MB/s")
    result = []
    for job in jobs:
        with Progress(f"stalls of {job}") as progress, stdout_to_stderr():
            result.append(
                measure_stalls(job, around, num_ranks=ranks, num_batches=batches, num_turns=turns, progress=progress)
            )
    models, forecasts = fit_tiers(result), [_forecast(job, ranks, around) for job in jobs if layers]
    if path is not None:
        from windtunnel.systems.stalls.page import stalls_page

        stalls_page(result, path, overwrite=force)
    document = {
        "schema": "windtunnel.stalls/1",
        "jobs": [entry.to_dict() for entry in result],
        "models": {tier: asdict(model) for tier, model in models.items()},
        "forecasts": [asdict(entry) for entry in forecasts],
    }

    def lines() -> Iterator[str | Table]:
        for item, forecast in zip_longest(result, forecasts):
            yield from _lines(item)
            if forecast is not None:
                yield from _forecast_lines(forecast, item)
        for tier, model in models.items():
            yield from ("", _model_line(tier, model))

    show(document, lines(), as_json=as_json)
    if not as_json:
        for item, forecast in zip(result, forecasts, strict=False):
            if forecast.remedies:
                advise(f"next: windtunnel verify {item.job} --whatif {forecast.remedies[0].request}")


def _forecast(job: str, num_ranks: int, around: Surroundings) -> NetworkForecast:
    from windtunnel.systems.stalls.layers import network_forecast

    assert around.bandwidth_bytes_per_s is not None
    with Progress(f"replaying {job}") as progress, stdout_to_stderr():
        return network_forecast(job, num_ranks, around.bandwidth_bytes_per_s, around.latency_ns, progress=progress)


def _forecast_lines(forecast: NetworkForecast, found: Stalls) -> Iterator[str | Table]:
    off = forecast.iteration_ns / found.median_ns("network") - 1
    used = format_duration(forecast.iteration_ns)
    yield ""
    yield f"network run, predicted by replay: {used} per iteration (error {format_ratio(off)})"
    rows = [(bucket.exposed_ns, bucket.size_bytes, _shorten_layers(bucket.layers)) for bucket in forecast.buckets]
    yield Table({"exposed": format_duration, "size": format_size, "layers of the bucket": str}, rows)
    for remedy in forecast.remedies:
        yield f"{format_duration(remedy.iteration_ns)} per iteration with {remedy.request.partition('+')[2]}"


def _shorten_layers(layers: Sequence[str]) -> str:
    return ", ".join(layers) if len(layers) <= _SHOWN_LAYERS else f"{layers[0]} ... {layers[-1]} ({len(layers)})"


def _model_line(tier: str, model: StallModel) -> str:
    return (
        f"{tier}: {format_duration(model.collective_ns)} for each of the {model.counts}, "
        f"{model.bandwidth_bytes_per_s / 1e6:.1f} MB/s, {format_duration(model.rest_ns)} otherwise; median error for "
        f"held-out jobs {format_ratio(median(model.left_out_errors))}"
    )


def _lines(found: Stalls) -> Iterator[str | Table]:
    from windtunnel.systems.stalls.model import RUNS
    from windtunnel.systems.stalls.page import table_of_stalls

    yield f"{found.job}: {found.num_ranks} ranks, {found.batch_size} samples each"
    yield ""
    rows = [(name, found.median_ns(name), found.samples_per_s(name), RUNS[name]) for name in found.times_ns]
    yield Table({"run": str, "iteration": format_duration, "samples/s": "{:,.0f}", "description": str}, rows)
    yield ""
    yield table_of_stalls(found)
    yield ""
    yield f"bottleneck: {found.bottleneck}"
    both = found.interconnect()
    if both is not None:
        yield f"interconnect as published (contention and exchange): {both}, {format_ratio(both.share)}"
    yield from found.advice()
    link = found.environment.get("link")
    if link is not None:
        measured, total = link["measured_bytes_per_s"] / 1e6, link["bytes_per_s"] / 1e6
        yield f"link bandwidth: measured {measured:.2f} of {total:g} MB/s ({link['how']})"
    if "disk" in found.environment:
        yield f"the disk is {found.environment['disk']}"
    yield from (f"note: {text}" for text in found.warnings)
