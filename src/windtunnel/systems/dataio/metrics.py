"""Accelerator utilization (AU) and throughput of a run, from the times of its steps.

In: per step, how long a rank waited for its batch (load) and computed; the wall time of the block of steps. Out: AU,
samples/s, and the same of a job of several ranks and epochs. Both DLIO's formulas and correct ones. Not here: where the
times come from (``worker``, ``model``, ``results``).

References
----------
DLIO, CCGrid 2021. The formulas are those of its program: AU = compute[s:n-e] / (block - proc[:s] - proc[n-e:]).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BlockTimes", "JobMetrics", "job_metrics"]

Floats = NDArray[np.float64]
# the program divides by the time without the first steps, but always leaves out two steps of the count
_DLIO_EXCLUDED = 2


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """Times of the steps between two checkpoints on one rank, in seconds.

    Attributes
    ----------
    load_s, compute_s : float64 [n]
        Wait for the batch, and computing on it; the barrier after a step is in neither.
    wall_s : float
        From the first request for a batch to the last barrier.
    batch_size : int
    proc_s : float64 [n], optional
        Load and compute as a program measured them together; by default their sum.
    """

    load_s: Floats
    compute_s: Floats
    wall_s: float
    batch_size: int
    proc_s: Floats | None = None

    @property
    def steps_s(self) -> Floats:
        """Load and compute of each step, float64 [n]."""
        return self.load_s + self.compute_s if self.proc_s is None else self.proc_s

    @property
    def num_steps(self) -> int:
        """Steps of the block, n."""
        return len(self.compute_s)

    def num_counted(self, num_start: int, num_end: int) -> int:
        """Steps that are left without the excluded ones at the start and the end."""
        return self.num_steps - num_start - num_end

    def time_s(self, num_start: int, num_end: int) -> float:
        """Wall time without that of the excluded steps."""
        proc = self.steps_s
        return self.wall_s - float(proc[:num_start].sum()) - float(proc[self.num_steps - num_end :].sum())

    def au_ratio(self, num_start: int = 1, num_end: int = 0) -> float | None:
        """Accelerator utilization, 0..1; None where the excluded steps are all that there are."""
        if self.num_counted(num_start, num_end) <= 0:
            return None
        compute_s = self.compute_s[num_start : self.num_steps - num_end]
        return float(compute_s.sum()) / self.time_s(num_start, num_end)

    def samples_per_s(self, num_start: int = 1, num_end: int = 0, *, is_dlio: bool = False) -> float | None:
        """Throughput of the rank; None where AU is undefined.

        DLIO counts n - 2 steps whatever it excludes, which with its defaults reports (n - 2) / (n - 1) of the truth.
        """
        count = self.num_counted(num_start, num_end)
        if count <= 0:
            return None
        counted = self.num_steps - _DLIO_EXCLUDED if is_dlio else count
        return counted * self.batch_size / self.time_s(num_start, num_end)


@dataclass(frozen=True)
class JobMetrics:
    """AU and throughput of all ranks, by epoch; None for an epoch in which they are undefined.

    Attributes
    ----------
    au_ratios : tuple of float or None
        Mean over ranks of each epoch.
    samples_per_s : tuple of float or None
        Sum over ranks of each epoch.
    notes : tuple of str
        Why something is undefined.
    """

    au_ratios: tuple[float | None, ...]
    samples_per_s: tuple[float | None, ...]
    notes: tuple[str, ...] = ()

    @property
    def au_ratio(self) -> float | None:
        """Mean over epochs; None where no epoch has one."""
        return _mean(self.au_ratios)

    @property
    def throughput(self) -> float | None:
        """Samples per second: mean over epochs; None where no epoch has one."""
        return _mean(self.samples_per_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain values in raw units."""
        defined = [value for value in self.au_ratios if value is not None]
        rates = [value for value in self.samples_per_s if value is not None]
        return {
            "au_ratio": self.au_ratio,
            "au_std": float(np.std(defined)) if defined else None,
            "au_ratios": list(self.au_ratios),
            "samples_per_s": self.throughput,
            "samples_per_s_std": float(np.std(rates)) if rates else None,
            "samples_per_s_by_epoch": list(self.samples_per_s),
            "notes": list(self.notes),
        }


def job_metrics(
    epochs: Mapping[int, Sequence[Sequence[BlockTimes]]],
    *,
    num_start: int = 1,
    num_end: int = 0,
    is_dlio: bool = False,
) -> JobMetrics:
    """Compute AU and throughput of a job.

    The AU of an epoch is the mean of its blocks, weighted by their steps, and then of its ranks; throughput adds up
    over ranks.

    Parameters
    ----------
    epochs : mapping
        By number of the epoch: for each rank its blocks.
    num_start, num_end : int
        Steps of each block that do not count.
    is_dlio : bool
        DLIO's throughput instead of the correct one.
    """
    ratios: list[float | None] = []
    rates: list[float | None] = []
    notes = []
    for epoch, ranks in epochs.items():
        values = [_rank_metrics(blocks, num_start, num_end, is_dlio) for blocks in ranks]
        defined = [value for value in values if value is not None]
        if len(defined) < len(values) or not defined:
            steps = min((block.num_steps for blocks in ranks for block in blocks), default=0)
            notes.append(
                f"AU of epoch {epoch} is undefined: {steps} steps per block, of which {num_start} at the start and "
                f"{num_end} at the end are excluded"
            )
            ratios.append(None)
            rates.append(None)
            continue
        ratios.append(float(np.mean([au for au, _ in defined])))
        rates.append(float(sum(rate for _, rate in defined)))
    return JobMetrics(tuple(ratios), tuple(rates), tuple(notes))


def _rank_metrics(
    blocks: Sequence[BlockTimes], num_start: int, num_end: int, is_dlio: bool
) -> tuple[float, float] | None:
    """AU and throughput of one rank in one epoch; None where no block has enough steps."""
    ratios, rates, weights = [], [], []
    for block in blocks:
        au, rate = block.au_ratio(num_start, num_end), block.samples_per_s(num_start, num_end, is_dlio=is_dlio)
        if au is not None and rate is not None:
            ratios.append(au)
            rates.append(rate)
            weights.append(block.num_steps)
    if not weights:
        return None
    return float(np.average(ratios, weights=weights)), float(np.average(rates, weights=weights))


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
