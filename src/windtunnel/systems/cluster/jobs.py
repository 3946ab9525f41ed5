"""Jobs that request GPUs, as columns.

In: arrays, each checked once. Out: ``Jobs``. Not here: reading files (``formats``), inventing jobs (``generator``).

Legend: J jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError

__all__ = ["Jobs"]

_LATEST_NS = 1 << 61


@dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs in order of arrival; each gets all requested GPUs or none.

    Attributes
    ----------
    job_id : str [J]
    arrival_ns : int64 [J]
    gpus : int64 [J]
    model : str [J]
        Empty where it is not known.
    batch : int64 [J]
        Samples per GPU and iteration; 0 where it is not known.
    work_ns : float64 [J]
        Run time on its GPUs if communication were free.
    iteration_ns : float64 [J]
        Of one iteration on one GPU, without communication: what a quantum counts; the whole work where not known.
    """

    job_id: NDArray[Any]
    arrival_ns: NDArray[np.int64]
    gpus: NDArray[np.int64]
    model: NDArray[Any]
    batch: NDArray[np.int64]
    work_ns: NDArray[np.float64]
    iteration_ns: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        *,
        arrival_s: ArrayLike,
        gpus: ArrayLike,
        work_s: ArrayLike,
        job_id: Sequence[object] | None = None,
        model: Sequence[str] | None = None,
        batch: ArrayLike | None = None,
        iteration_s: ArrayLike | None = None,
        source: str = "jobs",
    ) -> Jobs:
        """Check columns, and sort them by arrival (stable).

        Raises
        ------
        InputError
            There are none, a number means nothing, or two have one id; names the job.
        """
        arrival = np.asarray(arrival_s, dtype=np.float64)
        num = len(arrival)
        if not num:
            raise InputError("there are no jobs", where=source, fix="give a file with one line per job")
        names = np.array([str(index) for index in (range(num) if job_id is None else job_id)])
        demand, work = np.asarray(gpus, dtype=np.float64), np.asarray(work_s, dtype=np.float64)
        step = work if iteration_s is None else np.asarray(iteration_s, dtype=np.float64)
        sizes = np.zeros(num, np.int64) if batch is None else np.asarray(batch, dtype=np.int64)
        kinds = np.array([""] * num if model is None else [str(item) for item in model])
        _refuse(~np.isfinite(arrival) | (arrival < 0), names, arrival, "arrives at {} s", source)
        _refuse(~(demand >= 1) | (demand % 1 != 0), names, demand, "asks for {} GPUs", source)
        _refuse(~((work > 0) & (work < _LATEST_NS / 1e9)), names, work, "runs for {} s", source)
        _refuse(~((step > 0) & np.isfinite(step)), names, step, "takes {} s per iteration", source)
        _refuse(sizes < 0, names, sizes, "has {} samples per batch", source)
        unique, count = np.unique(names, return_counts=True)
        if count.max() > 1:
            raise InputError(
                f"{count.max()} jobs have the id {str(unique[count.argmax()])!r}", where=source, fix="give each its own"
            )
        order = np.argsort(arrival, kind="stable")
        created = cls(
            names[order],
            np.round(arrival * 1e9).astype(np.int64)[order],
            demand.astype(np.int64)[order],
            kinds[order],
            sizes[order],
            (work * 1e9)[order],
            (step * 1e9)[order],
        )
        for field in fields(created):
            getattr(created, field.name).setflags(write=False)
        return created

    def __len__(self) -> int:
        return len(self.gpus)

    def __str__(self) -> str:
        return f"{len(self):,} jobs, {self.gpu_hours:,.0f} GPU hours, at most {self.gpus.max()} GPUs each"

    @property
    def gpu_hours(self) -> float:
        """The GPU time of all jobs without communication."""
        return float((self.gpus * self.work_ns).sum() / 3.6e12)

    def take(self, rows: NDArray[Any]) -> Jobs:
        """Return some of the jobs, by a mask or by ascending numbers."""
        return Jobs(*(getattr(self, field.name)[rows] for field in fields(self)))

    def speed_up_arrivals(self, factor: float) -> Jobs:
        """Return the jobs with ``factor`` times the arrival rate.

        Raises
        ------
        InputError
            The factor is not above 0.
        """
        if not 0 < factor < float("inf"):
            raise InputError(f"arrivals cannot be {factor} times as fast", fix="give a factor above 0")
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return Jobs(**{**columns, "arrival_ns": np.round(self.arrival_ns / factor).astype(np.int64)})

    def require_fit(self, num_gpus: int) -> None:
        """Reject jobs that a cluster can never start.

        Raises
        ------
        InputError
            Names the largest.
        """
        large = np.flatnonzero(self.gpus > num_gpus)
        if len(large):
            row = large[self.gpus[large].argmax()]
            others = f", and {len(large) - 1} more are too large" if len(large) > 1 else ""
            raise InputError(
                f"job {self.job_id[row]} asks for {self.gpus[row]} GPUs, the cluster has {num_gpus}{others}",
                fix="describe a larger cluster, or leave these jobs out with --skip-too-large",
            )


def _refuse(wrong: NDArray[np.bool_], names: NDArray[Any], values: NDArray[Any], what: str, source: str) -> None:
    rows = np.flatnonzero(wrong)
    if len(rows):
        row = rows[0]
        reported = what.format(f"{values[row]:g}")
        others = f"; {len(rows) - 1} more are like it" if len(rows) > 1 else ""
        raise InputError(
            f"job {names[row]} {reported}", where=f"{source}: job {row} of {len(names)}{others}", fix="correct its line"
        )
