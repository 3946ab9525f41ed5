"""Stalls as differences of runs.

In: times per iteration of interleaved runs that differ in one factor, several of each. Out: ``Stalls``: each cause
with its interval and its share, the bottleneck, what a cache would do. Source: Stash, ICDCS 2023; DS-Analyzer, VLDB
2021. Not here: the runs (``run``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.measure.stats import Estimate, estimate_median, is_above_zero
from windtunnel.systems.stalls.features import Features

__all__ = ["CAUSES", "RUNS", "Reading", "Stall", "Stalls", "stalls_of"]

RUNS: dict[str, str] = {
    "alone": "one rank, a batch that rests in memory",
    "apart": "all ranks at once, each for itself",
    "together": "gradients averaged within the machine",
    "network": "gradients averaged over the network",
    "cached": "together, from files in memory",
    "cold": "together, from files on the disk",
    "everything": "over the network, from files on the disk",
}
"""Runs by name. Those of Stash are alone, together, cold, cached and network."""

CAUSES: dict[str, tuple[str, str, str]] = {
    "contention": ("apart", "alone", "memory and caches are shared"),
    "exchange": ("together", "apart", "averaging within the machine"),
    "network": ("network", "together", "averaging over the network"),
    "prep": ("cached", "together", "decoding samples"),
    "fetch": ("cold", "cached", "reading samples"),
}
"""By cause: the run with it, the run without it, and a description."""

_MIN_SHARE = 0.02
_CONFIDENCE = 1 - (1 - 0.99) / len(CAUSES)
"""Confidence per cause; at 90 % each, a third of all jobs without stalls would show one."""
_INTERCONNECT = ("together", "alone")  # as published: contention and exchange in one


@dataclass(frozen=True)
class Stall:
    """The time per iteration that one cause takes.

    Attributes
    ----------
    cause : str
    what : str
    per_iteration_ns : Estimate
        Median over turns of the difference of two runs, with its 90 % interval; not below 0.
    share : float
        Of the time of the run that has it.
    is_detected : bool
        Above 0 by a t-test over turns, at a confidence of 99 % for all causes together, and 2 % or more of the time.
    is_clamped : bool
        The run that has it was the faster one.
    """

    cause: str
    what: str
    per_iteration_ns: Estimate
    share: float
    is_detected: bool
    is_clamped: bool

    def __str__(self) -> str:
        if not self.is_detected:
            return f"not detected (< {max(self.per_iteration_ns.high, 0) / 1e6:.2f} ms)"
        low, high = self.per_iteration_ns.low / 1e6, self.per_iteration_ns.high / 1e6
        return f"{self.per_iteration_ns.value / 1e6:.2f} ms ({low:.2f}-{high:.2f})"


@dataclass(frozen=True)
class Reading:
    """Rates of the input pipeline, in samples per second and bytes.

    Attributes
    ----------
    bytes_per_sample : float
        In a file.
    memory_bytes_per_s, disk_bytes_per_s : float
        At which files are read that rest in memory, and that do not.
    prep_per_core_per_s : float
        Samples that one core decodes and changes.
    """

    bytes_per_sample: float
    memory_bytes_per_s: float
    disk_bytes_per_s: float
    prep_per_core_per_s: float

    def fetch_per_s(self, cached_share: float) -> float:
        """Return the samples read per second if a fraction of them is cached in memory (DS-Analyzer)."""
        slow = (1 - cached_share) / self.disk_bytes_per_s
        return 1 / (self.bytes_per_sample * (cached_share / self.memory_bytes_per_s + slow))

    def useful_cache(self, wanted_per_s: float) -> float | None:
        """Return the least cached fraction with which reading keeps up; None if memory is too slow."""
        fast, slow = 1 / self.memory_bytes_per_s, 1 / self.disk_bytes_per_s
        if self.fetch_per_s(0.0) >= wanted_per_s:
            return 0.0
        if self.fetch_per_s(1.0) < wanted_per_s or slow <= fast:
            return None
        # Time per byte is linear in the cached fraction c: c * fast + (1 - c) * slow = needed; solved for c.
        return (slow - 1 / (wanted_per_s * self.bytes_per_sample)) / (slow - fast)

    def useful_cores(self, wanted_per_s: float) -> int:
        """Return the number of cores that prepare as many samples per second."""
        return math.ceil(wanted_per_s / self.prep_per_core_per_s)


@dataclass(frozen=True)
class Stalls:
    """The stalls of a job by cause.

    Attributes
    ----------
    job : str
    num_ranks, batch_size : int
    features : Features
        What the job sends.
    times_ns : mapping
        By run: time per iteration in each turn, mean over ranks.
    stalls : tuple of Stall
        In the order of ``CAUSES``, those whose runs were made.
    reading : Reading, optional
    environment : mapping
        What was measured of links, disks and machine before the runs.
    warnings : tuple of str
    """

    job: str
    num_ranks: int
    batch_size: int
    features: Features
    times_ns: Mapping[str, NDArray[np.float64]]
    stalls: tuple[Stall, ...]
    reading: Reading | None
    environment: Mapping[str, Any]
    warnings: tuple[str, ...]

    @property
    def bottleneck(self) -> str:
        """Return the detected cause that takes longest, or ``compute``."""
        result = [stall for stall in self.stalls if stall.is_detected]
        return max(result, key=lambda stall: stall.per_iteration_ns.value).cause if result else "compute"

    def median_ns(self, run: str) -> float:
        """Return the median time per iteration of a run."""
        return float(np.median(self.times_ns[run]))

    def samples_per_s(self, run: str) -> float:
        """Return the samples per second of all ranks together."""
        num = 1 if run == "alone" else self.num_ranks
        return num * self.batch_size / self.median_ns(run) * 1e9

    def interconnect(self) -> Stall | None:
        """The interconnect stall of Stash: the slowdown among ranks of one machine, for any reason."""
        if any(item not in self.times_ns for item in _INTERCONNECT):
            return None
        return _stall("interconnect", *_INTERCONNECT, "as published: contention and exchange", self.times_ns)

    def sum_over_everything(self) -> float | None:
        """The sum of all stalls and the isolated time, over the run with every cause; None if that run is missing."""
        if "everything" not in self.times_ns or len(self.stalls) < len(CAUSES):
            return None
        missing = sum(self.median_ns(has) - self.median_ns(has_not) for has, has_not, _ in CAUSES.values())
        return (self.median_ns("alone") + missing) / self.median_ns("everything")

    def advice(self) -> list[str]:
        """Return advice on caches and cores; empty if no file was read."""
        if self.reading is None:
            return []
        requested = self.samples_per_s("together")
        share, cores = self.reading.useful_cache(requested), self.reading.useful_cores(requested)
        reported = [f"{cores} core{'s' if cores > 1 else ''} prepare{'' if cores > 1 else 's'} as fast as is trained"]
        if share is None:
            reported.append("not even memory reads as fast as is trained")
        elif share > 0:
            reported.append(f"reading keeps up from {share:.0%} of the samples in memory on")
        else:
            reported.append("the disk alone reads as fast as is trained")
        return reported

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        listed = [*self.stalls, *filter(None, [self.interconnect()])]
        return {
            "job": self.job,
            "num_ranks": self.num_ranks,
            "batch_size": self.batch_size,
            "features": vars(self.features),
            "runs": {
                name: {"iteration_ns": times.tolist(), "samples_per_s": self.samples_per_s(name)}
                for name, times in self.times_ns.items()
            },
            "stalls": [
                {
                    "cause": item.cause, "what": item.what, "ns": item.per_iteration_ns.value,
                    "low_ns": item.per_iteration_ns.low, "high_ns": item.per_iteration_ns.high, "share": item.share,
                    "detected": item.is_detected, "clamped": item.is_clamped,
                }
                for item in listed
            ],
            "bottleneck": self.bottleneck,
            "sum_over_everything": self.sum_over_everything(),
            "reading": None if self.reading is None else vars(self.reading),
            "environment": dict(self.environment),
            "warnings": list(self.warnings),
        }  # fmt: skip


def stalls_of(times_ns: Mapping[str, Sequence[float] | NDArray[np.float64]]) -> tuple[Stall, ...]:
    """Compute the stalls from measured runs.

    Parameters
    ----------
    times_ns : mapping
        By run, ``RUNS``: time per iteration, [turns]; the n-th of each was taken in the same turn.

    Raises
    ------
    InputError
        A run is not known, there are no turns or not as many of each, or a time is not above 0.
    """
    unknown = sorted(set(times_ns) - set(RUNS))
    if unknown:
        raise InputError(f"no run is called {unknown[0]!r}", where="runs", fix=f"known: {', '.join(RUNS)}")
    used = {name: np.asarray(times, dtype=np.float64) for name, times in times_ns.items()}
    if len({len(item) for item in used.values()}) != 1 or not all(len(item) for item in used.values()):
        counts = ", ".join(f"{name} {len(item)}" for name, item in used.items())
        raise InputError("runs are compared turn by turn", where=counts or "no runs", fix="make as many of each")
    for name, times in used.items():
        if not (np.isfinite(times) & (times > 0)).all():
            raise InputError(f"run {name!r} has a time that is not above 0", where=str(times.tolist())[:200])
    return tuple(
        _stall(cause, has, has_not, what, used)
        for cause, (has, has_not, what) in CAUSES.items()
        if has in used and has_not in used
    )


def _stall(cause: str, has: str, has_not: str, what: str, times_ns: Mapping[str, NDArray[np.float64]]) -> Stall:
    # Paired by turn: what disturbs the machine for a while is in both runs of a turn and cancels out.
    differences_ns = times_ns[has] - times_ns[has_not]
    missing = estimate_median(differences_ns)
    kept = Estimate(max(missing.value, 0.0), max(missing.low, 0.0), max(missing.high, 0.0))
    share = kept.value / float(np.median(times_ns[has]))
    is_detected = share >= _MIN_SHARE and is_above_zero(differences_ns, confidence=_CONFIDENCE)
    return Stall(cause, what, kept, share, is_detected, missing.value < 0)
