"""Cycles of the grid in closed form, of densities alone: no bits are needed.

In: sizes of a layer, how dense its operands are, a ``SparseGrid``. Out: cycles of its passes by mode, as expected where
zeros lie by chance, but for what differs from channel to channel and from pixel to pixel. Not here: counting them
(``layer``), which is what to believe where bits are there.
"""

# E elements of the grid

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from windtunnel.hardware.parts import CHUNK, SparseGrid
from windtunnel.systems.chips.accelerators.sparse.shape import ConvShape
from windtunnel.systems.chips.accelerators.sparse.tiles import MODES, PIXELS_OF_WEIGHTS, tile_sides

__all__ = ["Densities", "estimate_cycles"]

_LAST_OUTPUTS = 1.3  # by how many outputs the last of those that share work ends behind the even share


@dataclass(frozen=True)
class Densities:
    """Shares of a tensor that are not zero: of all, and in each part of its channels and of its pixels."""

    overall: float
    of_channels: tuple[float, ...]
    of_pixels: tuple[float, ...]

    @classmethod
    def even(cls, density: float) -> Densities:
        """Return the same density in every channel and pixel."""
        return cls(density, (density,), (density,))

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Densities:
        """Read densities from the record of a graph."""
        return cls(float(record["density"]), tuple(record["of_channels"]), tuple(record["of_pixels"]))


def estimate_cycles(
    shape: ConvShape, inputs: Densities, gradients: Densities, grid: SparseGrid, *, is_masked: bool, is_first: bool
) -> dict[str, dict[str, float]]:
    """Cycles by pass and mode.

    Examples
    --------
    >>> shape, half = ConvShape(1, 256, 16, 16, 256), Densities.even(0.5)
    >>> found = estimate_cycles(shape, half, half, SparseGrid(), is_masked=True, is_first=False)
    >>> {mode: round(cycles) for mode, cycles in found["backward"].items()}
    {'dc': 4096, 'in': 3246, 'out': 3067, 'in+out': 2235, 'in+out+wr': 1647}
    """
    result = {"forward": _patches(shape, "forward", inputs, None, grid)}
    if not is_first:
        result["backward"] = _patches(shape, "backward", gradients, inputs if is_masked else None, grid)
    return {**result, "weights": _weights(shape, inputs, gradients, grid)}


