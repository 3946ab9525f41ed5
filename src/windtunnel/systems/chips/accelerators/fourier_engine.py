"""An engine of transforms in closed form: cycles, multipliers, memory blocks, energy of a layer.

In: a layer of p x q circulant blocks of size k, a ``FourierEngine``. Out: what a batch takes. Forward and inverse
transforms take turns on the same butterflies while the multipliers work on other samples, so that a sample takes the
longer of the two; a first one fills the pipeline.
"""

# p, q blocks down and across, k their size

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.errors import InputError
from windtunnel.hardware.parts import MEMORY_BLOCK_BITS, FourierEngine
from windtunnel.systems.chips.accelerators.energy import operation_pj, word_pj

__all__ = ["LATENCY", "BlockLayer", "EngineUse", "engine_use"]

LATENCY = 4
"""Cycles from an operand of a butterfly, or of a multiplier, to its result."""


@dataclass(frozen=True, slots=True)
class BlockLayer:
    """A layer of circulant blocks.

    Parameters
    ----------
    outputs, inputs : int
        Of the matrix; padded up to whole blocks.
    block : int
        A power of two from 2 on, and no more than the larger side.

    Raises
    ------
    InputError
        A size is no such number.

    Examples
    --------
    >>> BlockLayer(1000, 784, 64).num_blocks
    (16, 13)
    """

    outputs: int
    inputs: int
    block: int

    def __post_init__(self) -> None:
        if min(self.outputs, self.inputs) < 1:
            raise InputError(f"a layer of {self.outputs} x {self.inputs} has no weights", where="layer")
        is_power = self.block >= 2 and self.block & (self.block - 1) == 0
        if not is_power or self.block > max(self.outputs, self.inputs):
            raise InputError(
                f"blocks of {self.block} do not fit a layer of {self.outputs} x {self.inputs}",
                where="block",
                fix="take a power of two from 2 to the larger side",
            )

    @property
    def num_blocks(self) -> tuple[int, int]:
        """Number of blocks down and across, p and q."""
        return -(-self.outputs // self.block), -(-self.inputs // self.block)

    @property
    def levels(self) -> int:
        """Butterfly levels of a transform, log2 k."""
        return self.block.bit_length() - 1

    @property
    def num_weights(self) -> int:
        """Real numbers, of vectors or of spectra."""
        down, across = self.num_blocks
        return down * across * self.block

    @property
    def dense_macs(self) -> int:
        """Multiplications of the dense layer per sample; equivalent operations are twice that."""
        return self.outputs * self.inputs

    @property
    def butterflies(self) -> tuple[int, int]:
        """Butterflies of the forward and of the inverse transforms of a sample; real inputs need half as many."""
        down, across = self.num_blocks
        per_block = self.block * self.levels
        return -(-across * per_block // 4), -(-down * per_block // 4)

    @property
    def products(self) -> int:
        """Complex multiplications of a sample: half of the bins, and the two that are real."""
        down, across = self.num_blocks
        return down * across * (self.block // 2 + 1)


@dataclass(frozen=True)
class EngineUse:
    """Cycles, energy and traffic of a batch on an engine.

    Parameters
    ----------
    transform_cycles, product_cycles, inverse_cycles : int
        Cycles of one sample: T_fft, T_mul, T_ifft.
    fill_cycles : int
        By which the first sample is later than those behind it.
    cycles : int
        Cycles of the batch.
    num_real_multipliers, num_memory_blocks : int
        Of the chip: for the engine, and for spectra and twiddles.
    energy_j : float
        Energy of the batch.
    operations, equivalent_operations : int
        Of the batch: real ones that are done, and those that the dense layer would do.
    """

    transform_cycles: int
    product_cycles: int
    inverse_cycles: int
    fill_cycles: int
    cycles: int
    num_real_multipliers: int
    num_memory_blocks: int
    energy_j: float
    operations: int
    equivalent_operations: int


def engine_use(layer: BlockLayer, engine: FourierEngine, batch: int = 1) -> EngineUse:
    """Return what a batch of samples takes on an engine.

    Raises
    ------
    InputError
        The batch is below 1.

    Examples
    --------
    >>> found = engine_use(BlockLayer(1024, 1024, 64), FourierEngine(), batch=32)
    >>> found.transform_cycles, found.product_cycles, found.num_real_multipliers
    (96, 132, 320)
    """
    if batch < 1:
        raise InputError(f"a batch cannot be {batch}", where="batch", fix="give a whole number above 0")
    across, (forward, inverse) = layer.num_blocks[1], layer.butterflies
    slots = engine.num_butterflies * engine.depth
    transform, back = -(-forward // slots), -(-inverse // slots)
    product = -(-layer.products // engine.num_multipliers)
    period = max(transform + back, product)
    # products of a block begin when its transform ends; the inverse transforms begin when all are summed
    latency = (layer.levels + 1) * LATENCY  # of the last transform; those of others are hidden by one another
    first = max(transform + -(-product // across), product + -(-transform // across)) + back + latency
    fill = max(first - period, 0)
    multiplications = 4 * (forward + inverse + layer.products)
    word = engine.word_bits / 8
    words = 4 * (forward + inverse) + 2 * layer.products  # a butterfly reads two complex numbers, a product a spectrum
    energy_pj = (
        multiplications * operation_pj(2) * (word / 2) ** 2
        + words * float(word_pj(MEMORY_BLOCK_BITS // 8, 2)) * word / 2
    )
    return EngineUse(
        transform, product, back, fill, batch * period + fill, engine.num_real_multipliers,
        engine.num_memory_blocks(layer.num_weights + layer.block), batch * energy_pj * 1e-12,
        batch * (multiplications + 6 * (forward + inverse) + 4 * layer.products), 2 * batch * layer.dense_macs,
    )  # fmt: skip
