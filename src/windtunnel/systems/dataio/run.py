"""Real runs of a job's input pipeline: ranks over gloo, loader workers, real files.

In: a ``LoadingJob`` whose files exist. Out: a ``RunResult``: times of every step of every rank, by epoch, and how many
of the bytes came from the device. Before a cold epoch all files are dropped from the page cache, and seen to be. Not
here: what the times mean (``metrics``), the loop of a rank (``worker``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.base.progress import Progress
from windtunnel.errors import FlightError, InputError, WindtunnelError
from windtunnel.measure.disks import evict, read_all, require_disk, resident_share
from windtunnel.measure.workers import Workers
from windtunnel.systems.dataio.job import LoadingJob
from windtunnel.systems.dataio.metrics import JobMetrics, job_metrics
from windtunnel.systems.dataio.results import write_results
from windtunnel.systems.dataio.worker import EpochRecord, EpochTask, RankConfig

__all__ = ["EpochRun", "RunResult", "RunningJob", "run_job", "running"]

_MODULE = "windtunnel.systems.dataio.worker"
_MAX_RESIDENT = 0.02
_LOW_SHARE = 0.5
_PATIENCE_S, _POLL_S = 900.0, 0.01


@dataclass(frozen=True, eq=False)
class EpochRun:
    """One epoch of all ranks.

    Attributes
    ----------
    epoch : int
        Counted from 1.
    ranks : list of EpochRecord
    is_cold : bool
        Whether files were dropped from memory before.
    """

    epoch: int
    ranks: list[EpochRecord]
    is_cold: bool

    @property
    def device_ratio(self) -> float:
        """Share of the bytes read that the device delivered, 0..1."""
        spans = [span for record in self.ranks for span in record.spans]
        total = sum(span.read_bytes for span in spans)
        return sum(span.device_bytes for span in spans) / total if total else 0.0

    @property
    def step_s(self) -> float:
        """Mean time of a step after the first one of the epoch."""
        ends = [record.end_ns for record in self.ranks]
        num_steps = len(ends[0])
        if num_steps < 2:
            return (ends[0][-1] - self.ranks[0].start_ns) / 1e9
        return float(sum((end[-1] - end[0]) / (num_steps - 1) for end in ends) / len(ends) / 1e9)


@dataclass(frozen=True, eq=False)
class RunResult:
    """All epochs of a run.

    Attributes
    ----------
    job : LoadingJob
    epochs, evaluations : list of EpochRun
    """

    job: LoadingJob
    epochs: list[EpochRun]
    evaluations: list[EpochRun] = field(default_factory=list)

    def metrics(self, *, is_dlio: bool = False) -> JobMetrics:
        """AU and throughput of the training epochs."""
        blocks = {run.epoch: [record.blocks for record in run.ranks] for run in self.epochs}
        return job_metrics(blocks, num_start=self.job.num_start, num_end=self.job.num_end, is_dlio=is_dlio)

    @property
    def checkpoint_s(self) -> list[float]:
        """What each checkpoint took on its slowest rank."""
        return [
            max(times)
            for run in self.epochs
            for times in zip(*(record.checkpoint_s for record in run.ranks), strict=True)
        ]

    def notes(self) -> list[str]:
        """What a reader of the AU has to know: where its bytes came from, what is undefined."""
        notes = list(self.metrics().notes)
        for run in self.epochs:
            if run.device_ratio < _LOW_SHARE:
                state = "after its files were dropped from memory" if run.is_cold else "with files as they were"
                notes.append(
                    f"epoch {run.epoch} ({state}): only {run.device_ratio:.0%} of the bytes came from the device; "
                    "its AU is that of the page cache"
                )
        return notes

    def write(self, folder: Path) -> list[Path]:
        """Write the result files of DLIO, with its formulas."""
        return write_results(
            folder,
            {run.epoch: [record.blocks for record in run.ranks] for run in self.epochs},
            {run.epoch: [record.starts for record in run.ranks] for run in self.epochs},
            num_start=self.job.num_start,
            num_end=self.job.num_end,
            record_bytes=self.job.record_bytes,
            extra={
                "device_bytes_ratio": [run.device_ratio for run in self.epochs],
                "checkpoint_duration_seconds": self.checkpoint_s,
            },
        )


class RunningJob:
    """Ranks that wait for tasks; see ``running``."""

    def __init__(self, workers: Workers, job: LoadingJob) -> None:
        self._workers, self.job = workers, job

    def run(self, task: EpochTask, *, cache: str = "as-is") -> EpochRun:
        """Run an epoch.

        Parameters
        ----------
        task : EpochTask
        cache : str
            ``cold``: files are dropped from memory before; ``warm``: they are read before; ``as-is``.
        """
        files = self.job.eval_files if task.is_eval else self.job.files
        if cache == "cold" and not self.job.is_remote:
            drop_from_memory(files)
        elif cache == "warm":
            read_all(files)
        for rank in range(self.job.num_ranks):
            self._workers.send(task, rank)
        return EpochRun(task.epoch, self._receive(), cache == "cold")

    def _receive(self) -> list[EpochRecord]:
        """The records of all ranks; the error of one as soon as it is there, as the others wait for that rank."""
        records: dict[int, EpochRecord] = {}
        until_s = time.monotonic() + _PATIENCE_S
        while len(records) < self.job.num_ranks:
            for rank in range(self.job.num_ranks):
                if rank not in records and self._workers.has_answer(rank):
                    answer = self._workers.receive(rank)
                    if isinstance(answer, WindtunnelError):
                        raise answer
                    records[rank] = answer
            if time.monotonic() > until_s:
                raise FlightError(f"an epoch did not end within {_PATIENCE_S:.0f} s", where=self.job.name)
            time.sleep(_POLL_S)
        return [records[rank] for rank in range(self.job.num_ranks)]


def drop_from_memory(files: Sequence[Path]) -> None:
    """Drop files from the page cache.

    Raises
    ------
    FlightError
        The kernel keeps them.
    """
    evict(files)
    if (resident := resident_share(files)) > _MAX_RESIDENT:
        raise FlightError(
            f"the kernel keeps {resident:.0%} of the files in memory although they were dropped",
            where=str(files[0].parent),
            fix="put the data set on another disk, or run with --cache warm",
        )


@contextlib.contextmanager
def running(job: LoadingJob, *, checkpoint_folder: Path | None = None) -> Iterator[RunningJob]:
    """Start the ranks of a job; they end with the context.

    Raises
    ------
    InputError
        Files of the data set are missing.
    FlightError
        A rank ended.
    """
    missing = [path for path in (*job.files, *job.eval_files) if not path.exists()]
    if missing or not job.keys:
        raise InputError(
            f"{len(missing)} of {len(job.keys)} files of the data set do not exist",
            where=str(missing[0] if missing else "dataset.data_folder"),
            fix="windtunnel dataio run CONFIG writes them",
        )
    ranks = RankConfig(job, checkpoint_folder)
    with Workers(_MODULE, ranks, num_ranks=job.num_ranks, title="training job", patience_s=_PATIENCE_S) as workers:
        for rank in range(job.num_ranks):
            workers.receive(rank)
        yield RunningJob(workers, job)


def run_job(
    job: LoadingJob,
    *,
    cache: str = "cold",
    checkpoint_folder: Path | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Run all epochs of a job with its evaluations.

    Parameters
    ----------
    job : LoadingJob
    cache : str
        State of the page cache before each epoch; see ``RunningJob.run``. ``cold-start`` drops the files only before
        the first.
    checkpoint_folder : Path, optional
        Where checkpoints are written, if the job has any.
    progress : callable, optional

    Raises
    ------
    InputError
        An epoch has no steps, files are missing, or they lie in memory although they shall be read from a device.
    """
    _ = job.num_steps  # refuses an epoch without steps before anything starts
    if cache.startswith("cold") and job.files:
        require_disk(job.files[0].parent)
    epochs, evaluations, left = [], [], job.max_steps if job.max_steps >= 0 else job.num_steps * job.epochs
    with running(job, checkpoint_folder=checkpoint_folder) as ranks:
        for epoch in range(1, job.epochs + 1):
            if left <= 0:
                break
            state = ("cold" if epoch == 1 else "as-is") if cache == "cold-start" else cache
            epochs.append(ranks.run(EpochTask(epoch, max_steps=left), cache=state))
            left -= len(epochs[-1].ranks[0].spans)
            if job.has_eval_after(epoch):
                evaluations.append(ranks.run(EpochTask(epoch, is_eval=True), cache="as-is"))
            if progress is not None:
                progress("epochs", epoch, job.epochs)
    return RunResult(job, epochs, evaluations)
