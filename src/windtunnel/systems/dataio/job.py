"""The loading side of a training job: what a real run and its prediction have in common.

In: a configuration of DLIO. Out: a ``LoadingJob``: files, order, loader, times of steps. Equal seeds give equal orders
and step times, so that a prediction is about the very run. Not here: running (``run``), predicting (``predict``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.dataio.config import TimeDraw
from windtunnel.systems.dataio.order import Dataset, steps_per_epoch

__all__ = ["NO_TIME", "LoadingJob", "describe_job"]

NO_TIME = TimeDraw()

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LoadingJob:
    """A training job as far as its input is concerned.

    Attributes
    ----------
    name : str
    format : str
    keys, eval_keys : tuple of str
        Of files on the storage. Sample i of the training set is number i % samples_per_file of file
        i // samples_per_file.
    files, eval_files : tuple of Path
        The same where the storage is local; else empty.
    dataset : Dataset
        What determines the order of samples.
    record_bytes, tensor_bytes : int
        Of a sample in its file, and of the tensor that is made of it.
    batch_size, eval_batch_size : int
    num_ranks, num_workers, prefetch_factor : int
    context : str
        How loader workers are started; ``fork`` may deadlock once torch has threads.
    epochs : int
    max_steps : int
        Of all epochs; -1 for no limit.
    compute, preprocess, evaluate : TimeDraw
        Of a step; of a sample in the worker; of an evaluation step.
    is_kept_open : bool
        Whether a file is opened once instead of for each sample.
    is_direct : bool
        Files are read without the page cache.
    is_remote : bool
        Files are delivered by a service, and never in memory.
    limit_bytes_per_s : float
        To which readers of all ranks keep together; 0 for no limit.
    num_start, num_end : int
        Steps of each block that do not count.
    target_au : float
    seed : int
    steps_between_checkpoints : int
        -1 for none within an epoch.
    eval_after_epoch, epochs_between_evals : int
        The first evaluation, and the distance to the next one; 0 for none.
    compute_job : str
        A workload whose real step is run instead of sleeping.
    config : DlioConfig
        What the job comes from; readers and checkpoints take the rest from it.
    """

    name: str
    format: str
    keys: tuple[str, ...]
    files: tuple[Path, ...]
    dataset: Dataset
    record_bytes: int
    batch_size: int
    tensor_bytes: int = 0
    num_ranks: int = 1
    num_workers: int = 1
    prefetch_factor: int = 2
    context: str = "spawn"
    epochs: int = 1
    max_steps: int = -1
    compute: TimeDraw = NO_TIME
    preprocess: TimeDraw = NO_TIME
    evaluate: TimeDraw = NO_TIME
    is_kept_open: bool = False
    is_direct: bool = False
    is_remote: bool = False
    limit_bytes_per_s: float = 0.0
    num_start: int = 1
    num_end: int = 0
    target_au: float = 0.9
    seed: int = 123
    steps_between_checkpoints: int = -1
    eval_keys: tuple[str, ...] = ()
    eval_files: tuple[Path, ...] = ()
    eval_batch_size: int = 1
    eval_after_epoch: int = 0
    epochs_between_evals: int = 1
    compute_job: str = ""
    config: Any = None

    @property
    def num_steps(self) -> int:
        """Steps of each rank in an epoch.

        Raises
        ------
        InputError
            There is none: shows the arithmetic.
        """
        steps = steps_per_epoch(self.dataset, self.batch_size, self.num_ranks)
        return steps if self.max_steps < 0 else min(steps, self.max_steps)

    @property
    def stream_limit_bytes_per_s(self) -> float:
        """To which one reader keeps."""
        return self.limit_bytes_per_s / (self.num_ranks * max(self.num_workers, 1)) or math.inf

    def compute_ns(self, epoch: int) -> Ints:
        """Step times of all ranks in an epoch, int64 [R, N]."""
        random = np.random.default_rng([self.seed, epoch, 2])
        return self.compute.draw_ns(random, self.num_ranks * self.num_steps).reshape(self.num_ranks, self.num_steps)

    def has_checkpoint_after(self, epoch: int) -> bool:
        """Whether a checkpoint follows this epoch, counted from 1; not where steps decide."""
        options = self.config.checkpoint
        late = epoch - options.checkpoint_after_epoch
        return self.steps_between_checkpoints <= 0 and late >= 0 and not late % options.epochs_between_checkpoints

    def has_eval_after(self, epoch: int) -> bool:
        """Whether an evaluation follows this epoch, counted from 1."""
        first = self.eval_after_epoch
        return bool(self.eval_keys and first and epoch >= first and not (epoch - first) % self.epochs_between_evals)


def describe_job(job: LoadingJob, cache: str) -> str:
    """Describe a job in one line."""
    ranks = f"{job.num_ranks} rank{'s' * (job.num_ranks > 1)} x batch {job.batch_size}"
    return f"{job.name}: {ranks}, {job.num_workers} workers per rank, {job.format}, {cache} files"
