"""Memory with a wall on both sides.

In: a shape and a type. Out: an array whose next pages cannot be touched, and margins that tell who wrote into them.
Who writes one element beyond the end is killed or found. Not here: who writes.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["GuardedArray"]

_ALIGNMENT = 64
_MARGIN = 0xA5


class GuardedArray:
    """An array that ends where a page ends which nobody may touch, but for less than 64 bytes of margin.

    Parameters
    ----------
    shape : sequence of int
    dtype : dtype
    """

    def __init__(self, shape: Sequence[int], dtype: DTypeLike) -> None:
        kind = np.dtype(dtype)
        size_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        page = mmap.PAGESIZE
        inner = -(-max(size_bytes, 1) // page) * page
        self._memory = mmap.mmap(-1, inner + 2 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        for index in (begin, begin + page + inner):
            if libc.mprotect(ctypes.c_void_p(index), ctypes.c_size_t(page), 0) != 0:
                raise OSError(ctypes.get_errno(), "the pages around an array cannot be protected")
        first = page + inner - -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        bytes_all = np.frombuffer(self._memory, dtype=np.uint8)
        self._front, self._back = bytes_all[page:first], bytes_all[first + size_bytes : page + inner]
        self._front[:], self._back[:] = _MARGIN, _MARGIN
        flat = np.frombuffer(self._memory, dtype=np.uint8, count=size_bytes, offset=first)
        self.array: NDArray[np.generic] = flat.view(kind).reshape(tuple(shape))
        self.address = begin + first

    def is_intact(self) -> bool:
        """Whether nobody wrote into the margins."""
        return bool((self._front == _MARGIN).all() and (self._back == _MARGIN).all())
