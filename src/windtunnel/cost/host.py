"""This host as a device with measured limits.

In: a number of threads. Out: a ``Device`` whose peaks, bandwidths and dispatch overhead were measured here and are
kept in the profile database. Not here: how close operators come to these limits (``calibration``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from windtunnel import hardware
from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost.ceilings import measure_ceilings
from windtunnel.cost.kernels import Kernel, TensorShape
from windtunnel.cost.lookup import measure
from windtunnel.cost.peak import SHORT_NAMES
from windtunnel.errors import InputError
from windtunnel.hardware import Device
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import libraries, machine

__all__ = ["HOST", "dispatch_ns", "host_device", "host_limits", "is_host", "usable_dtypes"]

HOST = "this host"
_DTYPES = ("float32", "bfloat16", "float64")
_METHOD = 1


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
