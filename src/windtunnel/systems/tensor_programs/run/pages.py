"""How long small tensors take to come to a core that was busy with others.

In: an instruction set and a number of threads. Out: rates of pages that are read in random order, from the shared
cache and from memory, how many bytes the shared cache keeps, and how fast others on this machine fill it. Tensors of a
network's step come as these pages do: none is as long as the arrays of a triad, so that who fetches ahead stops again
before he is under way, and every page is to be found first. Not here: rates of long arrays (``devices``).
"""

# S bytes read, P pages

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.systems.tensor_programs.run.build import build, use_threads

__all__ = ["OTHERS", "RATES", "others_rate", "page_rates", "reader", "resident_bytes"]

PAGE_ELEMENTS = 1024  # 4 KiB: how much a processor fetches ahead, and the least that memory is mapped by
NUM_LANES = 16
OWN_BYTES = 2**19  # of each thread: these stay in a core's own cache, be it of 1 MiB
SHARED_BYTES = tuple(mib * 2**20 for mib in (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192))
FAR_BYTES = 2**28
STILL_CACHED = 0.8  # of the rate at which the first of these sizes is read
RUNS, REPEATS = 2, 5
OTHERS = "others_bandwidth_bytes_per_s"
RATES = ("cache_page_bandwidth_bytes_per_s", "page_bandwidth_bytes_per_s", "last_cache_bytes", OTHERS)
WAITS_S = (0.5e-3, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
VISITS = 9
CLEAR_SHARES = (0.1, 0.6)
"""Shares from memory that tell how much the cache keeps: smaller ones are noise, and past these few bytes are left."""


def page_rates(isa: str, num_threads: int) -> dict[str, float]:
    """What pages cost beyond what they cost in a core's own cache, as rates, in this process.

    Returns
    -------
    dict
        ``cache_page_bandwidth_bytes_per_s`` and ``page_bandwidth_bytes_per_s``: a page from the shared cache and from
        memory; ``last_cache_bytes``: bytes of a larger set of pages that stay in the first;
        ``others_bandwidth_bytes_per_s``: what others on this machine put into it meanwhile.
    """
    own = _Pages(isa, num_threads, num_threads * OWN_BYTES)
    far_s = _Pages(isa, num_threads, FAR_BYTES).seconds_per_byte()
    times: dict[int, float] = {}
    for size_bytes in SHARED_BYTES:
        times[size_bytes] = _Pages(isa, num_threads, size_bytes).seconds_per_byte()
        if _share(times[size_bytes], times[SHARED_BYTES[0]], far_s) > CLEAR_SHARES[1]:
            break
    near = [seconds for seconds in times.values() if STILL_CACHED * seconds <= times[SHARED_BYTES[0]]]
    near_s = sum(near) / len(near)
    kept_bytes = resident_bytes(times, near_s, far_s)
    own_s = own.seconds_per_byte()
    others = _others_of(_Pages(isa, num_threads, int(kept_bytes / 2)), own, kept_bytes, far_s)
    rates = (_rate(near_s - own_s), _rate(max(far_s, near_s) - own_s), kept_bytes, others)
    return dict(zip(RATES, rates, strict=True))


def resident_bytes(times: Mapping[int, float], near_s: float, far_s: float) -> float:
    """Bytes that stay in the shared cache, of sets of pages by their bytes and the seconds that one of these took.

    Who reads a larger set over and over finds them at random: the rest comes from memory. Where no set is clearly too
    large, all of the largest stays.
    """
    low, high = CLEAR_SHARES
    shares = {size: _share(seconds, near_s, far_s) for size, seconds in times.items()}
    result = [size * (1 - share) for size, share in shares.items() if low < share <= high]
    if result:
        return statistics.median(result)
    return float(max((size for size, share in shares.items() if share <= low), default=min(times)))


def others_rate(times: Mapping[float, float], size_bytes: int, kept_bytes: float, near_s: float, far_s: float) -> float:
    """Bytes per second that others put into the shared cache.

    Parameters
    ----------
    times : mapping
        By seconds that were waited after a set of pages was read: seconds per byte when it was read again.
    size_bytes : int
        Bytes of the set.
    kept_bytes : float
        Bytes that the cache keeps.
    near_s, far_s : float
        Seconds per byte without waiting, and from memory.
    """
    low, high = CLEAR_SHARES
    shares = {wait: _share(seconds, near_s, far_s) for wait, seconds in times.items()}
    rates = [(kept_bytes / (1 - share) - size_bytes) / wait for wait, share in shares.items() if low < share <= high]
    if not rates:  # nothing is lost while one waits, or all at once
        rates = [(kept_bytes / (1 - high) - size_bytes) / wait for wait, share in shares.items() if share > high][:1]
    return max(0.0, statistics.median(rates)) if rates else 0.0


def _others_of(pages: _Pages, own: _Pages, kept_bytes: float, far_s: float) -> float:
    """By reading pages that fit, waiting with what is in a core's own cache, and reading them again."""
    near_s = pages.after_s(own, 0.0)
    times = {wait: pages.after_s(own, wait) for wait in WAITS_S}
    return others_rate(times, pages.size_bytes, kept_bytes, near_s, far_s)


def _share(seconds: float, near_s: float, far_s: float) -> float:
    """Return the fraction of bytes that came from memory."""
    return (seconds - near_s) / max(far_s - near_s, 1e-15)


def _rate(seconds_per_byte: float) -> float:
    return 1.0 / max(seconds_per_byte, 1e-12)  # no faster than a terabyte per second


class _Pages:
    """A set of pages; each thread reads its part in one random order of its pages."""

    def __init__(self, isa: str, num_threads: int, size_bytes: int) -> None:
        num_pages = size_bytes // (4 * PAGE_ELEMENTS)
        share = num_pages // num_threads
        runtime = require("tvm.runtime", extra="tvm")
        generator = np.random.default_rng(0)
        data = generator.uniform(-1, 1, (num_pages, PAGE_ELEMENTS)).astype(np.float32)
        order = generator.permutation(num_pages)[: share * num_threads].reshape(num_threads, share).astype(np.int32)
        expected = data[order].sum(axis=1)
        room = runtime.empty(expected.shape, "float32", runtime.cpu())
        use_threads(num_threads)
        values = [runtime.tensor(data), runtime.tensor(order), room]
        self.built = build(reader(num_pages, order.shape), isa, values, expected)
        self.size_bytes = 4 * PAGE_ELEMENTS * order.size

    def seconds_per_byte(self) -> float:
        """Time per byte of pages that are read repeatedly."""
        return min(self.built.evaluate(RUNS, REPEATS)) / self.size_bytes

    def after_s(self, other: _Pages, wait_s: float) -> float:
        """Return seconds per byte when pages are read again after others were read for some time."""
        result = []
        for _ in range(VISITS):
            self.built.once()
            end_s = time.monotonic() + wait_s
            while time.monotonic() < end_s:
                other.built.once()
            result.append(self.built.once())
        return statistics.median(result) / self.size_bytes


def reader(num_pages: int, order_shape: tuple[int, ...]) -> Any:
    """Sums of pages by place, one result per thread, the sum in the first cache."""
    te = require("tvm.te", extra="tvm")
    data = te.placeholder((num_pages, PAGE_ELEMENTS), name="in0")
    order = te.placeholder(order_shape, dtype="int32", name="in1")
    page = te.reduce_axis((0, order_shape[1]), name="p")
    result = te.compute(
        (order_shape[0], PAGE_ELEMENTS), lambda t, j: te.sum(data[order[t, page], j], axis=page), name="main"
    )
    schedule = require("tvm.s_tir", extra="tvm").Schedule(te.create_prim_func([data, order, result]))
    block = schedule.get_sblock("main")
    thread, index, pages = schedule.get_loops(block)
    outer, lane = schedule.split(index, [None, NUM_LANES])
    schedule.reorder(thread, pages, outer, lane)
    schedule.vectorize(lane)
    if order_shape[0] > 1:
        schedule.parallel(thread)
    schedule.decompose_reduction(block, pages)
    return schedule.mod
