"""``windtunnel stalls``: what a job loses to its surroundings, by runs that each leave out one cause (room cli)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.cli._console import Progress, print_json, print_table, say
from windtunnel.cli._files import require_free
from windtunnel.cli._options import Force, Json
from windtunnel.cli._stdout import stdout_to_stderr

if TYPE_CHECKING:
    from windtunnel.cluster.stalls.features import StallModel
    from windtunnel.cluster.stalls.model import Stalls

__all__ = ["stalls"]


def stalls(
    jobs: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help="Workloads, such as relu-network:family=vgg, or my_job.py:make."),
    ],
    bandwidth: Annotated[
        str, typer.Option(metavar="RATE", help="Of a network between ranks, such as 50MB/s; none by default.")
    ] = "",
    latency: Annotated[str, typer.Option(metavar="TIME", help="Of that network, one way.")] = "0us",
    disk: Annotated[
        str, typer.Option(metavar="RATE", help="To which reading is limited; by default the disk as it is.")
    ] = "",
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="On the disk that is meant; files go when the runs end.")
    ] = None,
    files: Annotated[bool, typer.Option("--files/--no-files", help="Make the runs that read files.")] = True,
    ranks: Annotated[int, typer.Option(min=2, metavar="N", help="One core each.")] = 2,
    batches: Annotated[int, typer.Option(min=1, metavar="N", help="In each turn of each run.")] = 20,
    turns: Annotated[int, typer.Option(min=2, metavar="N", help="More make intervals narrower.")] = 5,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="PAGE", help="Also write a page.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel stalls relu-network:family=vgg --bandwidth 50MB/s --disk 20MB/s

    Really run a job with and without each cause of waiting, in turns, and say what each takes.

    Of four jobs or more it also says what a collective and a byte take.
    """
    from windtunnel.cluster.stalls.features import fit_tiers
    from windtunnel.cluster.stalls.run import Surroundings, measure_stalls
    from windtunnel.units import parse_duration, parse_rate

    path = None if output is None else require_free(output, force=force)
    around = Surroundings(
        parse_rate(bandwidth) if bandwidth else None,
        parse_duration(latency),
        folder,
        parse_rate(disk) if disk else 0.0,
        files,
    )
    found = []
    for job in jobs:
        with Progress(f"stalls of {job}") as progress, stdout_to_stderr():
            found.append(
                measure_stalls(job, around, num_ranks=ranks, num_batches=batches, num_turns=turns, progress=progress)
            )
    models = fit_tiers(found)
    if path is not None:
        from windtunnel.reports.stalls import stalls_page

        stalls_page(found, path, overwrite=force)
    if as_json:
        fitted = {tier: asdict(model) for tier, model in models.items()}
        print_json({"schema": "windtunnel.stalls/1", "jobs": [one.to_dict() for one in found], "models": fitted})
        return
    for one in found:
        _print(one)
    for tier, model in models.items():
        _print_model(tier, model)


def _print_model(tier: str, model: StallModel) -> None:
    from windtunnel.units import format_duration, format_ratio

    say()
    say(
        f"{tier}: {format_duration(model.collective_ns)} for each of the {model.counts}, "
        f"{model.bandwidth_bytes_per_s / 1e6:.1f} MB/s, {format_duration(model.rest_ns)} besides; a job that was left "
        f"out is foretold within {format_ratio(median(model.left_out_errors))} in the median"
    )


def _print(found: Stalls) -> None:
    from windtunnel.cluster.stalls.model import RUNS
    from windtunnel.units import format_duration, format_ratio

    say(f"{found.job}: {found.num_ranks} ranks, {found.batch_size} samples each")
    say()
    rows = [
        (name, format_duration(found.median_ns(name)), f"{found.samples_per_s(name):,.0f}", RUNS[name])
        for name in found.times_ns
    ]
    print_table(("run", "iteration", "samples/s", "what runs"), rows, numbers=(1, 2))
    say()
    stalled = [(one.cause, str(one), format_ratio(one.share) if one.is_detected else "", one.what)
               for one in found.stalls]  # fmt: skip
    print_table(("stall", "per iteration (90 %)", "share", "why"), stalled, numbers=(2,))
    say()
    say(f"bottleneck: {found.bottleneck}")
    both = found.interconnect()
    if both is not None:
        say(f"interconnect as published (contention and exchange): {both}, {format_ratio(both.share)}")
    for line in found.advice():
        say(line)
    link = found.environment.get("link")
    if link is not None:
        say(f"the link carries {link['measured_bytes_per_s'] / 1e6:.2f} of {link['bytes_per_s'] / 1e6:g} MB/s "
            f"({link['how']})")  # fmt: skip
    if "disk" in found.environment:
        say(f"the disk is {found.environment['disk']}")
    for text in found.warnings:
        say(f"note: {text}")
