"""What the efficiency of an operator may depend on: rows, their chips and bounds in, features out.

Sizes enter as ratios to what the chip has (waves, cache, ridge) and end where more of the same changes nothing, so
that a model which learned from small shapes says the same of large ones. Not here: the model (``tile``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.cost.bounds import Bounds
from windtunnel.cost.operators.physics import Chips, bytes_of, flops_of, grid_of
from windtunnel.cost.operators.table import OpTable

__all__ = ["OWN_TO_A_CHIP", "PRODUCT_FEATURES", "VECTOR_FEATURES", "product_features", "vector_features"]

Floats = NDArray[np.float64]
_CHIP = ("units", "log_bandwidth", "ridge", "log_cache", "flops_per_unit", "bandwidth_per_unit", "cache_per_unit")
OWN_TO_A_CHIP = [row for row, name in enumerate(_CHIP) if name != "ridge"]
"""Columns that name a chip rather than say what kind it is: an efficiency learned from them is that one chip's."""
PRODUCT_FEATURES = (
    *_CHIP,
    "tile_k",
    "tile_m",
    "log_tile",
    "tile_intensity_to_ridge",
    "reload_ratio",
    "log_n",
    "log_m",
    "log_k",
    "alignment",
    "compute_to_memory",
    "log_waves",
    "wave_fill",
    "tile_fill",
    "panels_to_cache",
    "operands_to_cache",
    "overhead_share",
)
VECTOR_FEATURES = (
    *_CHIP,
    "one_tensor",
    "is_gelu",
    "is_tanh",
    "is_pow",
    "is_powu",
    "is_relu",
    "bytes_to_cache",
    "log_h",
    "alignment",
    "rows_per_unit",
    "overhead_share",
)


def product_features(table: OpTable, chips: Chips, bounds: Bounds, tile: tuple[ArrayLike, ArrayLike]) -> Floats:
    """Features of matrix products with a tile along K and M, float32 [P, ``PRODUCT_FEATURES``]."""
    k, m = (np.broadcast_to(np.asarray(side, dtype=np.float64), len(table)) for side in tile)
    num_tiles, padding = grid_of(table, k, m)
    waves = num_tiles / chips.num_units
    moved = bytes_of(table)
    panel = 4 * table.N * (k + m)
    columns = (
        *_chip(chips),
        k,
        m,
        np.log2(k * m),
        np.log2(k * m / (2 * (k + m)) / chips.ridge),
        _log(num_tiles * panel / moved, 0, 8),
        _log(table.N, 0, 15),
        _log(table.M, 0, 12),
        _log(table.K, 0, 12),
        _alignment(table.N, table.K),
        _log(flops_of(table) / moved / chips.ridge, -6, 6),
        _log(waves, -8, 6),
        waves / np.ceil(waves),
        1 / padding,
        _log(panel * chips.num_units / chips.cache_bytes, -10, 6),
        _log(4 * (table.M * table.N + table.N * table.K) / chips.cache_bytes, -8, 6),
        _overhead(bounds),
    )
    return np.stack(columns, axis=1).astype(np.float32)


def vector_features(table: OpTable, chips: Chips, bounds: Bounds) -> Floats:
    """Features of elementwise operators, layer normalization and softmax, float32 [P, ``VECTOR_FEATURES``]."""
    moved = bytes_of(table)
    columns = (
        *_chip(chips),
        moved / (table.B * table.H) < 12,
        *(table.op == name for name in ("gelu", "tanh", "pow", "powu", "relu")),
        _log(moved / chips.cache_bytes, -10, 3),
        _log(table.H, 0, 12),
        _alignment(table.H, table.H),
        _log(table.B / chips.num_units, -6, 6),
        _overhead(bounds),
    )
    return np.stack(columns, axis=1).astype(np.float32)


def _chip(chips: Chips) -> tuple[Floats, ...]:
    return (
        chips.num_units,
        np.log2(chips.bytes_per_s),
        chips.ridge,
        np.log2(chips.cache_bytes),
        chips.flops_per_s / chips.num_units,
        chips.bytes_per_s / chips.num_units,
        chips.cache_bytes / chips.num_units,
    )


def _log(values: Floats, low: float, high: float) -> Floats:
    return np.clip(np.log2(values), low, high)


def _overhead(bounds: Bounds) -> Floats:
    return np.maximum(bounds.overhead_ns / bounds.bound_ns, 0.002)


def _alignment(first: Floats, second: Floats) -> Floats:
    """How often 2 divides both sizes, at most three times: vector loads need 2 or 4 elements side by side."""
    count: Floats = np.sum(
        [(first % 2**power == 0) & (second % 2**power == 0) for power in (1, 2, 3)], axis=0, dtype=np.float64
    )
    return count
