"""Other ways to store and load the data of a job: formats to choose from, and jobs with changed settings.

In: options of the verbs. Out: costs by format, changed jobs with their files. Not here: choosing (``search``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.systems.dataio.calibrate import LoadingCosts
from windtunnel.systems.dataio.config import FORMATS, DlioConfig
from windtunnel.systems.dataio.job import LoadingJob
from windtunnel.systems.dataio.source import (
    config_with_folder,
    ensure_files,
    job_of,
    measure_job,
    measure_store,
)

__all__ = ["change_config", "change_job", "costs_of_stores", "parse_stores"]


def parse_stores(text: str) -> tuple[tuple[str, int], ...]:
    """Parse ``npy,indexed_binary:256``: formats with their samples per file, 1 by default.

    Raises
    ------
    InputError
        A format is none, or a number is below 1.

    Examples
    --------
    >>> parse_stores("npy,indexed_binary:256")
    (('npy', 1), ('indexed_binary', 256))
    """
    stores = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, count = part.partition(":")
        if name not in FORMATS or (count and (not count.isdecimal() or not int(count))):
            raise InputError(
                f"{part!r} is no format with a number of samples per file",
                where="--formats",
                fix=f"such as npy,indexed_binary:256; formats are {', '.join(FORMATS)}",
            )
        stores.append((name, int(count or 1)))
    return tuple(stores)


def costs_of_stores(
    job: LoadingJob, costs: LoadingCosts, stores: Sequence[tuple[str, int]], *, progress: Progress | None = None
) -> dict[tuple[str, int], LoadingCosts]:
    """Measure the samples of each store; that of the job is known."""
    known = (job.format, job.dataset.samples_per_file)
    result = {known: costs}
    for done, store in enumerate(stores, 1):
        if store not in result:
            result[store] = measure_store(job, costs, *store)
        if progress is not None:
            progress("formats", done, len(stores))
    return result


def change_config(source: str, overrides: Sequence[str], changes: Sequence[str], folder: Path | None) -> DlioConfig:
    """Return a configuration with more overrides, such as ``reader.read_threads=4``.

    Raises
    ------
    InputError
        Nothing is changed, or a key is none.
    """
    if not changes:
        raise InputError(
            "nothing is changed", where="--change", fix="add --change reader.read_threads=4, or what `dataio plan` says"
        )
    return config_with_folder(source, [*overrides, *changes], folder)


def change_job(
    config: DlioConfig, base: DlioConfig, job: LoadingJob, costs: LoadingCosts, *, progress: Progress | None = None
) -> tuple[LoadingJob, LoadingCosts]:
    """Return the job of a changed configuration, with its files written, and its costs.

    Parameters
    ----------
    config, base : DlioConfig
        With and without the changes.
    job : LoadingJob
        That of ``base``; it may have been moved to another disk.
    costs : LoadingCosts
        Of ``job``.
    progress : callable, optional
    """
    before, data = job.config.dataset, config.dataset
    if data.data_folder == base.dataset.data_folder:
        data = replace(data, data_folder=before.data_folder)
        if data != before:
            folder = f"{before.data_folder.rstrip('/')}/{data.format}-{data.num_samples_per_file}"
            data = replace(data, data_folder=folder)
    config = replace(config, dataset=data)
    ensure_files(config, progress=progress)
    changed = replace(job_of(config, job.num_ranks), limit_bytes_per_s=job.limit_bytes_per_s)
    return changed, costs if data == before else measure_job(changed, known=costs, progress=progress)
