"""What this host could do at best, in the form that a roofline needs.

In: types, a number of threads. Out: ``Ceilings``: peaks by type and a bandwidth for every size of working set, since
what fits into a cache does not wait for memory (cache-aware roofline: Ilic, Pratas, Sousa, CAL 2014). Not here: the
measuring itself (``peak``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.peak import Bandwidth, Peak, measure_bandwidth, measure_peak
from windtunnel.errors import PriceError
from windtunnel.measure.database import ProfileDatabase

__all__ = ["Ceilings", "lanes_of", "measure_ceilings"]

_SIZES_BYTES = (96 * 2**10, 1536 * 2**10, 12 * 2**20)  # below L2, about L2, above it; memory comes last
_VECTOR_BYTES = {"avx512": 64, "amx": 64, "avx2": 32, "avx_vnni": 32}
_ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclass(frozen=True)
class Ceilings:
    """Peaks and bandwidths of one host at one number of threads.

    Parameters
    ----------
    peaks : dict of str to Peak
        By type; the first is used where a graph does not say the type.
    bandwidths : tuple of Bandwidth
        Ascending by size.
    num_threads : int
    """

    peaks: Mapping[str, Peak]
    bandwidths: tuple[Bandwidth, ...]
    num_threads: int

    @property
    def dtype(self) -> str:
        """The type that counts where none is known."""
        return next(iter(self.peaks))

    def flops_per_s(self, dtype: str = "") -> float:
        """Peak of a type.

        Raises
        ------
        PriceError
            It was not measured.
        """
        name = dtype or self.dtype
        if name not in self.peaks:
            raise PriceError(f"no peak was measured for {name}", where=", ".join(self.peaks))
        return self.peaks[name].flops_per_s

    def bytes_per_s(self, size_bytes: float) -> float:
        """Bandwidth of a working set of ``size_bytes``, interpolated between measured sizes on a logarithmic scale."""
        return float(self.rates(np.float64(size_bytes)))

    def rates(self, sizes_bytes: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
        """The same by row [P]."""
        sizes = np.log([bandwidth.size_bytes for bandwidth in self.bandwidths])
        rates = np.log([bandwidth.bytes_per_s for bandwidth in self.bandwidths])
        return np.exp(np.interp(np.log(np.maximum(sizes_bytes, 1.0)), sizes, rates))


def measure_ceilings(
    dtypes: Iterable[str] = ("float32",), num_threads: int = 1, *, database: ProfileDatabase | None = None
) -> Ceilings:
    """Measure peaks and bandwidths, or find them in the database.

    Parameters
    ----------
    dtypes : iterable of str
    num_threads : int
    database : ProfileDatabase, optional

    Raises
    ------
    InputError
        A type is unknown, or ``num_threads`` is not positive.
    MissingExtraError
        PyTorch is not installed.
    """
    peaks = {dtype: measure_peak(dtype, num_threads, database=database) for dtype in dtypes}
    cached = [measure_bandwidth(num_threads, size * num_threads, database=database) for size in _SIZES_BYTES]
    return Ceilings(peaks, (*cached, measure_bandwidth(num_threads, database=database)), num_threads)


def lanes_of(peak: Peak) -> int:
    """Elements of its type in one vector of the instruction set; 1 where that is not known.

    Examples
    --------
    >>> lanes_of(Peak(1e11, 0.0, (512, 512, 512), "avx512f", "float32", 1))
    16
    """
    width = next((size for prefix, size in _VECTOR_BYTES.items() if peak.isa.startswith(prefix)), 0)
    return max(1, width // _ITEM_BYTES.get(peak.dtype, 4))
