"""Words that a product moves between memory and one buffer: tiles, loop orders, the best of them.

In: M, N, K and the words that the buffer holds. Out: words moved by the best tiling, and the words of its first load
and last store. An operand is loaded again by every outer loop that changes it, or that a changing one runs inside of; a
loop that it does not depend on and that is innermost loads nothing (the rule of Timeloop). Buffers are double: half of
them holds tiles. Tiles are powers of two or the whole side. Not here: cycles (``engine``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.units import format_count

__all__ = ["Traffic", "traffic"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Traffic:
    """Words of P products, each in its best tiling.

    Parameters
    ----------
    words : int64 [P]
        Moved in all, sums that are written and read again among them.
    first, last : int64 [P]
        Of the first tiles of X and W, of the last tile of Y: nothing can hide them.
    """

    words: Ints
    first: Ints
    last: Ints


def traffic(
    m: ArrayLike, n: ArrayLike, k: ArrayLike, buffer_words: ArrayLike, operand_words: Sequence[int] | None = None
) -> Traffic:
    """Fewest words between memory and a buffer that all operands share, or buffers of their own.

    Parameters
    ----------
    operand_words : three of int, optional
        That X, W and Y may take each, in place of all together.

    Raises
    ------
    InputError
        The buffer does not hold two tiles of one word each operand.

    Notes
    -----
    Parashar et al., "Timeloop: a systematic approach to DNN accelerator evaluation", ISPASS 2019.
    """
    own = operand_words or None
    given = (np.asarray(item, dtype=np.int64) for item in (m, n, k, sum(own) if own else buffer_words))
    columns = np.stack([broadcast_array.ravel() for broadcast_array in np.broadcast_arrays(*given)])  # [4, P]
    shape = np.broadcast_shapes(*(np.shape(item) for item in (m, n, k, buffer_words)))
    if own and min(own) < 2:
        raise _too_small(min(own), "two tiles of an operand have at least 2 words")
    if columns.size and columns[3].min() < 6:
        raise _too_small(int(columns[3].min()), "two tiles of X, W and Y have at least 6 words")
    rooms = np.array([item // 2 for item in own] if own else [2**62] * 3, dtype=np.int64)
    m_P, n_P, k_P, words_P = columns
    result = _best(m_P, n_P, k_P, words_P, rooms)
    return Traffic(*(item.reshape(shape) for item in result))


def _too_small(words: int, fix: str) -> InputError:
    return InputError(f"a buffer of {format_count(words)} words is smaller than one tile", where="sram_bytes", fix=fix)


@njit(cache=True)
def _best(m: Ints, n: Ints, k: Ints, buffer_words: Ints, rooms: Ints) -> Ints:
    """Words, first load and last store of each column, int64 [3, P]."""
    # Tile sides tile_m and tile_n are powers of two up to the matrix; tile_k takes the rest of half a buffer (the other
    # half is loaded meanwhile): tile_k (tile_m + tile_n) + tile_m tile_n <= room. Ties go to the shortest first load
    # and last store, because these overlap nothing.
    result = np.zeros((3, len(m)), dtype=np.int64)
    for index in range(len(m)):
        best = 2**62
        room = buffer_words[index] // 2
        tile_m = 1
        while True:
            tile_m = min(tile_m, m[index])
            tile_n = 1
            while True:
                tile_n = min(tile_n, n[index])
                tile_k = min((room - tile_m * tile_n) // (tile_m + tile_n), k[index])
                tile_k = min(tile_k, rooms[0] // tile_m, rooms[1] // tile_n)
                if tile_k < 1 or tile_m * tile_n > rooms[2]:
                    break
                down = (m[index] + tile_m - 1) // tile_m
                across = (n[index] + tile_n - 1) // tile_n
                deep = (k[index] + tile_k - 1) // tile_k
                words = _fewest(m[index], n[index], k[index], down, across, deep)
                ends = tile_k * (tile_m + tile_n) + tile_m * tile_n
                if words < best or (words == best and ends < result[1, index] + result[2, index]):
                    best = words
                    result[0, index], result[1, index], result[2, index] = (
                        words,
                        tile_k * (tile_m + tile_n),
                        tile_m * tile_n,
                    )
                if tile_n == n[index]:
                    break
                tile_n *= 2
            if tile_m == m[index]:
                break
            tile_m *= 2
    return result


@njit(cache=True)
def _fewest(m: int, n: int, k: int, down: int, across: int, deep: int) -> int:
    """Words of the best of the loop orders: the innermost loop that turns keeps the operand that it does not change."""
    x, w, y = m * k, k * n, m * n
    again = 2 * deep - 1  # sums are read again for all but their first part
    if deep == 1:  # the two outer loops keep X or W
        return y + min(x + w * (down if across > 1 else 1), w + x * (across if down > 1 else 1))
    keeps_y = x * across + w * down + y
    keeps_x = x + w * (down if down > 1 else 1) + y * (again if across > 1 else 1)
    keeps_w = w + x * (across if across > 1 else 1) + y * (again if down > 1 else 1)
    return min(keeps_y, keeps_x, keeps_w)
