"""What the learned model sees of an operator on a GPU: its work relative to what the device can do.

In: ``Facts`` and a ``Device``. Out: features, and the base time that the model's factor multiplies. Sizes enter both by
themselves, since libraries choose their kernels by them, and relative to the device: how long the operations and the
bytes take at its peaks, how many waves of tiles its multiprocessors get, how much of the data its last cache holds.
Not here: what is learned of them
(``learned_process``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.operators.facts import COLUMNS, Facts
from windtunnel.cost.operators.formulas import START_NS, Rates, compute_and_memory_ns, formula_ns
from windtunnel.hardware import Device

__all__ = ["FEATURES", "base_ns", "features_of"]

# P rows of work, F features
Floats = NDArray[np.float64]

_LOGS = (
    "rows", "columns", "inner", "batch", "window", "stride", "channels", "num_groups", "num_tensors", "positions",
)  # fmt: skip
_FLAGS = ("is_causal", "is_strided")
_KINDS = {"variant": 9, "layout": 4}  # a column of its own for each value
_SIDES = ("alignment", "alignment_right")
_TILES = ((64, 64), (128, 128), (128, 256), (256, 128))
_SHORT_ROW = 2048  # elements
_TYPES = ("fp32", "tf32", "bf16", "fp16")
FEATURES = (
    *(f"log_{name}" for name in _LOGS),
    *_FLAGS,
    *(f"{name}_{value}" for name, count in _KINDS.items() for value in range(count)),
    *(f"{what}_{name}" for name in _SIDES for what in ("log", "fours_of", "vectors_of")),
    *(f"is_{name}" for name in _TYPES),
    "is_half",
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
    "inner_splits",
    "doublings_of_columns",
    "is_short",
    "log_output",
    "log_elements",
)
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
    features += [(column[name] == value).astype(float) for name, count in _KINDS.items() for value in range(count)]
    for name in _SIDES:
        # kernels on rows load four elements at a time where rows lie so, others 16 bytes
        elements = column[name] / column["item_bytes"]
        features += [_log(elements), (elements >= 4).astype(float), (column[name] >= 16).astype(float)]
    features += [(facts.dtype == name).astype(float) for name in _TYPES]
    features += [
        np.isin(facts.dtype.astype(str), ("bf16", "fp16")).astype(float),
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
        _log(splits),
        # kernels for short rows keep a row in the registers of a warp, and round its length up to a power of two
        np.ceil(_log(column["columns"])),
        (column["columns"] <= _SHORT_ROW).astype(float),
        _log(batch * column["rows"] * column["columns"]),
        _log(batch * column["rows"] * np.maximum(column["columns"], 1.0) * np.maximum(column["inner"], 1.0)),
    ]
    return np.stack(features, axis=1).astype(np.float32)


def base_ns(facts: Facts, device: Device, rates: Rates) -> Floats:
    """By a formula where there is one; else a start and the longer of computing and moving at the peaks [P]."""
    busy = np.maximum(*compute_and_memory_ns(facts, device))
    return formula_ns(facts, device, rates, START_NS + busy)


def _row_ns(facts: Facts, device: Device) -> Floats:
    """Bytes of one row or chunk at twice a multiprocessor's part of the bandwidth [P]."""
    moved = facts.column("read_bytes") + facts.column("written_bytes")
    rows = np.maximum(facts.column("rows") * np.maximum(facts.column("batch"), 1.0), 1.0)
    row_ns: Floats = 1e9 * moved / rows / (2.0 * device.bandwidth_bytes_per_s / device.num_units)
    return row_ns


def _log(values: Floats) -> Floats:
    logs: Floats = np.log2(np.maximum(values, 2.0**-20))
    return logs
