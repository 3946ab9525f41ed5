"""What a device can do at best, measured with its own code.

In: an instruction set and a number of threads, or ``cuda``. Out: floating-point and memory rates. The peak is the best
of a few products whose tile stays in registers and whose operands stay in the first cache or in shared memory; the
bandwidth is of a triad on three arrays larger than the caches, that of the cache which cores share of a smaller one.
Not here: short arrays (``pages``); what these rates are for.
"""

from __future__ import annotations

import math
from typing import Any

from windtunnel import hardware
from windtunnel.hardware.host import clock_hz
from windtunnel.systems.tensor_programs.run.build import CUDA, arguments_of, build, gpu, use_threads
from windtunnel.systems.tensor_programs.run.pages import page_rates
from windtunnel.systems.tensor_programs.run.schedules import PATTERNS, SCOPES, THREADS, Step, replay, to_rows, token
from windtunnel.systems.tensor_programs.run.tasks import Task

__all__ = ["facts", "rates"]

TILES = ((4, 16), (6, 16), (12, 16), (4, 32), (6, 32), (8, 32), (12, 32))
"""Rows and columns of the tile in registers."""
BLOCKS, DEPTH = 64, 256
LEAST_TRIAD_ELEMENTS = 2**25
SHARED_CACHE_ELEMENTS = 2**20  # of one array of three: 12 MB in all, more than a core has of its own
RUNS, REPEATS = 20, 10
TRIAD_REPEATS = 5
GPU_TILES = ((16, 16, 4, 8), (16, 16, 4, 16), (8, 16, 4, 16), (16, 8, 4, 8))
"""Threads along rows and columns, rows and columns of each of a thread's four tiles, depth that is shared."""
GPU_PRODUCT, GPU_TRIAD_ELEMENTS = 4096, 2**26


def rates(isa: str, num_threads: int) -> dict[str, float]:
    """Rates of a device, in this process.

    Returns
    -------
    dict
        ``peak_flops_per_s``, ``bandwidth_bytes_per_s``; of a CPU also ``cache_bandwidth_bytes_per_s`` and what
        ``page_rates`` knows; ``clock_hz`` where the host says it.
    """
    if isa == CUDA.isa:
        found = {
            "peak_flops_per_s": max(_gpu_product_rate(*tile) for tile in GPU_TILES),
            "bandwidth_bytes_per_s": _gpu_triad_rate(),
        }
        return found | {"clock_hz": 1e3 * gpu().max_clock_rate}
    memory_rate = _triad_rate(isa, num_threads, _triad_elements())
    found = {
        "peak_flops_per_s": max(_product_rate(isa, num_threads, *tile) for tile in TILES),
        "bandwidth_bytes_per_s": memory_rate,
        "cache_bandwidth_bytes_per_s": max(memory_rate, _triad_rate(isa, num_threads, SHARED_CACHE_ELEMENTS)),
    }
    return found | page_rates(isa, num_threads) | _clock()


def facts(isa: str) -> dict[str, Any]:
    """What a GPU says of itself; nothing of a CPU, which ``hardware`` describes."""
    if isa != CUDA.isa:
        return {}
    device = gpu()
    return {
        "gpu_name": str(device.device_name),
        "compute_capability": str(device.compute_version),
        "num_multiprocessors": int(device.multi_processor_count),
        "cache_bytes": {"l2": int(device.l2_cache_size_bytes)},
        "shared_memory_bytes": int(device.max_shared_memory_per_block),
        "memory_bytes": int(device.total_global_memory),
    }


def _product_rate(isa: str, num_threads: int, rows: int, columns: int) -> float:
    task = Task("matmul", {"m": BLOCKS * rows, "n": columns, "k": DEPTH})
    steps = (
        Step("cache", "main"),
        Step("split", "main", (0, rows)),
        Step("split", "main", (2, columns)),
        Step("reorder", "main", (3, 0, 1, PATTERNS.index("SRS"))),
        Step("parallel", "main", (0,)),
        Step("compute_at", "main_global", (1, 0, 1)),
        Step("vectorize", "main_global", (2,)),
        Step("vectorize", "main", (4,)),
        Step("unroll", "main", (3, 0)),
        Step("init", "main", (2,)),
        Step("vectorize", "main_init", (3,)),
    )
    return task.flops / _least_s(task, steps, isa, num_threads, RUNS, REPEATS)


