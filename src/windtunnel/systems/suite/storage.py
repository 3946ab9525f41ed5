"""Write and read rates of the disk of a folder.

In: a folder. Out: ``Disk``, measured by one file of random bytes, written through to the device and read back from
it. Not here: file formats, many readers at once.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from windtunnel.errors import InputError
from windtunnel.measure.turns import elapsed_ns

__all__ = ["Disk", "measure_disk"]

_SIZE_BYTES = 64 * 2**20
_BLOCK_BYTES = 4 * 2**20
_COLD = 0.9  # of the bytes came from the device, as the kernel counts


@dataclass(frozen=True)
class Disk:
    """The rates of one stream in large blocks.

    Parameters
    ----------
    write_bytes_per_s : float
        Until the device has all of it.
    read_bytes_per_s : float
    is_read_cold : bool or None
        Whether the bytes came from the device; False: from memory, and the rate says nothing about the disk; None:
        the host does not tell.
    size_bytes : int
        Of the file.
    """

    write_bytes_per_s: float
    read_bytes_per_s: float
    is_read_cold: bool | None
    size_bytes: int

    def json(self) -> dict[str, Any]:
        """Return every field in plain types."""
        return asdict(self)


def measure_disk(folder: str | Path, size_bytes: int = _SIZE_BYTES) -> Disk:
    """Write a file into ``folder``, drop it from the page cache, read it, delete it.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    size_bytes : int

    Raises
    ------
    InputError
        The folder cannot be written, or has no room.
    """
    block = os.urandom(min(size_bytes, _BLOCK_BYTES))  # what could be compressed would be
    num_blocks = max(1, size_bytes // len(block))
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            write_s = _write_seconds(file.fileno(), block, num_blocks)
            before = _device_bytes()
            read_s = _read_back(file.fileno(), len(block))
    except OSError as error:
        raise InputError(
            f"the disk cannot be measured: {error.strerror}", where=str(folder), fix="choose a folder with room"
        ) from error
    size = len(block) * num_blocks
    after = _device_bytes()
    is_cold = None if before is None or after is None else after - before >= _COLD * size
    return Disk(size / write_s, size / read_s, is_cold, size)


def _write_seconds(file: int, block: bytes, num_blocks: int) -> float:
    def write() -> None:
        for _ in range(num_blocks):
            left = memoryview(block)
            while left:
                left = left[os.write(file, left) :]
        os.fsync(file)

    return elapsed_ns(write) / 1e9


def _read_back(file: int, block_bytes: int) -> float:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(file, 0, os.SEEK_SET)

    def read() -> None:
        while os.read(file, block_bytes):
            pass

    return elapsed_ns(read) / 1e9


def _device_bytes() -> int | None:
    """Return the bytes that this process has read from devices, as Linux counts them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:  # another system, or a kernel without this account
        return None
    return next((int(line.partition(":")[2]) for line in lines if line.startswith("read_bytes:")), None)
