"""A layer's three passes on a grid that skips zeros: cycles, traffic, energy by mode.

In: ``LayerZeros``, a ``SparseGrid``. Out: ``LayerCycles``. Memory works while a tile computes, so a tile takes what is
longer; each tile moves an equal share of its pass. Looking through masks is counted apart (``scan_cycles``). Not here:
cycles of outputs (``costs``) and tiles (``tiles``).
"""

# C channels, F filters, P pixels, T taps, W words

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.bitmaps import Words, count, pack_bits, unpack
from windtunnel.errors import InputError
from windtunnel.hardware.parts import CHUNK, SparseGrid
from windtunnel.systems.chips.accelerators.energy import operation_pj, word_pj
from windtunnel.systems.chips.accelerators.sparse.costs import correlation_costs, patch_costs
from windtunnel.systems.chips.accelerators.sparse.shape import PHASES, ConvShape
from windtunnel.systems.chips.accelerators.sparse.tiles import MODES, PIXELS_OF_WEIGHTS, tile_cycles, tile_sides

__all__ = ["LayerCycles", "LayerZeros", "PassCycles", "layer_cycles"]

Longs = NDArray[np.int64]

_PJ_PER_BIT = 3.9  # of memory, as an accelerator has where its sheet says nothing
_SUM_BYTES = 4


