"""From a configuration to the job that loads: its files, its loader, and what loading them costs.

In: a YAML file or the name of a shipped workload. Out: a ``LoadingJob``; the files of its data set, generated where
they are missing; ``LoadingCosts``. Not here: the configuration (``config_file``), formats (``reading``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.measure.turns import quiet
from windtunnel.systems.dataio.calibrate import LoadingCosts, measure_costs, measure_samples
from windtunnel.systems.dataio.config import DlioConfig
from windtunnel.systems.dataio.config_file import load_config
from windtunnel.systems.dataio.generate import data_files, generate
from windtunnel.systems.dataio.job import LoadingJob
from windtunnel.systems.dataio.order import Dataset
from windtunnel.systems.dataio.storage import open_storage

__all__ = [
    "config_with_folder",
    "ensure_files",
    "has_files",
    "job_of",
    "measure_job",
    "measure_store",
    "sample_of",
    "scratch_folder",
    "with_store",
]

_TINY_FILES = 16
_TINY_BYTES = 16.0
_SAMPLE_BYTES, _SAMPLE_FILES, _SAMPLE_BATCHES = 1 << 29, 64, 4


def config_with_folder(source: str, overrides: Sequence[str], folder: Path | None) -> DlioConfig:
    """Read a configuration; ``folder`` takes the place of its data folder."""
    config = load_config(source, overrides)
    return config if folder is None else replace(config, dataset=replace(config.dataset, data_folder=str(folder)))


def job_of(config: DlioConfig, num_ranks: int, *, run_seed: int = 0) -> LoadingJob:
    """Return the loading side of a configuration.

    Parameters
    ----------
    config : DlioConfig
    num_ranks : int
    run_seed : int
        Decides orders that are ``random``.
    """
    data, reader, train = config.dataset, config.reader, config.train
    keys = data_files(config).keys
    eval_keys = data_files(config, is_eval=True).keys if config.has_evaluation else ()
    return LoadingJob(
        name=config.name or config.model.name,
        format=data.format,
        keys=keys,
        files=_local_files(config, keys),
        dataset=Dataset(
            data.num_files_train, data.num_samples_per_file, reader.file_shuffle, reader.sample_shuffle, train.seed,
            train.seed_change_epoch, run_seed,
        ),
        record_bytes=round(data.record_length_bytes),
        tensor_bytes=_tensor_bytes(config),
        batch_size=reader.batch_size,
        num_ranks=num_ranks,
        num_workers=reader.read_threads,
        prefetch_factor=math.ceil(max(reader.prefetch_size, 1) / max(reader.read_threads, 1)),
        # forking once torch has threads deadlocks, so that DLIO's default is not taken
        context="spawn" if reader.multiprocessing_context == "fork" else reader.multiprocessing_context,
        epochs=train.epochs,
        max_steps=train.total_training_steps,
        compute=train.computation_time,
        preprocess=reader.preprocess_time,
        evaluate=config.evaluation.eval_time,
        is_kept_open=reader.read_type == "memory",
        is_direct=reader.odirect,
        is_remote=open_storage(config.storage).local_path("") is None,
        num_start=config.output.metric.exclude_start_steps,
        num_end=config.output.metric.exclude_end_steps,
        target_au=config.metric.au,
        seed=train.seed,
        steps_between_checkpoints=config.checkpoint.steps_between_checkpoints if config.workflow.checkpoint else -1,
        eval_keys=eval_keys,
        eval_files=_local_files(config, eval_keys),
        eval_batch_size=reader.batch_size_eval,
        eval_after_epoch=config.evaluation.eval_after_epoch if config.has_evaluation else 0,
        epochs_between_evals=config.evaluation.epochs_between_evals,
        config=config,
    )  # fmt: skip


def _tensor_bytes(config: DlioConfig) -> int:
    """Bytes of the tensor that a reader hands on, whatever it read."""
    data, reader = config.dataset, config.reader
    if reader.transformed_record_dims:
        return math.prod(reader.transformed_record_dims) * np.dtype(reader.transformed_record_element_type).itemsize
    if data.record_length_bytes_resize:
        return math.isqrt(round(data.record_length_bytes_resize)) ** 2
    if data.record_dims:
        return math.prod(data.record_dims) * np.dtype(data.record_element_type).itemsize
    return math.isqrt(round(data.record_length_bytes)) ** 2


def _local_files(config: DlioConfig, keys: Sequence[str]) -> tuple[Path, ...]:
    """Paths of files; none where the storage is not local."""
    storage = open_storage(config.storage)
    paths = [storage.local_path(key) for key in keys]
    return tuple(path for path in paths if path is not None)


def ensure_files(config: DlioConfig, *, progress: Progress | None = None) -> None:
    """Generate the files of the data set that are missing."""
    if not has_files(config):
        generate(config, progress=progress)


def has_files(config: DlioConfig) -> bool:
    """Whether all files of the data set are there."""
    storage, folder = open_storage(config.storage), config.dataset.data_folder.rstrip("/")
    job = job_of(config, 1)
    keys = {*job.keys, *job.eval_keys}
    # a listing is one request for thousands of objects, a look at local files needs no listing
    if job.is_remote:
        return keys <= {*storage.sizes(f"{folder}/train"), *storage.sizes(f"{folder}/valid")}
    return all(path.exists() for path in (*job.files, *job.eval_files))


def sample_of(config: DlioConfig, folder: str) -> DlioConfig:
    """A small data set of the same kind in a folder, on which costs are measured where the real one does not exist.

    It has enough files for some batches, and at most ``_SAMPLE_BYTES`` beyond that.
    """
    data, batch = config.dataset, config.reader.batch_size
    record = max(round(data.record_length_bytes), 1)
    per_file = max(1, min(data.num_samples_per_file, _SAMPLE_BYTES // record))
    needed = -(-_SAMPLE_BATCHES * batch // per_file)
    num_files = max(needed, min(_SAMPLE_FILES, _SAMPLE_BYTES // (per_file * record)))
    if per_file == data.num_samples_per_file:
        num_files = min(num_files, data.num_files_train)
    small = replace(
        data, data_folder=folder, num_files_train=num_files, num_files_eval=0,
        num_samples_per_file=per_file, num_subfolders_train=0, num_subfolders_eval=0,
    )  # fmt: skip
    return replace(config, dataset=small, workflow=replace(config.workflow, evaluation=False))


def measure_job(
    job: LoadingJob, *, known: LoadingCosts | None = None, progress: Progress | None = None
) -> LoadingCosts:
    """Measure what loading a data set costs; its files exist. ``known``: see ``measure_costs``."""
    return measure_costs(job, overhead_ns=_overhead_ns(job), known=known, progress=progress)


def _overhead_ns(job: LoadingJob) -> float:
    """Time of a sample that has next to no bytes: what a sample costs whatever its size."""
    tiny = replace(
        job.config.dataset, record_length_bytes=_TINY_BYTES, record_length_bytes_stdev=0, record_dims=(),
        num_samples_per_file=1, num_files_train=_TINY_FILES, num_files_eval=0,
    )  # fmt: skip
    with scratch_folder(job.config, "tiny") as folder:
        small = replace(job.config, dataset=replace(tiny, data_folder=folder))
        generate(small)
        return quiet(measure_samples(job_of(small, 1)).warm_ns)


def scratch_folder(config: DlioConfig, name: str) -> AbstractContextManager[str]:
    """Context that yields a new data folder on the storage of the data set, which is removed afterwards."""
    return open_storage(config.storage).scratch_folder(config.dataset.data_folder, name)


def with_store(config: DlioConfig, format_name: str, per_file: int) -> DlioConfig:
    """Return the configuration with its samples in files of another format, without compression."""
    total = config.dataset.num_files_train * config.dataset.num_samples_per_file
    data = replace(
        config.dataset, format=format_name, num_samples_per_file=per_file, num_files_train=max(total // per_file, 1),
        compression="none",
    )  # fmt: skip
    return replace(config, dataset=data)


def measure_store(job: LoadingJob, costs: LoadingCosts, format_name: str, per_file: int) -> LoadingCosts:
    """Measure what loading the same samples costs in another format, from generated files on the same storage.

    Parameters
    ----------
    job : LoadingJob
    costs : LoadingCosts
        Of the data set as it is: rates of the storage are taken from it.
    format_name : str
    per_file : int
        Samples per file.
    """
    with scratch_folder(job.config, "store") as folder:
        sample = sample_of(with_store(job.config, format_name, per_file), folder)
        generate(sample)
        return measure_job(job_of(sample, job.num_ranks), known=costs)
