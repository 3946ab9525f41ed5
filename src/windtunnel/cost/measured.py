"""Prices from what was measured on this host.

In: the profile database. Out: for work that ran here, its own time; for other work of a class that was sampled, an
efficiency between its samples' with a split-conformal interval. Both only for this host and these libraries. Not here:
measuring (``calibration``, captures).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.bounds import Bounds, bounds_on
from windtunnel.cost.host import is_host
from windtunnel.cost.interpolation import Process, coordinates
from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.pricer import Prices
from windtunnel.cost.work import Work, extents_of, lies_otherwise, work_of
from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.graph.kernel_classes import class_of
from windtunnel.hardware import Device
from windtunnel.hardware import machine as machine_of_host
from windtunnel.hardware.host import plain_name
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import libraries, machine

__all__ = ["CalibratedPricer", "Calibration", "MeasuredPricer", "remember"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

IN_GRAPH = "in a graph, all that an operator does itself (method 2)"
ALONE = "alone, warm, without the call (calibration, method 4)"
_FEWEST = 6
_WIDEST = 1.0  # of log(time): what varies more than this was not measured at all


def remember(graph: Graph, database: ProfileDatabase) -> int:
    """Keep what the distinct operators of a graph that was captured here took; returns how many.

    They are filed under the threads that the capture had.

    Raises
    ------
    InputError
        The graph was captured on another processor, with other libraries, or does not say where.
    """
    num_threads = _threads_of_capture(graph)
    work, row_T = work_of(graph)
    tasks = np.flatnonzero(row_T >= 0)
    order = tasks[np.argsort(row_T[tasks], kind="stable")]
    groups = np.split(graph.duration_ns[order].astype(np.float64), np.cumsum(work.num_tasks)[:-1]) if len(work) else []
    result, step_bytes = [], work.step_bytes
    for row, times in enumerate(groups):
        low, high = np.percentile(times, [25, 75])
        mean = float(times.mean())  # prices are added up
        if mean > 0:
            spread = float((high - low) / mean)
            # samples for prices of other sizes are of one type
            is_sample = float(work.dtype[row] == "fp32")
            amounts = {"flops": is_sample * work.flops[row], "bytes_moved": is_sample * work.bytes_moved[row]}
            amounts["step_bytes"] = step_bytes
            key = _key(work, row, num_threads)
            result.append(Measurement(*key, mean, mean, spread, len(times), **amounts))
    database.add(result)
    return len(result)


def _threads_of_capture(graph: Graph) -> int:
    """Threads of a capture on this host with these libraries."""
    known = dict(graph.meta.hardware)
    processor, ours = plain_name(str(known.get("processor", ""))), plain_name(machine_of_host().cpu_name)
    if processor != ours or not libraries().startswith(f"torch {known.get('torch')} "):
        raise InputError(
            f"this graph was captured on {processor or 'an unknown processor'} with torch {known.get('torch')}, "
            f"and this is {ours} with {libraries()}",
            fix="learn from captures of this host and these libraries",
        )
    return int(known["num_threads"])


class MeasuredPricer:
    """The very operator, with the very arguments, ran here before."""

    name: ClassVar[str] = "measured"
    is_measurement: ClassVar[bool] = True

    def __init__(self, database: ProfileDatabase | None = None) -> None:
        self.database = ProfileDatabase() if database is None else database

    def covers(self, work: Work, device: Device) -> Mask:
        """Rows that the database knows."""
        if not is_host(device):
            return np.zeros(len(work), dtype=bool)
        known = self._look_up(work, device)
        return np.array([item is not None for item in known], dtype=bool)

    def price(self, work: Work, device: Device) -> Prices:
        """Prices at the mean measured times; the interval is that of a mean over the repetitions."""
        limits = bounds_on(device, work.flops, work.bytes_moved, dtype=work.dtype.tolist())
        known = [item for item in self._look_up(work, device) if item is not None]
        value = limits.efficiency([item.new_ns for item in known])
        # a quartile range is 1.35 deviations of a normal distribution
        deviation = np.array([item.spread_ratio / 1.35 / max(item.rounds, 1) ** 0.5 for item in known])
        wide = np.exp(1.645 * np.minimum(deviation, _WIDEST))
        return Prices(limits, value, value / wide, value * wide)

    def _look_up(self, work: Work, device: Device) -> list[Measurement | None]:
        keys = [_key(work, row, device.num_units) for row in range(len(work))]
        result = self.database.find_all(keys)
        return [result.get(key) for key in keys]


def _key(work: Work, row: int, num_threads: int) -> tuple[str, str, str, str, int, str, str]:
    signature = " ".join(str(column[row]) for column in (work.shapes, work.dtypes, work.strides, work.arguments))
    return str(work.operator[row]), signature, "forward", IN_GRAPH, num_threads, machine(), libraries()


@dataclass(frozen=True, eq=False)
class Calibration:
    """What samples say about each class.

    Parameters
    ----------
    processes : dict of str to Process
    intervals : ConformalIntervals
        Over samples that were left out, in units of the process's own deviation.
    """

    processes: dict[str, Process]
    intervals: ConformalIntervals

    @classmethod
    def fit(cls, samples: Sequence[Measurement], limits: Bounds, *, level: float = 0.9) -> Calibration:
        """Fit every class that has enough samples; ``limits`` are their bounds, one row each."""
        efficiency = limits.efficiency([item.new_ns for item in samples])
        flops, moved = (np.array([getattr(item, name) for item in samples]) for name in ("flops", "bytes_moved"))
        extents = [extents_of(item.operator, item.signature) for item in samples]
        points = coordinates(flops, moved, np.array([item.step_bytes for item in samples]), extents)
        names = _names([item.operator for item in samples], [item.signature for item in samples])
        rows: dict[str, list[int]] = defaultdict(list)
        for row, sample in enumerate(samples):
            rows[class_of(sample.operator)].append(row)
        processes = {
            name: Process.fit(points[result], names[result], np.log(efficiency[result]))
            for name, result in sorted(rows.items())
            if len(result) >= _FEWEST
        }
        classes = [name for name, process in processes.items() for _ in process.left_out]
        left_out = np.concatenate([np.zeros(0), *(process.left_out for process in processes.values())])
        scales = np.concatenate([np.zeros(0), *(process.left_out_std for process in processes.values())])
        return cls(processes, ConformalIntervals.fit(classes, left_out, level=level, scales=scales))

    @property
    def errors(self) -> dict[str, float]:
        """Mean absolute relative error of samples that were left out, by class."""
        return {name: float(np.abs(np.expm1(-process.left_out)).mean()) for name, process in self.processes.items()}

    @property
    def error(self) -> float:
        """The same over all classes alike; NaN without samples."""
        result = list(self.errors.values())
        return float(np.mean(result)) if result else float("nan")


class CalibratedPricer:
    """Work of a class whose samples were measured here."""

    name: ClassVar[str] = "calibrated"

    def __init__(self, database: ProfileDatabase | None = None) -> None:
        self.database = ProfileDatabase() if database is None else database
        self._fitted: dict[tuple[str, int], Calibration] = {}

    def covers(self, work: Work, device: Device) -> Mask:
        """Rows of classes that have enough samples."""
        if not is_host(device) or not (known := self.calibration(device).processes):
            return np.zeros(len(work), dtype=bool)
        states: Mask = (work.dtype == "fp32") & ((work.flops > 0) | (work.bytes_moved > 0))
        knows: Mask = np.array([class_of(str(name)) in known for name in work.operator], dtype=bool)
        return states & knows

    def price(self, work: Work, device: Device) -> Prices:
        """Efficiencies between those of the samples; all that is asked for at once is taken to be the step."""
        result = self.calibration(device)
        limits = bounds_on(device, work.flops, work.bytes_moved, dtype=work.dtype.tolist())
        names = [class_of(str(name)) for name in work.operator]
        extents = np.array([extents_of(*pair) for pair in zip(work.operator, work.shapes, strict=True)])
        inputs = [" ".join(item) for item in zip(work.shapes, work.dtypes, work.strides, strict=True)]
        operators = _names(work.operator.tolist(), inputs)
        value, scale, step_bytes = np.zeros(len(work)), np.zeros(len(work)), work.step_bytes
        for name in dict.fromkeys(names):
            rows, process = np.array([item == name for item in names]), result.processes[name]
            points = coordinates(work.flops[rows], work.bytes_moved[rows], step_bytes, extents[rows])
            value[rows], scale[rows] = process.predict(points, operators[rows])
        unknown = np.full(len(work), np.nan)
        return result.intervals.around(Prices(limits, np.exp(value), unknown, unknown), names, scale)

    def calibration(self, device: Device) -> Calibration:
        """What the database's samples say about this device."""
        key = device.source, device.num_units
        if key not in self._fitted:
            samples = self.database.samples(machine(), libraries(), device.num_units)
            self._fitted[key] = calibration_of(samples, device)
        return self._fitted[key]


def _names(operators: Sequence[str], inputs: Sequence[str]) -> NDArray[np.object_]:
    """Names without overload; what works in place, or on other than rows, is another operator."""
    rows = zip(operators, inputs, strict=True)
    return np.array([item.partition(".")[0] + "/" * lies_otherwise(text) for item, text in rows], dtype=object)


def calibration_of(samples: Iterable[Measurement], device: Device) -> Calibration:
    """Fit samples, which are of fp32, against the bounds of a device; those of older methods do not count."""
    rows = [sample for sample in samples if sample.new_ns > 0 and sample.change in (IN_GRAPH, ALONE)]
    flops, moved = (np.array([getattr(row, name) for row in rows]) for name in ("flops", "bytes_moved"))
    return Calibration.fit(rows, bounds_on(device, flops, moved))


@registry.cost_model("measured", source="this host's profile database")
def measured() -> MeasuredPricer:
    """Price operators that ran on this host with the same arguments by what they took."""
    return MeasuredPricer()


@registry.cost_model("calibrated", source="Rasmussen and Williams 2006; Papadopoulos et al. 2002; this host's samples")
def calibrated() -> CalibratedPricer:
    """Price operators on this host between the samples that were measured here."""
    return CalibratedPricer()
