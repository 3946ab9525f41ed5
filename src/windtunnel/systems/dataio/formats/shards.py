"""WebDataset shards: tar archives with the files of each sample next to each other."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from windtunnel.systems.dataio.formats.format import FileLayout, Format, SampleFile, Samples
from windtunnel.systems.dataio.formats.indexed import read_exactly

__all__ = ["WebDataset"]

_BLOCK = tarfile.BLOCKSIZE


class _ShardFile(SampleFile):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._members = []
        with tarfile.TarFile(fileobj=file) as archive:
            for member in archive:
                end = archive.offset
                if member.name.endswith(".bin"):
                    self._members.append((member.offset_data, member.size))
        file.seek(end if self._members else 0)
        if file.read(2 * _BLOCK) != bytes(2 * _BLOCK):
            raise EOFError(f"the archive is cut after sample {len(self._members)}")
        self.num_samples = len(self._members)

    def read(self, index: int) -> NDArray[Any]:
        """Seek, and read one sample."""
        offset, size = self._members[index]
        self._file.seek(offset)
        return read_exactly(self._file, size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WebDataset(Format):
    """A tar archive of ``000000.bin`` (the bytes) and ``000000.cls`` (the label)."""

    name = "webdataset"
    is_random = True
    extra_bytes = 4 * _BLOCK

    @property
    def suffix(self) -> str:
        """Shards are tar archives."""
        return ".tar"

    def write(self, path: Path, companions: Sequence[Path], layout: FileLayout, samples: Samples) -> None:
        """Write member by member, without dates and owners."""
        with tarfile.TarFile(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for index, sample in enumerate(samples):
                for suffix, data in (("bin", sample.tobytes()), ("cls", b"0")):
                    member = tarfile.TarInfo(f"{index:06d}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))

    def open_file(self, key: str) -> SampleFile:
        """Read the headers of all members."""
        return self.parse(key, _ShardFile)
