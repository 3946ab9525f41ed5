"""Chips, parts of chips that are made for one kind of layer, wires, and how the wires are laid.

In: numbers from a data sheet. Out: frozen values that checked themselves once. Rates are per second and per direction.
Grids that skip zeros and transforms are what an ``Accelerator`` has in addition to its arrays. Not here: how long they
take (``systems.chips.accelerators``).

Source of the grids: Sarma et al., "Exploiting Activation based Gradient Output Sparsity" (2021), whose sizes are not
published: the grid's are ours; of the transforms: Liao et al. (ICCAD 2017) and Wang et al. (AAAI 2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from windtunnel.errors import InputError
from windtunnel.units import format_rate, format_size

__all__ = ["CHUNK", "MEMORY_BLOCK_BITS", "OPTIONAL_FIELDS", "Device", "FourierEngine", "Link", "SparseGrid", "Topology"]

OPTIONAL_FIELDS = (
    "lanes_per_unit",
    "clock_hz",
    "num_threads",
    "simd_bits",
    "l1_bytes",
    "shared_bytes",
    "l2_bytes",
    "l3_bytes",
    "cache_bandwidth_bytes_per_s",
    "launch_overhead_ns",
)
"""What a data sheet may not say: None there, never 0."""

CHUNK = 32  # a word of ``bitmaps``, which needs numba; hardware is looked up without it
"""Operands that are stored together: one word of bits, then those that are not zero."""
MEMORY_BLOCK_BITS = 36 * 1024
"""Of a block of memory, as an FPGA has them."""


def check_positive(owner: str, **values: float) -> None:
    """Refuse what is not a finite number above zero.

    Raises
    ------
    InputError
        Names the owner, the field and its value.
    """
    for name, value in values.items():
        if not math.isfinite(value) or value <= 0:
            raise InputError(f"{name} must be above zero, not {value}", where=owner, fix="give a finite number")


@dataclass(frozen=True, slots=True)
class Device:
    """One chip: what it can compute, hold and move at best.

    Parameters
    ----------
    name : str
    memory_bytes : int
    bandwidth_bytes_per_s : float
        Between its memory and its units.
    peak_flops_per_s : mapping of dtype to float
        Dense peak by ``fp64 fp32 tf32 bf16 fp16 fp8 int8``; a dtype that is absent is not supported or not known.
    kind : str
        ``gpu``, ``cpu`` or another accelerator's.
    num_units : int
        Multiprocessors, compute units or cores.
    source : str
        Where the numbers come from, and their date.
    architecture : str
        Family, such as ``ampere`` or ``zen4``.
    lanes_per_unit : int, optional
        fp32 lanes of one unit. This and what follows is None where it is not known or does not apply.
    clock_hz : float, optional
        That the peaks are stated at: boost of a GPU, base of a CPU.
    num_threads : int, optional
        Hardware threads of a CPU; resident threads of one unit of a GPU.
    simd_bits : int, optional
        Width of one vector register of a CPU.
    l1_bytes, shared_bytes : int, optional
        Of one unit; on a GPU ``l1_bytes`` is what L1 and shared memory have together.
    l2_bytes, l3_bytes : int, optional
        Of the whole chip.
    cache_bandwidth_bytes_per_s : float, optional
        Of the last cache, where its maker states it.
    launch_overhead_ns : int, optional
        From one kernel's end to the next one's begin at best, where it is published.
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    kind: str = "gpu"
    vendor: str = ""
    year: int = 0
    num_units: int = 1
    source: str = ""
    architecture: str = ""
    lanes_per_unit: int | None = None
    clock_hz: float | None = None
    num_threads: int | None = None
    simd_bits: int | None = None
    l1_bytes: int | None = None
    shared_bytes: int | None = None
    l2_bytes: int | None = None
    l3_bytes: int | None = None
    cache_bandwidth_bytes_per_s: float | None = None
    launch_overhead_ns: int | None = None

    def __post_init__(self) -> None:
        check_positive(
            f"device {self.name}",
            memory_bytes=self.memory_bytes,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            num_units=self.num_units,
            **self.peak_flops_per_s,
            **{name: value for name in OPTIONAL_FIELDS if (value := getattr(self, name)) is not None},
        )
        object.__setattr__(self, "peak_flops_per_s", MappingProxyType(dict(self.peak_flops_per_s)))

    def __str__(self) -> str:
        return f"{self.name} ({format_size(self.memory_bytes)}, {format_rate(self.bandwidth_bytes_per_s)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (Device, self.json())

    def flops_per_s(self, dtype: str = "fp32") -> float:
        """The dense peak for a dtype.

        Raises
        ------
        InputError
            The device has no rate for it; says which it has.
        """
        if dtype not in self.peak_flops_per_s:
            raise InputError(
                f"{self.name} has no peak rate for {dtype!r}",
                where=self.source,
                fix=f"known: {', '.join(self.peak_flops_per_s) or 'none'}; name one with --dtype",
            )
        return self.peak_flops_per_s[dtype]

    @property
    def last_cache_bytes(self) -> int | None:
        """Size of the cache next to the memory."""
        return self.l3_bytes or self.l2_bytes

    def json(self) -> dict[str, Any]:
        """Every field, in plain types."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "peak_flops_per_s": dict(self.peak_flops_per_s)}


def _rebuild(kind: type[Any], fields: dict[str, Any]) -> Any:
    return kind(**fields)


@dataclass(frozen=True, slots=True)
class Link:
    """A wire: a rate per direction and a latency per message.

    Parameters
    ----------
    name : str
    bandwidth_bytes_per_s : float
        Per direction.
    latency_ns : int
        From the send to the first byte received.
    is_duplex : bool
        Whether both directions have the full rate at once.
    source : str
    sum_bytes_per_s : float, optional
        How fast a collective adds up what arrives; at once where it is not given.

    Examples
    --------
    >>> Link("ethernet", bandwidth_bytes_per_s=1.25e9, latency_ns=30_000).transfer_ns(1_250_000)
    1030000
    """

    name: str
    bandwidth_bytes_per_s: float
    latency_ns: int = 0
    is_duplex: bool = True
    source: str = ""
    sum_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        check_positive(f"link {self.name}", bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)
        if self.sum_bytes_per_s is not None:
            check_positive(f"link {self.name}", sum_bytes_per_s=self.sum_bytes_per_s)
        if self.latency_ns < 0:
            raise InputError(f"latency_ns cannot be negative: {self.latency_ns}", where=f"link {self.name}")

    def __str__(self) -> str:
        return f"{self.name} ({format_rate(self.bandwidth_bytes_per_s)} per direction, {self.latency_ns} ns)"

    def transfer_ns(self, size_bytes: int) -> int:
        """How long one message takes when nothing else is on the wire."""
        return self.latency_ns + round(1e9 * size_bytes / self.bandwidth_bytes_per_s)

    def json(self) -> dict[str, Any]:
        """Every field, in plain types."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Topology:
    """A network of dimensions: inside a machine, between machines, between racks.

    Parameters
    ----------
    sizes : tuple of int
        How many members meet in each dimension, innermost first.
    links : tuple of Link
        The wire of each dimension.
    sharers : tuple of int, optional
        How many neighboring members send through one port of each dimension, such as the only NIC of a host; 1 unless
        said otherwise.

    Examples
    --------
    >>> inner, outer = Link("nvlink", 3e11, 2000), Link("infiniband", 2.5e10, 1200)
    >>> Topology((8, 4), (inner, outer)).num_members
    32
    """

    sizes: tuple[int, ...]
    links: tuple[Link, ...]
    sharers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.sizes or len(self.sizes) != len(self.links):
            raise InputError(
                f"{len(self.sizes)} dimensions and {len(self.links)} links do not belong together",
                where="topology",
                fix="give one link per dimension, and at least one",
            )
        if min(self.sizes) < 1:
            raise InputError(f"a dimension cannot have {min(self.sizes)} members", where="topology")
        object.__setattr__(self, "sharers", self.sharers or (1,) * len(self.sizes))
        if len(self.sharers) != len(self.sizes) or min(self.sharers) < 1:
            raise InputError(
                f"{self.sharers} members per port do not fit {len(self.sizes)} dimensions",
                where="topology",
                fix="give one number per dimension, at least 1 each",
            )

    def __str__(self) -> str:
        return " x ".join(f"{size} over {link.name}" for size, link in zip(self.sizes, self.links, strict=True))

    @property
    def num_members(self) -> int:
        """How many workers it joins."""
        return math.prod(self.sizes)

    @property
    def slowest(self) -> Link:
        """The link with the least bandwidth among the dimensions that have more than one member."""
        used = [link for size, link in zip(self.sizes, self.links, strict=True) if size > 1] or list(self.links)
        return min(used, key=lambda link: link.bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class SparseGrid:
    """Processing elements that skip zeros; each takes the outputs of its own part of a tile.

    Parameters
    ----------
    rows, cols : int
        Of elements; pixels lie along the rows, channels along the columns.
    lanes : int
        Multiplications of an element per cycle.
    pixels_per_element, channels_per_element : int
        Outputs that an element takes of one tile: pixels times channels, of which at most 32 channels.
    steal_cycles : int
        That an idle element waits before it works on what it takes over from another.
    steal_group : int
        Neighbors, in row order, among which work is taken over; they divide all.
    scan_bits : int
        Bits of a mask that are looked through per cycle.
    word_bytes : int
    buffer_bytes : int
        On the chip, shared by the operands.
    memory_bytes_per_cycle, buffer_bytes_per_cycle : float
    """

    rows: int = 16
    cols: int = 16
    lanes: int = 16
    pixels_per_element: int = 4
    channels_per_element: int = 8
    steal_cycles: int = 8
    steal_group: int = 256
    scan_bits: int = 64
    word_bytes: int = 2
    buffer_bytes: int = 2 * 2**20
    memory_bytes_per_cycle: float = 64.0
    buffer_bytes_per_cycle: float = 1024.0

    def __post_init__(self) -> None:
        """Refuse what is no grid.

        Raises
        ------
        InputError
            A number is not above zero, or sizes do not fit each other; names the field and the value.
        """
        check_positive("sparse grid", **{name: getattr(self, name) for name in self.__slots__})
        if self.channels_per_element > CHUNK:
            raise InputError(
                f"channels_per_element cannot be {self.channels_per_element}",
                where="sparse grid",
                fix=f"at most {CHUNK}",
            )
        if self.num_elements % self.steal_group:
            raise InputError(
                f"steal_group of {self.steal_group} does not divide {self.num_elements} elements", where="sparse grid"
            )

    @property
    def num_elements(self) -> int:
        """Rows times columns."""
        return self.rows * self.cols

    @property
    def num_multipliers(self) -> int:
        """Of all elements."""
        return self.num_elements * self.lanes


@dataclass(frozen=True, slots=True)
class FourierEngine:
    """A pipelined transform that feeds complex multipliers; it transforms forwards and back.

    Parameters
    ----------
    num_butterflies : int
        Of one level of the transform.
    depth : int
        Levels that work at once.
    num_multipliers : int
        Complex ones, each with an accumulator.
    word_bits : int
        Of a real number; 8, 12 or 16.
    """

    num_butterflies: int = 8
    depth: int = 2
    num_multipliers: int = 64
    word_bits: int = 16

    def __post_init__(self) -> None:
        """Refuse what is no engine.

        Raises
        ------
        InputError
            A number is not above zero, or words have another width; names the field and the value.
        """
        check_positive("fourier engine", **{name: getattr(self, name) for name in self.__slots__})
        if self.word_bits not in (8, 12, 16):
            raise InputError(f"word_bits cannot be {self.word_bits}", where="fourier engine", fix="one of 8, 12, 16")

    @property
    def num_real_multipliers(self) -> int:
        """Four for each butterfly and each complex multiplier: slices for signal processing, on an FPGA."""
        return 4 * (self.num_butterflies * self.depth + self.num_multipliers)

    def num_memory_blocks(self, num_words: int) -> int:
        """Number of 36-Kib memory blocks that ``num_words`` real words need."""
        return -(-num_words * self.word_bits // MEMORY_BLOCK_BITS)