@dataclass(frozen=True, eq=False)
class LayerZeros:
    """Where a layer's values are zero, at one moment of training.

    Parameters
    ----------
    name : str
    shape : ConvShape
    inputs : uint32 [input pixels, W]
        Bits of X, channels along them.
    gradients : uint32 [output pixels, W]
        Bits of dY, filters along them.
    is_masked : bool
        Whether the gradient of X is masked where X is zero, as behind a ReLU.
    is_first : bool
        Whether no other layer needs the gradient of X.

    Raises
    ------
    InputError
        The bits are of another shape than the layer; names both.
    """

    name: str
    shape: ConvShape
    inputs: Words
    gradients: Words
    is_masked: bool = True
    is_first: bool = False

    def __post_init__(self) -> None:
        shape = self.shape
        for what, words, pixels, channels in (
            ("inputs", self.inputs, shape.num_input_pixels, shape.channels),
            ("gradients", self.gradients, shape.num_output_pixels, shape.filters),
        ):
            expected = (pixels, -(-channels // CHUNK))
            if words.shape != expected:
                raise InputError(
                    f"bits of the {what} have the shape {words.shape}, not {expected}",
                    where=self.name,
                    fix="give the masks of this layer, of the same images",
                )

    @property
    def phases(self) -> tuple[str, ...]:
        """Passes that the layer needs."""
        return tuple(item for item in PHASES if item != "backward" or not self.is_first)

    @property
    def input_density(self) -> float:
        """Fraction of X that is not zero."""
        return count(self.inputs) / (self.shape.num_input_pixels * self.shape.channels)

    @property
    def gradient_density(self) -> float:
        """Share of dY that is not zero."""
        return count(self.gradients) / (self.shape.num_output_pixels * self.shape.filters)


@dataclass(frozen=True)
class PassCycles:
    """One pass of one layer, by mode.

    Parameters
    ----------
    cycles : mapping of str to int
        Of the elements; masks are looked through besides.
    step_cycles : mapping of str to int
        With the memory and the looking through masks.
    macs : mapping of str to int
        Multiplications that are done.
    moved_bytes : mapping of str to int
        Between memory and the chip.
    energy_j : mapping of str to float
    bound_cycles : int
        No mode is below: all work spread evenly.
    scan_cycles : int
        For looking through masks, where outputs are skipped.
    num_outputs : int
    """

    cycles: Mapping[str, int]
    step_cycles: Mapping[str, int]
    macs: Mapping[str, int]
    moved_bytes: Mapping[str, int]
    energy_j: Mapping[str, float]
    bound_cycles: int
    scan_cycles: int
    num_outputs: int


@dataclass(frozen=True)
class LayerCycles:
    """Cycles of all passes of a layer."""

    name: str
    passes: Mapping[str, PassCycles]

    def total(self, mode: str, phases: tuple[str, ...] = PHASES, field: str = "cycles") -> Any:
        """Sum over passes of what a pass has by mode."""
        return sum(getattr(step_pass, field)[mode] for phase, step_pass in self.passes.items() if phase in phases)


def layer_cycles(zeros: LayerZeros, grid: SparseGrid, phases: tuple[str, ...] = PHASES) -> LayerCycles:
    """Cycles of the passes of a layer.

    Examples
    --------
    >>> import numpy as np
    >>> from windtunnel.base.bitmaps import pack_bits
    >>> ones = pack_bits(np.ones((64, 64), dtype=bool))
    >>> dense = LayerZeros("dense", ConvShape(1, 64, 8, 8, 64), ones, ones)
    >>> layer_cycles(dense, SparseGrid()).passes["forward"].cycles
    {'dc': 64, 'in': 64, 'out': 64, 'in+out': 64, 'in+out+wr': 64}
    """
    return LayerCycles(zeros.name, {phase: _pass(zeros, grid, phase) for phase in zeros.phases if phase in phases})


def _pass(zeros: LayerZeros, grid: SparseGrid, phase: str) -> PassCycles:
    cycles, work, macs, num_outputs = _weights(zeros, grid) if phase == "weights" else _patches(zeros, grid, phase)
    is_scanned = phase == "backward" and zeros.is_masked
    scan = -(-num_outputs // grid.scan_bits) if is_scanned else 0
    moved = _memory_bytes(zeros, grid, phase)
    streamed = _buffer_bytes(zeros, grid, phase)
    tiles = cycles.shape[1]
    steps, energy = {}, {}
    for row, mode in enumerate(MODES):
        tile_cycles_bound = (
            max(moved[mode] / grid.memory_bytes_per_cycle, streamed[mode] / grid.buffer_bytes_per_cycle) / tiles
        )
        scanned = scan / tiles if row >= MODES.index("out") else 0.0
        steps[mode] = int(np.ceil(np.maximum(cycles[row] + scanned, tile_cycles_bound).sum()))
        energy[mode] = _energy_j(grid, macs[mode], moved[mode], streamed[mode])
    spent = {mode: int(cycles[row].sum()) for row, mode in enumerate(MODES)}
    bound = -(-int(work[-1]) // grid.num_elements)
    return PassCycles(spent, steps, macs, moved, energy, bound, scan, num_outputs)


def _patches(zeros: LayerZeros, grid: SparseGrid, phase: str) -> tuple[Longs, Longs, dict[str, int], int]:
    """Forward and backward pass: outputs are sums over patches of pixels."""
    shape = zeros.shape
    words, channels, outputs = (zeros.inputs, shape.channels, shape.filters)
    if phase == "backward":
        words, channels, outputs = (zeros.gradients, shape.filters, shape.channels)
    costs = patch_costs(words, shape.taps(phase), shape.images, channels, shape.groups, grid.lanes)
    group_N = np.arange(outputs) // (outputs // shape.groups)
    requested = zeros.inputs if phase == "backward" and zeros.is_masked else None
    cycles, work = tile_cycles(costs, group_N, requested, grid)
    open_RG = _open_outputs(requested, len(costs.dense), outputs, shape.groups)
    every = outputs // shape.groups
    macs = _by_mode(
        every * int(costs.dense_macs.sum(dtype=np.int64)),
        every * int(costs.sparse_macs.sum(dtype=np.int64)),
        int((costs.dense_macs * open_RG).sum()),
        int((costs.sparse_macs * open_RG).sum()),
    )
    return cycles, work, macs, len(costs.dense) * outputs


def _open_outputs(mask: Words | None, rows: int, outputs: int, groups: int) -> Longs:
    """Outputs that are not skipped, by row and group."""
    if mask is None:
        return np.full((rows, groups), outputs // groups, dtype=np.int64)
    result: Longs = unpack(mask, outputs).reshape(rows, groups, -1).sum(axis=2, dtype=np.int64)
    return result


def _by_mode(dense: int, sparse: int, open_dense: int, open_sparse: int) -> dict[str, int]:
    return dict(zip(MODES, (dense, sparse, open_dense, open_sparse, open_sparse), strict=True))


def _weights(zeros: LayerZeros, grid: SparseGrid) -> tuple[Longs, Longs, dict[str, int], int]:
    """Gradients of weights: a tile is a part of the pixels, all of its sums are added up in the buffer."""
    shape, result = zeros.shape, []
    along = _along_pixels(zeros)
    group_N = np.arange(shape.filters)
    step = PIXELS_OF_WEIGHTS // CHUNK
    dense_macs = sparse_macs = num_outputs = 0
    for begin in range(0, along[-1].shape[1], step):
        part = slice(begin, begin + step)
        inputs, inside, gradients = (np.ascontiguousarray(all_of[..., part]) for all_of in along)
        of_group = shape.channels // shape.groups, shape.filters // shape.groups
        costs = correlation_costs(inputs, inside, gradients, *of_group, grid.lanes)
        result.append(tile_cycles(costs, group_N, None, grid))
        dense_macs += int(costs.dense_macs.sum(dtype=np.int64))
        sparse_macs += int(costs.sparse_macs.sum(dtype=np.int64))
        num_outputs += costs.dense.size
    macs = _by_mode(dense_macs, sparse_macs, dense_macs, sparse_macs)
    work = np.sum([item for _, item in result], axis=0)
    return np.concatenate([item for item, _ in result], axis=1), work, macs, num_outputs


def _along_pixels(zeros: LayerZeros) -> tuple[Words, Words, Words]:
    """Bits along output pixels: of what each tap reaches [C, T, W], whether it is inside [T, W], of dY [F, W]."""
    shape = zeros.shape
    taps_PT = shape.taps("weights")
    bits = unpack(zeros.inputs, shape.channels).reshape(shape.images, -1, shape.channels)
    reached = [bits[:, np.maximum(column, 0)] & (column >= 0)[:, None] for column in taps_PT.T]  # [N, P, C] by tap
    inputs = np.stack([pack_bits(item.reshape(-1, shape.channels).T) for item in reached], axis=1)
    inside = pack_bits(np.tile(taps_PT.T >= 0, (1, shape.images)))
    return inputs, inside, pack_bits(unpack(zeros.gradients, shape.filters).T)


def _memory_bytes(zeros: LayerZeros, grid: SparseGrid, phase: str) -> dict[str, int]:
    """Bytes between memory and chip: dense modes move words, others non-zero words and bits.

    Of the two operands the smaller stays on the chip; where half of the buffer does not hold it, it is read once for
    each half buffer of the other.
    """
    shape, word = zeros.shape, grid.word_bytes
    sizes = {
        "inputs": shape.num_input_pixels * shape.channels,
        "gradients": shape.num_output_pixels * shape.filters,
        "weights": shape.num_weights,
    }
    packed = {"inputs": count(zeros.inputs), "gradients": count(zeros.gradients)}
    reads, writes = {
        "forward": (("inputs", "weights"), "gradients"),
        "backward": (("gradients", "weights"), "inputs"),
        "weights": (("inputs", "gradients"), "weights"),
    }[phase]
    result = {}
    for mode in MODES:
        size = {}
        for name in reads:
            is_packed = mode.startswith("in") and name in packed
            size[name] = packed[name] * word + sizes[name] // 8 if is_packed else sizes[name] * word
        large, small = max(size.values()), min(size.values())
        half = grid.buffer_bytes // 2
        again = 1 if small <= half else -(-large // half)
        written = sizes[writes] * word
        if phase == "backward" and zeros.is_masked and "out" in mode:
            written = count(zeros.inputs) * word + sizes["inputs"] // 8  # the mask is read, what it wants is written
        result[mode] = large + small * again + written
    return result


def _buffer_bytes(zeros: LayerZeros, grid: SparseGrid, phase: str) -> dict[str, int]:
    """Bytes between the buffer and the elements: patches along rows for each column of tiles, weights the other way."""
    shape, word = zeros.shape, grid.word_bytes
    if phase == "weights":
        rows, columns = shape.channels // shape.groups * len(shape.taps(phase)[0]), shape.filters
        deep, wide = tile_sides(grid, rows, columns)
        first, second = (shape.num_output_pixels * side for side in (rows * shape.groups, columns))
        density = (zeros.input_density, zeros.gradient_density)
    else:
        is_back = phase == "backward"
        rows, columns = (
            (shape.num_input_pixels, shape.channels) if is_back else (shape.num_output_pixels, shape.filters)
        )
        deep, wide = tile_sides(grid, rows, columns)
        first = int((shape.taps(phase) >= 0).sum()) * shape.images * (shape.filters if is_back else shape.channels)
        second, density = shape.num_weights, ((zeros.gradient_density if is_back else zeros.input_density), 1.0)
    across, down = -(-columns // (wide * grid.cols)), -(-rows // (deep * grid.rows))
    result = {}
    for mode in MODES:
        shares = [item * word + 1 / 8 if item < 1 and mode.startswith("in") else float(word) for item in density]
        sums = 2 * _SUM_BYTES * rows * columns if phase == "weights" else 0
        result[mode] = int(first * across * shares[0] + second * down * shares[1]) + sums
    return result


def _energy_j(grid: SparseGrid, macs: int, moved_bytes: int, streamed_bytes: int) -> float:
    """Multiplications with their registers, words of the buffer, words of the memory."""
    buffer_pj = float(word_pj(grid.buffer_bytes, grid.word_bytes))
    spent = macs * operation_pj(grid.word_bytes) + streamed_bytes / grid.word_bytes * buffer_pj
    return 1e-12 * (spent + moved_bytes * (8 * _PJ_PER_BIT + buffer_pj / grid.word_bytes))
