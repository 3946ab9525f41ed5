"""Options that the verbs of input pipelines share, and the job that they describe."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise
from windtunnel.cli.files import require_free
from windtunnel.errors import InputError
from windtunnel.units import parse_rate

if TYPE_CHECKING:
    from windtunnel.flights import Ledger
    from windtunnel.systems.dataio.calibrate import LoadingCosts
    from windtunnel.systems.dataio.config import DlioConfig
    from windtunnel.systems.dataio.job import LoadingJob

__all__ = [
    "BatchSizes",
    "Cache",
    "Changes",
    "ConfigPath",
    "CostsPath",
    "DiskBandwidth",
    "Folder",
    "Formats",
    "MaxMemory",
    "MayCache",
    "NumRanks",
    "Overrides",
    "PrefetchFactors",
    "StoreCosts",
    "TargetAu",
    "WorkerCounts",
    "job_and_costs",
    "load",
    "require_cache",
    "require_results",
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
TargetAu = Annotated[
    str, typer.Option("--target-au", metavar="RATIO", help="Target AU (default: that of the workload).")
]
WorkerCounts = Annotated[
    str, typer.Option("--workers", metavar="LIST", help="Numbers of loader workers per rank to choose from.")
]
PrefetchFactors = Annotated[str, typer.Option("--prefetch", metavar="LIST", help="Prefetch factors to choose from.")]
BatchSizes = Annotated[
    str, typer.Option("--batch-sizes", metavar="LIST", help="Batch sizes to choose from (default: that of the job).")
]
Formats = Annotated[
    str,
    typer.Option(
        "--formats", metavar="LIST", help="Formats to choose from, such as npy,indexed_binary:256 (samples per file)."
    ),
]
MayCache = Annotated[
    bool, typer.Option("--may-cache/--no-cache", help="Consider reading the data set into memory first.")
]
MaxMemory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory limit, such as 8GiB.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--change",
        metavar="KEY=VALUE",
        help="What the changed job has, such as reader.read_threads=4; may be repeated.",
    ),
]
StoreCosts = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Save the measured costs (JSON).")]


def require_results(ledger: Path | None, *paths: Path | None, force: bool = False) -> Ledger:
    """Refuse results that cannot be kept, before minutes are spent on them; the ledger.

    Raises
    ------
    InputError
        A file is there, its folder is not, or the ledger is none.
    """
    from windtunnel.flights import Ledger

    for path in filter(None, paths):
        if not require_free(path, force=force).absolute().parent.is_dir():
            raise InputError("the folder of a result is not there", where=str(path), fix="make it, or choose another")
    book = Ledger(ledger)
    book.residuals()
    return book


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


def load(text: str, overrides: list[str] | None, folder: Path | None) -> DlioConfig:
    """Read the configuration of a verb, and say which of its keys have no effect."""
    from windtunnel.systems.dataio.source import config_with_folder

    config = config_with_folder(text, overrides or [], folder)
    for note in config.warnings:
        advise(f"note: {note}")
    return config


@contextlib.contextmanager
def running_place(config: DlioConfig, ranks: int, disk: str, compute: str = "") -> Iterator[LoadingJob]:
    """Get the files of a job ready, on a throttled disk if one is asked for.

    Raises
    ------
    InputError
        An epoch has no steps, or the files cannot be written.
    """
    from windtunnel.measure.disks import can_throttle, throttle_disk
    from windtunnel.systems.dataio.source import ensure_files, job_of
    from windtunnel.whatifs.request import parse_step

    if compute:
        registry.get("workload", parse_step(compute, kind="workload").name)  # refuses what is none
    job = job_of(config, ranks)
    _ = job.num_steps  # refuses an epoch without steps before anything is written
    with contextlib.ExitStack() as stack:
        if disk and can_throttle() and not job.is_remote:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="windtunnel-dataio-"))
            total = round(1.2 * job.dataset.num_samples * max(job.record_bytes, 4096))
            mounted = stack.enter_context(throttle_disk(Path(scratch), parse_rate(disk), total))
            config = replace(config, dataset=replace(config.dataset, data_folder=str(mounted)))
            job = job_of(config, ranks)
        elif disk:
            job = replace(job, limit_bytes_per_s=parse_rate(disk))
            advise(f"the kernel throttles no disk here: loader workers keep to {disk} themselves")
        with Progress("generating") as progress:
            ensure_files(config, progress=progress)
        yield replace(job, compute_job=compute)


@contextlib.contextmanager
def job_and_costs(
    config: DlioConfig, ranks: int, disk: str, costs: Path | None
) -> Iterator[tuple[LoadingJob, LoadingCosts]]:
    """Read or measure what loading costs; files of the job stay until the context ends."""
    from windtunnel.systems.dataio.calibrate import read_costs
    from windtunnel.systems.dataio.generate import generate
    from windtunnel.systems.dataio.source import has_files, job_of, measure_job, sample_of, scratch_folder

    if not config.workflow.train:
        raise InputError(
            f"{config.name} has no training whose input could be predicted",
            where="workflow.train",
            fix="windtunnel dataio run writes and reads its checkpoints",
        )
    job = job_of(config, ranks)
    if costs is not None:
        yield job, read_costs(costs)
        return
    _ = job.num_steps  # refuses an epoch without steps before anything is written
    with contextlib.ExitStack() as stack:
        if disk or has_files(config):
            job = measured = stack.enter_context(running_place(config, ranks, disk))
        else:
            sample = sample_of(config, stack.enter_context(scratch_folder(config, "sample")))
            advise(
                f"the data set in {config.dataset.data_folder} is not complete: costs are those of "
                f"{sample.dataset.num_files_train} generated files on the same storage, which are removed afterwards"
            )
            with Progress("generating a sample of the data set") as progress:
                generate(sample, progress=progress)
            measured = job_of(sample, ranks)
        with Progress("measuring") as progress:
            known = measure_job(measured, progress=progress)
        yield job, known
