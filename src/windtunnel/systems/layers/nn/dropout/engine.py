"""Products with the kept units only, gathered while they are multiplied.

In: S sets in rows of ``kept`` (padded; ``counts`` says how many), the rows of the packed sequence that each is for, and
arrays that are written. Out: nothing; every element of a result is written by one thread, in one order, so that
results do not depend on the number of threads. A tile of the weight's columns stays in the cache over all sets.
"""

# N rows, D units, G columns; transposed weight [D, G]

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["add_forward", "add_weight", "pad_sets", "set_input"]

_TILE = 256
_UNITS, _ROWS, _FEW_ROWS = 8, 10, 4  # at once: a sum is read and written as often less
_ORDERED = {"contract"}
_SUMMED = {"contract", "reassoc"}  # a sum over a row of the weight, in the order that its vectors take


@numba.njit(nogil=True, cache=True, fastmath=_ORDERED, error_model="numpy")
def _add_8_units(
    x: Any, weight: Any, kept: Any, first: Any, last: Any, low: Any, high: Any, scale: Any, out: Any
) -> None:
    """``out[first:last, low:high]`` of 8 units of the input."""
    # Unrolled by hand: with eight units in registers each sum is loaded and stored once per eight products
    # instead of once per product.
    k0, k1, k2, k3 = kept[0], kept[1], kept[2], kept[3]
    k4, k5, k6, k7 = kept[4], kept[5], kept[6], kept[7]
    # slices: an index that may be negative keeps the loop from being vectorized
    w0, w1, w2, w3 = weight[k0, low:high], weight[k1, low:high], weight[k2, low:high], weight[k3, low:high]
    w4, w5, w6, w7 = weight[k4, low:high], weight[k5, low:high], weight[k6, low:high], weight[k7, low:high]
    for row in range(first, last):
        x0, x1, x2, x3 = scale * x[row, k0], scale * x[row, k1], scale * x[row, k2], scale * x[row, k3]
        x4, x5, x6, x7 = scale * x[row, k4], scale * x[row, k5], scale * x[row, k6], scale * x[row, k7]
        sums = out[row, low:high]
        for column in range(len(sums)):
            sums[column] += (x0 * w0[column] + x1 * w1[column] + x2 * w2[column] + x3 * w3[column]) + (
                x4 * w4[column] + x5 * w5[column] + x6 * w6[column] + x7 * w7[column]
            )


@numba.njit(nogil=True, cache=True, fastmath=_ORDERED, error_model="numpy")
def _add_1_units(
    x: Any, weight: Any, kept: Any, first: Any, last: Any, low: Any, high: Any, scale: Any, out: Any
) -> None:
    """``out[first:last, low:high]`` of 1 unit of the input."""
    # What is left over when the kept units are no multiple of eight.
    k0 = kept[0]
    w0 = weight[k0, low:high]
    for row in range(first, last):
        x0 = scale * x[row, k0]
        sums = out[row, low:high]
        for column in range(len(sums)):
            sums[column] += x0 * w0[column]


