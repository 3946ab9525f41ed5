"""Batches of a job through ``torch.utils.data.DataLoader``, with what each cost.

In: a ``LoadingJob``. Out: batches, each with the span in which its worker made it and the bytes that this worker read,
from the device and in all. Not here: who asks for batches (``worker``), formats (``reading``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info

from windtunnel.errors import WindtunnelError
from windtunnel.measure.links import Bucket, sleep_until
from windtunnel.systems.dataio.formats.known import FILE_FORMATS
from windtunnel.systems.dataio.job import LoadingJob
from windtunnel.systems.dataio.reading import SampleReader

__all__ = ["BatchSpan", "SampleSet", "bytes_per_read", "make_loader", "open_reader", "read_io_bytes"]

_COUNTERS = Path("/proc/self/io")


@dataclass(frozen=True)
class BatchSpan:
    """How a batch was made; times are of the clock that all processes share (``time.monotonic_ns``).

    Attributes
    ----------
    worker : int
        Of its rank; -1 for the main process.
    start_ns, end_ns : int
        From the first sample to the collated batch.
    device_bytes, read_bytes : int
        That the device delivered, and that were read, from memory or the device.
    """

    worker: int
    start_ns: int
    end_ns: int
    device_bytes: int
    read_bytes: int


def read_io_bytes() -> tuple[int, int]:
    """Bytes that this process has read until now: from devices, and in all; zeros where the system does not say."""
    try:
        counts = dict(line.split(": ") for line in _COUNTERS.read_text(encoding="ascii").splitlines())
    except OSError:
        return 0, 0
    device, total = int(counts["read_bytes"]), int(counts["rchar"])
    return device, max(device, total)


def open_reader(job: LoadingJob, *, is_kept_open: bool | None = None) -> SampleReader:
    """Get ready to read the samples of a job in this process."""
    keeps = job.is_kept_open if is_kept_open is None else is_kept_open
    return SampleReader(job.config.dataset, job.config.storage, is_kept_open=keeps, is_direct=job.is_direct)


def bytes_per_read(job: LoadingJob) -> int:
    """Bytes that a service delivers for a sample: the samples of its file, where a part of it cannot be read."""
    is_random = FILE_FORMATS[job.format].is_random
    return job.record_bytes * (1 if is_random or job.is_kept_open else job.dataset.samples_per_file)


class SampleSet(Dataset[Any]):
    """The samples of a job: each is read whole, then the same tensor stands for it, whatever was read.

    Parameters
    ----------
    job : LoadingJob
    is_eval : bool
        The evaluation set instead of the training set.
    """

    def __init__(self, job: LoadingJob, *, is_eval: bool = False) -> None:
        self._job, self._keys = job, job.eval_keys if is_eval else job.keys
        self._bucket = Bucket(job.stream_limit_bytes_per_s)
        self._reader: Any = None
        self._tensor: Any = None
        self._before = self._opened = (0, 0)
        self._num_read = self._limited_bytes = 0

    def __len__(self) -> int:
        return len(self._keys) * self._job.dataset.samples_per_file

    def __getitems__(self, samples: list[int]) -> list[Any]:
        """Read the samples of a batch; the first item is when that began, or an error, which torch would rewrite."""
        try:
            return self._read(samples)
        except WindtunnelError as error:
            return [error]

    def _read(self, samples: list[int]) -> list[Any]:
        if self._reader is None:
            self._open()
        start_ns = time.monotonic_ns()
        waits_ns = self._job.preprocess.draw_ns(np.random.default_rng([self._job.seed, *samples[:1]]), len(samples))
        for sample, wait_ns in zip(samples, waits_ns.tolist(), strict=True):
            file, index = divmod(sample, self._job.dataset.samples_per_file)
            self._reader.read(self._keys[file], index)
            self._num_read += 1
            if self._job.limit_bytes_per_s:
                self._keep_to_limit()
            if wait_ns:
                time.sleep(wait_ns / 1e9)
        return [start_ns, *[self._tensor] * len(samples)]

    def collate(self, items: list[Any]) -> tuple[torch.Tensor, BatchSpan] | WindtunnelError:
        """Put a batch together, and say what it cost."""
        if isinstance(items[0], WindtunnelError):
            return items[0]
        batch = default_collate(items[1:])
        info, used = get_worker_info(), self._count_bytes()
        device, total = (now - before for now, before in zip(used, self._before, strict=True))
        self._before = used
        return batch, BatchSpan(-1 if info is None else info.id, items[0], time.monotonic_ns(), device, total)

    def _keep_to_limit(self) -> None:
        """Wait until a storage of the job's rate would have delivered what was read since the last call.

        Where the kernel counts no bytes of devices, all that was read counts.
        """
        device, total = self._count_bytes()
        size = max((device or total) - self._limited_bytes, 0)
        self._limited_bytes += size
        sleep_until(self._bucket.due_ns(size, time.monotonic_ns()))

    def _count_bytes(self) -> tuple[int, int]:
        """Bytes since this process began to read: from the device or the service, and in all."""
        if self._job.is_remote:
            return (self._num_read * bytes_per_read(self._job),) * 2
        device, total = (now - before for now, before in zip(read_io_bytes(), self._opened, strict=True))
        return device, total

    def _open(self) -> None:
        """Get ready in the process that reads."""
        self._reader = open_reader(self._job)
        self._tensor = torch.zeros(max(self._job.tensor_bytes, 1), dtype=torch.uint8)
        self._opened = read_io_bytes()


class EpochOrder(Sampler[int]):
    """The samples of the epoch that comes next."""

    def __init__(self) -> None:
        self.samples: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)


def make_loader(job: LoadingJob, samples: SampleSet, batch_size: int) -> tuple[DataLoader[Any], EpochOrder]:
    """Make the loader of one rank, and the order that it follows."""
    order = EpochOrder()
    with_workers: dict[str, Any] = {}
    if job.num_workers:
        with_workers = {
            "prefetch_factor": job.prefetch_factor,
            "persistent_workers": True,
            "multiprocessing_context": job.context,
        }
    loader: DataLoader[Any] = DataLoader(
        samples, batch_size, sampler=order, num_workers=job.num_workers, drop_last=True, collate_fn=samples.collate,
        **with_workers,
    )  # fmt: skip
    return loader, order
