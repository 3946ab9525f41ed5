"""One rank of the runs that show stalls.

In: ``Orders``, then a ``Turn`` at a time. Out: a ``Took`` for each. The model, its optimizer, and the process that
reads files stay from turn to turn; only what a turn is about changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.sharedctypes import Value
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from windtunnel.measure.links import receive_bytes, send_bytes
from windtunnel.measure.threads import helpers_cpu_ns
from windtunnel.measure.turns import elapsed_ns
from windtunnel.measure.workers import Place
from windtunnel.systems.stalls.files import BatchFiles
from windtunnel.systems.stalls.job import job_of

__all__ = ["Orders", "Took", "Turn", "main"]

_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Orders:
    """The orders that all ranks share.

    Attributes
    ----------
    job : str
    files : tuple of Path
        Shared out among the ranks.
    addresses : tuple of str
    """

    job: str
    files: tuple[Path, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Turn:
    """The next timed run.

    Attributes
    ----------
    num_batches, num_warmup : int
    averages : bool
        Gradients are averaged over ranks.
    reads : bool
        Batches come from files.
    disk_bytes_per_s : float
        At which this rank reads them; 0 for no limit.
    transfer_bytes : int
        Instead of training, so much is sent from rank 1 to rank 0.
    """

    num_batches: int = 0
    num_warmup: int = 0
    averages: bool = False
    reads: bool = False
    disk_bytes_per_s: float = 0.0
    transfer_bytes: int = 0


@dataclass(frozen=True)
class Took:
    """The times of one turn on one rank.

    Attributes
    ----------
    data_ns, compute_ns, backward_ns : int
        Until batches were there; forward, backward with averaging, and update; backward alone.
    helpers_cpu_ns : int
        Processor time of this process's other threads: those that send, and the backward pass's.
    num_batches : int
    """

    data_ns: int
    compute_ns: int
    backward_ns: int
    helpers_cpu_ns: int
    num_batches: int

    @property
    def iteration_ns(self) -> float:
        """Time per batch, from the request for it to the update."""
        return (self.data_ns + self.compute_ns) / self.num_batches


def main(process: Place) -> None:
    """Execute turns until the connection is closed."""
    torch.set_num_threads(1)
    process.join(_PATIENCE_S)
    rank = _Rank(process.config, process.rank, process.num_ranks)
    process.tell("ready")
    try:
        while True:
            turn: Turn = process.order()
            process.tell(rank.transfer(turn) if turn.transfer_bytes else rank.train(turn))
    except EOFError:
        rank.close()


class _Rank:
    def __init__(self, orders: Orders, rank: int, num_ranks: int) -> None:
        self._orders, self._rank = orders, rank
        self._plain, averaged = job_of(orders.job), job_of(orders.job)
        self._averaged = averaged
        self._wrapped = DistributedDataParallel(averaged.model)
        assert self._plain.supervised is not None
        self._loss, self._rested = self._plain.supervised.loss, self._plain.supervised.draw()
        self._rate: Any = Value("d", 0.0)
        local = orders.files[rank::num_ranks]
        self._batches = _batches(BatchFiles(local, rank, partial(_value, self._rate))) if local else None

    def train(self, turn: Turn) -> Took:
        """Train on the batches of a turn after its warm-up."""
        self._rate.value = turn.disk_bytes_per_s
        steps = self._steps(turn)
        for _ in range(turn.num_warmup):
            for step in steps:
                step()
        taken_ns = [0] * len(steps)
        before_ns = helpers_cpu_ns()
        for _ in range(turn.num_batches):
            for index, step in enumerate(steps):
                taken_ns[index] += elapsed_ns(step)
        data_ns, _, backward_ns, _ = taken_ns
        return Took(data_ns, sum(taken_ns[1:]), backward_ns, helpers_cpu_ns() - before_ns, turn.num_batches)

    def _steps(self, turn: Turn) -> tuple[Callable[[], None], ...]:
        """Run one iteration: fetch the batch, forward, backward with averaging, update."""
        job = self._averaged if turn.averages else self._plain
        model = self._wrapped if turn.averages else self._plain.model
        now: dict[str, Any] = {}

        def fetch() -> None:
            now["inputs"], now["target"] = self._next(reads=turn.reads)

        def forward() -> None:
            job.optimizer.zero_grad()
            now["loss"] = self._loss(model(*now["inputs"]), now["target"])

        def backward() -> None:
            now["loss"].backward()

        def update() -> None:
            job.optimizer.step()

        return fetch, forward, backward, update

    def _next(self, *, reads: bool) -> tuple[tuple[Any, ...], torch.Tensor]:
        if not reads:
            return self._rested
        assert self._batches is not None
        inputs, target = next(self._batches)
        return tuple(inputs), target

    def transfer(self, turn: Turn) -> float:
        """Measure bytes per second from rank 1 to rank 0 over a TCP socket; 0 on other ranks."""
        if self._rank == 0:
            return receive_bytes(self._orders.addresses[0], turn.transfer_bytes, dist.barrier)
        dist.barrier()
        if self._rank == 1:
            send_bytes(self._orders.addresses[0], turn.transfer_bytes)
        return 0.0

    def close(self) -> None:
        """End the reader."""
        self._batches = None
        dist.destroy_process_group()


class _Endless(IterableDataset[Any]):
    def __init__(self, files: BatchFiles) -> None:
        self._files = files

    def __iter__(self) -> Iterator[Any]:
        return iter(self._files)


def _batches(files: BatchFiles) -> Iterator[Any]:
    """Batches that a second process on the same core prefetches."""
    loader = DataLoader(_Endless(files), batch_size=None, num_workers=1, prefetch_factor=2)
    yield from loader


def _value(rate: Any) -> float:
    return float(rate.value)