def _patches(
    shape: ConvShape, phase: str, operand: Densities, output_densities: Densities | None, grid: SparseGrid
) -> dict[str, float]:
    is_back = phase == "backward"
    taps = shape.taps(phase)
    channels = (shape.filters if is_back else shape.channels) // shape.groups
    outputs = shape.channels if is_back else shape.filters
    rows = len(taps) * shape.images
    operands_P = (taps >= 0).sum(axis=1) * channels
    num = float(operands_P.mean())
    dense = _chunks(num, 1.0, grid.lanes)
    # By how much the busiest row of elements has more than the mean, as pixels at edges have fewer operands.
    cycles_R = np.tile(-(-operands_P // grid.lanes), shape.images)
    deep, _ = tile_sides(grid, len(cycles_R), outputs)
    tiles = -(-len(cycles_R) // (deep * grid.rows))
    padded = np.pad(cycles_R, (0, tiles * deep * grid.rows - len(cycles_R)))
    of_rows = padded.reshape(tiles, grid.rows, deep).sum(axis=2)
    edges = float(of_rows.max(axis=1).sum() / (tiles * deep * dense))
    by_pixel = [_chunks(num, of_pixel, grid.lanes) for of_pixel in operand.of_pixels]
    by_chance = _chunks(num, operand.overall, grid.lanes, is_variance=True)
    result = _modes(rows, outputs, dense, by_pixel, output_densities, grid, by_chance, is_alike=True)
    return {mode: cycles * (1.0 if mode == "in+out+wr" else edges) for mode, cycles in result.items()}


def _weights(shape: ConvShape, inputs: Densities, gradients: Densities, grid: SparseGrid) -> dict[str, float]:
    rows, pixels = shape.channels // shape.groups * math.prod(shape.kernel), shape.num_output_pixels
    inside = float((shape.taps("weights") >= 0).mean())
    total = dict.fromkeys(MODES, 0.0)
    for begin in range(0, pixels, PIXELS_OF_WEIGHTS):
        num = min(PIXELS_OF_WEIGHTS, pixels - begin)
        dense = -(-num // CHUNK) * _chunk_mean_and_variance(min(num, CHUNK), inside, grid.lanes)[0]
        pairs = [_chunks(num, inside * of_channel * gradients.overall, grid.lanes) for of_channel in inputs.of_channels]
        by_chance = _chunks(num, inside * inputs.overall * gradients.overall, grid.lanes, is_variance=True)
        for mode, cycles in _modes(rows, shape.filters, dense, pairs, None, grid, by_chance, is_alike=False).items():
            total[mode] += cycles
    return total


def _modes(
    rows: int,
    outputs: int,
    dense: float,
    sparse: Sequence[float],
    output_densities: Densities | None,
    grid: SparseGrid,
    by_chance: float,
    *,
    is_alike: bool,
) -> dict[str, float]:
    """Cycles of all tiles: what the busiest element of each has, by the spread of what elements have.

    ``by_chance`` is the variance of an output's cycles; outputs of a pixel take the same where ``is_alike``.
    """
    deep, wide = tile_sides(grid, rows, outputs)
    tiles = -(-rows // (deep * grid.rows)) * -(-outputs // (wide * grid.cols))
    tile_outputs = deep * wide  # outputs of an element
    mean = float(np.mean(sparse))
    spread = math.sqrt(float(np.var(sparse)) + by_chance / (deep if is_alike else tile_outputs))  # of an element's mean
    open_share = 1.0 if output_densities is None else output_densities.overall
    uneven = 0.0
    if output_densities is not None:  # neighbors among pixels are alike, neighbors among channels are not
        by_chance = open_share * (1 - open_share) / tile_outputs
        uneven = float(np.var(output_densities.of_pixels) + np.var(output_densities.of_channels) / wide) + by_chance
    of_rows, of_all = _largest(min(grid.rows, -(-rows // deep))), _largest(grid.num_elements)
    most = {
        "dc": tile_outputs * dense,
        "in": tile_outputs * min(mean + (of_rows if is_alike else of_all) * spread, dense),
        "out": tile_outputs * dense * min(open_share + of_all * math.sqrt(uneven), 1.0),
    }
    if output_densities is None:
        most |= {"out": most["dc"], "in+out": most["in"]}
    else:
        relative = math.sqrt(uneven / max(open_share, 1e-9) ** 2 + (spread / max(mean, 1e-9)) ** 2)
        even = tile_outputs * mean * open_share
        most["in+out"] = min(even * (1 + of_all * relative), most["in"], most["out"])
    even = rows * outputs / tiles / grid.num_elements * mean * open_share
    most["in+out+wr"] = min(even + grid.steal_cycles + _LAST_OUTPUTS * mean, most["in+out"])
    return {mode: tiles * most[mode] for mode in MODES}


@cache
def _largest(num: int) -> float:
    """Return the expected maximum of normal samples, in standard deviations above the mean (Blom, 1958)."""
    return NormalDist().inv_cdf((num - 0.375) / (num + 0.25)) if num > 1 else 0.0


def _chunks(num: float, density: float, num_lanes: int, *, is_variance: bool = False) -> float:
    """Return the cycles of some operands, or their variance."""
    whole, rest = divmod(num, CHUNK)
    index = int(is_variance)
    last = _chunk_mean_and_variance(max(round(rest), 1), density, num_lanes)[index] if rest > 0 else 0.0
    return whole * _chunk_mean_and_variance(CHUNK, density, num_lanes)[index] + last


@cache
def _chunk_mean_and_variance(num: int, density: float, num_lanes: int) -> tuple[float, float]:
    """Cycles of a chunk whose operands are zero by chance, and their variance."""
    chances = [math.comb(num, index) * density**index * (1 - density) ** (num - index) for index in range(num + 1)]
    mean, square = (
        sum(chance * (-(-index // num_lanes)) ** power for index, chance in enumerate(chances)) for power in (1, 2)
    )
    return mean, max(square - mean**2, 0.0)
