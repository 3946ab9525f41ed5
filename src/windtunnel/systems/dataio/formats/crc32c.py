"""CRC-32C (Castagnoli), eight bytes at a time, and its mask in TFRecord files.

In: bytes as uint8. Out: the checksum.

References
----------
Slicing by eight: Kounavis and Berry, 2005. The mask is that of LevelDB's log format.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["crc32c", "mask_crc32c"]

_POLYNOMIAL = 0x82F63B78  # reversed
_MASK_DELTA = 0xA282EAD8


def _tables() -> NDArray[np.uint32]:
    """Table k gives the effect of a byte that is followed by k zero bytes, uint32 [8, 256]."""
    tables = np.zeros((8, 256), np.uint32)
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_POLYNOMIAL), values >> 1)
    tables[0] = values
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 0xFF]
    return tables


_TABLES = _tables()


@numba.njit(cache=True)
def _update(data: NDArray[np.uint8], tables: NDArray[np.uint32]) -> int:
    crc = np.uint32(0xFFFFFFFF)
    num_words = len(data) // 8
    for word in range(num_words):
        i = 8 * word
        # the first four bytes meet the checksum so far; all eight are looked up at once
        low = crc ^ (
            np.uint32(data[i])
            | (np.uint32(data[i + 1]) << np.uint32(8))
            | (np.uint32(data[i + 2]) << np.uint32(16))
            | (np.uint32(data[i + 3]) << np.uint32(24))
        )
        crc = (
            tables[7, low & np.uint32(255)]
            ^ tables[6, (low >> np.uint32(8)) & np.uint32(255)]
            ^ tables[5, (low >> np.uint32(16)) & np.uint32(255)]
            ^ tables[4, low >> np.uint32(24)]
            ^ tables[3, data[i + 4]]
            ^ tables[2, data[i + 5]]
            ^ tables[1, data[i + 6]]
            ^ tables[0, data[i + 7]]
        )
    for i in range(8 * num_words, len(data)):
        crc = tables[0, (crc ^ np.uint32(data[i])) & np.uint32(255)] ^ (crc >> np.uint32(8))
    return int(crc ^ np.uint32(0xFFFFFFFF))


def crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """Compute the checksum.

    Examples
    --------
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    return int(_update(array, _TABLES))


def mask_crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """Compute the checksum as TFRecord files store it: rotated, plus a constant.

    Examples
    --------
    >>> hex(mask_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
