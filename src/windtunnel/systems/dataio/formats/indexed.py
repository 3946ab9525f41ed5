"""Raw samples, one after the other, with two index files: offsets and sizes as little-endian integers of 64 bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.systems.dataio.formats.format import FileLayout, Format, SampleFile, Samples, damage_error

__all__ = ["IndexedBinary", "MmapIndexedBinary", "read_exactly"]

Ints = NDArray[np.int64]


def read_exactly(file: IO[bytes], num_bytes: int) -> NDArray[np.uint8]:
    """Read that many bytes.

    Raises
    ------
    EOFError
        The file ends before.
    """
    data, done = np.empty(num_bytes, np.uint8), 0
    view = data.data
    while done < num_bytes:
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError(f"the file ends {num_bytes - done:,} bytes before the end of the sample")
        done += count
    return data


class _IndexedFile(SampleFile):
    def __init__(self, file: IO[bytes], index: tuple[Ints, Ints]) -> None:
        self._file, self._index = file, index
        self.num_samples = len(index[0])

    def read(self, index: int) -> NDArray[Any]:
        """Seek, and read one sample."""
        self._file.seek(int(self._index[0][index]))
        return read_exactly(self._file, int(self._index[1][index]))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _MappedFile(SampleFile):
    def __init__(self, data: NDArray[np.uint8], index: tuple[Ints, Ints]) -> None:
        self._data, self._index = data, index
        self.num_samples = len(index[0])

    def read(self, index: int) -> NDArray[Any]:
        """Copy one sample, which faults its pages in."""
        offset, size = int(self._index[0][index]), int(self._index[1][index])
        if offset + size > len(self._data):
            raise EOFError(f"the file ends {offset + size - len(self._data):,} bytes before the end of the sample")
        return np.array(self._data[offset : offset + size])

    def close(self) -> None:
        """Drop the mapping."""
        del self._data


class IndexedBinary(Format):
    """Read by seek and read."""

    name = "indexed_binary"
    is_random = True
    extra_bytes = 16

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._indexes: dict[str, tuple[Ints, Ints]] = {}

    def companions(self, key: str) -> tuple[str, ...]:
        """Offsets, sizes."""
        return (f"{key}.off.idx", f"{key}.sz.idx")

    def write(self, path: Path, companions: Sequence[Path], layout: FileLayout, samples: Samples) -> None:
        """Write sample by sample; offsets go on from sample to sample."""
        with path.open("wb") as file:
            sizes = [file.write(sample.tobytes()) for sample in samples]
        ends = np.cumsum(sizes, dtype="<i8")
        (ends - sizes).astype("<i8").tofile(companions[0])
        np.array(sizes, "<i8").tofile(companions[1])

    def open_file(self, key: str) -> SampleFile:
        """Open the file with its index, which is read once."""
        return self.parse(key, lambda stream: _IndexedFile(stream, self._index(key)))

    def _index(self, key: str) -> tuple[Ints, Ints]:
        if key not in self._indexes:
            offsets, sizes = (self._read_numbers(name) for name in self.companions(key))
            size = self.storage.size(key) or 0
            if len(offsets) != len(sizes):
                raise damage_error(key, None, f"its index has {len(offsets)} offsets and {len(sizes)} sizes")
            over = np.nonzero((offsets < 0) | (sizes < 0) | (offsets + sizes > size))[0]
            if len(over):
                end = int(offsets[over[0]] + sizes[over[0]])
                raise damage_error(
                    key, int(over[0]), f"by its index the sample ends at byte {end:,}, the file has {size:,}"
                )
            self._indexes[key] = (offsets, sizes)
        return self._indexes[key]

    def _read_numbers(self, key: str) -> Ints:
        with self.storage.open(key) as file:
            data = file.read()
        if len(data) % 8:
            raise damage_error(key, None, f"{len(data):,} bytes are no whole number of indexes")
        return np.frombuffer(data, "<i8").astype(np.int64)


class MmapIndexedBinary(IndexedBinary):
    """Read through a memory map."""

    name = "mmap_indexed_binary"

    def open_file(self, key: str) -> SampleFile:
        """Map the file."""
        path = self.storage.local_path(key)
        if path is None:
            raise InputError(
                "only local files can be mapped", where=f"dataset.format: {self.name}", fix="use indexed_binary"
            )
        index = self._index(key)
        return _MappedFile(np.memmap(path, np.uint8, "r"), index)
