"""What the values of a configuration mean together.

In: a ``DlioConfig`` whose values are each of their type. Out: nothing, or an error that names the keys that contradict
each other.
"""

from __future__ import annotations

import numpy as np

from windtunnel.errors import InputError
from windtunnel.systems.dataio.config import DlioConfig

__all__ = ["FORMAT_COMPRESSIONS", "check_config", "keys_without_effect"]

FORMAT_COMPRESSIONS = {
    "npz": ("zip",),
    "hdf5": ("gzip", "lzf"),
    "hdf5_opt": ("gzip", "lzf"),
    "csv": ("gzip", "bz2", "zip", "xz"),
    "parquet": ("gzip",),
}
"""By format; all of them also go without."""
_DIRECT = ("npy", "npz")
_MAX_FILES = 10_000_000


def keys_without_effect(config: DlioConfig) -> tuple[str, ...]:
    """Say which keys are set that change nothing here."""
    reader, checkpoint, mechanism = config.reader, config.checkpoint, config.checkpoint.checkpoint_mechanism_classname
    own = "files are written by this package"
    own_loader = reader.data_loader != "tensorflow"  # whose pipeline has these keys, and which is not run
    facts = (
        (reader.data_loader not in ("pytorch", "tensorflow"), "reader.data_loader", "the loader of PyTorch runs"),
        (reader.reader_classname, "reader.reader_classname", "files are read by this package"),
        (reader.data_loader_classname, "reader.data_loader_classname", "the loader of PyTorch runs"),
        (own_loader and reader.computation_threads > 1, "reader.computation_threads", "workers decode what they read"),
        (own_loader and reader.shuffle_size != 1024, "reader.shuffle_size", "the whole data set is shuffled"),
        (reader.file_access != "multi", "reader.file_access", "each worker opens files of its own"),
        (own_loader and reader.transfer_size, "reader.transfer_size", "the format determines how much is read at once"),
        (
            reader.dont_use_mmap and config.dataset.format == "mmap_indexed_binary",
            "reader.dont_use_mmap",
            "files of this format are mapped",
        ),
        (reader.data_loader_sampler, "reader.data_loader_sampler", "sample_shuffle and file_shuffle give the order"),
        (not config.dataset.keep_files, "dataset.keep_files", "files stay until they are deleted"),
        (mechanism and not checkpoint.is_async, "checkpoint.checkpoint_mechanism_classname", own),
        (checkpoint.ksm is not None, "checkpoint.ksm", "pages are not merged"),
        (config.workflow.profiling, "workflow.profiling", "profilers of DLIO are not started"),
    )
    return tuple(f"{key} has no effect: {why}" for is_set, key, why in facts if is_set)


def check_config(config: DlioConfig, where: str) -> None:
    """Refuse values that contradict each other.

    Raises
    ------
    InputError
    """
    dataset, reader = config.dataset, config.reader
    for key, name in (
        ("dataset.record_element_type", dataset.record_element_type),
        ("reader.transformed_record_element_type", reader.transformed_record_element_type),
    ):
        _check_type(name, key, where)
    if dataset.record_dims and dataset.record_length_bytes_stdev:
        raise InputError(
            "record_dims fixes the size of records, and record_length_bytes_stdev varies it",
            where=f"{where}: dataset.record_dims, dataset.record_length_bytes_stdev",
            fix="leave out one of the two",
        )
    if 0 in dataset.record_dims:
        raise InputError("a dimension of records is 0", where=f"{where}: dataset.record_dims")
    allowed = FORMAT_COMPRESSIONS.get(dataset.format, ())
    if dataset.compression != "none" and dataset.compression not in allowed:
        raise InputError(
            f"files of format {dataset.format} have no compression {dataset.compression}",
            where=f"{where}: dataset.compression",
            fix=f"one of none{''.join(f', {name}' for name in allowed)}",
        )
    if reader.odirect and dataset.format not in _DIRECT:
        raise InputError(
            f"odirect reads formats {' and '.join(_DIRECT)}, not {dataset.format}", where=f"{where}: reader.odirect"
        )
    if config.checkpoint.ksm is not None and config.checkpoint.randomize_tensor:
        raise InputError(
            "ksm merges equal pages, and randomize_tensor makes all of them different",
            where=f"{where}: checkpoint.ksm, checkpoint.randomize_tensor",
            fix="set randomize_tensor: False",
        )
    if config.metric.au > 1:
        raise InputError(f"au is a ratio, not {config.metric.au:g}", where=f"{where}: metric.au", fix="such as 0.9")
    _check_dataset(config, where)
    _check_model(config, where)


def _check_type(name: str, key: str, where: str) -> None:
    try:
        np.dtype(name)
    except TypeError as error:
        raise InputError(f"{name!r} is no type of elements", where=f"{where}: {key}", fix="such as uint8") from error


def _check_dataset(config: DlioConfig, where: str) -> None:
    dataset = config.dataset
    if config.workflow.train and not dataset.num_files_train:
        raise InputError("training has no files", where=f"{where}: dataset.num_files_train", fix="at least 1")
    if config.has_evaluation and not dataset.num_files_eval:
        raise InputError("the evaluation has no files", where=f"{where}: dataset.num_files_eval", fix="at least 1")
    for key in ("num_files_train", "num_files_eval"):
        if (count := getattr(dataset, key)) > _MAX_FILES:
            raise InputError(
                f"{count:,} files are more than can be listed", where=f"{where}: dataset.{key}",
                fix=f"at most {_MAX_FILES:,}, with more samples in each (num_samples_per_file)",
            )  # fmt: skip
    prefix = dataset.file_prefix
    if not prefix or "/" in prefix or "\0" in prefix:
        raise InputError(f"{prefix!r} begins no file name", where=f"{where}: dataset.file_prefix")


def _check_model(config: DlioConfig, where: str) -> None:
    model = config.model
    if model.parallelism.data == 0 or model.parallelism.data < -1:
        raise InputError(
            f"{model.parallelism.data} data-parallel ranks", where=f"{where}: model.parallelism.data",
            fix="a number from 1, or -1 for all ranks that are left",
        )  # fmt: skip
    if model.transformer is not None and model.num_layers > 0 and model.num_layers < model.parallelism.pipeline:
        raise InputError(
            f"{model.num_layers} layers do not fill {model.parallelism.pipeline} pipeline stages",
            where=f"{where}: model.num_layers, model.parallelism.pipeline",
        )
