"""Write and read checkpoints of the real size.

In: a configuration, a rank. Out: files in safetensors format, each whole or absent; how long each checkpoint took. Not
here: sizes (``checkpoint_sizes``), when a checkpoint is due (``worker``).
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.measure.disks import evict
from windtunnel.measure.turns import elapsed_ns
from windtunnel.systems.dataio.checkpoint_sizes import ELEMENT_BYTES, StateFile, checkpoint_layout
from windtunnel.systems.dataio.config import DlioConfig
from windtunnel.systems.dataio.formats.format import damage_error
from windtunnel.systems.dataio.storage import open_storage
from windtunnel.units import format_size

__all__ = ["CheckpointTimes", "Checkpointer", "run_checkpoints"]

_SUFFIX = ".safetensors"
_DTYPES = {"fp64": "F64", "fp32": "F32", "fp16": "F16", "bf16": "BF16", "int8": "I8", "uint8": "U8"}
_POOL_BYTES = 64 << 20
_CHUNK_BYTES = 8 << 20
_STRIDE = 4_999_999  # a prime: no two chunks begin at the same byte of a block
_COUNT = struct.Struct("<Q")


class Checkpointer:
    """The checkpoints of one rank; asynchronous ones are written by a thread, for which the next one waits.

    Parameters
    ----------
    config : DlioConfig
    rank, num_ranks : int
    folder : str or Path, optional
        Instead of the checkpoint folder of the configuration.
    ranks_per_host : int
        By which ``recovery_rank_shift`` shifts, so that no rank reads what its own host wrote.

    Raises
    ------
    InputError
        The ranks do not fit the parallelism of the model, or the storage is not supported.
    """

    def __init__(
        self,
        config: DlioConfig,
        rank: int = 0,
        num_ranks: int = 1,
        *,
        folder: str | Path | None = None,
        ranks_per_host: int = 1,
    ) -> None:
        self._options, self._rank = config.checkpoint, rank
        self._folder = str(folder or config.checkpoint.checkpoint_folder).rstrip("/")
        self._storage = open_storage(config.storage)
        layout = checkpoint_layout(config, num_ranks)
        self._files = layout.files[rank] if rank < layout.num_writers else ()
        shift = ranks_per_host if config.checkpoint.recovery_rank_shift else 0
        source = (rank + shift) % num_ranks
        # where rank 0 alone writes, all ranks read its file
        self._read_files = layout.files[source if source < layout.num_writers else 0]
        largest = max((file.num_bytes for file in self._files), default=0)
        self._pool = _pool(min(_POOL_BYTES, largest + _CHUNK_BYTES), rank, self._options.randomize_tensor)
        self._thread = ThreadPoolExecutor(1, "checkpoint") if self._options.is_async else None
        self._pending: Future[None] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that this rank writes in each checkpoint."""
        return sum(file.num_bytes for file in self._files)

    def save(self, epoch: int, step: int) -> None:
        """Write a checkpoint, or hand it to the thread.

        Raises
        ------
        InputError
            This checkpoint, or the one before that the thread wrote, cannot be written.
        """
        self.wait()
        if self._thread is None:
            self._write(epoch, step)
        else:
            self._pending = self._thread.submit(self._write, epoch, step)

    def wait(self) -> None:
        """Wait for the thread.

        Raises
        ------
        InputError
            It could not write.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown()

    def load(self, epoch: int, step: int) -> int:
        """Read a checkpoint, or that of another host where ranks are shifted; bytes of its tensors.

        Raises
        ------
        InputError
            A file is missing, cut or of another model; names it.
        """
        return sum(self._read(self._key(epoch, step, file), file) for file in self._read_files)

    def remove(self, epoch: int, step: int) -> None:
        """Remove this rank's files of a checkpoint."""
        for file in self._files:
            self._storage.remove(self._key(epoch, step, file))

    def paths(self, epoch: int, step: int) -> list[Path]:
        """The files that ``load`` reads, as far as they are local."""
        paths = (self._storage.local_path(self._key(epoch, step, file)) for file in self._read_files)
        return [path for path in paths if path is not None]

    def _key(self, epoch: int, step: int, file: StateFile) -> str:
        return f"{self._folder}/global_epoch{epoch}_step{step}/{file.name}{_SUFFIX}"

    def _write(self, epoch: int, step: int) -> None:
        for index, file in enumerate(self._files):
            key = self._key(epoch, step, file)
            with self._storage.put(key) as path, path.open("wb") as output:
                output.write(_header(file))
                for chunk in _chunks(self._pool, file.num_bytes, start=step + index):
                    output.write(chunk)
                output.flush()
                if self._options.fsync:
                    os.fsync(output.fileno())
            local = self._storage.local_path(key)
            if self._options.fsync and local is not None:
                _sync_folder(local.parent)

    def _read(self, key: str, file: StateFile) -> int:
        with self._storage.open(key) as source:
            expected = _header(file)
            header = source.read(len(expected))
            if header != expected:
                raise damage_error(key, None, "it holds other tensors than this configuration has")
            num_bytes = _drain(source)
        if num_bytes != file.num_bytes:
            raise damage_error(key, None, f"it holds {num_bytes:,} bytes of tensors, not {file.num_bytes:,}")
        return num_bytes


