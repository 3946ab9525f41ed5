"""What operators compute and move, and the least time for it on each row's own device.

In: an ``OpTable`` and devices by name. Out: flops and bytes per row, ``Chips`` (what the row's device can do), bounds
with tiles and waves, and the plain roofline that published tables compare with. Not here: efficiencies (``tile``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.cost.bounds import Bounds, bounds
from windtunnel.cost.operators.table import OpTable
from windtunnel.errors import InputError, PriceError
from windtunnel.hardware import Device

__all__ = ["ITEM_BYTES", "Chips", "bytes_of", "chips_of", "flops_of", "grid_of", "roofline_ms", "tile_bounds"]

# P rows
Floats = NDArray[np.float64]

ITEM_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp64": 8}
_LANES_PER_UNIT = 64  # of one unit as the published sheets count units
_TWO_INPUTS = ("add", "div", "mul", "pow")
_OPERATIONS = {"ln": 6.0, "softmax": 5.0}  # per element, NeuSight's count


@dataclass(frozen=True, eq=False)
class Chips:
    """What the device of each row can do; every field float [P].

    Parameters
    ----------
    num_units : float [P]
        Multiprocessors of 64 lanes.
    flops_per_s, bytes_per_s : float [P]
    memory_bytes, cache_bytes : float [P]
    """

    num_units: Floats
    flops_per_s: Floats
    bytes_per_s: Floats
    memory_bytes: Floats
    cache_bytes: Floats

    @property
    def ridge(self) -> Floats:
        """Flops per byte above which computing binds."""
        return self.flops_per_s / self.bytes_per_s


def chips_of(table: OpTable, sheet: Mapping[str, Device], dtype: str = "fp32") -> Chips:
    """Look each row's device up.

    Raises
    ------
    InputError
        A device is not in the sheet, lacks a field that prices need, or has no peak for the type.
    """
    names, rows = np.unique(table.device.astype(str), return_inverse=True)
    numbers = np.array([_numbers(name, sheet, dtype) for name in names.tolist()]).reshape(-1, 5)
    return Chips(*numbers[rows].T)


def _numbers(name: str, sheet: Mapping[str, Device], dtype: str) -> tuple[float, ...]:
    if name not in sheet:
        raise InputError(f"no device is called {name!r}", where="sheet", fix=f"known: {', '.join(sorted(sheet))}")
    device = sheet[name]
    cache = device.last_cache_bytes
    if cache is None:
        raise InputError(f"{name} does not say l2_bytes", where=device.source or "sheet", fix="add the missing field")
    units = device.num_units * (device.lanes_per_unit or _LANES_PER_UNIT) / _LANES_PER_UNIT
    return units, device.flops_per_s(dtype), device.bandwidth_bytes_per_s, device.memory_bytes, cache


def flops_of(table: OpTable) -> Floats:
    """Operations asked for [P]: two per multiply-add of a product; per element 1, of ln 6 and of softmax 5."""
    per_element = np.array([_OPERATIONS.get(op, 1.0) for op in table.op.tolist()])
    return np.where(table.H > 0, per_element * table.B * table.H, 2 * table.B * table.M * table.N * table.K)


def bytes_of(table: OpTable, dtype: str = "fp32") -> Floats:
    """Bytes that each operand and the result take once [P].

    Raises
    ------
    PriceError
        The type is not known.
    """
    if dtype not in ITEM_BYTES:
        raise PriceError(f"no bytes are known for type {dtype!r}", fix=f"known: {', '.join(ITEM_BYTES)}")
    product = table.B * (table.M * table.N + table.N * table.K + table.M * table.K)
    tensors = np.where(np.isin(table.op, _TWO_INPUTS), 3.0, 2.0)
    return ITEM_BYTES[dtype] * np.where(table.H > 0, tensors * table.B * table.H, product)


def roofline_ms(table: OpTable, sheet: Mapping[str, Device]) -> Floats:
    """The plain fp32 roofline of the published tables, in milliseconds [P].

    A product is max(flops / peak, GiB / (GB/s)): the publication divides its bytes by 2^30 and its bandwidth by 1e9.
    A vector operator is its bytes over the bandwidth, both with 1e9.
    """
    chips = chips_of(table, sheet)
    moved = bytes_of(table)
    product = np.maximum(flops_of(table) / chips.flops_per_s, moved * (1e9 / 2**30) / chips.bytes_per_s)
    return 1e3 * np.where(table.H > 0, moved / chips.bytes_per_s, product)


def grid_of(table: OpTable, tile_k: ArrayLike, tile_m: ArrayLike) -> tuple[Floats, Floats]:
    """Tiles of a product's output [P], and flops really done over flops asked for [P].

    The first number in the name of a kernel lies along K and the second along M, as the published grids show.
    """
    k, m = np.asarray(tile_k, dtype=np.float64), np.asarray(tile_m, dtype=np.float64)
    num_k, num_m = np.ceil(table.K / k), np.ceil(table.M / m)
    return table.B * num_k * num_m, num_k * k * num_m * m / (table.M * table.K)


def tile_bounds(
    table: OpTable, chips: Chips, overhead_ns: ArrayLike, tile: tuple[ArrayLike, ArrayLike] | None, dtype: str = "fp32"
) -> Bounds:
    """Bounds of rows on their devices; with a tile, whole tiles in whole waves.

    Caches stay out: the sheets do not state their rates.
    """
    num_tiles, padding = grid_of(table, *tile) if tile else (np.zeros(len(table)), np.ones(len(table)))
    return bounds(
        flops_of(table),
        bytes_of(table, dtype),
        flops_per_s=chips.flops_per_s,
        bytes_per_s=chips.bytes_per_s,
        overhead_ns=overhead_ns,
        num_tiles=num_tiles,
        num_units=chips.num_units,
        padding_ratio=padding,
    )
