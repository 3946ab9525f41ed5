"""A stable order of keys, compiled, for compiled loops.

In: keys. Out: the rows of the keys in increasing order, equal keys as they come. Not here: sorting outside of compiled
loops, which NumPy does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["stable_order"]

_RUN = 16  # keys; a power of two


@njit(cache=True, nogil=True)
def stable_order(keys: Any) -> Any:
    """Return the order that sorts keys, equal keys as they come.

    ``np.argsort`` gives the same, and numba optimizes its code again in each function that calls it, and in those that
    call these: seconds each.
    """
    # Runs of a few keys by insertion, then merges of neighbors, each run twice as long as before:
    #      runs     3 5 8 | 1 4 9 | ...
    #      merged   1 3 4 5 8 9   | ...
    num = len(keys)
    order, merged = np.empty(num, np.int64), np.empty(num, np.int64)
    for row in range(num):
        position, key = row, keys[row]
        while position & (_RUN - 1) and keys[order[position - 1]] > key:
            order[position] = order[position - 1]
            position -= 1
        order[position] = row
    width = _RUN
    while width < num:
        for first in range(0, num, 2 * width):
            left, middle, last = first, min(first + width, num), min(first + 2 * width, num)
            right, row = middle, first
            while left < middle and right < last:
                if keys[order[left]] <= keys[order[right]]:
                    merged[row] = order[left]
                    left += 1
                else:
                    merged[row] = order[right]
                    right += 1
                row += 1
            for rest in range(middle - left):
                merged[row + rest] = order[left + rest]
            for rest in range(right, last):
                merged[rest] = order[rest]
        order, merged = merged, order
        width *= 2
    return order
