"""Kernels that were measured on one GPU, priced for another (benchmarks, after Habitat).

In: times of kernels on an origin, what they compute, move and launch, and two devices. Out: their times on the target.
A kernel runs in waves of thread blocks; between two GPUs a wave changes by bandwidth, clock and units, mixed by how
much its roofline makes it depend on each. Not here: kernels that another GPU runs with other code (``wave_network``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.cost.bounds import Bounds
from windtunnel.errors import InputError, PriceError
from windtunnel.hardware import Device

__all__ = [
    "FORMS",
    "UNIT_LIMITS",
    "Launches",
    "UnitLimits",
    "carry_overhead",
    "gamma",
    "keep_efficiency",
    "pool",
    "resident_blocks",
    "wave_scale",
    "wave_size",
]

# K kernels
Floats = NDArray[np.float64]
FORMS = ("waves", "paper", "bandwidth")
_WARP = 32


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """What one multiprocessor holds at once.

    Parameters
    ----------
    num_threads, num_blocks, num_registers : int
        Registers of 4 bytes.
    """

    num_threads: int
    num_blocks: int
    num_registers: int = 65_536


UNIT_LIMITS: Mapping[tuple[str, int], UnitLimits] = MappingProxyType(
    {
        ("kepler", 192): UnitLimits(2048, 16, 131_072),
        ("pascal", 64): UnitLimits(2048, 32),
        ("pascal", 128): UnitLimits(2048, 32),
        ("volta", 64): UnitLimits(2048, 32),
        ("turing", 64): UnitLimits(1024, 16),
        ("ampere", 64): UnitLimits(2048, 32),
        ("ampere", 128): UnitLimits(1536, 16),
        ("ada", 128): UnitLimits(1536, 24),
        ("hopper", 128): UnitLimits(2048, 32),
        ("blackwell", 128): UnitLimits(2048, 32),
    }
)
"""By architecture and fp32 lanes of a unit (NVIDIA, CUDA C++ Programming Guide 12, table of compute capabilities)."""


@dataclass(frozen=True, eq=False)
class Launches:
    """How K kernels are launched.

    Parameters
    ----------
    num_blocks, threads_per_block : int [K]
    registers_per_thread, shared_bytes_per_block : int [K]
        0 where it is not known: then they limit nothing.
    """

    num_blocks: NDArray[np.int64]
    threads_per_block: NDArray[np.int64]
    registers_per_thread: NDArray[np.int64] | int = 0
    shared_bytes_per_block: NDArray[np.int64] | int = 0


def gamma(flops: ArrayLike, bytes_moved: ArrayLike, device: Device, dtype: str = "fp32") -> Floats:
    """How much a kernel depends on bandwidth [K]: 1 moves only, 0 computes only.

    ``1 - x / 2R`` below the ridge of the device's roofline and ``R / 2x`` above it, where x is the kernel's flops per
    byte and R the device's.

    Raises
    ------
    InputError
        The device has no peak for the type.

    Examples
    --------
    >>> chip = Device("toy", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e10})
    >>> gamma([0, 5, 10, 20, 3], [1, 1, 1, 1, 0], chip).tolist()
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    work, moved = np.broadcast_arrays(np.asarray(flops, dtype=np.float64), np.asarray(bytes_moved, dtype=np.float64))
    ridge = device.flops_per_s(dtype) / device.bandwidth_bytes_per_s
    intensity = np.divide(work, moved, out=np.zeros(work.shape), where=moved > 0)
    above = np.divide(ridge, 2 * intensity, out=np.zeros(work.shape), where=intensity > ridge)
    share = np.where(intensity <= ridge, 1 - intensity / (2 * ridge), above)
    return np.asarray(np.where(moved > 0, share, np.where(work > 0, 0.0, 1.0)), dtype=np.float64)


