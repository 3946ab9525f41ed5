"""A GPU described as an accelerator against its published times: products, layer norm, softmax and GELU of an A100.

Its ratios, overheads and passes are fitted anew on every other published row, starting from a chip that reaches all of
its peaks, and judged on the rows between; so is the description that is shipped, with the share of rows that lie in its
90 % intervals. Beside it a roofline with a fixed overhead of 21 µs. Nothing is timed.
"""

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.cost.work import Work
from windtunnel.hardware import Accelerator, accelerators
from windtunnel.hardware.accelerators import OperatorRate
from windtunnel.systems.chips.accelerators.pricer import accelerator, duration_ns

Floats = NDArray[np.float64]
Build = Callable[[Sequence[float]], Accelerator]

MOST = {"matmul": 0.08, "layernorm": 0.15, "softmax": 0.15, "gelu": 0.15}
NAMES = {
    "matmul": ("aten::mm", "product"),
    "layernorm": ("aten::native_layer_norm", "layer_norm"),
    "softmax": ("aten::_softmax", "softmax"),
    "gelu": ("aten::gelu", "gelu"),
}
TARGET = "mean error on rows between: products <= 8 %, others <= 15 %"
ROOFLINE_OVERHEAD_NS = 21_000
FITTED, HELD = slice(0, None, 2), slice(1, None, 2)
# overhead in ns, compute ratio, memory ratio, cache in bytes/s, cycles of a tile
PRODUCT_GRIDS = (
    np.arange(10_000, 50_001, 1000),
    np.arange(0.7, 1.001, 0.02),
    np.arange(0.7, 1.001, 0.05),
    np.array([3e12, 4e12, 5e12, 7e12]),
    np.array([0, 500, 1000, 2000]),
)
# overhead in ns, passes, bytes of a row
VECTOR_GRIDS = (np.arange(5_000, 60_001, 1000), np.arange(0.8, 3.01, 0.05), np.array([8192, 16384, 32768, 1e12]))


def main() -> int:
    """Fit, judge and print the bar; 1 if it does not hold."""
    folder = find_shared("kernels_hw/gpu_ops")
    if folder is None:
        bar.report("accelerator_ops", float("nan"), TARGET, False, reason="the public tables are not here")
        return 1
    shipped = accelerators()["a100-like"]
    fitted, rows = _plain(shipped), []
    for name in MOST:
        work, measured = _published(folder, name)
        fitted, numbers = _fitted(work.take(_rows(work, FITTED)), measured[FITTED], fitted, name)
        held = work.take(_rows(work, HELD))
        rows.append(
            {
                "operator": name,
                "fitted_error": _error(held, measured[HELD], fitted),
                "shipped_error": _error(held, measured[HELD], shipped),
                "shipped_in_interval": _covered(work, measured, shipped),
                "roofline_error": _roofline_error(held, measured[HELD], shipped),
                "numbers": numbers,
            }
        )
    holds = all(max(row["fitted_error"], row["shipped_error"]) <= MOST[row["operator"]] for row in rows)
    details = {row["operator"]: {key: value for key, value in row.items() if key != "operator"} for row in rows}
    bar.report("accelerator_ops", rows[0]["fitted_error"], TARGET, holds, **details)
    if bar.is_verbose():
        print(bar.table(rows))
    return 0 if holds else 1


def _plain(chip: Accelerator) -> Accelerator:
    """The chip as its maker states it: all peaks reached, no overhead."""
    arrays = tuple(replace(one, compute_ratio=1.0, tile_cycles=0.0) for one in chip.arrays)
    return replace(chip, arrays=arrays, memory_ratio=1.0, operators={})


def _rows(work: Work, part: slice) -> NDArray[np.int64]:
    return np.arange(len(work))[part]


def _published(folder: Path, name: str) -> tuple[Work, Floats]:
    rows = list(csv.DictReader((folder / f"a100_{name}.csv").read_text().splitlines()))
    if name == "matmul":
        sizes = [tuple(int(row[key]) for key in "mnk") for row in rows]
        shapes = [f"[[{m},{k}],[{k},{n}]]" for m, n, k in sizes]
        flops = [2 * m * n * k for m, n, k in sizes]
        moved = [2 * (m * k + k * n + m * n) for m, n, k in sizes]
        measured = np.array([1e6 * float(row["ms"]) for row in rows])
    else:
        tensors = [[int(row[key]) for key in ("elements", "rows", "cols") if key in row] for row in rows]
        shapes = [f"[{one}]" for one in tensors]
        flops = [int(np.prod(one)) for one in tensors]
        moved = [4 * count for count in flops]
        measured = np.array(flops) / np.array([float(row["gelems_per_s"]) for row in rows])
    operators = np.full(len(rows), NAMES[name][0], dtype=object)
    counts = Work.of_counts(operators, np.array(flops, float), np.array(moved, float), "fp16")
    return replace(counts, shapes=np.array(shapes, dtype=object)), measured


def _fitted(work: Work, measured: Floats, chip: Accelerator, name: str) -> tuple[Accelerator, list[float]]:
    """The numbers of one operator with the least mean error, one after the other until none changes."""
    grids = {"matmul": PRODUCT_GRIDS, "gelu": VECTOR_GRIDS[:2]}.get(name, VECTOR_GRIDS)
    numbers = [float(grid[len(grid) // 2]) for grid in grids]
    build = _building(chip, name)
    best = _error(work, measured, build(numbers))
    is_changed = True
    while is_changed:
        is_changed = False
        for place, grid in enumerate(grids):
            tried = [[*numbers[:place], float(value), *numbers[place + 1 :]] for value in grid]
            errors = [_error(work, measured, build(one)) for one in tried]
            if min(errors) < best - 1e-9:
                best, numbers, is_changed = min(errors), tried[int(np.argmin(errors))], True
    return build(numbers), numbers


def _building(chip: Accelerator, name: str) -> Build:
    def product(numbers: Sequence[float]) -> Accelerator:
        overhead, compute, memory, cache, tile = numbers
        arrays = tuple(replace(one, compute_ratio=min(compute, 1.0), tile_cycles=tile) for one in chip.arrays)
        rates = {**chip.operators, "product": OperatorRate(overhead)}
        ratio = min(memory, 1.0)
        return replace(chip, arrays=arrays, memory_ratio=ratio, cache_bandwidth_bytes_per_s=cache, operators=rates)

    def vector(numbers: Sequence[float]) -> Accelerator:
        return replace(chip, operators={**chip.operators, NAMES[name][1]: OperatorRate(*numbers)})

    return product if name == "matmul" else vector


def _error(work: Work, measured: Floats, chip: Accelerator) -> float:
    return float(np.abs(duration_ns(work, chip, is_alone=True) / measured - 1).mean())


def _covered(work: Work, measured: Floats, chip: Accelerator) -> float:
    """Share of the rows between that lie in the interval of the shipped description."""
    held = work.take(_rows(work, HELD))
    prices = accelerator().price(held, chip)
    alone = duration_ns(held, chip, is_alone=True)
    low, high = (alone * end / prices.duration_ns for end in (prices.duration_low_ns, prices.duration_high_ns))
    return float(((low <= measured[HELD]) & (measured[HELD] <= high)).mean())


def _roofline_error(work: Work, measured: Floats, chip: Accelerator) -> float:
    busy = np.maximum(work.flops / chip.flops_per_s("fp16"), work.bytes_moved / chip.bandwidth_bytes_per_s)
    return float(np.abs((1e9 * busy + ROOFLINE_OVERHEAD_NS) / measured - 1).mean())


if __name__ == "__main__":
    sys.exit(main())
