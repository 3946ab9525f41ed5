"""One rank of a training job that loads real files, and computes or sleeps.

In: a ``RankConfig``, then an ``EpochTask`` at a time. Out: an ``EpochRecord`` for each. The loader and its workers
stay from epoch to epoch; a barrier over all ranks ends each step, as averaging gradients would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from windtunnel.errors import WindtunnelError
from windtunnel.measure.links import sleep_until
from windtunnel.measure.turns import elapsed_ns
from windtunnel.measure.workers import Place
from windtunnel.systems.dataio.checkpoint import Checkpointer
from windtunnel.systems.dataio.job import LoadingJob
from windtunnel.systems.dataio.loading import BatchSpan, SampleSet, make_loader
from windtunnel.systems.dataio.metrics import BlockTimes
from windtunnel.systems.dataio.order import rank_order

__all__ = ["EpochRecord", "EpochTask", "RankConfig", "main"]

_PATIENCE_S = 600.0


@dataclass(frozen=True)
class RankConfig:
    """What all ranks share.

    Attributes
    ----------
    job : LoadingJob
    checkpoint_folder : Path, optional
        Where checkpoints are written; None for none.
    """

    job: LoadingJob
    checkpoint_folder: Path | None = None


@dataclass(frozen=True)
class EpochTask:
    """The next epoch.

    Attributes
    ----------
    epoch : int
        Counted from 1.
    is_eval : bool
        An evaluation instead of training.
    compute_s : float, optional
        Instead of the time of a step that the job has.
    max_steps : int
        -1 for a full epoch.
    """

    epoch: int
    is_eval: bool = False
    compute_s: float | None = None
    max_steps: int = -1


@dataclass(frozen=True, eq=False)
class EpochRecord:
    """The times of one epoch on one rank.

    Attributes
    ----------
    blocks : list of BlockTimes
        Of the steps between checkpoints.
    starts : list of datetime
        When each block began.
    checkpoint_s : list of float
        What each checkpoint took.
    spans : list of BatchSpan
        How each batch was made.
    start_ns, got_ns, end_ns : int or list of int
        On the clock of the spans: when the epoch began, when each batch was received, when each step ended.
    """

    blocks: list[BlockTimes]
    starts: list[datetime]
    checkpoint_s: list[float]
    spans: list[BatchSpan]
    start_ns: int
    got_ns: list[int]
    end_ns: list[int]


@dataclass
class _Steps:
    """The steps of a block, as they are timed."""

    load_ns: list[int] = field(default_factory=list)
    compute_ns: list[int] = field(default_factory=list)
    proc_ns: list[int] = field(default_factory=list)
    start_ns: int = 0
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def block(self, end_ns: int, batch_size: int) -> BlockTimes:
        """Times in seconds."""
        load, compute, proc = (np.array(column) / 1e9 for column in (self.load_ns, self.compute_ns, self.proc_ns))
        return BlockTimes(load, compute, (end_ns - self.start_ns) / 1e9, batch_size, proc)


def main(place: Place) -> None:
    """Execute tasks until the connection is closed."""
    config: RankConfig = place.config
    if place.num_ranks > 1:
        place.join(_PATIENCE_S)
    rank = _Rank(config, place.rank, place.num_ranks)
    place.tell("ready")
    try:
        while True:
            place.tell(_answer(rank, place.order()))
    except EOFError:
        if place.num_ranks > 1:
            dist.destroy_process_group()


def _answer(rank: _Rank, task: EpochTask) -> EpochRecord | WindtunnelError:
    """What an epoch came to; an error goes to the main process as it is."""
    try:
        return rank.run(task)
    except WindtunnelError as error:
        return error


class _Rank:
    def __init__(self, config: RankConfig, rank: int, num_ranks: int) -> None:
        if config.job.compute_job:
            torch.set_num_threads(1)  # a step has one core; else torch has its own number, as in any training script
        self._config, self._rank, self._num_ranks = config, rank, num_ranks
        self._loaders: dict[bool, Any] = {}
        self._step = _real_step(config.job.compute_job)
        self._checkpoint: Checkpointer | None = None
        if config.checkpoint_folder is not None:
            self._checkpoint = Checkpointer(config.job.config, rank, num_ranks, folder=config.checkpoint_folder)

    def run(self, task: EpochTask) -> EpochRecord:
        """Run an epoch."""
        job = self._config.job
        loader, order = self._loader_of(is_eval=task.is_eval)
        batch_size = job.eval_batch_size if task.is_eval else job.batch_size
        steps, compute_ns = self._plan(task, batch_size)
        order.samples = self._samples(task, steps * batch_size)
        blocks, starts, saved_s, spans, got, ends = [], [], [], [], [], []
        self._meet()
        begun_ns = time.monotonic_ns()
        timed = _Steps(start_ns=begun_ns)
        batches, before_ns = iter(loader), begun_ns
        for step in range(steps):
            batch = next(batches)
            if isinstance(batch, WindtunnelError):
                raise batch
            got_ns = time.monotonic_ns()
            computed_ns = self._compute(got_ns, int(compute_ns[step]))
            done_ns = time.monotonic_ns()
            self._meet()
            end_ns = time.monotonic_ns()
            timed.load_ns.append(got_ns - before_ns)
            timed.compute_ns.append(computed_ns)
            timed.proc_ns.append(done_ns - before_ns)
            spans.append(batch[1])
            got.append(got_ns)
            ends.append(end_ns)
            before_ns = end_ns
            if self._ends_block(task, step):
                blocks.append(timed.block(end_ns, batch_size))
                starts.append(timed.started)
                saved_s.append(self._save(task.epoch, step))
                before_ns = time.monotonic_ns()
                timed = _Steps(start_ns=before_ns)
        if timed.load_ns:
            blocks.append(timed.block(ends[-1], batch_size))
            starts.append(timed.started)
        if self._checkpoint is not None and not task.is_eval and job.has_checkpoint_after(task.epoch):
            saved_s.append(self._save(task.epoch, steps - 1))
        if self._checkpoint is not None:
            self._checkpoint.wait()  # an asynchronous one outlives the steps, but not the epoch
        return EpochRecord(blocks, starts, saved_s, spans, begun_ns, got, ends)

    def _loader_of(self, *, is_eval: bool) -> tuple[Any, Any]:
        if is_eval not in self._loaders:
            job = self._config.job
            samples = SampleSet(job, is_eval=is_eval)
            self._loaders[is_eval] = make_loader(job, samples, job.eval_batch_size if is_eval else job.batch_size)
        loader, order = self._loaders[is_eval]
        return loader, order

    def _plan(self, task: EpochTask, batch_size: int) -> tuple[int, Any]:
        """Number of steps, and the time of each."""
        job = self._config.job
        if task.is_eval:
            total = len(job.eval_keys) * job.dataset.samples_per_file
            steps = total // (batch_size * self._num_ranks)
            return steps, job.evaluate.draw_ns(np.random.default_rng([job.seed, task.epoch, 3]), steps)
        compute_ns = job.compute_ns(task.epoch)[self._rank]
        steps = len(compute_ns) if task.max_steps < 0 else min(task.max_steps, len(compute_ns))
        if task.compute_s is not None:
            compute_ns = np.full(steps, round(task.compute_s * 1e9))
        return steps, compute_ns

    def _samples(self, task: EpochTask, count: int) -> list[int]:
        job = self._config.job
        dataset = job.dataset
        if task.is_eval:
            dataset = replace(dataset, num_files=len(job.eval_keys), file_shuffle="off", sample_shuffle="off")
        samples: list[int] = rank_order(dataset, task.epoch, self._rank, self._num_ranks)[:count].tolist()
        return samples

    def _compute(self, got_ns: int, compute_ns: int) -> int:
        """Compute for real, or sleep until the accelerator would be done; what the accelerator took."""
        if self._step is not None:
            return elapsed_ns(self._step)
        sleep_until(got_ns + compute_ns)
        return compute_ns

    def _meet(self) -> None:
        if self._num_ranks > 1:
            dist.barrier()

    def _ends_block(self, task: EpochTask, step: int) -> bool:
        every = self._config.job.steps_between_checkpoints
        return self._checkpoint is not None and not task.is_eval and every > 0 and not (step + 1) % every

    def _save(self, epoch: int, step: int) -> float:
        assert self._checkpoint is not None
        save = self._checkpoint.save
        return elapsed_ns(lambda: save(epoch, step + 1)) / 1e9


def _real_step(text: str) -> Callable[[], object] | None:
    """The step of a workload; None where computing is simulated."""
    if not text:
        return None
    from windtunnel import registry
    from windtunnel.whatifs.request import parse_step

    step = parse_step(text, kind="workload")
    workload = registry.get("workload", step.name).function(**step.parameters)
    run: Callable[[], object] = workload.step
    return run
