"""Files that are really read from a disk, or really rest in memory, at a rate that may be limited.

In: files. Out: their bytes; the share of them that the kernel holds in memory; files dropped from it, which needs no
rights where they are our own. Not here: what the bytes mean.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.measure.links import Bucket, sleep_until
from windtunnel.measure.workers import check_command_output, run_to_end

__all__ = [
    "can_throttle",
    "evict",
    "measure_burst",
    "measure_read_rate",
    "read_all",
    "read_at",
    "require_disk",
    "resident_share",
    "throttle_disk",
]

Opener = Callable[[], IO[bytes]]

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_CHUNK_BYTES = 1 << 16
_BLKIO = Path("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device")
_FILE_SYSTEM_BYTES = 32 << 20
_TRIES, _PAUSE_S = 20, 0.1
# a disk that saves up has rested enough; a burst is at least so large, and so much faster than the rest
_REST_S, _MIN_BURST_BYTES, _MIN_BURST_NS, _BURST_RATIO = 0.3, 1 << 20, 20e6, 1.5
_MIN_POINTS, _GRID_POINTS = 8, 256
_MOUNTS, _PREFIX = Path("/proc/self/mounts"), "windtunnel-disk"


def require_disk(folder: Path) -> None:
    """Refuse a folder whose files are never read from a disk.

    Raises
    ------
    InputError
        It lies in memory.
    """
    kind = _filesystem(folder)
    if kind in _IN_MEMORY:
        raise InputError(
            f"this folder is on {kind}: a run with nothing in memory is impossible",
            where=str(folder),
            fix="give a folder on a disk",
        )


def _filesystem(folder: Path) -> str:
    """The kind of the file system that holds a folder; empty where that is not known."""
    if not _MOUNTS.exists():
        return ""
    best, kind, where = -1, "", folder.resolve()
    for line in _MOUNTS.read_text(encoding="utf-8").splitlines():
        point = Path(line.split()[1].replace("\\040", " "))
        if (point == where or point in where.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), line.split()[2]
    return kind


def evict(files: Iterable[Path]) -> None:
    """Drop files from the kernel's memory; what was written to them is on the disk before."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def resident_share(files: Iterable[Path]) -> float:
    """Share of the files' pages that the kernel holds in memory, 0..1."""
    held = total = 0
    for path in files:
        size = path.stat().st_size
        if not size:
            continue
        num_pages = -(-size // mmap.PAGESIZE)
        # copy on write, as ctypes takes addresses only of writable memory; nothing is read by mapping
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as view:
            flags = (ctypes.c_ubyte * num_pages)()
            start = (ctypes.c_char * size).from_buffer(view)
            code = _libc().mincore(ctypes.byref(start), ctypes.c_size_t(size), flags)
            # a mapping cannot be closed while something points into it
            del start
            if code:
                raise InputError("the kernel does not say what it holds in memory", where=str(path))
            held += sum(flag & 1 for flag in flags)
        total += num_pages
    return held / total if total else 0.0


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def read_all(files: Iterable[Path]) -> tuple[int, int]:
    """Read files to their ends; bytes, and the time that took in ns."""
    begun_ns, size_bytes = time.perf_counter_ns(), 0
    for path in files:
        size_bytes += len(path.read_bytes())
    return size_bytes, time.perf_counter_ns() - begun_ns


def measure_read_rate(files: Sequence[Opener], num_streams: int) -> float:
    """Bytes per second at which a number of threads together read files to their ends, each once."""

    def read_stream(stream: int) -> int:
        return sum(len(piece) for opener in files[stream::num_streams] for piece in _pieces(opener))

    begun_ns = time.perf_counter_ns()
    with ThreadPoolExecutor(num_streams) as pool:
        size_bytes = sum(pool.map(read_stream, range(num_streams)))
    return size_bytes / (time.perf_counter_ns() - begun_ns) * 1e9


def measure_burst(files: Sequence[Opener]) -> tuple[float, float]:
    """Bytes per second that one stream gets in the long run, and bytes that a disk which rested delivers ahead of them.

    A disk whose rate is limited by a bucket of tokens delivers what the bucket holds at once. Files are read once.
    """
    time.sleep(_REST_S)
    begun_ns, size_bytes, sizes, times_ns = time.perf_counter_ns(), 0, [], []
    for opener in files:
        for piece in _pieces(opener):
            size_bytes += len(piece)
            sizes.append(size_bytes)
            times_ns.append(time.perf_counter_ns() - begun_ns)
    return fit_burst(np.array(times_ns, np.float64), np.array(sizes, np.float64))


def _pieces(opener: Opener) -> Iterator[bytes]:
    with opener() as file:
        while piece := file.read(_CHUNK_BYTES):
            yield piece


def fit_burst(times_ns: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float]:
    """Sustained bytes per second, and bytes ahead of them, of one stream that has ``sizes`` bytes after ``times_ns``.

    A lead that is gained at less than 1.5 times the sustained rate, or is less than a megabyte or 20 ms, is noise: 0.

    Examples
    --------
    >>> times_ns = np.arange(1.0, 101.0) * 1e7
    >>> rate, burst = fit_burst(times_ns, 4e6 + 0.05 * times_ns)
    >>> round(rate / 1e6), round(burst / 1e6)
    (50, 4)
    """
    grid = np.linspace(times_ns[-1] / 4, times_ns[-1], _GRID_POINTS)
    if len(times_ns) < _MIN_POINTS or times_ns[0] >= grid[0]:
        return float(sizes[-1] / times_ns[-1] * 1e9), 0.0
    reached = sizes[np.searchsorted(times_ns, grid, side="right") - 1]
    slope = float(np.polyfit(grid, reached, 1)[0])
    is_fast = sizes > _BURST_RATIO * slope * times_ns
    lead = float((sizes - slope * times_ns)[is_fast].max(initial=0.0))
    is_burst = slope > 0 and lead > max(_MIN_BURST_BYTES, _MIN_BURST_NS * slope)
    return slope * 1e9, lead if is_burst else 0.0


def read_at(path: Path, bucket: Bucket) -> bytes:
    """Read a file as fast as the bucket's rate allows, in pieces of 64 KiB."""
    pieces = []
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK_BYTES):
            sleep_until(bucket.due_ns(len(piece), time.monotonic_ns()))
            pieces.append(piece)
    return b"".join(pieces)


