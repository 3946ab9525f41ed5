"""This host as a device with measured limits.

In: a number of threads, types. Out: a ``Device`` whose peaks, bandwidths and dispatch overhead were measured here and
are kept in the profile database; ``Ceilings``: peaks by type and a bandwidth for every size of working set, since what
fits into a cache does not wait for memory (cache-aware roofline: Ilic, Pratas, Sousa, CAL 2014). Not here: the
measuring itself (``peak``), how close operators come to these limits (``calibration``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel import hardware
from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost.kernels import Kernel, TensorShape
from windtunnel.cost.lookup import measure
from windtunnel.cost.peak import SHORT_NAMES, Bandwidth, Peak, measure_bandwidth, measure_peak
from windtunnel.errors import InputError, PriceError
from windtunnel.hardware import Device
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import libraries, machine

__all__ = [
    "HOST",
    "Ceilings",
    "dispatch_ns",
    "host_device",
    "host_limits",
    "is_host",
    "lanes_of",
    "measure_ceilings",
    "usable_dtypes",
]

_SIZES_BYTES = (96 * 2**10, 1536 * 2**10, 12 * 2**20)  # below L2, about L2, above it; memory comes last
_VECTOR_BYTES = {"avx512": 64, "amx": 64, "avx2": 32, "avx_vnni": 32}
_ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
HOST = "this host"
_DTYPES = ("float32", "bfloat16", "float64")
_METHOD = 1


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


def host_device(
    num_threads: int = 0, *, dtypes: Iterable[str] = _DTYPES, database: ProfileDatabase | None = None
) -> Device:
    """This host's processor at a number of threads, with limits measured here.

    Parameters
    ----------
    num_threads : int
        0: all cores.
    dtypes : iterable of str
        Whose peaks are measured, as ``float32``; those that cannot be multiplied here are left out.
    database : ProfileDatabase, optional
        Looked up first and filled afterwards.

    Raises
    ------
    MissingExtraError
        PyTorch is not installed.
    InputError
        ``num_threads`` is negative, or more than the host has.
    """
    host = hardware.machine()
    if num_threads < 0 or num_threads > max(host.num_threads, os.cpu_count() or 1):
        raise InputError(
            f"this host has {host.num_threads} threads, not {num_threads}", where="threads", fix="0 takes all"
        )
    count = num_threads or host.num_threads
    ceilings = measure_ceilings(usable_dtypes(dtypes), count, database=database)
    caches, rates = host.cache_bytes, [bandwidth.bytes_per_s for bandwidth in ceilings.bandwidths]
    short = {long: name for name, long in SHORT_NAMES.items()}
    return Device(
        name=HOST,
        memory_bytes=host.memory_bytes,
        bandwidth_bytes_per_s=rates[-1],
        peak_flops_per_s={short.get(name, name): peak.flops_per_s for name, peak in ceilings.peaks.items()},
        kind="cpu",
        num_units=count,
        source=f"measured on {machine()}",
        num_threads=count,
        l1_bytes=caches.get("l1d"),
        l2_bytes=caches.get("l2"),
        l3_bytes=caches.get("l3"),
        # the fastest of the caches: a bound must not be beaten
        cache_bandwidth_bytes_per_s=max(rates),
        launch_overhead_ns=round(dispatch_ns(database=database)),
    )


def host_limits(
    *,
    dtypes: Iterable[str] = _DTYPES,
    database: ProfileDatabase | None = None,
    progress: Progress | None = None,
) -> dict[int, Device]:
    """The limits at 1, 2, 4 ... threads and at all of them, by number of threads."""
    available = hardware.machine().num_threads
    counts = sorted({2**power for power in range(available.bit_length()) if 2**power <= available} | {available})
    result = {}
    for number, count in enumerate(counts):
        if progress is not None:
            progress(f"limits of {count} threads", number, len(counts))
        result[count] = host_device(count, dtypes=dtypes, database=database)
    return result


def is_host(device: Device) -> bool:
    """Whether a device is this host, measured by ``host_device``."""
    return device.name == HOST and device.source == f"measured on {machine()}"


def usable_dtypes(dtypes: Iterable[str] = _DTYPES) -> list[str]:
    """Types whose matrix products run here."""
    torch = require("torch", extra="torch")
    return [name for name in dtypes if name == "float32" or _multiplies(torch, name)]


def dispatch_ns(*, database: ProfileDatabase | None = None) -> float:
    """What calling the cheapest operator takes: an addition of one element, without Python's own time."""
    torch = require("torch", extra="torch")
    scalar = TensorShape((1,), (1,), torch.float32)
    kernel = Kernel("aten::neg.default", (scalar,))
    key = (kernel.operator, kernel.signature, "forward", f"dispatch (method {_METHOD})", 1, machine(), libraries())
    known = database.find(key) if database is not None else None
    if known is None:
        took = min(measure([kernel], 1, budget_s=0.1)[kernel] for _ in range(5))
        known = Measurement(*key, took, took)
        if database is not None:
            database.add([known])
    return known.new_ns


def _multiplies(torch: object, dtype: str) -> bool:
    import torch as loaded

    try:
        square = loaded.ones(4, 4, dtype=getattr(torch, dtype))
        return bool((square @ square)[0, 0] == 4)
    except (RuntimeError, NotImplementedError):
        return False
