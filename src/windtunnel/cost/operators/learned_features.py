"""What the learned model sees of an operator on a GPU: its work relative to what the device can do.

In: ``Facts`` and a ``Device``. Out: features, and the base time that the model's factor multiplies. Sizes enter both by
themselves, since libraries choose their kernels by them, and relative to the device: how long the operations and the
bytes take at its peaks, how many waves of tiles its multiprocessors get, how much of the data its last cache holds.
Not here: the trees (``learned_trees``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.operators.facts import COLUMNS, Facts
from windtunnel.cost.operators.formulas import START_NS, formula_ns, has_formula
from windtunnel.hardware import Device

__all__ = ["FEATURES", "base_ns", "features_of"]

# P rows of work, F features
Floats = NDArray[np.float64]

_LOGS = ("rows", "columns", "inner", "batch", "window", "stride", "channels", "num_groups", "num_tensors")
_FLAGS = ("variant", "layout", "is_causal", "is_strided", "alignment", "alignment_right", "item_bytes")
_TILES = ((64, 64), (128, 128), (128, 256), (256, 128))
_TYPES = ("fp32", "tf32", "bf16", "fp16")
FEATURES = (
    *(f"log_{name}" for name in _LOGS),
    *_FLAGS,
    *(f"is_{name}" for name in _TYPES),
    "log_compute_ns",
    "log_memory_ns",
    "log_row_ns",
    "compute_to_memory",
    "written_ratio",
    "bytes_to_cache",
    "read_to_cache",
    "rows_per_unit",
    "elements_per_unit",
    *(f"{what}_{rows}x{columns}" for rows, columns in _TILES for what in ("waves", "fill")),
    "best_fill",
    "is_depthwise",
    "inner_splits",
    "log_output",
    "log_elements",
)
_IN_CHUNKS = ("update", "multi-tensor")
_CACHE_BYTES = 32.0 * 2**20  # of a device whose sheet does not say it


def features_of(facts: Facts, device: Device) -> NDArray[np.float32]:
    """Features of all rows on one device [P, ``FEATURES``]."""
    column = {name: facts.values[:, index] for index, name in enumerate(COLUMNS)}
    compute, memory = compute_and_memory_ns(facts, device)
    moved = column["read_bytes"] + column["written_bytes"]
    cache, units = float(device.last_cache_bytes or _CACHE_BYTES), float(device.num_units)
    batch = np.maximum(column["batch"], 1.0)
    is_matrix = column["inner"] > 0
    features: list[Floats] = [_log(column[name]) for name in _LOGS]
    features += [column[name] for name in _FLAGS]
    features += [(facts.dtype == name).astype(float) for name in _TYPES]
    features += [
        _log(compute),
        _log(memory),
        _log(_row_ns(facts, device)),
        _log(compute) - _log(memory),
        column["written_bytes"] / np.maximum(moved, 1.0),
        _log(moved / cache),
        _log(column["read_bytes"] / cache),
        _log(batch * column["rows"] / units),
        _log(batch * column["rows"] * column["columns"] / units),
    ]
    fills = []
    for rows, columns in _TILES:
        num_tiles = batch * np.ceil(column["rows"] / rows) * np.ceil(column["columns"] / columns)
        waves = np.where(is_matrix, num_tiles / units, 0.0)
        whole = np.maximum(np.ceil(waves), 1.0) * units * rows * columns
        fill = np.where(is_matrix, batch * column["rows"] * column["columns"] / whole, 0.0)
        fills.append(fill)
        features += [_log(waves), fill]
    smallest = batch * np.ceil(column["rows"] / 128) * np.ceil(column["columns"] / 128)
    splits = np.clip(units / np.maximum(smallest, 1.0), 1.0, np.maximum(column["inner"] / 64, 1.0))
    features += [
        np.max(fills, axis=0),
        ((column["num_groups"] > 1) & (column["num_groups"] == column["channels"])).astype(float),
        _log(splits),
        _log(batch * column["rows"] * column["columns"]),
        _log(batch * column["rows"] * np.maximum(column["columns"], 1.0) * np.maximum(column["inner"], 1.0)),
    ]
    return np.stack(features, axis=1).astype(np.float32)


def base_ns(facts: Facts, device: Device) -> Floats:
    """A start, plus the longer of computing and moving at the device's peaks; by a formula where there is one [P]."""
    compute, memory = compute_and_memory_ns(facts, device)
    busy = np.maximum(compute, memory)
    # a multi-tensor kernel is as long as its longest chunk, which one thread block works on
    in_chunks = np.isin(facts.family.astype(str), _IN_CHUNKS)
    num_kernels = np.where(in_chunks, np.maximum(facts.column("window"), 1.0), 1.0)
    base: Floats = START_NS * num_kernels + np.maximum(busy, np.where(in_chunks, _row_ns(facts, device), 0.0))
    return np.where(has_formula(facts), formula_ns(facts, device), base)


def _row_ns(facts: Facts, device: Device) -> Floats:
    """Bytes of one row or chunk at twice a multiprocessor's part of the bandwidth [P]."""
    moved = facts.column("read_bytes") + facts.column("written_bytes")
    rows = np.maximum(facts.column("rows") * np.maximum(facts.column("batch"), 1.0), 1.0)
    row_ns: Floats = 1e9 * moved / rows / (2.0 * device.bandwidth_bytes_per_s / device.num_units)
    return row_ns


def compute_and_memory_ns(facts: Facts, device: Device) -> tuple[Floats, Floats]:
    """Operations at the peak of their type and bytes at the bandwidth of the memory, each alone [P]."""
    peaks = {name: peak_of(device, name) for name in set(facts.dtype.tolist())}
    rates = np.array([peaks[name] for name in facts.dtype.tolist()])
    moved = facts.column("read_bytes") + facts.column("written_bytes")
    return 1e9 * facts.column("flops") / rates, 1e9 * moved / device.bandwidth_bytes_per_s


def peak_of(device: Device, dtype: str) -> float:
    """Peak of a type; that of fp32 where the sheet has none."""
    known = device.peak_flops_per_s
    return float(known.get(dtype, known.get("fp32", np.nan)))


def _log(values: Floats) -> Floats:
    logs: Floats = np.log2(np.maximum(values, 2.0**-20))
    return logs
