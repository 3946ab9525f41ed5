"""Peak rates of a device, measured with its own code.

In: an instruction set and a number of threads. Out: floating-point and memory rates. The peak is the best of a few
products whose tile stays in registers and whose operands stay in the first cache; the bandwidth is of a triad on three
arrays larger than the caches, that of the cache which cores share of a smaller one. Not here: short arrays (``pages``);
what these rates are for.
"""

from __future__ import annotations

import math

from windtunnel import hardware
from windtunnel.hardware.host import clock_hz
from windtunnel.systems.tensor_programs.run.build import arguments_of, build, use_threads
from windtunnel.systems.tensor_programs.run.pages import page_rates
from windtunnel.systems.tensor_programs.run.schedules import PATTERNS, Step, replay, to_rows
from windtunnel.systems.tensor_programs.run.tasks import Task

__all__ = ["rates"]

TILES = ((4, 16), (6, 16), (12, 16), (4, 32), (6, 32), (8, 32), (12, 32))
"""Rows and columns of the tile in registers."""
BLOCKS, DEPTH = 64, 256
MIN_TRIAD_ELEMENTS = 2**25
SHARED_CACHE_ELEMENTS = 2**20  # of one array of three: 12 MB in all, more than a core has of its own
RUNS, REPEATS = 20, 10
TRIAD_REPEATS = 5


def rates(isa: str, num_threads: int) -> dict[str, float]:
    """Rates of a device, in this process.

    Returns
    -------
    dict
        ``peak_flops_per_s``, ``bandwidth_bytes_per_s``, ``cache_bandwidth_bytes_per_s`` and what ``page_rates`` knows;
        ``clock_hz`` where the host says it.
    """
    # The elements of one array, a power of two: three arrays are twice the largest cache or more.
    largest = max(hardware.machine().cache_bytes.values(), default=0)
    memory_rate = _triad_rate(
        isa, num_threads, max(MIN_TRIAD_ELEMENTS, 1 << math.ceil(math.log2(max(2 * largest / 12, 1))))
    )
    result = {
        "peak_flops_per_s": max(_product_rate(isa, num_threads, *tile) for tile in TILES),
        "bandwidth_bytes_per_s": memory_rate,
        "cache_bandwidth_bytes_per_s": max(memory_rate, _triad_rate(isa, num_threads, SHARED_CACHE_ELEMENTS)),
    }
    clock = clock_hz()
    return result | page_rates(isa, num_threads) | ({} if clock is None else {"clock_hz": clock})


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
    return task.flops / _min_s(task, steps, isa, num_threads, RUNS, REPEATS)


def _triad_rate(isa: str, num_threads: int, num_elements: int) -> float:
    task = Task("elementwise", {"b": 1, "c": 1, "s": num_elements}, ("mul_const", "add"))
    steps = (
        Step("inline", "op0"),
        Step("fuse", "op1", (0, 3)),
        Step("split", "op1", (0, 2**12, 16)),
        Step("parallel", "op1", (0,)),
        Step("vectorize", "op1", (2,)),
    )
    return task.size_bytes / _min_s(task, steps, isa, num_threads, 1, TRIAD_REPEATS)


def _min_s(task: Task, steps: tuple[Step, ...], isa: str, num_threads: int, runs: int, repeats: int) -> float:
    values, expected = arguments_of(task)
    use_threads(num_threads)
    built = build(replay(task, to_rows(steps)).module, isa, values, expected)
    return min(built.evaluate(runs, repeats))
