"""Accelerators that could be built: a template's numbers as columns, their area, the space of them.

In: counts and sizes, or nothing (the whole space). Out: ``Templates`` with an area each. A template has tensor cores of
width x depth multipliers, vector cores of as many lanes as a tensor core is wide, and one global buffer; all sizes are
powers of two. Not here: clock and memory of a chip, cycles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.hardware.rows import rows_of
from windtunnel.units import format_size, parse_size

__all__ = ["LARGEST", "LIMITS", "Templates", "area_um2", "template_space"]

# P templates
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MIB = 2**20
LIMITS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "num_tensor_cores": (1, 4096),
        "width": (2, 256),
        "depth": (2, 256),
        "num_vector_cores": (1, 4096),
        "vector_width": (2, 256),
        "sram_bytes": (2 * _MIB, 128 * _MIB),
    }
)
"""Least and greatest value by field: powers of two only."""
LARGEST = (8, 128, 128, 2, 128, 128 * _MIB)
"""Whose area no template of the space exceeds: what a TPU v4 has."""
_MIN_SHARE = 0.3
_MULTIPLIERS_PER_KIB = 64


@dataclass(frozen=True, eq=False)
class Templates:
    """P templates, a column per field.

    Parameters
    ----------
    num_tensor_cores, width, depth : int64 [P]
        Cores of ``width`` columns (outputs) by ``depth`` rows (sums over) of multipliers.
    num_vector_cores, vector_width : int64 [P]
    sram_bytes : int64 [P]
        The global buffer.
    """

    num_tensor_cores: Ints
    width: Ints
    depth: Ints
    num_vector_cores: Ints
    vector_width: Ints
    sram_bytes: Ints

    def __len__(self) -> int:
        return len(self.width)

    @property
    def area_um2(self) -> Floats:
        """Area of each [P]."""
        return area_um2(**{field.name: getattr(self, field.name) for field in fields(self)})

    def take(self, rows: Ints | NDArray[np.bool_]) -> Templates:
        """The given rows."""
        return Templates(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @classmethod
    def of(
        cls,
        num_tensor_cores: ArrayLike,
        width: ArrayLike,
        depth: ArrayLike,
        num_vector_cores: ArrayLike,
        vector_width: ArrayLike,
        sram_bytes: ArrayLike,
    ) -> Templates:
        """Templates of the space from numbers, or from columns of one length.

        Raises
        ------
        InputError
            A value is outside of the space; names the field, the value and the range.
        """
        given = (num_tensor_cores, width, depth, num_vector_cores, vector_width, sram_bytes)
        named = {name: np.atleast_1d(np.asarray(values)) for name, values in zip(LIMITS, given, strict=True)}
        for name, values in named.items():
            _require_in_space(name, values)
        columns = np.broadcast_arrays(*(values.astype(np.int64) for values in named.values()))
        return cls(*columns)


def _require_in_space(name: str, values: NDArray[np.generic]) -> None:
    low, high = LIMITS[name]
    with np.errstate(invalid="ignore", divide="ignore"):
        numbers = values.astype(np.float64)
        power = np.log2(numbers)
        wrong = ~((numbers >= low) & (numbers <= high) & (power == np.floor(power)))
    if wrong.any():
        shown = format_size if name == "sram_bytes" else str
        value = values[wrong][0]
        raise InputError(
            f"no template has {name} {value}",
            where=f"field {name}",
            fix=f"give a power of two from {shown(low)} to {shown(high)}",
        )


@cache
def _areas() -> Mapping[str, Mapping[int, float]]:
    """Area by part and size: of one multiplier or lane, or of a buffer by its bytes."""
    result: dict[str, dict[int, float]] = {}
    for row in rows_of("area.csv"):
        size = 1 if row["size"].startswith("one") else parse_size(row["size"])
        result.setdefault(row["part"], {})[size] = float(row["area_um2"])
    return result


def _of_buffer(part: str, sizes_bytes: Ints) -> Floats:
    table = _areas()[part]
    known = np.array(sorted(table), dtype=np.int64)
    index = np.clip(np.searchsorted(known, sizes_bytes), 0, len(known) - 1)
    wrong = known[index] != sizes_bytes
    if wrong.any():
        raise InputError(
            f"the area of a {part} of {int(sizes_bytes[wrong][0])} bytes is not known",
            where=f"{part} of a template",
            fix=f"known: powers of two from {format_size(int(known[0]))} to {format_size(int(known[-1]))}",
        )
    area: Floats = np.array([table[int(size)] for size in known])[index]
    return area


def area_um2(
    num_tensor_cores: ArrayLike,
    width: ArrayLike,
    depth: ArrayLike,
    num_vector_cores: ArrayLike,
    vector_width: ArrayLike,
    sram_bytes: ArrayLike,
) -> Floats:
    """Area of templates in square micrometers, by columns that are broadcast.

    Every core has a local buffer of 1 KiB per 64 multipliers, at least 1 KiB.

    Raises
    ------
    InputError
        A buffer has a size whose area is not known.

    Examples
    --------
    >>> float(area_um2(*LARGEST).round(2))
    278826676.31
    """
    given = (num_tensor_cores, width, depth, num_vector_cores, vector_width, sram_bytes)
    cores, wide, deep, vectors, num_lanes, sram = (np.asarray(item, dtype=np.int64) for item in given)
    per = _areas()
    tensor = per["tensor core"][1] * wide * deep + _of_buffer("local buffer", _local_bytes(wide * deep))
    vector = per["vector core"][1] * num_lanes + _of_buffer("local buffer", _local_bytes(num_lanes))
    area: Floats = cores * tensor + vectors * vector + _of_buffer("global buffer", sram)
    return area


def _local_bytes(multipliers: Ints) -> Ints:
    size: Ints = np.maximum(multipliers // _MULTIPLIERS_PER_KIB, 1) * 1024
    return size


def template_space(limit_um2: float | None = None) -> Templates:
    """Every template whose area is between 0.3 of the limit and the limit.

    With a single tensor core or a single vector core there is no least area.

    Parameters
    ----------
    limit_um2 : float, optional
        By default the area of ``LARGEST``.

    Raises
    ------
    InputError
        The limit is no area, or no template is as small.

    Examples
    --------
    >>> len(template_space())
    29360

    References
    ----------
    Wang, Tarnawski, Phanishayee, Mahajan, "Integrated hardware architecture and device placement search", ICML 2024.
    """
    limit = float(area_um2(*LARGEST)) if limit_um2 is None else float(limit_um2)
    if not (np.isfinite(limit) and limit > 0):
        raise InputError(f"{limit_um2} is no area", where="limit_um2", fix="give square micrometers above zero")
    # All that the limits allow, a vector core as wide as a tensor core.
    names = ("num_tensor_cores", "width", "depth", "num_vector_cores", "sram_bytes")
    axes = (_powers_of_two(*LIMITS[name]) for name in names)
    cores, wide, deep, vectors, sram = (item.ravel() for item in np.meshgrid(*axes, indexing="ij"))
    every = Templates(cores, wide, deep, vectors, wide, sram)
    area = every.area_um2
    is_single = (every.num_tensor_cores == 1) | (every.num_vector_cores == 1)
    result = every.take((area <= limit) & ((area >= _MIN_SHARE * limit) | is_single))
    if not len(result):
        raise InputError(
            f"no template is as small as {limit:,.0f} square micrometers",
            where="limit_um2",
            fix=f"give at least {area.min():,.0f}",
        )
    return result


def _powers_of_two(least: int, greatest: int) -> Ints:
    return 2 ** np.arange(least.bit_length() - 1, greatest.bit_length(), dtype=np.int64)
