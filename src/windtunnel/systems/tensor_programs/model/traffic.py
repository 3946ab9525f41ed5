"""Bytes that a store statement moves between levels of cache: a nest in, bytes per store and level out.

From the innermost loop outwards, what a statement touches grows until a cache cannot hold it. The loop at which that
happens still finds in each step what the step before it has left; what it touches in all comes anew with every step of
the loops around it, but for those next to it that do not change it. A nest that fits into a cache as a whole moves
nothing past it: what a run leaves there, the next one finds. Not here: what a byte costs.

Source: ours; elements and lines are counted as the 164 entries count them.
"""

# S stores, L levels of cache

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from windtunnel.systems.tensor_programs.model import statement_features as kernel
from windtunnel.systems.tensor_programs.model.features import MAX_DIMENSIONS, PackedNest

__all__ = ["CACHE_BYTES", "traffic_bytes"]

CACHE_BYTES = (48 * 1024, 2 * 1024**2)  # the first and second level of one core, of servers since 2021
_IS_COMPAT: Any = np.bool_(False)  # a literal would compile ``touch`` and what it calls again
_touch, _is_absent, _LINE_BYTES, _STACK = kernel.touch, kernel.is_absent, kernel.LINE_BYTES, kernel.STACK


def traffic_bytes(packed: PackedNest, cache_bytes: tuple[int, ...] = CACHE_BYTES) -> np.ndarray:
    """Bytes that each store of a packed nest, in program order, moves past each level of cache.

    Returns
    -------
    float64 [S, L] in the order of ``cache_bytes``; zeros where the whole nest fits.
    """
    loops, stores, loop_ids, accesses, rows, code, buffers = packed.arrays()
    whole = float((buffers[:, 0] * buffers[:, 3:].prod(axis=1)).sum())
    caches = np.array(cache_bytes, dtype=np.float64)
    result: np.ndarray = _traffic(loops, stores, loop_ids, accesses, rows, code, buffers, caches)
    return np.where(whole > caches, result, 0.0)


@numba.njit(cache=True)
def _traffic(loops: Any, stores: Any, loop_ids: Any, accesses: Any, rows: Any, code: Any, buffers: Any, caches: Any
             ) -> Any:  # fmt: skip
    # ``inside[a, l]`` is the footprint of access a while loops 0 .. l - 1 stand still, so it falls with l. To measure
    # it, the ranges [low, high] of loop variables are opened from the innermost loop outwards. Per cache, ``level``
    # is the smallest l whose footprint fits; the next larger footprint is loaded ``_returns`` times.
    minimum, extent = loops[:, 0], loops[:, 1]
    low, high = minimum.copy(), minimum.copy()
    stack, extents = np.zeros((_STACK, 3), dtype=np.int64), np.zeros(MAX_DIMENSIONS, dtype=np.int64)
    moved = np.zeros((stores.shape[0], caches.shape[0]))
    for store in range(stores.shape[0]):
        around = loop_ids[stores[store, 0] : stores[store, 1]]
        local = accesses[stores[store, 2] : stores[store, 3]]
        # bytes in whole lines that each access touches inside of loops [0 .. level) [A, levels]
        inside = np.zeros((local.shape[0], around.shape[0] + 1))
        for level in range(around.shape[0], -1, -1):
            if level < around.shape[0]:
                high[around[level]] = minimum[around[level]] + extent[around[level]] - 1
            for access in range(local.shape[0]):
                buffer = buffers[local[access, 0]]
                shape = buffer[3:]
                count = _touch(
                    local[access], buffer[1], rows, code, low, high, minimum, shape, _IS_COMPAT, stack, extents
                )
                inside[access, level] = _LINE_BYTES * _lines(count, extents, shape, buffer[1], buffer[0])
        for loop in around:
            high[loop] = low[loop]
        for cache in range(caches.shape[0]):
            level = around.shape[0]
            while level > 0 and inside[:, level - 1].sum() <= caches[cache]:
                level -= 1
            for access in range(local.shape[0]):
                times = _returns(local[access], rows, code, around[:level], extent)
                moved[store, cache] += inside[access, max(0, level - 1)] * times
    return moved


@numba.njit(cache=True)
def _lines(count: float, extents: Any, shape: Any, dims: int, element_bytes: int) -> float:
    """Return the cache lines of some elements, contiguous as far as the last dimensions are complete."""
    run = 1.0
    for dim in range(dims - 1, -1, -1):
        run *= extents[dim]
        if extents[dim] != shape[dim]:
            break
    return count / run * max(1.0, run * element_bytes / _LINE_BYTES)


@numba.njit(cache=True)
def _returns(access: Any, rows: Any, code: Any, outside: Any, extent: Any) -> float:
    """Return how often loops restart, except for steps of their neighboring loops that access the same data.

    One step of the innermost of ``outside`` still fits, so that it finds what the step before it has touched.
    """
    times, is_next = 1.0, True
    for index in range(outside.shape[0] - 1, -1, -1):
        is_innermost = index == outside.shape[0] - 1
        is_next = is_next and _is_absent(access, rows, code, outside[index])
        if not (is_next or is_innermost):
            times *= extent[outside[index]]
    return times
