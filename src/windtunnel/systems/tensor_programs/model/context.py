"""Context of a prediction in addition to the program: device features and the physical bound by sample.

In: a program set and samples (program, device column). Out: rows of numbers for the network's second branch, and the
least seconds that a device needs. ``paper`` are CDMPP's eight device features; ``bound`` are the logarithms of the
bound's terms and of the device's rates, which also tell CPUs apart. Not here: networks, bounds of graphs.

Source: CDMPP (EuroSys 2024), section 4.3.
"""

# P programs, M samples, D devices

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from windtunnel.cost.bounds import Bounds, bounds
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.program_set import ProgramSet

__all__ = ["PAPER_DEVICE_FIELDS", "ContextKind", "bound_of", "context_rows", "paper_device_features"]

ContextKind = Literal["none", "paper", "bound"]
# field, its unit in the paper, greatest value of the released sheet, whether the integer part's logarithm is taken
PAPER_DEVICE_FIELDS = (
    ("clock_hz", 1e6, 2000.0, False),
    ("memory_bytes", 1e9, 64.0, True),
    ("cache_bytes.l3", 1024.0, 256.0, True),
    ("cache_bytes.l2", 2.0**20, 64.0, True),
    ("cache_bytes.l1d", 1024.0, 256.0, True),
    ("bandwidth_bytes_per_s", 1e9, 2048.0, True),
    ("peak_flops_per_s", 1e12, 12.0, False),
)
RATES = ("peak_flops_per_s", "bandwidth_bytes_per_s")
OPERATIONS_PER_LANE = 4  # two units, each multiplies and adds
NOMINAL_CLOCK_HZ = 2.5e9
NOMINAL_BYTES_PER_S = 1e10  # of a thread


def paper_device_features(device: Mapping[str, Any]) -> np.ndarray:
    """CDMPP's eight: a one, then clock, memory, caches, bandwidth and peak over those of a MAX device."""
    flat = {**device, **{f"cache_bytes.{level}": size for level, size in (device.get("cache_bytes") or {}).items()}}
    missing = [name for name, *_ in PAPER_DEVICE_FIELDS if flat.get(name) is None]
    if missing:
        raise InputError(f"the device lacks {', '.join(missing)}", where=str(device.get("name", "device")))
    entries = [1.0]
    for name, unit, most, is_logarithmic in PAPER_DEVICE_FIELDS:
        value = float(flat[name]) / unit
        if is_logarithmic:
            value, most = math.log2(max(1, int(value))), math.log2(most)
        entries.append(value / most)
    return np.array(entries)


def bound_of(programs: ProgramSet, samples: np.ndarray) -> Bounds:
    """The physical bound of each sample [M]: its flops and bytes on its device."""
    rows, columns = samples[:, 0], samples[:, 1]
    sheet = _sheet(programs)
    num_bytes = np.array([float(task.get("bytes", math.nan)) for task in programs.tasks])[programs.task[rows]]
    if not np.isfinite(num_bytes).all():
        raise InputError("a task has no number of moved bytes", where="tasks", fix="windtunnel models sample")
    return bounds(
        np.maximum(programs.flops[rows], 1.0),
        num_bytes,
        flops_per_s=sheet["peak_flops_per_s"][columns],
        bytes_per_s=sheet["bandwidth_bytes_per_s"][columns],
        overhead_ns=sheet["overhead_ns"][columns],
    )


def context_rows(programs: ProgramSet, samples: np.ndarray, kind: ContextKind) -> Any:
    """Raw context float64 [M, C]; C is 0 for ``none``."""
    if kind == "none":
        return np.zeros((len(samples), 0))
    if kind == "paper":
        return np.stack([paper_device_features(device) for device in programs.devices])[samples[:, 1]]
    bound, sheet = bound_of(programs, samples), _sheet(programs)
    terms = [bound.bound_ns, bound.compute_ns, bound.memory_ns, *(sheet[name][samples[:, 1]] for name in sorted(sheet))]
    logarithms: np.ndarray = np.log(np.maximum(np.column_stack(terms), 1e-3))
    return logarithms


def _sheet(programs: ProgramSet) -> dict[str, np.ndarray]:
    """Rates of the devices by field [D]: measured ones, or nominal ones where a sheet only has threads and vectors."""
    sheet = {name: np.array([_rate(device, name) for device in programs.devices]) for name in RATES}
    sheet["overhead_ns"] = np.array([float(device.get("overhead_ns") or 0.0) for device in programs.devices])
    for name in ("num_threads", "simd_bits"):
        if all(device.get(name) for device in programs.devices):
            sheet[name] = np.array([float(device[name]) for device in programs.devices])
    return sheet


def _rate(device: Mapping[str, Any], name: str) -> float:
    """A rate, measured or nominal: the efficiency that is learned takes up what a nominal rate is off by."""
    if device.get(name):
        return float(device[name])
    missing = [field for field in ("num_threads", "simd_bits") if not device.get(field)]
    if missing:
        fields = ", ".join((name, *missing))
        raise InputError(f"the device lacks {fields}", where=str(device.get("name", "device")), fix="measure its rates")
    threads = float(device["num_threads"])
    if name == "bandwidth_bytes_per_s":
        return threads * NOMINAL_BYTES_PER_S
    return threads * float(device["simd_bits"]) / 32 * OPERATIONS_PER_LANE * NOMINAL_CLOCK_HZ
