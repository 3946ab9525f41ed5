"""Which files a data set has: their names, and the sizes of the samples in each.

In: the dataset section of a configuration. Out: a ``FileSet`` for training and one for evaluation. Equal for any number
of ranks. Not here: what the files hold (``generate``), formats (``formats``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.dataio.config import DatasetConfig
from windtunnel.systems.dataio.formats.format import FileLayout

__all__ = ["FileSet", "file_set", "sample_dims"]

SIZE_SEED = 10
_ROUNDS = 50


@dataclass(frozen=True, eq=False)
class FileSet:
    """The files of one split.

    Attributes
    ----------
    keys : tuple of str
        Below the root of the storage.
    dims : int64 [N, D]
        Of each sample in a file.
    num_samples_per_file : int
    dtype : str
    """

    keys: tuple[str, ...]
    dims: NDArray[np.int64]
    num_samples_per_file: int
    dtype: str

    def layout(self, index: int) -> FileLayout:
        """What a file holds."""
        return FileLayout(self.num_samples_per_file, tuple(self.dims[index].tolist()), self.dtype)

    @property
    def sample_bytes(self) -> NDArray[np.int64]:
        """Bytes of a sample in each file, int64 [N]."""
        sizes: NDArray[np.int64] = np.prod(self.dims, axis=1) * np.dtype(self.dtype).itemsize
        return sizes


def file_set(dataset: DatasetConfig, suffix: str, *, is_eval: bool = False, seed: int = SIZE_SEED) -> FileSet:
    """List the files of one split.

    Parameters
    ----------
    dataset : DatasetConfig
    suffix : str
        Of the format, with the dot.
    is_eval : bool
        The evaluation split instead of the training split.
    seed : int
        Of the sizes.
    """
    count = dataset.num_files_eval if is_eval else dataset.num_files_train
    num_folders = dataset.num_subfolders_eval if is_eval else dataset.num_subfolders_train
    folder = f"{dataset.data_folder.rstrip('/')}/{'valid' if is_eval else 'train'}"
    digits, folder_digits = len(str(count)), len(str(num_folders))
    keys = []
    for index in range(count):
        # one subfolder is none
        below = f"{index % num_folders:0{folder_digits}d}/" if num_folders > 1 else ""
        keys.append(f"{folder}/{below}{dataset.file_prefix}_{index:0{digits}d}_of_{count}{suffix}")
    dtype = dataset.record_element_type if dataset.record_dims else "uint8"
    dims = sample_dims(dataset, count, np.random.default_rng([seed, is_eval]))
    return FileSet(tuple(keys), dims, dataset.num_samples_per_file, dtype)


def sample_dims(dataset: DatasetConfig, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Dimensions of the samples in each file, int64 [N, D].

    Without a deviation a record is a square of ``floor(sqrt(record_length))``, as in DLIO. With one, DLIO draws both
    sides, each with ``stdev / (2 * sqrt(record_length))``, which gives sizes with only 71 % of the deviation that was
    requested. Here sizes are drawn, and standardized so that any data set has its mean and deviation.
    """
    if dataset.record_dims:
        return np.tile(np.array(dataset.record_dims, np.int64), (count, 1))
    mean, std = dataset.record_length_bytes, dataset.record_length_bytes_stdev
    if not std or count < 2:
        return np.full((count, 2), max(1, math.isqrt(int(mean))), np.int64)
    normal = random.normal(size=count)
    sizes = mean + std * (normal - normal.mean()) / normal.std()
    for _ in range(_ROUNDS):
        # no size is below 1; what that adds to the mean and takes from the deviation is spread over all files
        sizes = np.maximum(sizes, 1)
        if abs(sizes.mean() - mean) < 1e-3 * mean and abs(sizes.std() - std) < 1e-2 * std:
            break
        sizes = mean + (sizes - sizes.mean()) * std / max(sizes.std(), 1e-9)
    sizes = np.maximum(sizes, 1)
    rows = np.maximum(np.floor(np.sqrt(sizes)), 1).astype(np.int64)
    return np.stack([rows, np.maximum(np.rint(sizes / rows), 1).astype(np.int64)], axis=1)
