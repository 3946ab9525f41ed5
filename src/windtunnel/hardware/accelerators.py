"""Chips by what they are built of: arrays of multipliers, vector units, buffers, memory.

In: numbers, or a name that spells a template out. Out: an ``Accelerator``, which is a ``Device`` with its insides, so
that whatever prices a device prices it. A GPU is one, too: cores of several arrays that compute an output tile
together. Not here: cycles and energy (cost), columns of many templates (``templates``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from windtunnel.errors import InputError
from windtunnel.hardware.parts import Device, FourierEngine, SparseGrid, check_positive
from windtunnel.hardware.templates import Templates
from windtunnel.units import format_size, parse_size

__all__ = ["PHAZE_CLOCK_HZ", "Accelerator", "Arrays", "OperatorRate", "is_template_name", "parse_template"]

DATAFLOWS = ("os", "ws", "is")
"""Which operand stays in an array: the output, the weight, the input."""
PHAZE_CLOCK_HZ = 1.05e9
_PHAZE_BANDWIDTH, _PHAZE_MEMORY = 1.2e12, 32 * 2**30
_TYPES = {1: ("int8", "fp8"), 2: ("bf16", "fp16"), 4: ("fp32", "tf32"), 8: ("fp64",)}
_NAME = re.compile(r"phaze:(\d+)x(\d+)x(\d+)\+(\d+)x(\d+)\+([^+]+)")
_EXAMPLE = "phaze:8x128x128+2x128+128MiB (tensor cores x width x depth + vector cores x width + buffer)"


@dataclass(frozen=True, slots=True)
class Arrays:
    """Equal arrays of multipliers.

    Parameters
    ----------
    rows, cols, count : int
    dataflow : str
        ``os``, ``ws`` or ``is``: what stays in the array, output, weight or input.
    is_overlapped : bool
        Whether an array fills while it still computes what it was filled with before.
    per_core : int
        Arrays that compute one output tile together; they divide ``count``.
    tile_sides : tuple of int
        Possible sides of such tiles; empty: an array takes what it holds.
    tile_cycles : float
        That a tile takes besides its products.
    compute_ratio : float
        Of the peak that is reached.
    """

    rows: int
    cols: int
    count: int
    dataflow: str = "ws"
    is_overlapped: bool = False
    per_core: int = 1
    tile_sides: tuple[int, ...] = ()
    tile_cycles: float = 0.0
    compute_ratio: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no array.

        Raises
        ------
        InputError
            A size is not above zero, the dataflow is unknown; names the field and the value.
        """
        sizes = {name: getattr(self, name) for name in ("rows", "cols", "count", "per_core", "compute_ratio")}
        check_positive("arrays", **sizes, tile_sides=min(self.tile_sides, default=1))
        if self.dataflow not in DATAFLOWS:
            raise InputError(
                f"no dataflow is called {self.dataflow!r}", where="dataflow", fix=f"one of {', '.join(DATAFLOWS)}"
            )
        if self.count % self.per_core:
            raise InputError(f"{self.count} arrays do not make cores of {self.per_core}", where="per_core")
        if not (math.isfinite(self.tile_cycles) and self.tile_cycles >= 0 and self.compute_ratio <= 1):
            raise InputError(
                f"tile_cycles {self.tile_cycles} and compute_ratio {self.compute_ratio} are no cycles and no share",
                where="arrays",
                fix="give cycles of 0 or more, and a share of at most 1",
            )


@dataclass(frozen=True, slots=True)
class OperatorRate:
    """What was found for one operator on a chip that exists.

    Parameters
    ----------
    overhead_ns : float
        Of one launch, the call of it included.
    passes : float
        Over its bytes: 1 reads its inputs and writes its outputs once.
    row_bytes : float
        A longer row is read once more, as it does not fit where it is normalized.
    ratio_std : float
        Spread of predicted over measured times.
    """

    overhead_ns: float
    passes: float = 1.0
    row_bytes: float = math.inf
    ratio_std: float = 0.0


