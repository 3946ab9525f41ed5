"""The shipped model of operators on GPUs: Gaussian processes on physical features, by family, with intervals.

In: a file of arrays, or what was trained. Out: ``LearnedModel``: the time of rows of work on a device and how far off
it may be. A process says the logarithm of measured over base time, so that what a device can do at best, and what
kernels count, enter by physics and only the rest is learned. The file holds the timings' facts and weights; their
features are computed anew. Not here: training (a benchmark does it), the cost model that graphs are priced by
(``learned``).
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.operators.facts import COLUMNS, FAMILIES, Facts
from windtunnel.cost.operators.formulas import Rates, has_formula_alone
from windtunnel.cost.operators.learned_features import FEATURES, base_ns, features_of
from windtunnel.cost.operators.learned_process import GaussianProcess
from windtunnel.errors import SchemaVersionError
from windtunnel.hardware import Device
from windtunnel.hardware import device as device_by_name

__all__ = ["SHIPPED", "LearnedModel", "load_learned_model", "position_of", "read_shipped_model"]

# P rows of work, N timings, F features
Floats = NDArray[np.float64]

SHIPPED = Path(__file__).parent / "learned.npz"
_SCHEMA = 2
WIDTH_PER_OCTAVE = 0.15
"""How much wider an interval is, in logarithms, for each octave between a device and the nearest measured one."""
_OTHER_FAMILY, _OTHER_VENDOR = (
    1.0,
    2.0,
)  # octaves: other architectures have other kernels, other vendors other libraries


@dataclass(frozen=True, eq=False)
class LearnedModel:
    """Times of operators on GPUs.

    Parameters
    ----------
    rates : mapping of str to tuple of float
        Of each part of ``formulas``.
    timings : Facts
        N timings of operators, of families that are learned.
    timed_on : object [N]
        Names of the devices that the timings were taken on.
    weights : float32 [N]
        Of the timings in the process of their family, on log(measured / base).
    scales, centers : mapping of str to float32 [F] and to float
        By family, as of ``GaussianProcess``.
    ends : mapping of str to (float, float)
        By family, lower and upper end of log(measured / predicted) that hold ``level`` of what was held out.
    level : float
    chips : mapping of str to tuple of float
        Measured devices and where they lie among devices (``position_of``).
    """

    rates: Rates
    timings: Facts
    timed_on: NDArray[np.object_]
    weights: NDArray[np.float32]
    scales: Mapping[str, NDArray[np.float32]]
    centers: Mapping[str, float]
    ends: Mapping[str, tuple[float, float]]
    level: float
    chips: Mapping[str, tuple[Any, ...]]

    def covers(self, facts: Facts) -> NDArray[np.bool_]:
        """Rows of a family that was learned or that has a formula, bool [P]."""
        return np.isin(facts.family.astype(str), list(self.scales)) | has_formula_alone(facts)

    def durations_ns(self, facts: Facts, device: Device, reference: Device | None = None) -> Floats:
        """Predicted times [P].

        Parameters
        ----------
        facts : Facts
        device : Device
        reference : Device, optional
            Device whose learned factors are used; by default the device itself.
        """
        return base_ns(facts, device, self.rates) * np.exp(self.log_factors(facts, reference or device))

    def log_factors(self, facts: Facts, device: Device) -> Floats:
        """Logarithm of measured over base time [P]."""
        factors, is_learned = np.zeros(len(facts)), ~has_formula_alone(facts)
        features = features_of(facts, device)
        for family, process in self._processes.items():
            rows = np.flatnonzero(is_learned & (facts.family == family))
            if len(rows):
                factors[rows] = process.predict(features[rows])
        return factors

    @functools.cached_property
    def _processes(self) -> dict[str, GaussianProcess]:
        features = np.zeros((len(self.timings), len(FEATURES)), dtype=np.float32)
        for name in dict.fromkeys(self.timed_on.tolist()):
            rows = np.flatnonzero(self.timed_on == name)
            features[rows] = features_of(self.timings.take(rows), device_by_name(name))
        by_family = {name: self.timings.family == name for name in self.scales}
        return {
            name: GaussianProcess(features[rows], self.weights[rows], self.scales[name], self.centers[name])
            for name, rows in by_family.items()
        }

    def log_ends(self, facts: Facts, device: Device) -> tuple[Floats, Floats]:
        """Ends of the interval of log(measured / predicted) [P], wider the further a device is from measured ones."""
        ends = np.array([self.ends[family] for family in facts.family.tolist()]).reshape(-1, 2)
        further = WIDTH_PER_OCTAVE * self.distance(device)
        return -np.hypot(ends[:, 0], further), np.hypot(ends[:, 1], further)

    def distance(self, device: Device) -> float:
        """Octaves from a device to the nearest one that was measured."""
        own = position_of(device)
        return min((_distance(own, other) for other in self.chips.values()), default=math.inf)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model as arrays, compressed; equal models make equal files."""
        header = {
            "schema": _SCHEMA,
            "features": list(FEATURES),
            "columns": list(COLUMNS),
            "level": self.level,
            "ends": {name: list(ends) for name, ends in self.ends.items()},
            "chips": {name: list(position) for name, position in self.chips.items()},
        }
        dtypes, devices = (sorted(set(column.tolist())) for column in (self.timings.dtype, self.timed_on))
        header |= {
            "dtypes": dtypes,
            "devices": devices,
            "families": list(self.scales),
            "centers": dict(self.centers),
            "rates": {name: list(rates) for name, rates in self.rates.items()},
        }
        texts = zip((self.timings.family, self.timings.dtype, self.timed_on), (FAMILIES, dtypes, devices), strict=True)
        numbers = [[known.index(text) for text in column.tolist()] for column, known in texts]
        arrays = {
            # neighbors of one column are alike: files of columns are smaller than those of rows
            "values": np.ascontiguousarray(self.timings.values.T.astype(np.float32)),
            "texts": np.array(numbers, dtype=np.uint8),
            "weights": self.weights,
            "scales": np.stack(list(self.scales.values())),
        }
        text = np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **{"header": text, **arrays})  # type: ignore[arg-type]
        return Path(path)


