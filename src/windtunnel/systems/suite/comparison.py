"""Comparison of two runs of the suite.

In: two folders of results (two runs, machines or commits), or two interleaved programs. Out: a ``Comparison``:
per workload "1.12x (1.10-1.14)" or "no difference", and the geometric mean over all. Not here: measuring a cell.
"""

# N samples, B bootstrap resamples, R rounds, P permutations

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.measure.stats import Estimate, medians_of_resamples
from windtunnel.systems.suite.results import Result, SuiteRun, load_run
from windtunnel.systems.suite.stable import block_length

__all__ = ["Compared", "Comparison", "compare", "compare_rounds", "geometric_mean", "overall_of", "permutation_p"]

Float = NDArray[np.float64]
_CONFIDENCE = 0.95
_MAX_SIGNS = 1 << 14
_SAME_MACHINE_NOTE = (
    "the intervals hold what varies within one process; another start of the same program may differ by more: "
    "compare with --interleave before believing a small difference"
)
Pair = tuple[str, Result, Result]


@dataclass(frozen=True)
class Compared:
    """One workload in both runs.

    Attributes
    ----------
    label, unit : str
    first, second : float
        Throughput in units per second (of a command: runs per second).
    speedup : Estimate
        Second over first with its 95 % interval; above 1 the second is faster.
    p_value : float
        Of the paired permutation test; NaN where the runs were not interleaved.
    """

    label: str
    unit: str
    first: float
    second: float
    speedup: Estimate
    p_value: float = math.nan

    @property
    def is_different(self) -> bool:
        """Whether the interval leaves 1 out, and the paired test (where there is one) agrees."""
        is_outside = not self.speedup.low <= 1 <= self.speedup.high
        return is_outside and (math.isnan(self.p_value) or self.p_value <= 1 - _CONFIDENCE)

    @property
    def text(self) -> str:
        """``1.12x (1.10-1.14)``.

        Examples
        --------
        >>> Compared("mlp", "samples", 1, 1.12, Estimate(1.12, 1.1, 1.14)).text
        '1.12x (1.10-1.14)'
        """
        return f"{self.speedup.value:.2f}x ({self.speedup.low:.2f}-{self.speedup.high:.2f})"

    @property
    def verdict(self) -> str:
        """``faster``, ``slower`` or ``no difference``."""
        if not self.is_different:
            return "no difference"
        return "faster" if self.speedup.value > 1 else "slower"


@dataclass(frozen=True)
class Comparison:
    """The comparison of all workloads of both runs, and their geometric mean.

    Attributes
    ----------
    overall : Compared
        Geometric mean of the speed-ups.
    only_first, only_second : tuple of str
        What cannot be compared.
    notes : tuple of str
        What a reader must know: other machine, unstable series.
    """

    rows: tuple[Compared, ...]
    overall: Compared
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def compare(first: SuiteRun | str | Path, second: SuiteRun | str | Path, *, seed: int = 0) -> Comparison:
    """Compare two runs of the suite, cell by cell.

    The ratio of the medians of time per unit; both sides are resampled in blocks as long as their steps are correlated.

    Parameters
    ----------
    first, second : SuiteRun or folder

    Raises
    ------
    InputError
        A folder holds no results, or the runs have no measured cell in common.
    """
    runs = [run if isinstance(run, SuiteRun) else load_run(run) for run in (first, second)]
    pairs, alone = _match_cells(*(run.measured for run in runs))
    if not pairs:
        raise InputError(
            "the two runs have no measured workload in common",
            where=f"{runs[0].path} and {runs[1].path}",
            fix="run the same workloads, sizes and batch sizes in both",
        )
    rows, resamples = [], []
    for label, before, after in pairs:
        row, logs_B = _compare_cells(label, before, after, seed)
        rows.append(row)
        resamples.append(logs_B)
    mean = geometric_mean([row.speedup.value for row in rows])
    return Comparison(
        tuple(rows),
        Compared("all", "", 1.0, mean, _interval(math.log(mean), np.asarray(resamples).mean(axis=0))),
        alone[0],
        alone[1],
        tuple(_notes(runs, pairs)),
    )


def _match_cells(first: Sequence[Result], second: Sequence[Result]) -> tuple[list[Pair], list[tuple[str, ...]]]:
    """Pair equal cells; if the runs used different numbers of threads, pair cells of equal work."""

    def exact(result: Result) -> Hashable:
        return result.cell

    def work(result: Result) -> Hashable:
        return result.cell.workload, result.cell.size, result.batch_size

    for key in (exact, work):
        local, theirs = ({key(result): result for result in results} for results in (first, second))
        shared = [index for index in local if index in theirs]
        if shared:
            break
    pairs = [(_label(local[index]), local[index], theirs[index]) for index in shared]
    alone = [tuple(_label(ours[our]) for our in ours if our not in shared) for ours in (local, theirs)]
    return pairs, alone


