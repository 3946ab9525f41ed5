"""Of 90 % intervals, 90 % hold the truth: on kernels measured on six GPUs, tasks never seen by model or calibration.

Per device and class of operator: a task is a set of sizes, and each task is on one side only. A fifth of the tasks (at
most 200) is what the model between samples learns from, two fifths calibrate its split-conformal interval by class, the
rest are covered or not. Five random divisions. The bar is the pooled coverage, and that of every class.
"""

from pathlib import Path

import numpy as np
from tests.shared_data import find_shared

from benchmarks.bar import is_verbose, report, table
from windtunnel.cost.bounds import bounds_on
from windtunnel.cost.interpolation import Process, coordinates
from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.operators.physics import bytes_of, flops_of
from windtunnel.cost.operators.table import CLASSES, OpTable, read_op_set, read_sheet
from windtunnel.cost.pricer import Prices
from windtunnel.hardware import Device

NUM_DIVISIONS, MOST_SAMPLES = 5, 200
LOW, HIGH = 0.87, 0.93


def tasks_of(kernels: OpTable) -> np.ndarray:
    """Number of the task of each row [P]: operator and sizes."""
    sizes = np.stack([kernels.B, kernels.M, kernels.N, kernels.K, kernels.H], axis=1)
    _, operator = np.unique(kernels.op.astype(str), return_inverse=True)
    return np.unique(np.column_stack([operator, sizes]), axis=0, return_inverse=True)[1]


def covered(kernels: OpTable, chip: Device, rng: np.random.Generator) -> np.ndarray | None:
    """Whether each held-out measurement lies in its interval; None where there are too few tasks."""
    task = tasks_of(kernels)
    side = rng.permutation(5 * (task.max() // 5 + 1))[task] % 5
    limits = bounds_on(chip, flops_of(kernels), bytes_of(kernels))
    log_efficiency = np.log(limits.efficiency(1e6 * kernels.latency_ms))
    points, names = coordinates(flops_of(kernels), bytes_of(kernels)), kernels.op
    learn = np.flatnonzero(side == 0)[:MOST_SAMPLES]
    tune, held = np.flatnonzero((side == 1) | (side == 2)), np.flatnonzero(side > 2)
    if min(len(learn), len(tune), len(held)) < 20:
        return None
    process = Process.fit(points[learn], names[learn], log_efficiency[learn])
    value, scale = process.predict(points[tune], names[tune])
    found = ConformalIntervals.fit(["class"] * len(tune), value - log_efficiency[tune], scales=scale)
    value, scale = process.predict(points[held], names[held])
    unknown = np.full(len(held), np.nan)
    offered = found.around(Prices(limits.take(held), np.exp(value), unknown, unknown), ["class"] * len(held), scale)
    measured = 1e6 * kernels.latency_ms[held]
    return (offered.duration_low_ns <= measured) & (measured <= offered.duration_high_ns)


def main() -> None:
    folder = find_shared("cost")
    if folder is None:
        report(
            "intervals_cover_kernels",
            float("nan"),
            f"{LOW:.0%} to {HIGH:.0%}",
            False,
            reason="the public data is not here",
        )
        return
    sheet = read_sheet(Path(folder) / "devices.csv")
    kernels = read_op_set(Path(folder) / "neusight" / "test_ops.csv.gz")
    inside: dict[str, list[np.ndarray]] = {name: [] for name in CLASSES}
    cells = []
    for device in kernels.devices:
        for name in CLASSES:
            rows = kernels.on(device).of_class(name)
            shares = []
            for seed in range(NUM_DIVISIONS):
                found = covered(rows, sheet[device], np.random.default_rng(seed)) if len(rows) else None
                if found is not None:
                    inside[name].append(found)
                    shares.append(found.mean())
            if shares:
                cells.append({"device": device, "class": name, "rows": len(rows), "coverage": float(np.mean(shares))})
    if is_verbose():
        print(table(cells))
    by_class = {name: float(np.concatenate(parts).mean()) for name, parts in inside.items() if parts}
    pooled = float(np.concatenate([part for parts in inside.values() for part in parts]).mean())
    holds = all(LOW <= share <= HIGH for share in (pooled, *by_class.values()))
    report("intervals_cover_kernels", 100 * pooled, f"{100 * LOW:g} to {100 * HIGH:g} % of nominal 90 %", holds,
           by_class={name: 100 * share for name, share in by_class.items()},
           cells=[100 * one(cell["coverage"] for cell in cells) for one in (min, max)])  # fmt: skip


if __name__ == "__main__":
    main()