def _triad_rate(isa: str, num_threads: int, num_elements: int) -> float:
    task = Task("elementwise", {"b": 1, "c": 1, "s": num_elements}, ("mul_const", "add"))
    steps = (
        Step("inline", "op0"),
        Step("fuse", "op1", (0, 3)),
        Step("split", "op1", (0, 2**12, 16)),
        Step("parallel", "op1", (0,)),
        Step("vectorize", "op1", (2,)),
    )
    return task.size_bytes / _least_s(task, steps, isa, num_threads, 1, TRIAD_REPEATS)


def gpu_product_steps(rows: int, columns: int, tile: int, depth: int) -> tuple[Step, ...]:
    """A product for GPUs: ``2 rows tile`` by ``2 columns tile`` results a block of threads, operands shared."""
    block, virtual, thread = (THREADS.index(name) for name in ("blockIdx.x", "vthread.x", "threadIdx.x"))
    shared, local = SCOPES.index("shared"), SCOPES.index("local")
    steps = [
        Step("cache", "main", (local,)),
        Step("split", "main", (0, 2, rows, tile, 1)),
        Step("split", "main", (5, 2, columns, 1, tile)),
        Step("split", "main", (10, depth, 1)),
        Step("reorder", "main", (3, 1, 1, PATTERNS.index("SSSRRSRS"))),
        Step("fuse", "main", (0, 2)),
        Step("fuse", "main", (1, 2)),
        Step("parallel", "main", (1, virtual)),
        Step("fuse", "main", (2, 2)),
        Step("parallel", "main", (2, thread)),
        Step("parallel", "main", (0, block)),
        Step("compute_at", "main_local", (token("main"), 2, 1)),
    ]
    for operand in (0, 1):
        name = f"in{operand}_shared"
        steps += [
            Step("cache", "main", (shared, operand)),
            Step("compute_at", name, (token("main"), 3, 0)),
            Step("fuse", name, (4, 2)),
            Step("split", name, (4, rows * columns, 2)),
            Step("vectorize", name, (6,)),
            Step("parallel", name, (5, thread)),
        ]
    return (*steps, Step("unroll", "main", (3, 512)))


def _gpu_product_rate(rows: int, columns: int, tile: int, depth: int) -> float:
    task = Task("matmul", {"m": GPU_PRODUCT, "n": GPU_PRODUCT, "k": GPU_PRODUCT})
    return task.flops / _least_s(task, gpu_product_steps(rows, columns, tile, depth), CUDA.isa, 0, RUNS, REPEATS)


def _gpu_triad_rate() -> float:
    task = Task("elementwise", {"b": 1, "c": 1, "s": GPU_TRIAD_ELEMENTS}, ("mul_const", "add"))
    steps = (
        Step("inline", "op0"),
        Step("fuse", "op1", (0, 3)),
        Step("split", "op1", (0, 256, 4)),
        Step("vectorize", "op1", (2,)),
        Step("parallel", "op1", (1, THREADS.index("threadIdx.x"))),
        Step("parallel", "op1", (0, THREADS.index("blockIdx.x"))),
    )
    return task.size_bytes / _least_s(task, steps, CUDA.isa, 0, RUNS, TRIAD_REPEATS)


def _triad_elements() -> int:
    """Of one array, a power of two: the three together are twice the largest cache or more."""
    largest = max(hardware.machine().cache_bytes.values(), default=0)
    return max(LEAST_TRIAD_ELEMENTS, 1 << math.ceil(math.log2(max(2 * largest / 12, 1))))


def _least_s(task: Task, steps: tuple[Step, ...], isa: str, num_threads: int, runs: int, repeats: int) -> float:
    values, expected = arguments_of(task, isa)
    use_threads(num_threads)
    built = build(replay(task, to_rows(steps)).module, isa, values, expected)
    return min(built.evaluate(runs, repeats))


def _clock() -> dict[str, float]:
    found = clock_hz()
    return {} if found is None else {"clock_hz": found}