def load_learned_model(path: str | os.PathLike[str]) -> LearnedModel:
    """Read a model.

    Raises
    ------
    SchemaVersionError
        It was written by a version with other features.
    """
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays.pop("header").tobytes())
    known_here = (_SCHEMA, list(FEATURES), list(COLUMNS))
    if tuple(header.get(name) for name in ("schema", "features", "columns")) != known_here:
        raise SchemaVersionError(
            "this model knows other features than this version",
            where=os.fspath(path),
            fix="train it anew with python -m benchmarks.gpu.train_operator_model",
        )
    known = (FAMILIES, header["dtypes"], header["devices"])
    family, dtype, devices = (
        np.array(names, dtype=object)[row] for names, row in zip(known, arrays["texts"], strict=True)
    )
    return LearnedModel(
        {name: tuple(rates) for name, rates in header["rates"].items()},
        Facts(family, arrays["values"].T.astype(np.float64), dtype),
        devices,
        arrays["weights"],
        dict(zip(header["families"], arrays["scales"], strict=True)),
        header["centers"],
        {name: (float(low), float(high)) for name, (low, high) in header["ends"].items()},
        float(header["level"]),
        {name: tuple(position) for name, position in header["chips"].items()},
    )


@functools.cache
def read_shipped_model() -> LearnedModel:
    """The model of this package."""
    return load_learned_model(SHIPPED)


def position_of(device: Device) -> tuple[Any, ...]:
    """Vendor, architecture, and octaves of what matters to operators: bandwidth, peaks, multiprocessors, last cache."""
    fp32 = device.peak_flops_per_s.get("fp32", 0.0) or max(device.peak_flops_per_s.values(), default=1.0)
    bf16 = device.peak_flops_per_s.get("bf16", device.peak_flops_per_s.get("fp16", fp32))
    cache = float(device.last_cache_bytes or 2**22)
    numbers = (device.bandwidth_bytes_per_s, fp32, bf16, float(device.num_units), cache)
    return device.vendor, device.architecture, *(round(math.log2(number), 4) for number in numbers)


def _distance(first: tuple[Any, ...], second: tuple[Any, ...]) -> float:
    octaves = math.dist(first[2:], second[2:])
    is_other_vendor, is_other_family = first[0] != second[0], first[1] != second[1]
    return octaves + (_OTHER_VENDOR if is_other_vendor else _OTHER_FAMILY if is_other_family else 0.0)