def _label(result: Result) -> str:
    ranks = f" x {result.cell.num_ranks}" if result.cell.num_ranks > 1 else ""
    return f"{result.cell.workload} b{result.batch_size} t{result.cell.num_threads}{ranks}"


def _compare_cells(label: str, before: Result, after: Result, seed: int) -> tuple[Compared, Float]:
    """Return one row, and the logarithms of its resampled speedups [B]."""
    sides = [np.asarray(result.ns_per_unit) for result in (before, after)]
    resampled = [
        medians_of_resamples(side, seed=seed + index, block_length=block_length(side))
        for index, side in enumerate(sides)
    ]
    logs_B = np.log(resampled[0] / resampled[1])
    rates = [1e9 / float(np.median(side)) for side in sides]
    row = Compared(label, before.unit, rates[0], rates[1], _interval(math.log(rates[1] / rates[0]), logs_B))
    return row, logs_B


def _interval(log_value: float, logs_B: Float) -> Estimate:
    # On a logarithmic scale, where twice as fast and twice as slow are equally far from 1.
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(logs_B, [tail, 1 - tail])
    return Estimate(math.exp(log_value), math.exp(min(low, log_value)), math.exp(max(high, log_value)))


def geometric_mean(ratios: ArrayLike) -> float:
    """Return the n-th root of the product: the mean that does not depend on which run is the baseline.

    Examples
    --------
    >>> geometric_mean([2.0, 0.5, 8.0])
    2.0
    """
    return math.exp(float(np.mean(np.log(np.asarray(ratios, dtype=np.float64)))))


def _notes(runs: Sequence[SuiteRun], pairs: Sequence[Pair]) -> list[str]:
    machines = [str(run.machine.get("cpu_name", "an unknown machine")) for run in runs]
    ids = [run.machine.get("machine_id") for run in runs]
    notes = [f"different machines: {machines[0]} and {machines[1]}"] if ids[0] != ids[1] else [_SAME_MACHINE_NOTE]
    for label, before, after in pairs:
        if before.cell.num_threads != after.cell.num_threads:
            notes.append(f"{label}: {before.cell.num_threads} threads and {after.cell.num_threads}")
        if before.is_unstable or after.is_unstable:
            notes.append(f"{label}: step times were still drifting, the ratio may be that of the drift")
        if before.is_disturbed or after.is_disturbed:
            notes.append(
                f"{label}: other programs had the cores for {before.waited_ratio:.0%} of the time before and "
                f"{after.waited_ratio:.0%} now: the ratio is not the workload's own"
            )
        if before.data != after.data:
            notes.append(f"{label}: trained on different data ({before.data}; {after.data})")
    return notes


def compare_rounds(label: str, unit: str, first_R: ArrayLike, second_R: ArrayLike, *, seed: int = 0) -> Compared:
    """Compare two interleaved programs by the time per unit of each round, paired.

    The speed-up is the median of the ratios within rounds; whole rounds are resampled.
    """
    before_R, after_R = np.asarray(first_R, dtype=np.float64), np.asarray(second_R, dtype=np.float64)
    logs_R = np.log(before_R / after_R)
    speedup = _interval(float(np.median(logs_R)), medians_of_resamples(logs_R, seed=seed))
    rates = [1e9 / float(np.median(side)) for side in (before_R, after_R)]
    return Compared(label, unit, rates[0], rates[1], speedup, permutation_p(logs_R, seed=seed))


def permutation_p(differences: ArrayLike, *, seed: int = 0) -> float:
    """Return the two-sided p value of paired differences under all sign changes (or a random sample of them).

    Source: Fisher, The Design of Experiments, 1935, section 21.

    Examples
    --------
    >>> permutation_p([1.0, 1.0, 1.0])
    0.25
    """
    values_R = np.asarray(differences, dtype=np.float64)
    # If both programs were equal, each round's difference might as well have the other sign: the p value is
    # the share of sign patterns whose sum is as extreme as the measured one (the first row).
    if 1 << len(values_R) <= _MAX_SIGNS:
        signs_PR = np.asarray(list(itertools.product((1.0, -1.0), repeat=len(values_R))))
    else:
        signs_PR = np.random.default_rng(seed).choice((1.0, -1.0), size=(_MAX_SIGNS, len(values_R)))
        signs_PR[0] = 1.0
    sums_P = np.abs(signs_PR @ values_R)
    return float(np.mean(sums_P >= sums_P[0] * (1 - 1e-12)))


def overall_of(rows: Sequence[Compared], logs_KR: Sequence[Float], *, seed: int = 0) -> Compared:
    """Return the geometric mean of interleaved rows; resamples draw the same rounds of all rows."""
    num_rounds = min(map(len, logs_KR))
    mean_R = np.mean([logs_R[:num_rounds] for logs_R in logs_KR], axis=0)
    mean = geometric_mean([row.speedup.value for row in rows])
    speedup = _interval(math.log(mean), medians_of_resamples(mean_R, seed=seed))
    return Compared("all", "", 1.0, mean, speedup, permutation_p(mean_R, seed=seed))
