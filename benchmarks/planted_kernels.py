"""Kernels with a defect that no compiler removes, each beside the clean one.

A search that is worth something finds them: a store that is always overwritten, a chain of loads done twice, work done
again through memory, a clamp that never clamps.
"""

# mypy: ignore-errors
# the loops below are for numba, which has types of its own

from __future__ import annotations

import math

import numpy as np

from windtunnel.systems.kernels.cases import FITNESS, Out

__all__ = ["PLANTED"]


def _redundant_store(x, scratch, out):
    cols = x.shape[1]
    for i in range(out.shape[0]):
        for k in range(cols):
            scratch[k] = math.exp(x[i, k])  # nobody reads it: the next loop overwrites it
        for k in range(cols):
            scratch[k] = x[i, k] * np.float32(2.0)
        out[i] = scratch[0] + scratch[cols - 1]


def _redundant_store_clean(x, scratch, out):
    cols = x.shape[1]
    for i in range(out.shape[0]):
        for k in range(cols):
            scratch[k] = x[i, k] * np.float32(2.0)
        out[i] = scratch[0] + scratch[cols - 1]


def _loads_twice(index, table, out):
    for i in range(index.shape[0]):
        out[i] = table[index[index[index[i]]]]
        out[i] = out[i] + table[index[index[index[i]]]]


def _loads_twice_clean(index, table, out):
    for i in range(index.shape[0]):
        found = table[index[index[index[i]]]]
        out[i] = found
        out[i] = out[i] + found


def _done_again(x, index, half, out):
    for i in range(index.shape[0]):
        half[index[i]] = math.exp(x[i])
        out[i] = half[index[i]] + np.float32(math.exp(x[i]))  # the store could have changed x, for all it knows


def _done_again_clean(x, index, half, out):
    for i in range(index.shape[0]):
        once = np.float32(math.exp(x[i]))
        half[index[i]] = once
        out[i] = once + once


def _clamped(x, low, high, index, out):
    for i in range(index.shape[0]):
        at = index[i]
        out[i] = min(max(x[at], low[at]), high[at])


def _clamped_clean(x, low, high, index, out):  # noqa: ARG001 - the same arguments
    for i in range(index.shape[0]):
        out[i] = x[index[i]]


def _rows(split):
    draw = np.random.default_rng(51 if split == FITNESS else 52)

    def case(rows, cols):
        return draw.normal(size=(rows, cols)).astype(np.float32), Out((cols,)), Out((rows,))

    return {"16x128": case(16, 128)} if split == FITNESS else {"100x300": case(100, 300), "5x33": case(5, 33)}


def _places(split):
    draw = np.random.default_rng(53 if split == FITNESS else 54)

    def case(size):
        return draw.integers(0, size, size), draw.normal(size=size).astype(np.float32), Out((size,))

    return {"8192": case(8192)} if split == FITNESS else {"10000": case(10000), "37": case(37)}


def _line(split):
    draw = np.random.default_rng(55 if split == FITNESS else 56)

    def case(size):
        return draw.normal(size=size).astype(np.float32), draw.permutation(size), Out((size,)), Out((size,))

    return {"4096": case(4096)} if split == FITNESS else {"10000": case(10000), "37": case(37)}


def _gathered(split):
    draw = np.random.default_rng(57 if split == FITNESS else 58)

    def case(size):
        x, index = draw.normal(size=size).astype(np.float32), draw.integers(0, size, size)
        return x, np.full_like(x, -100.0), np.full_like(x, 100.0), index, Out((size,))

    return {"16384": case(16384)} if split == FITNESS else {"20000": case(20000), "37": case(37)}


PLANTED = {
    "redundant-store": (_redundant_store, _redundant_store_clean, _rows),
    "loads-twice": (_loads_twice, _loads_twice_clean, _places),
    "done-again": (_done_again, _done_again_clean, _line),
    "clamp": (_clamped, _clamped_clean, _gathered),
}
