"""Parts of a chip that are made for one kind of layer: grids that skip zeros, transforms.

In: numbers. Out: a ``SparseGrid`` or a ``FourierEngine``, which an ``Accelerator`` has in addition to its arrays. Not
here: how long they take (``systems.chips.accelerators``).

Source: Sarma et al., "Exploiting Activation based Gradient Output Sparsity" (2021), whose sizes are not published: the
grid's are ours; Liao et al. (ICCAD 2017) and Wang et al. (AAAI 2018) for the transforms.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.errors import InputError
from windtunnel.hardware.parts import check_positive

__all__ = ["CHUNK", "MEMORY_BLOCK_BITS", "FourierEngine", "SparseGrid"]

CHUNK = 32  # a word of ``bitmaps``, which needs numba; hardware is looked up without it
"""Operands that are stored together: one word of bits, then those that are not zero."""
MEMORY_BLOCK_BITS = 36 * 1024
"""Of a block of memory, as an FPGA has them."""


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
