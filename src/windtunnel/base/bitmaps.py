"""Which values are not zero, as packed bits: packing, counting.

In: tensors [images, channels, height, width], or rows [rows, channels]. Out: words uint32 [pixels, words], the channels
of a pixel along the bits from the lowest on, zeros behind the last. -0.0 is zero. Not here: who recorded them.
"""

# N images, C channels, H W sides of an image; W words of a pixel

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["WORD_BITS", "Words", "bits_at", "count", "ones_of", "pack", "pack_bits", "unpack"]

Words = NDArray[np.uint32]

WORD_BITS = 32


def pack(tensor: NDArray[Any]) -> Words:
    """Bits of a tensor, uint32 [pixels, words].

    Examples
    --------
    >>> import numpy as np
    >>> pack(np.array([[1.0, -0.0, 2.0]])).tolist()
    [[5]]
    """
    tensor = np.asarray(tensor)
    channels_last = tensor if tensor.ndim == 2 else np.moveaxis(tensor, 1, -1)
    return pack_bits(channels_last.reshape(-1, channels_last.shape[-1]) != 0)


def pack_bits(bits: NDArray[np.bool_]) -> Words:
    """Pack bits along the last axis into words, uint32 [rows, words]."""
    packed = np.packbits(bits, axis=-1, bitorder="little")
    rest = -packed.shape[-1] % (WORD_BITS // 8)
    padded = np.pad(packed, [(0, 0)] * (packed.ndim - 1) + [(0, rest)])
    return np.ascontiguousarray(padded).view("<u4").astype(np.uint32, copy=False)


def unpack(words: Words, channels: int) -> NDArray[np.bool_]:
    """The bits again, bool [pixels, channels]."""
    bytes_of = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
    return np.unpackbits(bytes_of, axis=-1, count=channels, bitorder="little").astype(np.bool_)


def count(words: Words) -> int:
    """Bits that are set."""
    return int(np.bitwise_count(words).sum())


@njit(cache=True, inline="always")
def ones_of(word: Any) -> Any:
    """Bits that are set in a word of 32: adds neighbors, then pairs of them, then all by one product."""
    #      32 x 1 bit -> 16 sums of 2 bits -> 8 sums of 4 bits -> 4 sums of 8 bits -> the top byte of a product
    word = word - ((word >> np.uint32(1)) & np.uint32(0x55555555))
    word = (word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333))
    word = (word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
    return (word * np.uint32(0x01010101) >> np.uint32(24)) & np.uint32(0xFF)


@njit(cache=True, inline="always")
def bits_at(words_W: Any, begin: int, num: int) -> Any:
    """So many bits (at most 32) from a place on, as a word."""
    # The bits may straddle two words: both are joined to 64 bits, shifted and masked. The second word is
    # only read where it is needed, as there may be none behind the last.
    index, shift = begin >> 5, begin & 31
    low = np.uint64(words_W[index])
    if shift + num > 32:
        low |= np.uint64(words_W[index + 1]) << np.uint64(32)
    return np.uint32((low >> np.uint64(shift)) & ((np.uint64(1) << np.uint64(num)) - np.uint64(1)))
