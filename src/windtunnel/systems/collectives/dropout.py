"""The random mask of dropout as a function of the position in the full tensor.

In: a seed, the number of a step, element indices. Out: which elements stay. A rank that has a slice computes the mask
of that slice, so that sliced and replicated dropout agree bit for bit; a generator with a state per rank could not. Not
here: scaling.

References
----------
Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014 (the finalizer of SplitMix64).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["keep_mask", "keep_tensor", "stays"]

_GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)


@njit(cache=True, nogil=True, inline="always")
def stays(seed: int, step: int, index: int, threshold: int) -> bool:
    """Whether the element at a global index stays; ``threshold`` is ``round((1 - probability) * 2**32)``."""
    word = np.uint64(seed) * _MIX_1 + np.uint64(step) * _MIX_2 + (np.uint64(index) + np.uint64(1)) * _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    word = word ^ (word >> np.uint64(31))
    return (word >> np.uint64(32)) < np.uint64(threshold)  # type: ignore[return-value]


def keep_mask(seed: int, indices: NDArray[np.int64], probability: float, step: int = 0) -> NDArray[np.bool_]:
    """Which of the elements at these global indices stay, bool of the same shape.

    Examples
    --------
    >>> int(keep_mask(7, np.arange(10_000), 0.25).sum())
    7485
    """
    with np.errstate(over="ignore"):
        word = (
            np.uint64(seed) * _MIX_1 + np.uint64(step) * _MIX_2 + (indices.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        )
        word = (word ^ (word >> np.uint64(30))) * _MIX_1
        word = (word ^ (word >> np.uint64(27))) * _MIX_2
        word ^= word >> np.uint64(31)
    result: NDArray[np.bool_] = (word >> np.uint64(32)) < np.uint64(round((1 - probability) * 2**32))
    return result


def keep_tensor(seed: int, indices: Any, probability: float, step: Any) -> Any:
    """Compute ``keep_mask`` for PyTorch tensors of int64 indices and of a step, on the device where they are.

    PyTorch's integers are signed: the bits that a shift moves in from the left are cut off.
    """
    golden, mix_1, mix_2, first = (
        int(np.uint64(int(item) % 2**64).astype(np.int64)) for item in (_GOLDEN, _MIX_1, _MIX_2, seed * int(_MIX_1))
    )
    word = (indices + 1) * golden + step * mix_2 + first
    word = (word ^ (word >> 30 & (1 << 34) - 1)) * mix_1
    word = (word ^ (word >> 27 & (1 << 37) - 1)) * mix_2
    word = word ^ (word >> 31 & (1 << 33) - 1)
    return (word >> 32 & (1 << 32) - 1) < round((1 - probability) * 2**32)
