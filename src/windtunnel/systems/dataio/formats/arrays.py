"""Arrays in npz, npy and HDF5 files."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.systems.dataio.formats.format import FileLayout, Format, SampleFile, Samples

__all__ = ["Hdf5", "Hdf5Opt", "Npy", "Npz"]

_METADATA_BYTES = 16 << 10


class _ArrayFile(SampleFile):
    """An array whose last axis counts samples; the first sample reads it whole."""

    def __init__(self, owner: Npy, key: str) -> None:
        self._owner, self._key = owner, key
        self._array: NDArray[Any] | None = None
        self.num_samples = owner.dataset.num_samples_per_file

    def read(self, index: int) -> NDArray[Any]:
        """Slice the array."""
        if self._array is None:
            self._array = self._owner.load(self._key)
            self.num_samples = self._array.shape[-1]
        sample: NDArray[Any] = self._array[..., index]
        return sample

    def close(self) -> None:
        """Drop the array."""
        self._array = None


class Npy(Format):
    """An array of shape (d1, d2, samples)."""

    name = "npy"
    magic = b"\x93NUMPY"

    def write(self, path: Path, companions: Sequence[Path], layout: FileLayout, samples: Samples) -> None:
        """Write the array."""
        with path.open("wb") as file:
            np.save(file, self._stack(layout, samples))

    def open_file(self, key: str) -> SampleFile:
        """Read by the first sample."""
        return _ArrayFile(self, key)

    def load(self, key: str) -> NDArray[Any]:
        """Read the array."""
        with self.open_stream(key) as file:
            array: NDArray[Any] = np.load(file, allow_pickle=False)
        return array

    @staticmethod
    def _stack(layout: FileLayout, samples: Samples) -> NDArray[Any]:
        array = np.empty((*layout.dims, layout.num_samples), layout.dtype)
        for index, sample in enumerate(samples):
            array[..., index] = sample
        return array


class Npz(Npy):
    """The same array as ``x``, with zeros as labels ``y``; compressed for zip."""

    name = "npz"
    magic = b"PK\x03\x04"
    extra_bytes = 8

    def write(self, path: Path, companions: Sequence[Path], layout: FileLayout, samples: Samples) -> None:
        """Write both arrays."""
        save = np.savez_compressed if self.dataset.compression == "zip" else np.savez
        with path.open("wb") as file:
            save(file, x=self._stack(layout, samples), y=np.zeros(layout.num_samples, np.int64))

    def load(self, key: str) -> NDArray[Any]:
        """Read ``x``, whose checksum is verified."""
        with self.open_stream(key) as file, np.load(file, allow_pickle=False) as arrays:
            array: NDArray[Any] = arrays["x"]
        return array


class _Hdf5File(SampleFile):
    def __init__(self, file: Any, stream: IO[bytes] | None = None) -> None:
        self._file, self._stream = file, stream
        names = sorted((name for name in file if name.startswith("records")), key=lambda name: (len(name), name))
        if not names:
            raise ValueError(f"no records among {', '.join(file)}")
        self._records = [file[name] for name in names]
        self.num_samples = min(len(records) for records in self._records)

    def read(self, index: int) -> NDArray[Any]:
        """Read one sample of all data sets."""
        parts = [records[index] for records in self._records]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        if self._stream is not None:
            self._stream.close()


class Hdf5(Format):
    """Data sets ``records_0`` ... of shape (samples, d1, d2), the rows of a sample split over them, and ``labels``."""

    name = "hdf5"
    magic = b"\x89HDF\r\n\x1a\n"
    is_random = True
    extra_bytes = 8

    def write(self, path: Path, companions: Sequence[Path], layout: FileLayout, samples: Samples) -> None:
        """Write sample by sample."""
        self._require_room(path, layout)
        h5py = require("h5py", extra="dataio")
        rows = np.array_split(np.arange(layout.dims[0]), self._num_parts(layout))
        with h5py.File(path, "w", libver="latest") as file:
            parts = []
            for index, part in enumerate(rows):
                shape = (layout.num_samples, len(part), *layout.dims[1:])
                parts.append(file.create_dataset(f"records_{index}", shape, layout.dtype, **self._options(shape)))
            file.create_dataset("labels", data=np.zeros(layout.num_samples, np.int64))
            for index, sample in enumerate(samples):
                for records, part in zip(parts, rows, strict=True):
                    records[index] = sample[part[0] : part[-1] + 1]

    def open_file(self, key: str) -> SampleFile:
        """Open the file; a local one by its path."""
        h5py = require("h5py", extra="dataio")
        path = self.storage.local_path(key)
        if path is None:
            return self.parse(key, lambda stream: _Hdf5File(h5py.File(stream, "r"), stream))
        self.open_stream(key).close()  # which it says where it is another format
        return _Hdf5File(h5py.File(path, "r"))

    def _require_room(self, path: Path, layout: FileLayout) -> None:
        """Fail here where the disk is full: HDF5 cannot close a file then, and crashes the process later."""
        with path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, self.estimate_bytes(layout) + _METADATA_BYTES)

    def _num_parts(self, layout: FileLayout) -> int:
        count = self.dataset.hdf5.num_dset_per_record
        if count > layout.dims[0]:
            raise InputError(
                f"records of {layout.dims[0]} rows cannot be split over {count} data sets",
                where="dataset.hdf5.num_dset_per_record",
            )
        return count

    def _options(self, shape: tuple[int, ...]) -> dict[str, Any]:
        dataset = self.dataset
        options: dict[str, Any] = {}
        if dataset.compression != "none":
            options["compression"] = dataset.compression
        if dataset.compression == "gzip":
            options["compression_opts"] = dataset.compression_level
        if dataset.enable_chunking or dataset.hdf5.chunk_dims:
            side = max(1, math.isqrt(dataset.chunk_size))
            chunk = dataset.hdf5.chunk_dims or (side,) * (len(shape) - 1)
            options["chunks"] = (1, *(min(a, b) for a, b in zip(chunk, shape[1:], strict=False)))
        if dataset.hdf5.max_shape:
            options["maxshape"] = (
                shape[0],
                *(max(a, b) for a, b in zip(dataset.hdf5.max_shape, shape[1:], strict=False)),
            )
        return options


class Hdf5Opt(Hdf5):
    """The same files, under the other name that DLIO has for them."""

    name = "hdf5_opt"
