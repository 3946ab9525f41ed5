"""Cycles of single outputs: how long a lane group takes for one dot product.

In: bits of operands, tables of taps. Out: cycles and multiplications of each output, dense and without zeros. The
operands of an output are a stream, tap after tap, cut into chunks; a chunk takes a cycle for each ``num_lanes`` of its
non-zero operands, none where it has none. Not here: which elements work on which outputs (``tiles``).
"""

# R rows of outputs (pixels, or taps of channels), G groups, Q operand pixels, T taps, W words

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.base.bitmaps import Words, bits_at, ones_of
from windtunnel.hardware.parts import CHUNK

__all__ = ["Costs", "correlation_costs", "patch_costs"]

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Costs:
    """Of one output in each row and group; those of a group differ in nothing but their weights.

    Parameters
    ----------
    dense, sparse : int32 [R, G]
        Cycles with all operands, and with those that are not zero.
    dense_macs, sparse_macs : int32 [R, G]
    """

    dense: Ints
    sparse: Ints
    dense_macs: Ints
    sparse_macs: Ints


def patch_costs(
    words_QW: Words, taps_PT: NDArray[np.int64], num_images: int, channels: int, groups: int, num_lanes: int
) -> Costs:
    """Of outputs that are sums over a patch of operand pixels, a row per output pixel of all images.

    Parameters
    ----------
    words_QW : uint32 [Q, W]
        Operand pixels of all images.
    taps_PT : int64 [P, T]
        Pixel that each tap reads, within one image.
    num_images, channels, groups, num_lanes : int
        Channels are those of the operand.
    """
    group_channels = channels // groups
    pixels, num_operands = len(taps_PT), len(words_QW) // num_images
    result = np.zeros((4, num_images * pixels, groups), dtype=np.int32)
    if group_channels % CHUNK == 0:
        of_pixel = np.zeros((2, len(words_QW), groups), dtype=np.int32)
        _whole_chunks(words_QW, group_channels // CHUNK, num_lanes, of_pixel)
        full = (group_channels // CHUNK) * -(-CHUNK // num_lanes)
        _sum_patches(of_pixel, taps_PT, num_images, num_operands, full, group_channels, result)
    else:
        _stream_patches(words_QW, taps_PT, num_images, num_operands, group_channels, num_lanes, result)
    return Costs(*result)


@njit(cache=True)
def _whole_chunks(words_QW: Any, chunks: int, num_lanes: int, sums_2QG: Any) -> None:
    """Count cycles and non-zero operands of each pixel and group, where groups are whole words."""
    # words_QW: a bit per channel of pixel Q, CHUNK bits per word; sums_2QG: rows (cycles, operands).
    # A chunk takes ceil(ones / lanes) cycles, so pixels are summed once here and then shared by all patches.
    for pixel in range(len(words_QW)):
        for group in range(sums_2QG.shape[2]):
            cycles = operands = 0
            for index in range(group * chunks, (group + 1) * chunks):
                ones = int(ones_of(words_QW[pixel, index]))
                cycles += (ones + num_lanes - 1) // num_lanes
                operands += ones
            sums_2QG[0, pixel, group] = cycles
            sums_2QG[1, pixel, group] = operands


@njit(cache=True)
def _sum_patches(
    of_pixel: Any, taps_PT: Any, images: int, operands: int, full: int, group_channels: int, sums_4RG: Any
) -> None:
    """Sum the costs of the pixels that each patch reads."""
    # sums_4RG: rows (dense cycles, sparse cycles, all operands, non-zero operands) of patch R and group G
    pixels = len(taps_PT)
    for image in range(images):
        for pixel in range(pixels):
            row = image * pixels + pixel
            for tap in range(taps_PT.shape[1]):
                reached = taps_PT[pixel, tap]
                if reached < 0:  # the tap lies in the padding, which is never read
                    continue
                reached += image * operands
                for group in range(sums_4RG.shape[2]):
                    sums_4RG[0, row, group] += full
                    sums_4RG[1, row, group] += of_pixel[0, reached, group]
                    sums_4RG[2, row, group] += group_channels
                    sums_4RG[3, row, group] += of_pixel[1, reached, group]


@njit(cache=True)
def _stream_patches(
    words_QW: Any, taps_PT: Any, images: int, operands: int, group_channels: int, num_lanes: int, sums_4RG: Any
) -> None:
    """Sum the costs of each patch where groups are no whole words, so that chunks continue from tap to tap."""
    # tap 0      tap 1      tap 2           channels of one group, tap by tap
    # |----a---|-|--b-----|--|-----c--|     a chunk closes after CHUNK operands, wherever a tap ends
    pixels = len(taps_PT)
    for image in range(images):
        for pixel in range(pixels):
            row = image * pixels + pixel
            for group in range(sums_4RG.shape[2]):
                filled = ones = 0  # of the chunk that is being filled
                dense = sparse = total = nonzero = 0
                for tap in range(taps_PT.shape[1]):
                    reached = taps_PT[pixel, tap]
                    if reached < 0:
                        continue
                    words_W = words_QW[reached + image * operands]
                    index, left = group * group_channels, group_channels
                    while left > 0:
                        used = min(left, CHUNK - filled)
                        ones += int(ones_of(bits_at(words_W, index, used)))
                        filled += used
                        index += used
                        left -= used
                        if filled == CHUNK:
                            dense += (CHUNK + num_lanes - 1) // num_lanes
                            sparse += (ones + num_lanes - 1) // num_lanes
                            total += CHUNK
                            nonzero += ones
                            filled = ones = 0
                sums_4RG[0, row, group] = dense + (filled + num_lanes - 1) // num_lanes
                sums_4RG[1, row, group] = sparse + (ones + num_lanes - 1) // num_lanes
                sums_4RG[2, row, group] = total + filled
                sums_4RG[3, row, group] = nonzero + ones


def correlation_costs(
    inputs_ATW: Words,
    inside_TW: Words,
    gradients_FW: Words,
    channels_of_group: int,
    filters_of_group: int,
    num_lanes: int,
) -> Costs:
    """Of gradients of weights: outputs that are sums over pixels of what one channel and one filter have there.

    Parameters
    ----------
    inputs_ATW : uint32 [C, T, W]
        Bits along output pixels: whether the pixel that a tap reaches is not zero.
    inside_TW : uint32 [T, W]
        Whether it lies in the image.
    gradients_FW : uint32 [F, W]
    channels_of_group, filters_of_group, num_lanes : int

    Returns
    -------
    Costs
        A row per channel within its group and tap, a column per filter.
    """
    taps = len(inside_TW)
    result = np.zeros((4, channels_of_group * taps, len(gradients_FW)), dtype=np.int32)
    _correlate(inputs_ATW, inside_TW, gradients_FW, channels_of_group, filters_of_group, num_lanes, result)
    return Costs(*result)


@njit(cache=True)
def _correlate(inputs_ATW: Any, inside_TW: Any, gradients_FW: Any, channels: int, filters: int, num_lanes: int,
               sums_4RC: Any) -> None:  # fmt: skip
    """Count the products of each channel, tap and filter, a word of output pixels at a time."""
    # sums_4RC: rows as in ``_sum_patches``; R = channel of a group x tap, C = filter. The dense cost depends on the
    # tap alone. The sparse cost counts the pixels at which both the input and the gradient are not zero.
    for tap in range(len(inside_TW)):
        dense = total = 0
        for word in range(inside_TW.shape[1]):
            ones = int(ones_of(inside_TW[tap, word]))
            dense += (ones + num_lanes - 1) // num_lanes
            total += ones
        for channel in range(channels):
            row = channel * len(inside_TW) + tap
            for column in range(len(gradients_FW)):
                input_words = inputs_ATW[column // filters * channels + channel, tap]
                other = gradients_FW[column]
                sparse = nonzero = 0
                for word in range(len(other)):
                    ones = int(ones_of(input_words[word] & other[word]))
                    sparse += (ones + num_lanes - 1) // num_lanes
                    nonzero += ones
                sums_4RC[0, row, column] = dense
                sums_4RC[1, row, column] = sparse
                sums_4RC[2, row, column] = total
                sums_4RC[3, row, column] = nonzero