def _pool(num_bytes: int, seed: int, is_random: bool) -> memoryview:
    """Bytes that tensors are taken from; drawn before, as no job draws its weights while it saves them."""
    data = np.random.default_rng(seed).bytes(num_bytes) if is_random else bytes(num_bytes)
    return memoryview(data)


def _chunks(pool: memoryview, num_bytes: int, start: int) -> Iterator[memoryview]:
    """Parts of the pool, each from another byte, so that no device finds equal blocks."""
    offset = start * _STRIDE
    while num_bytes > 0:
        offset = (offset + _STRIDE) % max(len(pool) - _CHUNK_BYTES, 1)
        chunk = pool[offset : offset + min(_CHUNK_BYTES, num_bytes)]
        yield chunk
        num_bytes -= len(chunk)


def _header(file: StateFile) -> bytes:
    """Names, types and offsets of all tensors, as safetensors has them."""
    entries: dict[str, Any] = {}
    offset = 0
    for name, count in file.tensors:
        size = count * ELEMENT_BYTES[file.dtype]
        entries[name] = {"dtype": _DTYPES[file.dtype], "shape": [count], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return _COUNT.pack(len(text)) + text


def _drain(source: IO[bytes]) -> int:
    """Read to the end; the number of bytes."""
    buffer = bytearray(_CHUNK_BYTES)
    total = 0
    while count := source.readinto(buffer):  # type: ignore[attr-defined]
        total += count
    return total


def _sync_folder(folder: Path) -> None:
    """Make a rename last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class CheckpointTimes:
    """What checkpoints of a job took.

    Attributes
    ----------
    num_bytes : int
        Of one checkpoint, all ranks together.
    write_s, read_s : tuple of float
        Until the last rank is done.
    """

    num_bytes: int
    write_s: tuple[float, ...]
    read_s: tuple[float, ...]


def run_checkpoints(
    config: DlioConfig, num_ranks: int = 1, *, is_cold: bool = True, progress: Progress | None = None
) -> CheckpointTimes:
    """Write ``num_checkpoints_write`` checkpoints and read ``num_checkpoints_read``, without training.

    All ranks are on this host, each a thread: writing and reading files do not hold the interpreter.

    Parameters
    ----------
    config : DlioConfig
    num_ranks : int
    is_cold : bool
        What is read is dropped from the memory of this host before.
    progress : callable, optional

    Raises
    ------
    InputError
        More are read than written, there is not enough room, or the storage fails.
    """
    options = config.checkpoint
    num_writes, num_reads = max(options.num_checkpoints_write, 0), max(options.num_checkpoints_read, 0)
    if num_reads and not num_writes:
        raise InputError(
            f"{num_reads} checkpoints are read, and none is written", where="checkpoint.num_checkpoints_read",
            fix="set num_checkpoints_write: 1 or more",
        )  # fmt: skip
    layout = checkpoint_layout(config, num_ranks)
    num_bytes = sum(layout.rank_bytes(rank) for rank in range(layout.num_writers))
    _require_room(config, num_bytes, num_writes)
    ranks = [Checkpointer(config, rank, num_ranks) for rank in range(num_ranks)]
    pause_s = max(options.time_between_checkpoints, 0)
    write_s, read_s = [], []
    with ThreadPoolExecutor(num_ranks, "rank") as threads:

        def time_all(action: Callable[[Checkpointer], object]) -> float:
            return elapsed_ns(lambda: list(threads.map(action, ranks))) / 1e9

        for index in range(num_writes):
            _pause(pause_s if index else 0)
            write_s.append(time_all(lambda rank, step=index: (rank.save(0, step), rank.wait())))  # type: ignore[misc]
            if progress is not None:
                progress("writing checkpoints", index + 1, num_writes)
        for index in range(num_reads):
            _pause(pause_s if index else 0)
            step = index % num_writes
            if is_cold:
                evict(path for rank in ranks for path in rank.paths(0, step))
            read_s.append(time_all(lambda rank, step=step: rank.load(0, step)))  # type: ignore[misc]
            if progress is not None:
                progress("reading checkpoints", index + 1, num_reads)
    return CheckpointTimes(num_bytes, tuple(write_s), tuple(read_s))


def _require_room(config: DlioConfig, num_bytes: int, num_writes: int) -> None:
    storage = open_storage(config.storage)
    free = storage.free_bytes()
    if free is not None and num_bytes * num_writes > free:
        raise InputError(
            f"{num_writes} checkpoints of {format_size(num_bytes)} do not fit: {format_size(free)} are free",
            where=storage.root, fix="reduce checkpoint.num_checkpoints_write, or choose another storage.storage_root",
        )  # fmt: skip


def _pause(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)
