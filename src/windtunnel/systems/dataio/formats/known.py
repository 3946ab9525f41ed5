"""The formats by name."""

from __future__ import annotations

from windtunnel.errors import InputError
from windtunnel.systems.dataio.config import DatasetConfig
from windtunnel.systems.dataio.formats.arrays import Hdf5, Hdf5Opt, Npy, Npz
from windtunnel.systems.dataio.formats.format import Format
from windtunnel.systems.dataio.formats.images import Jpeg, Png
from windtunnel.systems.dataio.formats.indexed import IndexedBinary, MmapIndexedBinary
from windtunnel.systems.dataio.formats.shards import WebDataset
from windtunnel.systems.dataio.formats.tables import Csv, Parquet
from windtunnel.systems.dataio.formats.tfrecord import TfRecord
from windtunnel.systems.dataio.storage import Storage

__all__ = ["FILE_FORMATS", "make_format"]

FILE_FORMATS: dict[str, type[Format]] = {
    kind.name: kind
    for kind in (
        Npz, Npy, Hdf5, Hdf5Opt, Csv, TfRecord, Jpeg, Png, IndexedBinary, MmapIndexedBinary, Parquet, WebDataset,
    )
}  # fmt: skip


def make_format(dataset: DatasetConfig, storage: Storage) -> Format:
    """Return the format of a data set on its storage.

    Raises
    ------
    InputError
        Data sets of this format have no files, or the format cannot hold what is configured.
    """
    if dataset.format not in FILE_FORMATS:
        raise InputError(
            f"data sets of format {dataset.format} have no files",
            where="dataset.format",
            fix=f"one of {', '.join(FILE_FORMATS)}",
        )
    return FILE_FORMATS[dataset.format](dataset, storage)