def resident_blocks(device: Device, launches: Launches) -> NDArray[np.int64]:
    """Thread blocks that one unit holds at once [K]: least of what threads, registers, shared memory and slots allow.

    Raises
    ------
    PriceError
        The architecture's limits are not known, or a block is larger than a unit.
    """
    limits = UNIT_LIMITS.get((device.architecture, device.lanes_per_unit or 0))
    if limits is None:
        known = ", ".join(sorted({name for name, _ in UNIT_LIMITS}))
        raise PriceError(f"what a unit of {device.name} holds is not known", where=f"architectures: {known}")
    threads = np.asarray(launches.threads_per_block, dtype=np.int64)
    warps = -(-threads // _WARP)
    allowed = [np.full(threads.shape, limits.num_blocks), limits.num_threads // _WARP // np.maximum(warps, 1)]
    registers = np.asarray(launches.registers_per_thread, dtype=np.int64) * warps * _WARP
    allowed.append(np.where(registers > 0, limits.num_registers // np.maximum(registers, 1), limits.num_blocks))
    shared = np.asarray(launches.shared_bytes_per_block, dtype=np.int64)
    if device.shared_bytes:
        allowed.append(np.where(shared > 0, device.shared_bytes // np.maximum(shared, 1), limits.num_blocks))
    found = np.asarray(np.minimum.reduce(np.broadcast_arrays(*allowed)), dtype=np.int64)
    if (found < 1).any() or (threads < 1).any():
        raise PriceError(f"no unit of {device.name} holds such a block", where=f"kernel {int(np.argmin(found))}")
    return found


def wave_size(device: Device, launches: Launches) -> NDArray[np.int64]:
    """Thread blocks that run at once on the whole device [K]."""
    return device.num_units * resident_blocks(device, launches)


def wave_scale(
    duration_ns: ArrayLike,
    origin: Device,
    target: Device,
    *,
    flops: ArrayLike | None = None,
    bytes_moved: ArrayLike | None = None,
    launches: Launches | None = None,
    form: str = "waves",
    dtype: str = "fp32",
) -> Floats:
    """Times of kernels on another GPU that runs the same code.

    Parameters
    ----------
    duration_ns : float [K]
        Measured on the origin.
    origin, target : Device
    flops, bytes_moved : float [K], optional
        Per kernel; the form ``bandwidth`` needs neither.
    launches : Launches, optional
        Without them every kernel counts as many waves.
    form : str
        ``waves`` as in the released code: bandwidth, clock and units, for a kernel that fills no wave on either
        device its blocks per unit. ``paper``: the first form of the paper, in waves that are counted whole.
        ``bandwidth``: the ratio of bandwidths, for want of counters; a kernel that fills no wave stays as it is.
    dtype : str

    Returns
    -------
    float [K]

    Raises
    ------
    InputError
        The form is unknown, a device lacks its clock or peak, or the form's inputs are not given.
    PriceError
        As of :func:`resident_blocks`.

    Notes
    -----
    Source: Habitat (Yu, Gao, Golikov, Pekhimenko, USENIX ATC 2021), section 3.3 and its released code.
    """
    took = np.asarray(duration_ns, dtype=np.float64)
    _check(form, origin, target, has_counts=flops is not None and bytes_moved is not None, launches=launches)
    bandwidth = origin.bandwidth_bytes_per_s / target.bandwidth_bytes_per_s
    if form == "bandwidth":
        return np.asarray(np.where(_fills_no_wave(origin, target, launches), took, took * bandwidth))
    share = gamma(flops, bytes_moved, target, dtype)  # type: ignore[arg-type]
    clock = _clock(origin) / _clock(target)
    if form == "paper":
        assert launches is not None
        return took * _whole_waves(origin, target, launches, bandwidth, share) * clock ** (1 - share)
    many = bandwidth**share * (clock * origin.num_units / target.num_units) ** (1 - share)
    if launches is None:
        return took * many
    per_unit = [np.ceil(np.asarray(launches.num_blocks) / one.num_units) for one in (target, origin)]
    few = (clock * per_unit[0] / np.maximum(per_unit[1], 1)) ** (1 - share)
    return np.asarray(took * np.where(_fills_no_wave(origin, target, launches), few, many))


def _whole_waves(origin: Device, target: Device, launches: Launches, bandwidth: float, share: Floats) -> Floats:
    """Waves of each device, and the bandwidth that one of its blocks has."""
    blocks = np.asarray(launches.num_blocks, dtype=np.float64)
    on_origin, on_target = wave_size(origin, launches), wave_size(target, launches)
    waves = np.ceil(blocks / on_target) / np.maximum(np.ceil(blocks / on_origin), 1)
    return np.asarray(waves * (bandwidth * on_target / on_origin) ** share, dtype=np.float64)


def _fills_no_wave(origin: Device, target: Device, launches: Launches | None) -> NDArray[np.bool_]:
    if launches is None:
        return np.array(False)
    blocks = np.asarray(launches.num_blocks)
    return np.asarray((blocks < wave_size(origin, launches)) & (blocks < wave_size(target, launches)))


def _clock(device: Device) -> float:
    if device.clock_hz is None:
        raise InputError(
            f"the clock of {device.name} is not known", where="clock_hz", fix="give it in the device sheet"
        )
    return device.clock_hz


def _check(form: str, origin: Device, target: Device, *, has_counts: bool, launches: Launches | None) -> None:
    if form not in FORMS:
        raise InputError(f"no form of wave scaling is called {form!r}", where="form", fix=f"use {', '.join(FORMS)}")
    if form != "bandwidth" and not has_counts:
        raise InputError("flops and bytes of the kernels are not known", where="form", fix="use the form 'bandwidth'")
    if form == "paper" and launches is None:
        raise InputError("the paper's form counts waves and needs launches", where="launches", fix="use 'waves'")
    for device in (origin, target):
        if form != "bandwidth":
            _clock(device)


def keep_efficiency(duration_ns: ArrayLike, on_origin: Bounds, on_target: Bounds) -> Floats:
    """Times on another device if each piece of work reaches the same share of its bound there [K]."""
    return on_target.duration_ns(on_origin.efficiency(duration_ns))


def pool(predicted_ns: ArrayLike) -> tuple[Floats, Floats]:
    """One prediction of several, made from several origins: what is odd about one of them weighs less.

    Parameters
    ----------
    predicted_ns : float [O, K]
        NaN where a kernel was not measured on an origin.

    Returns
    -------
    duration_ns, log_std : float [K]
        Geometric mean, and how far the logarithms are apart; the spread is NaN from a single origin.

    Examples
    --------
    >>> duration_ns, log_std = pool([[1.0, 5.0], [4.0, float("nan")]])
    >>> duration_ns.round(9).tolist(), log_std.round(2).tolist()
    ([2.0, 5.0], [0.98, nan])
    """
    logs_OK = np.log(np.asarray(predicted_ns, dtype=np.float64))
    known_OK = np.isfinite(logs_OK)
    number_K = known_OK.sum(axis=0).astype(np.float64)
    number_K[number_K == 0] = np.nan
    mean_K = np.where(known_OK, logs_OK, 0.0).sum(axis=0) / number_K
    squares_K = np.where(known_OK, (logs_OK - mean_K) ** 2, 0.0).sum(axis=0)
    spread_K = np.full(mean_K.shape, np.nan)
    np.divide(squares_K, number_K - 1, out=spread_K, where=number_K > 1)
    return np.exp(mean_K), np.sqrt(spread_K)


def carry_overhead(operator_ns: ArrayLike, kernels_ns: ArrayLike, scaled_ns: ArrayLike) -> Floats:
    """Times of operators from those of their kernels: what the kernels do not explain stays as it was [K].

    Parameters
    ----------
    operator_ns : float [K]
        Measured on the origin.
    kernels_ns, scaled_ns : float [K]
        Sum of each operator's kernels on the origin, and scaled.

    Examples
    --------
    >>> carry_overhead([100.0, 50.0], [80.0, 60.0], [40.0, 30.0]).tolist()
    [60.0, 30.0]
    """
    spent = np.asarray(operator_ns, dtype=np.float64) - np.asarray(kernels_ns, dtype=np.float64)
    return np.asarray(scaled_ns, dtype=np.float64) + np.maximum(spent, 0.0)
