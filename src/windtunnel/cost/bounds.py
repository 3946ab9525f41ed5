"""The least time that a device needs for a piece of work: what every price is a share of.

In: rows of work (flops, bytes, tiles) and what a device can do at best. Out: ``Bounds``: overhead + max(compute,
memory) by row, and which of them binds. Compute counts padded tiles and whole waves (quantization), memory counts what
a cache may keep (cache-aware roofline). A learned pricer predicts the efficiency against it: bound / duration. Devices
of the catalog are bounded only by limits that are known for all of them, so that a gap in the catalog never makes a
device slower than another one. Not here: measuring (``peak``, ``host``), efficiencies (``pricer``), graphs
(``roofline``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.cost.host import Ceilings
from windtunnel.cost.peak import SHORT_NAMES
from windtunnel.hardware import Accelerator, Device

__all__ = ["KERNEL_FLOOR_NS", "Binding", "Bounds", "bounds", "bounds_on", "padding_ratios"]

# P rows of work
Floats = NDArray[np.float64]

KERNEL_FLOOR_NS = 2_000
"""Least time from the start of one kernel to the start of the next on a queue, however small the kernel is.

Measured on one H200: 1 % of the 6,104 kernels of four ResNet-50 steps started less than 2.0 µs after the one before
(1.0 µs of work and 1.0 µs until the next), and none less than 1.98 µs. Taken for every device that a host feeds.
"""


class Binding(IntEnum):
    """What a bound is made of for the most part."""

    COMPUTE = 0
    MEMORY = 1
    OVERHEAD = 2
    WAVE = 3


@dataclass(frozen=True, eq=False)
class Bounds:
    """The least time of P rows of work, and its parts.

    Parameters
    ----------
    bound_ns : float [P]
        ``overhead_ns + max(compute_ns, memory_ns)``.
    compute_ns, memory_ns, overhead_ns : float [P]
        Computing includes what is lost to padding and to a last wave that is not full.
    binding : int8 [P]
        ``Binding``: the largest of overhead, memory and compute; WAVE where computing binds only because tiles do not
        fill the device, or takes more than twice as long for it.
    """

    bound_ns: Floats
    compute_ns: Floats
    memory_ns: Floats
    overhead_ns: Floats
    binding: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.bound_ns)

    def efficiency(self, duration_ns: ArrayLike) -> Floats:
        """Bound over measured durations [P]: 1 at the bound, NaN where a duration is not above zero."""
        duration = np.asarray(duration_ns, dtype=np.float64)
        efficiency = np.full(len(self), np.nan)
        np.divide(self.bound_ns, duration, out=efficiency, where=duration > 0)
        return efficiency

    def duration_ns(self, efficiency: ArrayLike) -> Floats:
        """The time at an efficiency [P]."""
        return self.bound_ns / np.asarray(efficiency, dtype=np.float64)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Bounds:
        """The given rows."""
        return Bounds(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def binding_names(self) -> NDArray[np.str_]:
        """``compute``, ``memory``, ``overhead`` or ``wave`` by row [P]."""
        return np.array([item.name.lower() for item in Binding])[self.binding]


def bounds(
    flops: ArrayLike,
    bytes_moved: ArrayLike,
    *,
    flops_per_s: ArrayLike,
    bytes_per_s: ArrayLike,
    overhead_ns: ArrayLike = 0.0,
    num_tiles: ArrayLike = 0,
    num_units: ArrayLike = 1,
    padding_ratio: ArrayLike = 1.0,
    cache_bytes: ArrayLike = 0.0,
    cache_bytes_per_s: ArrayLike = np.inf,
    floor_ns: ArrayLike = 0.0,
) -> Bounds:
    """Bounds of rows of work; every argument is one number or one per row, so rows may be of different devices.

    Parameters
    ----------
    flops, bytes_moved : float [P]
        Asked for; ``flops`` without padding.
    flops_per_s, bytes_per_s : float [P]
        Peak of the type, bandwidth of the memory.
    overhead_ns : float [P]
        Launch or dispatch.
    num_tiles, num_units : int [P]
        Tiles (thread blocks, shares of threads) of the work, and how many run at once; 0 tiles are not known.
    padding_ratio : float [P]
        Flops really done over flops asked for, >= 1: whole tiles, whole vectors.
    cache_bytes, cache_bytes_per_s : float [P]
        Of the last cache: as much of the bytes as fits may come from it, at its rate.
    floor_ns : float [P]
        Least time of a row: the overhead is as much longer as a short row needs.

    Examples
    --------
    >>> one = bounds([4e9], [1e6], flops_per_s=1e12, bytes_per_s=1e9, num_tiles=[3], num_units=2)
    >>> float(one.bound_ns[0]), str(one.binding_names()[0])
    (5333333.333333333, 'compute')

    Notes
    -----
    Williams, Waterman, Patterson, CACM 2009; Ilic, Pratas, Sousa, CAL 2014 (caches).
    """
    #      compute = flops / peak, times padded tiles over tiles, times whole waves over waves
    #      memory  = what a cache may keep at the cache's rate, the rest at the memory's
    #      bound   = overhead + max(compute, memory)
    tiles, units = _floats(num_tiles), _floats(num_units)
    unquantized = 1e9 * _floats(flops) / _floats(flops_per_s)
    compute = unquantized * _floats(padding_ratio) * padding_ratios(tiles, units)
    moved = _floats(bytes_moved)
    kept = np.minimum(moved, _floats(cache_bytes))
    memory = 1e9 * (kept / _floats(cache_bytes_per_s) + (moved - kept) / _floats(bytes_per_s))
    unquantized, compute, memory, overhead = np.broadcast_arrays(
        *np.atleast_1d(unquantized, compute, memory, _floats(overhead_ns))
    )
    # A kernel below the floor is waiting for the next launch: that counts as overhead, not as work.
    overhead = np.maximum(overhead, _floats(floor_ns) - np.maximum(compute, memory))
    bound = overhead + np.maximum(compute, memory)
    # WAVE: the last, partly empty wave is what makes compute the limit, or is more than half of it.
    is_wave = (unquantized < memory) | (2 * unquantized < compute)
    busy = np.where(compute > memory, np.where(is_wave, Binding.WAVE, Binding.COMPUTE), Binding.MEMORY)
    binding = np.where(overhead > np.maximum(compute, memory), Binding.OVERHEAD, busy).astype(np.int8)
    return Bounds(bound, compute, memory, overhead, binding)


def padding_ratios(sizes: Floats | np.float64, multiples: Floats | np.float64) -> Floats:
    """Sizes rounded up to whole multiples, over themselves; 1 where a size is 0, so not known.

    Examples
    --------
    >>> padding_ratios(np.array([133.0, 132.0, 0.0]), np.array(132.0)).tolist()
    [1.9849624060150375, 1.0, 1.0]
    """
    whole = np.ceil(sizes / multiples) * multiples
    ratios: Floats = np.where(sizes > 0, whole / np.where(sizes > 0, sizes, 1.0), 1.0)
    return ratios


def bounds_on(
    device: Device | Ceilings,
    flops: ArrayLike,
    bytes_moved: ArrayLike,
    *,
    dtype: str | Sequence[str] = "fp32",
    num_tiles: ArrayLike = 0,
    padding_ratio: ArrayLike = 1.0,
    overhead_ns: ArrayLike | None = None,
    is_cached: bool = True,
) -> Bounds:
    """Bounds of rows of work on one device of the catalog, or on the ceilings that were measured on a host.

    Parameters
    ----------
    device : Device or Ceilings
    flops, bytes_moved, num_tiles, padding_ratio : float [P]
        As of ``bounds``; a device's units and ceilings' threads take the tiles.
    dtype : str or sequence of str [P]
        ``fp32``, ``bf16`` ...
    overhead_ns : float [P], optional
        Instead of the device's own overhead, where that is known; else 0. The floor of a kernel stays.
    is_cached : bool
        False moves every byte at the rate of the memory (the plain roofline), as for every device of the catalog: the
        rate of the last cache is known for few of them. A CPU that was measured and an accelerator that is described
        part by part have their own.

    Raises
    ------
    InputError, PriceError
        There is no peak for a type.
    """
    own_ns, floor_ns, units = _overhead_and_units(device)
    moved = _floats(bytes_moved)
    names = [dtype] if isinstance(dtype, str) else list(dtype)
    known = {name: _peak(device, name) for name in dict.fromkeys(names)}
    rates = np.array([known[name] for name in names])
    return bounds(
        flops,
        moved,
        flops_per_s=rates[0] if isinstance(dtype, str) else rates,
        num_tiles=num_tiles,
        num_units=units,
        padding_ratio=padding_ratio,
        overhead_ns=own_ns if overhead_ns is None else overhead_ns,
        floor_ns=floor_ns,
        **_memory(device, moved, is_cached=is_cached),
    )


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)


def _overhead_and_units(device: Device | Ceilings) -> tuple[float, float, int]:
    """Overhead of every row, least time of a row, and what takes its tiles."""
    if isinstance(device, Ceilings):
        return 0.0, 0.0, device.num_threads
    launch_ns = float(device.launch_overhead_ns or 0)
    if _has_common_limits(device):
        return 0.0, max(KERNEL_FLOOR_NS, launch_ns), device.num_units
    return launch_ns, 0.0, device.num_units


def _has_common_limits(device: Device) -> bool:
    """Whether only limits count that are known for all devices: those that are fed by a host and known by a sheet."""
    return device.kind != "cpu" and not isinstance(device, Accelerator)


def _peak(device: Device | Ceilings, dtype: str) -> float:
    return device.flops_per_s(SHORT_NAMES.get(dtype, dtype) if isinstance(device, Ceilings) else dtype)


def _memory(device: Device | Ceilings, moved: Floats, *, is_cached: bool) -> dict[str, Floats | float]:
    if isinstance(device, Ceilings):
        return {"bytes_per_s": device.rates(moved) if is_cached else _floats(device.bandwidths[-1].bytes_per_s)}
    result: dict[str, Floats | float] = {"bytes_per_s": device.bandwidth_bytes_per_s}
    has_cache = is_cached and not _has_common_limits(device)
    if has_cache and device.last_cache_bytes and device.cache_bandwidth_bytes_per_s:
        result |= {
            "cache_bytes": float(device.last_cache_bytes),
            "cache_bytes_per_s": device.cache_bandwidth_bytes_per_s,
        }
    return result
