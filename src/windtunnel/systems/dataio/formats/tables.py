"""Rows in CSV and Parquet files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.dataio.formats.format import FileLayout, Format, SampleFile, Samples

__all__ = ["Csv", "Parquet"]

_NUMBERS = [str(number) for number in range(256)]
_SUFFIXES = {"none": "", "gzip": ".gz", "bz2": ".bz2", "zip": ".zip", "xz": ".xz"}
_MAGICS = {"none": b"", "gzip": b"\x1f\x8b", "bz2": b"BZh", "zip": b"PK\x03\x04", "xz": b"\xfd7zXZ"}
_ROW_GROUP_BYTES = 1 << 20


def _unzip(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(archive.namelist()[0])


_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": gzip.decompress,
    "bz2": bz2.decompress,
    "zip": _unzip,
    "xz": lzma.decompress,
}


class _CsvFile(SampleFile):
    def __init__(self, owner: Csv, key: str) -> None:
        self._owner, self._key = owner, key
        self._rows: NDArray[np.uint8] | None = None
        self.num_samples = owner.dataset.num_samples_per_file

    def read(self, index: int) -> NDArray[Any]:
        """Return a row; the first one parses the file whole, as there is no way to find a row."""
        if self._rows is None:
            self._rows = self._parse()
            self.num_samples = len(self._rows)
        row: NDArray[Any] = self._rows[index]
        return row

    def close(self) -> None:
        """Drop the rows."""
        self._rows = None

    def _parse(self) -> NDArray[np.uint8]:
        with self._owner.open_stream(self._key) as file:
            text = _UNPACK[self._owner.dataset.compression](file.read())
        if not text.endswith(b"\n"):
            raise EOFError("its last row is cut")
        return np.loadtxt(io.BytesIO(text), np.uint8, delimiter=",", comments=None, ndmin=2)


class Csv(Format):
    """One row per sample, its bytes as numbers, no header."""

    name = "csv"

    @property
    def suffix(self) -> str:
        """With that of the compression."""
        return f".csv{_SUFFIXES[self.dataset.compression]}"

    def check(self) -> None:
        """Files begin as their compression says."""
        self.magic = _MAGICS[self.dataset.compression]
        self.bytes_ratio = 3.6 if self.dataset.compression == "none" else 1.8

    def write(self, path: Path, companions: Sequence[Path], layout: FileLayout, samples: Samples) -> None:
        """Write row by row; equal rows give equal bytes, so that no file holds the time of its writing."""
        with path.open("wb") as raw, self._pack(raw) as file:
            for sample in samples:
                numbers = map(_NUMBERS.__getitem__, sample.tobytes())
                file.write(",".join(numbers).encode("ascii") + b"\n")

    def open_file(self, key: str) -> SampleFile:
        """Read by the first sample."""
        return _CsvFile(self, key)

    def _pack(self, file: IO[bytes]) -> Any:
        level = self.dataset.compression_level
        match self.dataset.compression:
            case "gzip":
                return gzip.GzipFile("", "wb", min(level, 9), file, mtime=0)
            case "bz2":
                return bz2.BZ2File(file, "wb", compresslevel=min(max(level, 1), 9))
            case "xz":
                return lzma.LZMAFile(file, "wb", preset=min(level, 9))
            case "zip":
                return _ZipMember(file)
            case _:
                return nullcontext(file)


class _ZipMember:
    """The only member of a zip file, without a date."""

    def __init__(self, file: IO[bytes]) -> None:
        self._archive = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED)
        information = zipfile.ZipInfo("data.csv")
        information.compress_type = zipfile.ZIP_DEFLATED
        self._member = self._archive.open(information, "w", force_zip64=True)
        self.write = self._member.write

    def __enter__(self) -> _ZipMember:
        return self

    def __exit__(self, *_: object) -> None:
        self._member.close()
        self._archive.close()


class _ParquetFile(SampleFile):
    def __init__(self, file: Any) -> None:
        self._file = file
        counts = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
        self._ends = np.cumsum(counts)
        self.num_samples = int(self._ends[-1]) if len(counts) else 0

    def read(self, index: int) -> NDArray[Any]:
        """Read the row group that holds the sample."""
        if index >= self.num_samples:
            raise IndexError("there is no such row")
        group = int(np.searchsorted(self._ends, index, side="right"))
        first = int(self._ends[group - 1]) if group else 0
        column = self._file.read_row_group(group, columns=["x"]).column("x")
        return np.frombuffer(column[index - first].as_buffer(), np.uint8)

    def close(self) -> None:
        """Close the file."""
        self._file.close(force=True)


class Parquet(Format):
    """A binary column ``x`` and labels ``y``, in row groups of about 1 MiB."""

    name = "parquet"
    magic = b"PAR1"
    is_random = True
    extra_bytes = 16

    def write(self, path: Path, companions: Sequence[Path], layout: FileLayout, samples: Samples) -> None:
        """Write row group by row group."""
        import pyarrow as pa
        from pyarrow import parquet

        schema = pa.schema([("x", pa.large_binary()), ("y", pa.int64())])
        codec = self.dataset.compression if self.dataset.compression != "none" else "NONE"
        per_group = max(1, _ROW_GROUP_BYTES // layout.sample_bytes)
        with parquet.ParquetWriter(
            path, schema, compression=codec, use_dictionary=False, write_statistics=False
        ) as writer:
            rows: list[bytes] = []
            for index, sample in enumerate(samples, start=1):
                rows.append(sample.tobytes())
                if len(rows) == per_group or index == layout.num_samples:
                    writer.write_table(pa.table([rows, [0] * len(rows)], schema=schema))
                    rows = []

    def open_file(self, key: str) -> SampleFile:
        """Read the footer."""
        from pyarrow import parquet

        return self.parse(key, lambda stream: _ParquetFile(parquet.ParquetFile(stream)))