@contextlib.contextmanager
def throttle_disk(folder: Path, bandwidth_bytes_per_s: float, size_bytes: int) -> Iterator[Path]:
    """A file system that the kernel reads no faster than this; gives the folder where it is mounted.

    It lies in a file below ``folder``, without the kernel keeping that file in memory, and is gone afterwards.

    Raises
    ------
    InputError
        The rate is not above 0, or this process may not do it.
    """
    if not 0 < bandwidth_bytes_per_s < float("inf"):
        raise InputError(f"no disk reads {bandwidth_bytes_per_s} bytes/s", fix="give a rate above 0")
    if not can_throttle():
        raise InputError(
            "this process may mount no throttled disk", fix="run as root with losetup, or limit the reader"
        )
    with contextlib.ExitStack() as stack:
        # each step leaves behind how to undo it: whatever fails, what was done is undone in reverse
        _sweep()
        prefix = f"{_PREFIX}-{os.getpid()}-"
        location = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=folder)))
        image, mounted = location / "image", location / "mounted"
        mounted.mkdir()
        with image.open("wb") as file:
            file.truncate(2 * size_bytes + _FILE_SYSTEM_BYTES)
        _do("mkfs.ext4", "-q", "-F", str(image))
        device = _do("losetup", "--direct-io=on", "--show", "--find", str(image)).strip()
        stack.callback(run_to_end, ["losetup", "--detach", device])
        _do("mount", device, str(mounted))
        stack.callback(_unmount, mounted)
        number = Path(device).stat().st_rdev
        limit = f"{os.major(number)}:{os.minor(number)}"
        _BLKIO.write_text(f"{limit} {round(bandwidth_bytes_per_s)}", encoding="ascii")
        # a limit of 0 takes the device off the kernel's list
        stack.callback(_BLKIO.write_text, f"{limit} 0", encoding="ascii")
        yield mounted


def _unmount(mounted: Path) -> None:
    """Also where a process that was killed still holds a file for a moment."""
    for _ in range(_TRIES):
        done = run_to_end(["umount", str(mounted)])
        if done is not None and not done.code:
            return
        time.sleep(_PAUSE_S)
    run_to_end(["umount", "--lazy", str(mounted)])


def _sweep() -> None:
    """Unmount what processes left that were killed."""
    for line in _MOUNTS.read_text(encoding="utf-8").splitlines():
        device, mounted = line.split()[:2]
        result = re.search(rf"{_PREFIX}-(\d+)-[^/]*/mounted$", mounted)
        if result and not Path(f"/proc/{result[1]}").exists():
            run_to_end(["umount", "--lazy", mounted])
            run_to_end(["losetup", "--detach", device])


@cache
def can_throttle() -> bool:
    """Whether this process may mount a disk and limit its rate in the kernel."""
    tools = all(shutil.which(tool) for tool in ("losetup", "mkfs.ext4", "mount", "umount"))
    return tools and os.access(_BLKIO, os.W_OK) and os.geteuid() == 0


def _do(*command: str) -> str:
    return check_command_output(command, "a disk cannot be throttled", "limit the reader instead")
