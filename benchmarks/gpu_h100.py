"""What one H100 said, on 2026-11-26, and what we say of the same jobs: memory, traces without their profiler, bounds.

The folder ``gpu/h100`` holds what ``python -m benchmarks.gpu`` recorded there: the allocator's peaks of 24 jobs, bare
times and traces (their first two of eight steps) of ten, and times of 256 operators. Predictions are made anew here,
without a GPU. ``gpu_whatifs`` judges the five flights.

    python -m benchmarks.gpu_h100 --verbose
"""

import csv
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.bar import report
from benchmarks.gpu import jobs
from benchmarks.gpu.stages import Job
from windtunnel.hardware import device
from windtunnel.simulate import replay
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.kineto.unprofiled import without_profiler
from windtunnel.sources.memory.tracking import predict_memory

FOLDER = Path(__file__).parent / "gpu" / "h100"
CHIP = "h100"
MEMORY_TARGETS, TRACE_TARGETS = (0.05, 0.15), (0.10, 0.20)
WARMUP = 3

Rows = dict[str, Any]


def recorded(name: str) -> Rows:
    rows: Rows = json.loads((FOLDER / f"{name}.json").read_text())
    return rows


def memory() -> None:
    """Peaks that the allocator counted beside those that fake tensors tell."""
    job, errors, reserved = Job("cpu", FOLDER, time.monotonic()), {}, {}
    for name, seen in recorded("memory").items():
        jobs.build(name, job).close()  # data sets are kept, and rest on the host
        found = predict_memory(lambda name=name: jobs.build(name, job), warmup=WARMUP, chip=device(CHIP))  # type: ignore[misc]
        errors[name] = found.peak_rounded_bytes / seen["measured_bytes"] - 1
        reserved[name] = found.peak_reserved_bytes / seen["measured_reserved_bytes"] - 1
    median, worst = middle(errors), max(errors.values(), key=abs)
    report(
        "gpu_memory", 100 * median, "median <= 5 %, worst <= 15 % of 24 jobs on an H100",
        median <= MEMORY_TARGETS[0] and abs(worst) <= MEMORY_TARGETS[1],
        worst_percent=100 * worst, num_jobs=len(errors), reserved_median_percent=100 * middle(reserved),
        reserved_worst_percent=100 * max(reserved.values(), key=abs), percent={k: 100 * v for k, v in errors.items()},
    )  # fmt: skip


def traces() -> None:
    """The replay of a trace beside what a step took without the profiler: as recorded, and in the typical share."""
    raw, typical, solved = {}, {}, {}
    for name, bare_ns in bare().items():
        graph = trace(name)
        raw[name] = step_ns(graph) / bare_ns - 1
        typical[name] = step_ns(without_profiler(graph)) / bare_ns - 1
        solved[name] = without_profiler(graph, bare_ns).meta.overhead["host_ratio"]
    median, worst = middle(typical), max(typical.values(), key=abs)
    report(
        "gpu_traces", 100 * median, "typical share: median <= 10 %, worst <= 20 % of ten jobs on an H100",
        median <= TRACE_TARGETS[0] and abs(worst) <= TRACE_TARGETS[1], worst_percent=100 * worst,
        as_recorded_median_percent=100 * middle(raw), as_recorded_worst_percent=100 * max(raw.values(), key=abs),
        percent={k: 100 * v for k, v in typical.items()}, host_ratio_by_step_time=solved,
    )  # fmt: skip


def bounds() -> None:
    """Products of matrices beside what the data sheet's peaks allow: none may be quicker."""
    chip, ratios = device(CHIP), []
    for form, size_bytes in (("fp32", 4), ("tf32", 4), ("bf16", 2), ("fp16", 2)):
        with (FOLDER / "operators" / form / "train_matmul.csv").open() as file:
            for row in csv.DictReader(file):
                batch, rows, middle_size, columns = (int(row[name]) for name in "BMNK")
                flops = 2.0 * batch * rows * middle_size * columns
                elements = batch * (rows * middle_size + middle_size * columns + rows * columns)
                least_s = max(flops / chip.flops_per_s(form), size_bytes * elements / chip.bandwidth_bytes_per_s)
                ratios.append(float(row["latency_ms"]) / 1e3 / least_s)
    report(
        "gpu_bounds", min(ratios), ">= 1: no product of an H100 is quicker than its bound", min(ratios) >= 1,
        num_products=len(ratios), median=statistics.median(ratios), worst=max(ratios),
    )  # fmt: skip


def middle(errors: dict[str, float]) -> float:
    return statistics.median(map(abs, errors.values()))


def bare() -> dict[str, float]:
    """Nanoseconds of a step; of bert-paper, whose bare blocks were cut off, by its flight's baseline."""
    flown = recorded("whatifs")["bert-paper@amp"]["baseline_ms"] * 1e6
    return {"bert-paper": flown, **{name: row["bare_ns"] for name, row in recorded("steps").items()}}


def trace(name: str) -> Any:
    return load_kineto(FOLDER / "traces" / f"{name}.json.gz")


def step_ns(graph: Any) -> float:
    return replay(graph).makespan_ns / graph.num_iterations


def main() -> None:
    memory()
    traces()
    bounds()


if __name__ == "__main__":
    main()
