"""Utilization metrics of a training job.

In: step times and units, a captured graph, a count of FLOP, a peak, counters of the host. Out: throughput with its
interval, compute, arithmetic and CPU utilization, energy where the host tells it. Not here: running anything, finding
the stable phase (``stable``), counting FLOP and measuring the peak (rooms sources and cost).
"""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.graph import Graph, Kind
from windtunnel.measure.stats import Estimate, estimate_median
from windtunnel.measure.workers import run_to_end
from windtunnel.simulate import Timeline, replay
from windtunnel.systems.suite.stable import StablePhase, block_length, steady

__all__ = [
    "EnergyMeter",
    "arithmetic_utilization",
    "compute_utilization",
    "core_wait_seconds",
    "cpu_seconds",
    "cpu_utilization",
    "throughput",
]

_DEVICE_WORK = (Kind.COMPUTE, Kind.COPY, Kind.COMM)
_POLL_TIMEOUT_S = 5
_POLL_S = 0.5


def throughput(durations_ns: ArrayLike, units: ArrayLike, phase: StablePhase) -> Estimate:
    """Return the domain's units per second in the stable phase, with a 95 % interval.

    The median over steps of time per unit, upside down: it holds for steps of unequal length too, and what a spike
    costs is left out (the phase says how many there were).

    Parameters
    ----------
    durations_ns, units : array_like [N]
        Of every step, warm-up included.
    phase : StablePhase
        Of the same durations.

    Raises
    ------
    InputError
        A step processed nothing.

    Examples
    --------
    >>> from windtunnel.systems.suite.stable import stable_phase
    >>> throughput([2e9] * 30, [8] * 30, stable_phase([2e9] * 30)).value
    4.0
    """
    durations_N, units_N = np.asarray(durations_ns, dtype=np.float64), np.asarray(units, dtype=np.float64)
    if not (units_N > 0).all():
        raise InputError("a step processed no units", fix="count the units of every step")
    steady_N = (durations_N / units_N)[steady(durations_N, phase.cut)]
    per_unit = estimate_median(steady_N, confidence=0.95, block_length=block_length(steady_N))
    return Estimate(1e9 / per_unit.value, 1e9 / per_unit.high, 1e9 / per_unit.low)


def compute_utilization(graph: Graph, timeline: Timeline | None = None) -> float:
    """Return the fraction of the iteration in which an operator runs: kernels on a device, operators on a CPU.

    The union of the intervals of all tasks that compute, copy or send, over the makespan. What is left is Python,
    dispatch and waiting.
    """
    timeline = replay(graph) if timeline is None else timeline
    if timeline.makespan_ns <= 0:
        return 0.0
    is_busy = np.isin(graph.tasks["kind"], [int(kind) for kind in _DEVICE_WORK])
    return _union_ns(timeline.start_ns[is_busy], timeline.finish_ns[is_busy]) / timeline.makespan_ns


def _union_ns(start_ns: NDArray[np.int64], finish_ns: NDArray[np.int64]) -> int:
    """Return the length of the union of intervals."""
    if not len(start_ns):
        return 0
    order = np.argsort(start_ns, kind="stable")
    start_ns, finish_ns = start_ns[order], finish_ns[order]
    overlap_ns = np.concatenate([start_ns[:1], np.maximum.accumulate(finish_ns)[:-1]])
    return int(np.maximum(finish_ns - np.maximum(start_ns, overlap_ns), 0).sum())


def arithmetic_utilization(
    flops_by_dtype: Mapping[str, int], peak_flops_per_s: Mapping[str, float], duration_ns: float
) -> dict[str, float]:
    """Return the executed FLOP over those of this machine's best matrix product in the same time, by dtype.

    Parameters
    ----------
    flops_by_dtype : mapping
        Of one step; a dtype without a measured peak is left out.
    peak_flops_per_s : mapping
        By dtype, measured at the same number of threads.
    duration_ns : float
        Of one step.

    Examples
    --------
    >>> arithmetic_utilization({"float32": 3_000_000}, {"float32": 6e9}, 1_000_000)
    {'float32': 0.5}
    """
    return {
        dtype: flops / (peak_flops_per_s[dtype] * duration_ns / 1e9)
        for dtype, flops in flops_by_dtype.items()
        if dtype in peak_flops_per_s and duration_ns > 0
    }


