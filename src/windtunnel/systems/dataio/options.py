"""Options that the verbs of input pipelines share, and the job that they describe."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.cli.console import Progress, advise
from windtunnel.errors import InputError
from windtunnel.units import format_rate, parse_rate

if TYPE_CHECKING:
    from windtunnel.systems.dataio.calibrate import LoadingCosts
    from windtunnel.systems.dataio.job import LoadingJob

__all__ = [
    "Cache",
    "ConfigPath",
    "CostsPath",
    "DiskBandwidth",
    "Folder",
    "NumRanks",
    "Overrides",
    "StoreCosts",
    "checkpoint_folder_of",
    "job_and_costs",
    "require_cache",
    "running_place",
]

ConfigPath = Annotated[
    str, typer.Argument(metavar="CONFIG", help="DLIO configuration (.yaml), or the name of a shipped workload.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override, such as reader.batch_size=8; may be repeated."),
]
NumRanks = Annotated[int, typer.Option("--ranks", min=1, metavar="N", help="Number of accelerators.")]
Cache = Annotated[
    str,
    typer.Option(
        "--cache",
        metavar="STATE",
        help="Page cache before each epoch: cold, warm, or cold-start (only the first is cold).",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="FOLDER", help="Folder of the data set (default: dataset.data_folder)."),
]
DiskBandwidth = Annotated[
    str,
    typer.Option(
        "--disk-bandwidth", metavar="RATE", help="Put the data set on a disk limited to this rate, such as 50MB/s."
    ),
]
CostsPath = Annotated[
    Path | None,
    typer.Option("--costs", metavar="FILE", help="Costs that `dataio predict --out` saved, instead of measuring."),
]
StoreCosts = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Save the measured costs (JSON).")]


def require_cache(cache: str) -> None:
    """Refuse a state of the page cache that is none.

    Raises
    ------
    InputError
        It is none.
    """
    from windtunnel.systems.dataio.predict import CACHES

    if cache not in CACHES:
        raise InputError(f"{cache!r} is no state of the page cache", where="--cache", fix=f"one of {', '.join(CACHES)}")


@contextlib.contextmanager
def running_place(
    text: str, overrides: list[str] | None, ranks: int, folder: Path | None, disk: str, compute: str = ""
) -> Iterator[LoadingJob]:
    """Get the files of a job ready, on a throttled disk if one is asked for.

    Raises
    ------
    InputError
        The configuration is wrong, or an epoch has no steps.
    """
    from dataclasses import replace

    from windtunnel.measure.disks import can_throttle, throttle_disk
    from windtunnel.systems.dataio.source import config_with_folder, ensure_files, job_of

    config = config_with_folder(text, overrides or [], folder)
    job = replace(job_of(config, ranks), compute_job=compute)
    _ = job.num_steps  # refuses an epoch without steps before anything is written
    with contextlib.ExitStack() as stack:
        if disk:
            rate = parse_rate(disk)
            if can_throttle():
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="windtunnel-dataio-"))
                total = round(1.2 * job.dataset.num_samples * max(job.record_bytes, 4096))
                config = config_with_folder(
                    text, overrides or [], stack.enter_context(throttle_disk(Path(scratch), rate, total))
                )
                job = replace(job_of(config, ranks), compute_job=compute)
            else:
                job = replace(job, limit_bytes_per_s=rate)
                advise(f"the kernel throttles no disk here: loader workers keep to {format_rate(rate)} themselves")
        with Progress("generating") as progress:
            ensure_files(config, progress=progress)
        yield job


def checkpoint_folder_of(config: Any) -> Path | None:
    """Folder of checkpoints; None where the workflow has none."""
    return Path(config.checkpoint.checkpoint_folder) if config.workflow.checkpoint else None


@contextlib.contextmanager
def job_and_costs(
    text: str, overrides: list[str] | None, ranks: int, folder: Path | None, disk: str, costs: Path | None
) -> Iterator[tuple[LoadingJob, LoadingCosts]]:
    """Read or measure what loading costs; files of the job stay until the context ends."""
    from windtunnel.systems.dataio.calibrate import read_costs
    from windtunnel.systems.dataio.generate import generate
    from windtunnel.systems.dataio.source import (
        config_with_folder,
        has_files,
        job_of,
        measure_job,
        sample_of,
        scratch_folder,
    )

    config = config_with_folder(text, overrides or [], folder)
    job = job_of(config, ranks)
    if costs is not None:
        yield job, read_costs(costs)
        return
    _ = job.num_steps  # refuses an epoch without steps before anything is written
    with contextlib.ExitStack() as stack:
        if disk or has_files(config):
            job = used = stack.enter_context(running_place(text, overrides, ranks, folder, disk))
        else:
            sample = sample_of(config, stack.enter_context(scratch_folder(config, "sample")))
            advise(
                f"the data set is not in {config.dataset.data_folder}: costs are those of "
                f"{sample.dataset.num_files_train} generated files on the same storage, which are removed afterwards"
            )
            with Progress("generating a sample of the data set") as progress:
                generate(sample, progress=progress)
            used = job_of(sample, ranks)
        with Progress("measuring") as progress:
            measured = measure_job(used, progress=progress)
        yield job, measured