@dataclass(frozen=True, slots=True)
class Accelerator(Device):
    """A chip with its insides; see ``Device`` for the fields before ``arrays``.

    Parameters
    ----------
    arrays : tuple of Arrays
        Of every kind that it has; a product goes to the quickest.
    num_vector_units, vector_width : int
    sram_bytes : mapping of str to int
        ``{"global": bytes}``, or ``x``, ``w`` and ``y``: the input's, the weight's and the output's own buffers.
    word_bytes : int
        Of an operand in the arrays.
    memory_ratio : float
        Of the memory's bandwidth that is reached.
    memory_pj_per_bit : float
    operators : mapping of str to OperatorRate
        By short name, ``product`` for all of the arrays' work; ``other`` for what has no name here.
    sparse_grid : SparseGrid, optional
        Whose multipliers skip zeros of convolutions; what is no convolution goes to the arrays.
    fourier_engine : FourierEngine, optional
        For layers of circulant blocks.
    """

    arrays: tuple[Arrays, ...] = ()
    num_vector_units: int = 1
    vector_width: int = 1
    sram_bytes: Mapping[str, int] = field(default_factory=dict)
    word_bytes: int = 2
    memory_ratio: float = 1.0
    memory_pj_per_bit: float = 3.9
    operators: Mapping[str, OperatorRate] = field(default_factory=dict)
    sparse_grid: SparseGrid | None = None
    fourier_engine: FourierEngine | None = None

    def __post_init__(self) -> None:
        """Refuse what is no chip, and note its peaks.

        Raises
        ------
        InputError
            A number is not above zero, or the buffers do not hold one tile; names the field and the value.
        """
        owner = f"accelerator {self.name}"
        if not self.arrays:
            raise InputError("arrays must be at least one", where=owner)
        numbers = ("num_vector_units", "vector_width", "memory_ratio", "memory_pj_per_bit")
        check_positive(owner, **{name: getattr(self, name) for name in numbers}, clock_hz=self.clock_hz or 0.0)
        if self.word_bytes not in _TYPES:
            raise InputError(f"word_bytes cannot be {self.word_bytes}", where=owner, fix="one of 1, 2, 4, 8")
        if set(self.sram_bytes) not in ({"global"}, {"x", "w", "y"}):
            raise InputError(
                f"sram has {', '.join(self.sram_bytes) or 'nothing'}", where=owner, fix="give global, or x, w and y"
            )
        check_positive(owner, **{f"sram {name}": size for name, size in self.sram_bytes.items()})
        self._require_room(owner)
        peaks = self.peak_flops_per_s or dict.fromkeys(_TYPES[self.word_bytes], 2.0 * self.macs_per_s)
        object.__setattr__(self, "peak_flops_per_s", peaks)
        object.__setattr__(self, "sram_bytes", MappingProxyType(dict(self.sram_bytes)))
        object.__setattr__(self, "operators", MappingProxyType(dict(self.operators)))
        Device.__post_init__(self)

    def _require_room(self, owner: str) -> None:
        """Two tiles of what one array takes: what computes, and what is loaded meanwhile."""
        for array in self.arrays:
            tile = {"x": array.rows, "w": array.rows * array.cols, "y": array.cols}
            needs = tile if "x" in self.sram_bytes else {"global": sum(tile.values())}
            for name, words in needs.items():
                needed = 2 * words * self.word_bytes
                if self.sram_bytes[name] < needed:
                    raise InputError(
                        f"sram {name} of {self.sram_bytes[name]} bytes is smaller than one tile",
                        where=owner,
                        fix=f"an array of {array.rows}x{array.cols} needs {format_size(needed)} for two",
                    )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, ({field_.name: _plain(getattr(self, field_.name)) for field_ in fields(self)},)

    @property
    def macs_per_s(self) -> float:
        """Multiplications with addition of all arrays, at best."""
        return sum(array.rows * array.cols * array.count for array in self.arrays) * (self.clock_hz or 0.0)

    @property
    def num_lanes(self) -> int:
        """Of all vector units."""
        return self.num_vector_units * self.vector_width

    @property
    def buffer_bytes(self) -> int:
        """Of all buffers."""
        return sum(self.sram_bytes.values())

    @property
    def template(self) -> Templates | None:
        """As a template of the space; None where it is none, so that its area is not known."""
        array = self.arrays[0]
        if len(self.arrays) > 1 or array.per_core > 1:
            return None
        try:
            return Templates.of(
                array.count,
                array.cols,
                array.rows,
                self.num_vector_units,
                self.vector_width,
                self.sram_bytes.get("global", 0),
            )
        except InputError:
            return None

    def json(self) -> dict[str, Any]:
        """Every field, in plain types."""
        result = {field_.name: _plain(getattr(self, field_.name)) for field_ in fields(self)}
        result["arrays"] = [
            {field_.name: getattr(array, field_.name) for field_ in fields(array)} for array in self.arrays
        ]
        result["operators"] = {
            name: {field_.name: getattr(operator, field_.name) for field_ in fields(operator)}
            for name, operator in self.operators.items()
        }
        for name in ("sparse_grid", "fourier_engine"):
            part = result[name]
            result[name] = (
                None if part is None else {field_.name: getattr(part, field_.name) for field_ in fields(part)}
            )
        return result


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _rebuild(given: dict[str, Any]) -> Accelerator:
    return Accelerator(**given)


def is_template_name(name: str) -> bool:
    """Whether a name spells a template out."""
    return name.startswith("phaze:")


def parse_template(name: str) -> Accelerator:
    """The chip that a name spells out.

    Raises
    ------
    InputError
        The name is of another form, or a number of it is outside of the space.

    Examples
    --------
    >>> str(parse_template("phaze:8x128x128+2x128+128MiB"))
    'phaze:8x128x128+2x128+128MiB (32.0 GiB, 1.20 TB/s)'
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputError(f"{name!r} is no template", where="device", fix=f"write it like {_EXAMPLE}")
    cores, width, depth, vectors, num_lanes = (int(group) for group in match.groups()[:5])
    sram_bytes = parse_size(match[6])
    Templates.of(cores, width, depth, vectors, num_lanes, sram_bytes)
    return Accelerator(
        name=name,
        memory_bytes=_PHAZE_MEMORY,
        bandwidth_bytes_per_s=_PHAZE_BANDWIDTH,
        kind="accelerator",
        num_units=cores,
        clock_hz=PHAZE_CLOCK_HZ,
        source="PHAZE, ICML 2024: template at 1.05 GHz; memory as of a TPU v4",
        arrays=(Arrays(depth, width, cores),),
        num_vector_units=vectors,
        vector_width=num_lanes,
        sram_bytes={"global": sram_bytes},
    )
