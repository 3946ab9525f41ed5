"""The arithmetic of the grid, number by number: the three passes with the rules by which it skips zeros.

In: tensors of integers or floats, and the bits that say what is not zero. Out: the result, and how many multiplications
were done. Operands that the bits call zero are never read, unwanted outputs are never computed. Integers add up in 32
bits, as the grid's sums do. Not here: cycles (``tiles``).
"""

# N images, C channels, F filters, P pixels, T taps

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.base.bitmaps import pack, unpack
from windtunnel.systems.chips.accelerators.sparse.layer import LayerCycles, LayerZeros
from windtunnel.systems.chips.accelerators.sparse.shape import ConvShape

__all__ = ["backward", "forward", "multiplications_agree", "weight_gradient"]

Tensor = NDArray[Any]


def forward(inputs: Tensor, weight: Tensor, shape: ConvShape) -> tuple[Tensor, int]:
    """Y [N, F, P, Q] of X [N, C, H, W] and filters [F, C / groups, R, S], and multiplications that were done."""
    kernels = weight.reshape(shape.groups, shape.filters // shape.groups, shape.channels // shape.groups, -1)
    result, macs = _multiply_patches(inputs, kernels.transpose(0, 3, 2, 1), shape.taps("forward"), None)  # [G, T, C, F]
    return _images(result, shape.images, shape.output), macs


def backward(gradient: Tensor, weight: Tensor, shape: ConvShape, inputs: Tensor | None) -> tuple[Tensor, int]:
    """The gradient of X [N, C, H, W] of that of Y, and multiplications that were done.

    Parameters
    ----------
    gradient : [N, F, P, Q]
    weight : [F, C / groups, R, S]
    shape : ConvShape
    inputs : [N, C, H, W], optional
        X, where a ReLU made it: where it is zero the gradient is masked, and not computed.
    """
    kernels = weight.reshape(shape.groups, shape.filters // shape.groups, shape.channels // shape.groups, -1)
    result, macs = _multiply_patches(
        gradient, kernels.transpose(0, 3, 1, 2), shape.taps("backward"), inputs
    )  # [G, T, F, C]
    return _images(result, shape.images, (shape.height, shape.width)), macs


def weight_gradient(inputs: Tensor, gradient: Tensor, shape: ConvShape) -> tuple[Tensor, int]:
    """The gradient of the filters [F, C / groups, R, S], and multiplications that were done."""
    taps_PT = shape.taps("weights")
    group_channels = shape.channels // shape.groups
    result = np.zeros((shape.filters, group_channels, taps_PT.shape[1]), _sum_type(inputs))
    macs = _correlate(_pixels(inputs), _pixels(gradient), pack(inputs), pack(gradient), taps_PT, shape.groups, result)
    return result.reshape(shape.filters, group_channels, *shape.kernel), int(macs)


def multiplications_agree(zeros: LayerZeros, cycles: LayerCycles, seed: int) -> bool:
    """Whether the passes of a layer, really computed on drawn integers, multiply as often as its cycles say.

    The same numbers are computed once more with nothing skipped but masked results, and have to be equal.
    """
    shape, draw = zeros.shape, np.random.default_rng(seed)
    inputs = _draw_integers(unpack(zeros.inputs, shape.channels), (shape.height, shape.width), draw)
    gradient = _draw_integers(unpack(zeros.gradients, shape.filters), shape.output, draw)
    weight = draw.integers(1, 90, (shape.filters, shape.channels // shape.groups, *shape.kernel), dtype=np.int16)
    result, dense = {"forward": forward(inputs, weight, shape)}, {"forward": "in"}
    result["weights"], dense["weights"] = weight_gradient(inputs, gradient, shape), "in"
    is_right = True
    if not zeros.is_first:
        result["backward"] = backward(gradient, weight, shape, inputs if zeros.is_masked else None)
        dense["backward"] = "in+out"
        whole, _ = backward(gradient, weight, shape, None)
        masked = whole * (inputs != 0) if zeros.is_masked else whole
        is_right = bool((result["backward"][0] == masked).all())
    counts = {phase: macs for phase, (_, macs) in result.items()}
    return is_right and all(cycles.passes[phase].macs[dense[phase]] == macs for phase, macs in counts.items())


def _draw_integers(bits: NDArray[np.bool_], sides: tuple[int, int], draw: np.random.Generator) -> Tensor:
    """Integers where there are bits: images of those sides."""
    values = bits * draw.integers(1, 90, bits.shape, dtype=np.int16)
    return np.ascontiguousarray(_images(values, len(bits) // (sides[0] * sides[1]), sides))


def _sum_type(tensor: Tensor) -> Any:
    return np.int32 if np.issubdtype(tensor.dtype, np.integer) else tensor.dtype


def _pixels(tensor: Tensor) -> Tensor:
    """[N, P, C], channels last, of images or of rows."""
    rows = tensor if tensor.ndim == 4 else tensor[:, :, None, None]
    return np.ascontiguousarray(np.moveaxis(rows, 1, -1).reshape(len(rows), -1, rows.shape[1]))


def _images(pixels: Tensor, images: int, sides: tuple[int, int]) -> Tensor:
    return np.moveaxis(pixels.reshape(images, *sides, -1), -1, 1)


def _multiply_patches(operands: Tensor, kernels: Tensor, taps_PT: Any, masked_by: Tensor | None) -> tuple[Tensor, int]:
    """Outputs [N P, groups x outputs] of operands and kernels [G, T, operand channels, outputs]."""
    groups, _, group_channels, outputs = kernels.shape
    result = np.zeros((len(operands) * len(taps_PT), groups, outputs), _sum_type(operands))
    bits = pack(operands if masked_by is None else masked_by)
    kernels = np.ascontiguousarray(kernels)
    macs = _patch(
        _pixels(operands), pack(operands), kernels, taps_PT, bits, masked_by is not None, group_channels, result
    )
    return result.reshape(len(result), -1), int(macs)


@njit(cache=True, inline="always")
def _is_set(words_W: Any, bit: int) -> Any:
    # Bit b of a row is bit b % 32 of word b // 32, as ``base.bitmaps`` packs them.
    return (words_W[bit >> 5] >> np.uint32(bit & 31)) & np.uint32(1)


@njit(cache=True)
def _patch(values_NPC: Any, words_QW: Any, kernels: Any, taps_PT: Any, mask_RW: Any, is_masked: bool,
           group_channels: int, out_RGO: Any) -> int:  # fmt: skip
    """Add the products of non-zero operands to ``out_RGO``; return the number of multiplications."""
    # element by element, so that the count is independent of the bit tricks of ``costs`` that it checks
    groups, taps, _, outputs = kernels.shape
    pixels, operands, macs = len(taps_PT), values_NPC.shape[1], 0
    for row in range(len(out_RGO)):
        image, pixel = row // pixels, row % pixels
        for group in range(groups):
            for output in range(outputs):
                if is_masked and not _is_set(mask_RW[row], group * outputs + output):
                    continue
                total = out_RGO[row, group, output]
                for tap in range(taps):
                    reached = taps_PT[pixel, tap]
                    if reached < 0:
                        continue
                    words_W = words_QW[image * operands + reached]
                    for index in range(group_channels):
                        if _is_set(words_W, group * group_channels + index):
                            value = values_NPC[image, reached, group * group_channels + index]
                            total += value * kernels[group, tap, index, output]
                            macs += 1
                out_RGO[row, group, output] = total
    return macs


@njit(cache=True)
def _correlate(inputs_NPC: Any, gradient_NPF: Any, inputs_QW: Any, gradient_QW: Any, taps_PT: Any, groups: int,
               out_FCT: Any) -> int:  # fmt: skip
    """Add the products of non-zero inputs and gradients to ``out_FCT``; return the number of multiplications."""
    # As ``_patch``, element by element on purpose: it is what the fast counts of ``costs`` are checked with.
    # Output (filter, channel, tap) sums over images and pixels; a product counts if both factors are set.
    filters, group_channels, taps = out_FCT.shape
    pixels, operands, macs = len(taps_PT), inputs_NPC.shape[1], 0
    for image in range(len(inputs_NPC)):
        for pixel in range(pixels):
            for index in range(filters):
                if not _is_set(gradient_QW[image * pixels + pixel], index):
                    continue
                first = index // (filters // groups) * group_channels
                for tap in range(taps):
                    reached = taps_PT[pixel, tap]
                    if reached < 0:
                        continue
                    for channel in range(group_channels):
                        if _is_set(inputs_QW[image * operands + reached], first + channel):
                            value = inputs_NPC[image, reached, first + channel]
                            out_FCT[index, channel, tap] += value * gradient_NPF[image, pixel, index]
                            macs += 1
    return macs
