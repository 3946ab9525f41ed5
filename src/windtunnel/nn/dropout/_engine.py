"""Products with the kept units only, gathered while they are multiplied (room nn, private).

In: S sets in rows of ``kept`` (padded; ``counts`` says how many), the rows of the packed sequence that each is for, and
arrays that are written. Out: nothing; every element of a result is written by one thread, in one order, so that
results do not depend on the number of threads. A tile of the weight's columns stays in the cache over all sets.
"""

# N rows, D units, G columns; transposed weight [D, G]

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["add_forward", "add_weight", "padded", "set_input"]

_TILE = 128
_ORDERED = {"contract"}
_SUMMED = {"contract", "reassoc"}  # a sum over a row of the weight, in the order that its vectors take


@numba.njit(parallel=True, nogil=True, cache=True, fastmath=_ORDERED, error_model="numpy")
def add_forward(x: Any, weight: Any, kept: Any, counts: Any, firsts: Any, lasts: Any, scale: Any, out: Any) -> None:
    """``out[rows] += scale x[rows, kept] weight[kept]`` for every set."""
    columns = weight.shape[1]
    for tile in numba.prange((columns + _TILE - 1) // _TILE):
        low, high = tile * _TILE, min(tile * _TILE + _TILE, columns)
        for one in range(len(counts)):
            full = counts[one] // 4 * 4
            for place in range(0, full, 4):
                a, b, c, d = kept[one, place], kept[one, place + 1], kept[one, place + 2], kept[one, place + 3]
                # slices: an index that may be negative keeps the loop from being vectorized
                wa, wb, wc, wd = weight[a, low:high], weight[b, low:high], weight[c, low:high], weight[d, low:high]
                for row in range(firsts[one], lasts[one]):
                    xa, xb, xc, xd = scale * x[row, a], scale * x[row, b], scale * x[row, c], scale * x[row, d]
                    sums = out[row, low:high]
                    for column in range(len(sums)):
                        sums[column] += xa * wa[column] + xb * wb[column] + xc * wc[column] + xd * wd[column]
            for place in range(full, counts[one]):
                a = kept[one, place]
                wa = weight[a, low:high]
                for row in range(firsts[one], lasts[one]):
                    xa = scale * x[row, a]
                    sums = out[row, low:high]
                    for column in range(len(sums)):
                        sums[column] += xa * wa[column]


@numba.njit(parallel=True, nogil=True, cache=True, fastmath=_SUMMED, error_model="numpy")
def set_input(dy: Any, weight: Any, kept: Any, counts: Any, firsts: Any, lasts: Any, scale: Any, dx: Any) -> None:
    """``dx[rows, kept] = scale dy[rows] weight[kept]'`` for every set, over zeros."""
    for place in numba.prange(kept.shape[1]):
        for one in range(len(counts)):
            if place >= counts[one]:
                continue
            unit = kept[one, place]
            w = weight[unit]
            full = firsts[one] + (lasts[one] - firsts[one]) // 4 * 4
            for row in range(firsts[one], full, 4):
                da, db, dc, dd = dy[row], dy[row + 1], dy[row + 2], dy[row + 3]
                a = b = c = d = dx[row, unit]  # a zero of the right type
                for column in range(len(w)):
                    a += da[column] * w[column]
                    b += db[column] * w[column]
                    c += dc[column] * w[column]
                    d += dd[column] * w[column]
                dx[row, unit], dx[row + 1, unit] = scale * a, scale * b
                dx[row + 2, unit], dx[row + 3, unit] = scale * c, scale * d
            for row in range(full, lasts[one]):
                da = dy[row]
                a = dx[row, unit]
                for column in range(len(w)):
                    a += da[column] * w[column]
                dx[row, unit] = scale * a


@numba.njit(parallel=True, nogil=True, cache=True, fastmath=_ORDERED, error_model="numpy")
def add_weight(x: Any, dy: Any, kept: Any, counts: Any, firsts: Any, lasts: Any, scale: Any, dweight: Any) -> None:
    """``dweight[kept] += scale x[rows, kept]' dy[rows]`` for every set."""
    columns = dweight.shape[1]
    for tile in numba.prange((columns + _TILE - 1) // _TILE):
        low, high = tile * _TILE, min(tile * _TILE + _TILE, columns)
        for one in range(len(counts)):
            full = firsts[one] + (lasts[one] - firsts[one]) // 4 * 4
            for row in range(firsts[one], full, 4):
                da, db, dc, dd = dy[row, low:high], dy[row + 1, low:high], dy[row + 2, low:high], dy[row + 3, low:high]
                for place in range(counts[one]):
                    unit = kept[one, place]
                    xa, xb = scale * x[row, unit], scale * x[row + 1, unit]
                    xc, xd = scale * x[row + 2, unit], scale * x[row + 3, unit]
                    sums = dweight[unit, low:high]
                    for column in range(len(sums)):
                        sums[column] += xa * da[column] + xb * db[column] + xc * dc[column] + xd * dd[column]
            for row in range(full, lasts[one]):
                da = dy[row, low:high]
                for place in range(counts[one]):
                    unit = kept[one, place]
                    xa = scale * x[row, unit]
                    sums = dweight[unit, low:high]
                    for column in range(len(sums)):
                        sums[column] += xa * da[column]


def padded(sets: list[Any]) -> tuple[Any, Any]:
    """Sets of any sizes as rows of one array, int64 [S, most], and how many each has."""
    counts = np.array([len(one) for one in sets], dtype=np.int64)
    kept = np.zeros((len(sets), int(counts.max(initial=0))), dtype=np.int64)
    for row, one in enumerate(sets):
        kept[row, : len(one)] = one
    return kept, counts
