"""How much one file may take, and text that is read within that.

In: a path and perhaps a limit. Out: unpacked bytes, a JSON document, or an error that says byte and limit. A file of a
few kilobytes can unpack to terabytes: every reader of a file from outside asks here. Not here: what a file means.
"""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from windtunnel.errors import InputError, TraceError
from windtunnel.units import format_size

__all__ = [
    "ReadLimit",
    "format_value",
    "free_memory_bytes",
    "is_packed",
    "parse_json",
    "read_decompressed",
    "read_json",
]

_GZIP = b"\x1f\x8b"
_PIECE_BYTES = 1 << 20
_MIN_LIMIT_BYTES = 256 << 20
_RATIO = 256  # real traces unpack to less than 30 times their size, and take about 8 bytes of memory per byte of text
_SHOWN = 60
_AGAIN = "write or copy the file again"
_ALLOW_MORE = "if the file is what it should be, allow more: --read-limit SIZE, in Python read_limit=BYTES"


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """The most memory that reading one file may take.

    Parameters
    ----------
    path : Path
    given_bytes : int, optional
        By default 256 times the size of the file, at least 256 MiB, and no more than the memory that is free. Text may
        unpack to a quarter of that, whatever is free: a reader need not keep it.

    Examples
    --------
    >>> ReadLimit(Path("absent.json.gz"), 1 << 30).check(1 << 20)
    """

    path: Path
    given_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the file as it lies there; of a folder, of the files in it."""
        try:
            files = [item for item in self.path.iterdir() if item.is_file()] if self.path.is_dir() else [self.path]
            return sum(file.stat().st_size for file in files)
        except OSError:
            return 0

    @property
    def num_bytes(self) -> int:
        """The limit."""
        if self.given_bytes is not None:
            return self.given_bytes
        largest = max(_MIN_LIMIT_BYTES, _RATIO * self.size_bytes)
        free = free_memory_bytes()
        return largest if free is None else min(largest, free)

    @property
    def text_bytes(self) -> int:
        """The most text that the file may unpack to."""
        return max(self.given_bytes or _MIN_LIMIT_BYTES // 4, _RATIO // 4 * self.size_bytes)

    def check_text(self, num_bytes: int, *, error: type[InputError] = InputError) -> None:
        """Refuse text that unpacks to more than the limit.

        Raises
        ------
        InputError
        """
        if num_bytes > self.text_bytes:
            raise error(
                f"this unpacks to {format_size(num_bytes)} or more; the limit is {format_size(self.text_bytes)}, "
                f"{self.text_bytes / max(self.size_bytes, 1):,.0f} times its size",
                where=f"{self.path}: a file of {format_size(self.size_bytes)}",
                fix=_ALLOW_MORE,
            )

    def check(self, num_bytes: int, *, error: type[InputError] = InputError) -> None:
        """Refuse what takes more than the limit.

        Raises
        ------
        InputError
        """
        limit = self.num_bytes
        if num_bytes <= limit:
            return
        why = "as was asked for" if self.given_bytes is not None else self._why(limit)
        raise error(
            f"reading this takes {format_size(num_bytes)} of memory or more; the limit is {format_size(limit)}, {why}",
            where=f"{self.path}: a file of {format_size(self.size_bytes)}",
            fix=_ALLOW_MORE,
        )

    def _why(self, limit: int) -> str:
        if limit == _MIN_LIMIT_BYTES:
            return "for a file of this size"
        return f"{_RATIO} times its size" if limit == _RATIO * self.size_bytes else "the memory that is free"


def free_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can be had without swapping: what the host and the control group leave; None where neither tells."""
    result = []
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable" and value.split()[:1] and value.split()[0].isdigit():
            result.append(int(value.split()[0]) * 1024)
    limit, used = (_lines(root / f"sys/fs/cgroup/memory.{name}")[:1] for name in ("max", "current"))
    if limit and used and limit[0].isdigit() and used[0].isdigit():
        result.append(max(0, int(limit[0]) - int(used[0])))
    return min(result) if result else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def is_packed(file: IO[bytes]) -> bool:
    """Whether a file begins as gzip does; it is left at its begin."""
    begins = file.read(2) == _GZIP
    file.seek(0)
    return begins


def read_decompressed(limit: ReadLimit, *, cost: int = 1, error: type[InputError] = TraceError) -> bytearray:
    """Read the bytes of a file, compressed with gzip or not.

    Parameters
    ----------
    limit : ReadLimit
        It names the file.
    cost : int
        Bytes of memory that the reader takes for a byte of text.

    Raises
    ------
    InputError
        The file cannot be read, its gzip data are cut or damaged, or it holds more than the limit.
    """
    path, data = limit.path, bytearray()
    most = min(limit.text_bytes, limit.num_bytes // cost)
    try:
        with path.open("rb") as file:
            source: Any = gzip.GzipFile(fileobj=file) if is_packed(file) else nullcontext(file)
            with source as text:
                while piece := text.read(_PIECE_BYTES):
                    data += piece
                    if len(data) > most:
                        limit.check_text(len(data), error=error)
                        limit.check(cost * len(data), error=error)
    except EOFError as cause:
        size = path.stat().st_size
        raise error("the gzip file is cut", where=f"{path}: byte {size:,}, its end", fix="copy it again") from cause
    except (zlib.error, gzip.BadGzipFile) as cause:
        raise error(f"the gzip file is damaged: {cause}", where=str(path), fix="copy it again") from cause
    except OSError as cause:
        raise error(f"cannot read the file: {cause.strerror}", where=str(path), fix="check the path") from cause
    return data


def read_json(limit: ReadLimit, *, error: type[InputError] = InputError) -> Any:
    """The document of a JSON file.

    Raises
    ------
    InputError
        It cannot be read, is no UTF-8, no JSON or nested too deeply (byte or line), or exceeds the limit.
    """
    return parse_json(read_decompressed(limit, cost=8, error=error), str(limit.path), error=error)


def parse_json(data: bytes | bytearray, where: str, *, error: type[InputError] = InputError) -> Any:
    """The document of a JSON text in UTF-8.

    Raises
    ------
    InputError
        It is no UTF-8 or no JSON (byte or line), or nested too deeply.
    """
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as cause:
        raise error(f"this is no UTF-8: {cause.reason}", where=f"{where}: byte {cause.start:,}", fix=_AGAIN) from cause
    except json.JSONDecodeError as cause:
        location = f"{where}: line {cause.lineno:,}, column {cause.colno:,}"
        raise error(f"this is no JSON: {cause.msg}", where=location, fix=_AGAIN) from cause
    except RecursionError as cause:
        raise error("the JSON is nested too deeply", where=where, fix=_AGAIN) from cause
    except ValueError as cause:  # a number of thousands of digits
        raise error(f"the JSON holds a number that is too long: {cause}", where=where, fix=_AGAIN) from cause


def format_value(value: Any) -> str:
    """Format a value from outside, short enough and safe to print whatever it holds.

    Examples
    --------
    >>> format_value("NaN"), format_value(10**400), format_value([[[]]])
    ("'NaN'", 'a number of 1,329 bits', 'a list')
    """
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length():,} bits"
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    return f"a {type(value).__name__}"
