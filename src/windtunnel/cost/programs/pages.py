"""How long small tensors take to come to a core that was busy with others (room cost, programs).

In: an instruction set and a number of threads. Out: rates of pages that are read in random order, from the shared
cache and from memory, and how many bytes the shared cache keeps. Tensors of a network's step come as these pages do:
none is as long as the arrays of a triad, so that who fetches ahead stops again before he is under way, and every page
is to be found first. Not here: rates of long arrays (``devices``).
"""

# S bytes read, P pages

from __future__ import annotations

from typing import Any

import numpy as np

from windtunnel.cost.programs.build import build, use_threads
from windtunnel.extras import require

__all__ = ["page_rates", "reader"]

PAGE_ELEMENTS = 1024  # 4 KiB: how much a processor fetches ahead, and the least that memory is mapped by
LANES = 16
OWN_BYTES = 2**19  # of each thread: these stay in a core's own cache, be it of 1 MiB
SHARED_BYTES = tuple(mib * 2**20 for mib in (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192))
FAR_BYTES = 2**28
STILL_CACHED = 0.8  # of the rate at which the first of these sizes is read
RUNS, REPEATS = 2, 5


def page_rates(isa: str, num_threads: int) -> dict[str, float]:
    """What pages cost beyond what they cost in a core's own cache, as rates, in this process.

    Returns
    -------
    dict
        ``cache_page_bandwidth_bytes_per_s`` and ``page_bandwidth_bytes_per_s``: a page from the shared cache and from
        memory; ``last_cache_bytes``: up to so many bytes the first holds.
    """
    own_s = _seconds_per_byte(isa, num_threads, num_threads * OWN_BYTES)
    shared: list[tuple[int, float]] = []
    for size_bytes in SHARED_BYTES:
        seconds = _seconds_per_byte(isa, num_threads, size_bytes)
        if shared and shared[0][1] < STILL_CACHED * seconds:
            break
        shared.append((size_bytes, seconds))
    far_s = _seconds_per_byte(isa, num_threads, FAR_BYTES)
    near_s = sum(seconds for _, seconds in shared) / len(shared)
    return {
        "cache_page_bandwidth_bytes_per_s": _rate(near_s - own_s),
        "page_bandwidth_bytes_per_s": _rate(max(far_s, near_s) - own_s),
        "last_cache_bytes": shared[-1][0],
    }


def _rate(seconds_per_byte: float) -> float:
    return 1.0 / max(seconds_per_byte, 1e-12)  # no faster than a terabyte per second


def _seconds_per_byte(isa: str, num_threads: int, size_bytes: int) -> float:
    """Of so many bytes, each thread's share read over and over, its pages in one random order."""
    num_pages = size_bytes // (4 * PAGE_ELEMENTS)
    share = num_pages // num_threads
    runtime = require("tvm.runtime", extra="tvm")
    generator = np.random.default_rng(0)
    data = generator.uniform(-1, 1, (num_pages, PAGE_ELEMENTS)).astype(np.float32)
    order = generator.permutation(num_pages)[: share * num_threads].reshape(num_threads, share).astype(np.int32)
    expected = data[order].sum(axis=1)
    room = runtime.empty(expected.shape, "float32", runtime.cpu())
    use_threads(num_threads)
    built = build(reader(num_pages, order.shape), isa, [runtime.tensor(data), runtime.tensor(order), room], expected)
    return min(built.evaluate(RUNS, REPEATS)) / (4 * PAGE_ELEMENTS * order.size)


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
    thread, place, pages = schedule.get_loops(block)
    outer, lane = schedule.split(place, [None, LANES])
    schedule.reorder(thread, pages, outer, lane)
    schedule.vectorize(lane)
    if order_shape[0] > 1:
        schedule.parallel(thread)
    schedule.decompose_reduction(block, pages)
    return schedule.mod
