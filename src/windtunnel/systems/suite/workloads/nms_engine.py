"""Greedy suppression of overlapping boxes, compiled.

In: plain arrays, the best box first. Out: which boxes stay. Not here: the torch operator around it (``nms.py``).
"""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["suppress"]


@numba.njit(cache=True)
def suppress(boxes_N4: np.ndarray, eligible_N: np.ndarray, threshold: float, limit: int, keep_N: np.ndarray) -> None:
    """Keep a box unless it overlaps a kept one by more than ``threshold``; stop when ``limit`` are kept."""
    # Greedy non-maximum suppression: boxes come with the best score first, and only boxes that stay
    # suppress others. Quadratic at worst, but each box stops at the first one that suppresses it.
    #      overlap = intersection / union > threshold, without dividing, so that empty boxes need no case
    kept = np.empty(limit, np.int64)
    count = 0
    for index in range(len(boxes_N4)):
        if count == limit:
            return
        left, top, right, bottom = boxes_N4[index]
        stays = eligible_N[index]
        for better in range(count):
            if not stays:
                break
            other = boxes_N4[kept[better]]
            across = min(right, other[2]) - max(left, other[0])
            down = min(bottom, other[3]) - max(top, other[1])
            if across > 0 and down > 0:
                common = across * down
                both = (right - left) * (bottom - top) + (other[2] - other[0]) * (other[3] - other[1]) - common
                stays = common <= threshold * both
        if stays:
            keep_N[index] = True
            kept[count] = index
            count += 1