@numba.njit(parallel=True, nogil=True, cache=True, fastmath=_ORDERED, error_model="numpy")
def add_forward(x: Any, weight: Any, kept: Any, counts: Any, firsts: Any, lasts: Any, scale: Any, out: Any) -> None:
    """``out[rows] += scale x[rows, kept] weight[kept]`` for every set."""
    # threads own tiles of columns: each sum has one writer, and a tile of the weight stays in cache over all sets
    columns = weight.shape[1]
    for tile in numba.prange((columns + _TILE - 1) // _TILE):
        low, high = tile * _TILE, min(tile * _TILE + _TILE, columns)
        for index in range(len(counts)):
            first, last = firsts[index], lasts[index]
            full = counts[index] // _UNITS * _UNITS
            for position in range(0, full, _UNITS):
                _add_8_units(x, weight, kept[index, position : position + _UNITS], first, last, low, high, scale, out)
            for position in range(full, counts[index]):
                _add_1_units(x, weight, kept[index, position : position + 1], first, last, low, high, scale, out)


@numba.njit(parallel=True, nogil=True, cache=True, fastmath=_SUMMED, error_model="numpy")
def set_input(dy: Any, weight: Any, kept: Any, counts: Any, firsts: Any, lasts: Any, scale: Any, dx: Any) -> None:
    """``dx[rows, kept] = scale dy[rows] weight[kept]'`` for every set, over zeros; two units at once."""
    # 2 units x 4 rows: 8 sums in registers per pass over the columns, so that each load serves several products
    for pair in numba.prange((kept.shape[1] + 1) // 2):
        index = 2 * pair
        for position in range(len(counts)):
            if index >= counts[position]:
                continue
            left, right = (
                kept[position, index],
                kept[position, min(index + 1, counts[position] - 1)],
            )  # the last may stand alone
            v, w = weight[left], weight[right]
            full = firsts[position] + (lasts[position] - firsts[position]) // 4 * 4
            for row in range(firsts[position], full, 4):
                d0, d1, d2, d3 = dy[row], dy[row + 1], dy[row + 2], dy[row + 3]
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = dx[row, left]  # a zero of the right type
                for column in range(len(w)):
                    a0 += d0[column] * v[column]
                    a1 += d1[column] * v[column]
                    a2 += d2[column] * v[column]
                    a3 += d3[column] * v[column]
                    b0 += d0[column] * w[column]
                    b1 += d1[column] * w[column]
                    b2 += d2[column] * w[column]
                    b3 += d3[column] * w[column]
                dx[row, left], dx[row + 1, left] = scale * a0, scale * a1
                dx[row + 2, left], dx[row + 3, left] = scale * a2, scale * a3
                dx[row, right], dx[row + 1, right] = scale * b0, scale * b1
                dx[row + 2, right], dx[row + 3, right] = scale * b2, scale * b3
            for row in range(full, lasts[position]):
                d0 = dy[row]
                a0 = b0 = dx[row, left]
                for column in range(len(w)):
                    a0 += d0[column] * v[column]
                    b0 += d0[column] * w[column]
                dx[row, left], dx[row, right] = scale * a0, scale * b0


@numba.njit(nogil=True, cache=True, fastmath=_ORDERED, error_model="numpy")
def _add_10_rows(x: Any, dy: Any, kept: Any, row: Any, low: Any, high: Any, scale: Any, dweight: Any) -> None:
    """``dweight[kept, low:high]`` of 10 rows: each sum is read and written once for all of them."""
    # The transpose of ``_add_8_units``: here the sum runs over rows, so that rows are unrolled.
    d0, d1, d2, d3, d4 = (
        dy[row, low:high],
        dy[row + 1, low:high],
        dy[row + 2, low:high],
        dy[row + 3, low:high],
        dy[row + 4, low:high],
    )
    d5, d6, d7, d8, d9 = (
        dy[row + 5, low:high],
        dy[row + 6, low:high],
        dy[row + 7, low:high],
        dy[row + 8, low:high],
        dy[row + 9, low:high],
    )
    for index in range(len(kept)):
        unit = kept[index]
        x0, x1, x2, x3 = (
            scale * x[row, unit],
            scale * x[row + 1, unit],
            scale * x[row + 2, unit],
            scale * x[row + 3, unit],
        )
        x4, x5, x6, x7 = (
            scale * x[row + 4, unit],
            scale * x[row + 5, unit],
            scale * x[row + 6, unit],
            scale * x[row + 7, unit],
        )
        x8, x9 = scale * x[row + 8, unit], scale * x[row + 9, unit]
        sums = dweight[unit, low:high]
        for column in range(len(sums)):
            sums[column] += (
                x0 * d0[column] + x1 * d1[column] + x2 * d2[column] + x3 * d3[column] + x4 * d4[column]
            ) + (x5 * d5[column] + x6 * d6[column] + x7 * d7[column] + x8 * d8[column] + x9 * d9[column])


@numba.njit(nogil=True, cache=True, fastmath=_ORDERED, error_model="numpy")
def _add_4_rows(x: Any, dy: Any, kept: Any, row: Any, low: Any, high: Any, scale: Any, dweight: Any) -> None:
    """``dweight[kept, low:high]`` of 4 rows: each sum is read and written once for all of them."""
    # As above for the rows that are left behind blocks of ten; four are few enough for short sequences.
    d0, d1, d2, d3 = dy[row, low:high], dy[row + 1, low:high], dy[row + 2, low:high], dy[row + 3, low:high]
    for index in range(len(kept)):
        unit = kept[index]
        x0, x1, x2, x3 = (
            scale * x[row, unit],
            scale * x[row + 1, unit],
            scale * x[row + 2, unit],
            scale * x[row + 3, unit],
        )
        sums = dweight[unit, low:high]
        for column in range(len(sums)):
            sums[column] += x0 * d0[column] + x1 * d1[column] + x2 * d2[column] + x3 * d3[column]


@numba.njit(nogil=True, cache=True, fastmath=_ORDERED, error_model="numpy")
def _add_1_rows(x: Any, dy: Any, kept: Any, row: Any, low: Any, high: Any, scale: Any, dweight: Any) -> None:
    """``dweight[kept, low:high]`` of 1 row: each sum is read and written once for all of them."""
    # The last rows one by one.
    d0 = dy[row, low:high]
    for index in range(len(kept)):
        unit = kept[index]
        x0 = scale * x[row, unit]
        sums = dweight[unit, low:high]
        for column in range(len(sums)):
            sums[column] += x0 * d0[column]


@numba.njit(parallel=True, nogil=True, cache=True, fastmath=_ORDERED, error_model="numpy")
def add_weight(x: Any, dy: Any, kept: Any, counts: Any, firsts: Any, lasts: Any, scale: Any, dweight: Any) -> None:
    """``dweight[kept] += scale x[rows, kept]' dy[rows]`` for every set."""
    # as in ``add_forward``, threads own tiles of columns; rows go in blocks of 10, 4 and 1
    columns = dweight.shape[1]
    for tile in numba.prange((columns + _TILE - 1) // _TILE):
        low, high = tile * _TILE, min(tile * _TILE + _TILE, columns)
        for index in range(len(counts)):
            units, row, last = kept[index, : counts[index]], firsts[index], lasts[index]
            while row + _ROWS <= last:
                _add_10_rows(x, dy, units, row, low, high, scale, dweight)
                row += _ROWS
            while row + _FEW_ROWS <= last:
                _add_4_rows(x, dy, units, row, low, high, scale, dweight)
                row += _FEW_ROWS
            while row < last:
                _add_1_rows(x, dy, units, row, low, high, scale, dweight)
                row += 1


def pad_sets(sets: list[Any]) -> tuple[Any, Any]:
    """Return sets of different sizes as rows of one array, int64 [S, max size], and their sizes [S]."""
    counts = np.array([len(indices) for indices in sets], dtype=np.int64)
    kept = np.zeros((len(sets), int(counts.max(initial=0))), dtype=np.int64)
    for row, set_ in enumerate(sets):
        kept[row, : len(set_)] = set_
    return kept, counts
