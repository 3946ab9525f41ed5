"""What every file format does: write the samples of a file, and read one of them.

In: a data set's configuration and its storage. Out: a ``Format`` that writes local scratch files and opens files of the
storage. Not here: which files there are (``dataset``), random samples (``generate``).
"""

from __future__ import annotations

import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.systems.dataio.config import DatasetConfig
from windtunnel.systems.dataio.storage import Storage

__all__ = ["DAMAGE", "FileLayout", "Format", "SampleFile", "damage_error", "identify"]

Samples = Iterator[NDArray[Any]]
DAMAGE = (ValueError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error, MemoryError)
"""What libraries raise for files that are not what their names say."""
_MAGICS = {
    b"PK\x03\x04": "a zip or npz file",
    b"\x93NUMPY": "a npy file",
    b"\x89HDF": "an HDF5 file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
}


def identify(head: bytes) -> str:
    """What a file that begins so is; empty where its begin does not say."""
    return next((name for magic, name in _MAGICS.items() if head.startswith(magic)), "")


def damage_error(key: str, sample: int | None, reason: object) -> InputError:
    """The error of a file that cannot be read as what it should be."""
    where = key if sample is None else f"{key}: sample {sample}"
    text = " ".join(str(reason).split())[:300] or type(reason).__name__
    return InputError(
        f"the file is damaged or of another format: {text}", where=where,
        fix="remove it; windtunnel dataio run CONFIG writes the files that are missing",
    )  # fmt: skip


@dataclass(frozen=True)
class FileLayout:
    """What a file holds.

    Attributes
    ----------
    num_samples : int
    dims : tuple of int
        Of each sample.
    dtype : str
        Of its elements.
    """

    num_samples: int
    dims: tuple[int, ...]
    dtype: str = "uint8"

    @property
    def sample_bytes(self) -> int:
        """Of one sample."""
        return prod(self.dims) * np.dtype(self.dtype).itemsize

    @property
    def num_bytes(self) -> int:
        """Of all samples."""
        return self.num_samples * self.sample_bytes


class SampleFile(ABC):
    """An open file."""

    num_samples: int

    @abstractmethod
    def read(self, index: int) -> NDArray[Any]:
        """Read one sample."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class Format(ABC):
    """A file format.

    Attributes
    ----------
    name : str
        As configurations spell it, and the suffix of files.
    magic : bytes
        How every file begins; empty where nothing is fixed.
    is_random : bool
        One sample is read without the rest of its file.
    bytes_ratio : float
        Size of a file per byte of its samples, about.
    extra_bytes : int
        More for each sample, about.
    """

    name: str
    magic = b""
    is_random = False
    bytes_ratio = 1.0
    extra_bytes = 0

    def __init__(self, dataset: DatasetConfig, storage: Storage) -> None:
        self.dataset = dataset
        self.storage = storage
        self.check()

    def check(self) -> None:  # noqa: B027 - most formats have no limits
        """Refuse what the format cannot hold."""

    @property
    def suffix(self) -> str:
        """Of its files, with the dot."""
        return f".{self.name}"

    def companions(self, key: str) -> tuple[str, ...]:
        """Keys of the index files that belong to a file."""
        return ()

    def estimate_bytes(self, layout: FileLayout) -> int:
        """Size of a file, with its companions, about."""
        return round(layout.num_bytes * self.bytes_ratio) + layout.num_samples * self.extra_bytes + 1024

    @abstractmethod
    def write(self, path: Path, companions: Sequence[Path], layout: FileLayout, samples: Samples) -> None:
        """Write all samples of a file, and its companions."""

    @abstractmethod
    def open_file(self, key: str) -> SampleFile:
        """Open a file; errors of libraries come as they are."""

    def parse(self, key: str, parser: Callable[[IO[bytes]], SampleFile]) -> SampleFile:
        """Open a file and hand it to its parser, which closes it later; closed here where the parser fails."""
        stream = self.open_stream(key)
        try:
            return parser(stream)
        except BaseException:
            stream.close()
            raise

    def open_stream(self, key: str) -> IO[bytes]:
        """Open a file for its parser, which begins as files of the format do."""
        file = self.storage.open(key, is_random=self.is_random)
        head = file.read(max(len(self.magic), 8))
        if not head.startswith(self.magic):
            file.close()
            looks = identify(head)
            begins = (
                f"it begins as {looks} does" if looks else f"it begins with {head[:8]!r}" if head else "it is empty"
            )
            raise damage_error(key, None, f"{begins}, not as {self.name} does")
        file.seek(0)
        return file
