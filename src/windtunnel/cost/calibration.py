"""Measure this host until prices for it hardly get better.

In: a budget of time. Out: ``Calibrated``: limits, samples per class in the profile database, the expected error before
and after every round, and why it ended. Every round draws alike from all classes, so that the errors of rounds can be
compared; a curve a / (n + b) + c through them forecasts what the next would gain. Not here: the model between samples
(``measured``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost.bounds import bounds_on
from windtunnel.cost.host import host_device
from windtunnel.cost.kernels import Kernel, TensorShape
from windtunnel.cost.lookup import Stand, Table
from windtunnel.cost.measured import ALONE, Calibration, calibration_of
from windtunnel.cost.operator_samples import CLASSES, Sample, draw
from windtunnel.errors import InputError
from windtunnel.graph.kernel_classes import class_of
from windtunnel.hardware import Device
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.threads import threads
from windtunnel.measure.turns import rounds

__all__ = ["Calibrated", "Round", "calibrate", "forecast_gain"]

MIN_GAIN = 0.005
_PER_CLASS, _FIRST_PER_CLASS = 4, 8
_FEWEST_ROUNDS = 6
_FEWEST_TURNS, _MAX_TURNS, _ROUND_S = 5, 25, 0.02
_MIN_SHARE = 0.1  # of what was measured: a call is not known to the nanosecond

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Round:
    """After one round: samples so far, and the mean error of samples that were left out."""

    num_samples: int
    error: float


@dataclass(frozen=True)
class Calibrated:
    """What a calibration found.

    Parameters
    ----------
    device : Device
    bound_error : float
        Mean absolute error of the bound alone, which knows no efficiencies.
    rounds : tuple of Round
    errors : dict of str to float
        By class at the end.
    forecast_gain : float
        What a further round would gain, NaN where too few rounds say it.
    reason : str
        Why it ended: ``settled``, ``budget``.
    """

    device: Device
    bound_error: float
    rounds: tuple[Round, ...]
    errors: dict[str, float]
    forecast_gain: float
    reason: str
    calibration: Calibration = field(repr=False)

    @property
    def error(self) -> float:
        """Expected mean absolute error of a price."""
        return self.rounds[-1].error if self.rounds else float("nan")


def calibrate(
    budget_s: float = 300.0,
    *,
    num_threads: int = 0,
    database: ProfileDatabase | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibrated:
    """Measure limits and samples of this host, for at most so long.

    Parameters
    ----------
    budget_s : float
        Of sampling; the limits come first and take some seconds.
    num_threads : int
        0: all cores.
    database : ProfileDatabase, optional
        The user's own by default: samples of earlier calibrations count.
    seed : int
    progress : callable, optional
        Called with (what, done, total).

    Raises
    ------
    InputError
        The budget is not above zero, or the host has fewer threads.
    MissingExtraError
        PyTorch is not installed.
    """
    require("torch", extra="torch")
    if not budget_s > 0:
        raise InputError(f"nothing can be measured in {budget_s} s", where="budget", fix="use 1m or more")
    kept = ProfileDatabase() if database is None else database
    device = host_device(num_threads, database=kept)
    rng = np.random.default_rng(seed)
    begin = time.monotonic()
    found_rounds: list[Round] = []
    result, gain, reason = _fit(kept, device), float("inf"), ""
    while not reason:
        elapsed_s = time.monotonic() - begin
        if progress is not None:
            progress(f"round {len(found_rounds) + 1}", min(int(elapsed_s), int(budget_s)), max(int(budget_s), 1))
        # Classes that have too few samples first, then all alike.
        missing = [name for name in CLASSES if name not in result.processes]
        count = _FIRST_PER_CLASS if missing else _PER_CLASS
        kept.add(
            _measure_samples([draw(name, rng) for name in missing or CLASSES for _ in range(count)], device.num_units)
        )
        result = _fit(kept, device)
        found_rounds.append(Round(sum(len(process.left_out) for process in result.processes.values()), result.error))
        gain = forecast_gain(found_rounds)
        reason = "settled" if gain < MIN_GAIN else "budget" if time.monotonic() - begin > budget_s else ""
    samples = _samples(kept, device)
    # Mean over classes of what the bound alone is off.
    limits = bounds_on(device, [sample.flops for sample in samples], [sample.bytes_moved for sample in samples])
    off = np.abs(limits.bound_ns / np.array([sample.new_ns for sample in samples]) - 1.0)
    names = np.array([class_of(sample.operator) for sample in samples])
    return Calibrated(
        device,
        float(np.mean([off[names == name].mean() for name in np.unique(names)])) if len(samples) else float("nan"),
        tuple(found_rounds),
        result.errors,
        gain,
        reason,
        result,
    )


def forecast_gain(rounds: Sequence[Round]) -> float:
    """How much smaller the error would be after another round; infinite while too few rounds say it.

    Fits a / (n + b) + c with a, c >= 0 for b on a grid, by least squares.
    """
    if len(rounds) < _FEWEST_ROUNDS:
        return float("inf")
    counts, errors = (
        np.array([getattr(round_, name) for round_ in rounds], dtype=float) for name in ("num_samples", "error")
    )
    following = counts[-1] + max(counts[-1] - counts[-2], 1.0)
    fits = [_curve(counts, errors, shift) for shift in counts[-1] * np.array([0.0, 0.1, 0.3, 1.0, 3.0])]
    scale, shift, _ = min(fits, key=lambda fit: fit[2])
    return float(max(scale / (counts[-1] + shift) - scale / (following + shift), 0.0))


def _curve(counts: Floats, errors: Floats, shift: float) -> tuple[float, float, float]:
    falling = 1.0 / (counts + shift)
    centered = falling - falling.mean()
    slope = max(float(centered @ errors / (centered @ centered)), 0.0)
    rest = float(errors.mean() - slope * falling.mean())
    return slope, shift, float(((slope * falling + rest - errors) ** 2).sum())


def _samples(database: ProfileDatabase, device: Device) -> list[Measurement]:
    return database.samples(machine(), libraries(), device.num_units)


def _fit(database: ProfileDatabase, device: Device) -> Calibration:
    return calibration_of(_samples(database, device), device)


def _measure_samples(samples: Sequence[Sample], num_threads: int) -> list[Measurement]:
    times = _times([item.kernel for item in samples], num_threads)
    return [
        Measurement(
            item.kernel.operator,
            item.kernel.signature,
            "forward",
            ALONE,
            num_threads,
            machine(),
            libraries(),
            times[item.kernel],
            times[item.kernel],
            flops=float(item.flops),
            bytes_moved=float(item.bytes_moved),
        )
        for item in samples
        if times.get(item.kernel, 0.0) > 0
    ]


def _times(kernels: Sequence[Kernel], num_threads: int) -> Table:
    """Lower quartile of each, without the call itself: a capture counts that with Python.

    With one thread its own time counts, so that others on the core do not.
    """
    # An operator that does nothing.
    import torch

    call = Kernel("aten::detach.default", (TensorShape((1,), (1,), torch.float32),))
    with threads(num_threads):
        clock = time.thread_time_ns if num_threads == 1 else time.perf_counter_ns
        stand = Stand([call, *kernels], clock, is_warm=True)
        stand.rehearse()
        for _ in rounds(_FEWEST_TURNS, _MAX_TURNS, _ROUND_S * len(kernels)):
            stand.round()
    table = stand.table()
    return {kernel: max(table[kernel] - table[call], _MIN_SHARE * table[kernel]) for kernel in kernels}