def cpu_utilization(cpu_s: float, wall_s: float, num_cores: int) -> float:
    """Return the fraction of the cores' time that the job used.

    Examples
    --------
    >>> cpu_utilization(cpu_s=3.0, wall_s=2.0, num_cores=4)
    0.375
    """
    return cpu_s / (num_cores * wall_s) if wall_s > 0 and num_cores > 0 else 0.0


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its living child processes."""
    return time.process_time() + sum(map(_ticks_of, _descendants(os.getpid()))) / _ticks_per_s()


@functools.cache
def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def _descendants(pid: int) -> list[int]:
    result: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in tasks.read_text().split()]
        except OSError:  # the thread ended meanwhile
            continue
        for child in children:
            result += [child, *_descendants(child)]
    return result


def core_wait_seconds() -> float:
    """Return how long this process's main thread was runnable without a core, which other programs cause."""
    words = _read_or_empty(Path("/proc/self/schedstat")).split()
    return int(words[1]) / 1e9 if len(words) == 3 else 0.0


def _ticks_of(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended meanwhile
        return 0
    return int(fields[11]) + int(fields[12])


def _read_or_empty(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # this host does not tell
        return ""


class EnergyMeter:
    """The energy that processors or GPUs of the host have used; states if there is no counter.

    Source ``rapl`` sums the packages of Intel's and AMD's running average power limit counters (and memory where it
    is a domain of its own); ``nvidia-smi`` adds up the GPUs' power draw between readings, by trapezoids.

    Examples
    --------
    >>> EnergyMeter(root=Path("/nowhere"), use_gpu=False).reason
    'this host tells no energy: no readable RAPL counter, no GPU that tells its power'
    """

    def __init__(self, root: Path = Path("/sys/class/powercap"), *, use_gpu: bool = True) -> None:
        self._counted_uj = {zone: _microjoules(zone) for zone in sorted(root.glob("*rapl*:*")) if _counts_itself(zone)}
        self._joules = 0.0
        self._power_w = _gpu_power_w() if use_gpu else None
        self._looked_s = time.monotonic()
        names = (("rapl", self._counted_uj), ("nvidia-smi", self._power_w is not None))
        self.source = " + ".join(name for name, tells in names if tells)

    @property
    def reason(self) -> str:
        """The reason why there is no energy, or empty."""
        return "" if self.source else "this host tells no energy: no readable RAPL counter, no GPU that tells its power"

    def joules(self) -> float | None:
        """Return the energy since the meter's creation; None without a counter. Counters wrap: call every minute."""
        if not self.source:
            return None
        for zone, before_uj in self._counted_uj.items():
            self._counted_uj[zone] = _microjoules(zone)
            text = _read_or_empty(zone / "max_energy_range_uj").strip()
            self._joules += (self._counted_uj[zone] - before_uj) % (int(text) + 1 if text.isdigit() else 2**32) / 1e6
        elapsed_s = time.monotonic() - self._looked_s
        if self._power_w is not None and elapsed_s >= _POLL_S:  # asking the driver takes tens of milliseconds
            power_w = _gpu_power_w() or 0.0
            self._joules += (self._power_w + power_w) / 2 * elapsed_s
            self._power_w, self._looked_s = power_w, time.monotonic()
        return self._joules


def _counts_itself(zone: Path) -> bool:
    """Return counters of packages and memory; cores and graphics are parts of their package."""
    name = _read_or_empty(zone / "name").strip()
    return (name.startswith("package") or name == "dram") and _read_or_empty(zone / "energy_uj").strip().isdigit()


def _microjoules(zone: Path) -> int:
    text = _read_or_empty(zone / "energy_uj").strip()
    return int(text) if text.isdigit() else 0


def _gpu_power_w() -> float | None:
    """Return the current power of all GPUs in W; None without a sensor."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    answer = run_to_end(query, timeout_s=_POLL_TIMEOUT_S)
    if answer is None or answer.code:  # a driver that does not answer tells nothing
        return None
    watts = [float(line) for line in answer.stdout.split() if line.replace(".", "", 1).isdigit()]
    return sum(watts) if watts else None
