"""Steps of workloads, recorded, replayed and compared (stage ``steps`` of ``benchmarks.gpu``).

In: the name of a workload. Out: times of bare blocks of iterations, a trace by ``torch.profiler`` of one block, a
shorter one that tells the operators' shapes (all need torch alone), and how far the replay of the trace is off: from
the profiled block itself (``replay_error``, what the replay gets wrong) and from bare blocks (``bare_error``, which
holds the profiler's own cost, too). A block is several iterations between two moments at which the device has done
everything.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.gpu import jobs
from benchmarks.gpu.stages import Job, Row, lacking, path_of, read, write
from windtunnel.errors import WindtunnelError
from windtunnel.measure.devices import time_with_sync_ns, uses_gpu
from windtunnel.measure.turns import quiet, rounds, spread_ratio

IS_APART = True
MARK = "wt:iteration"
WARMUP, ITERATIONS, SHAPED_ITERATIONS = 5, 8, 2
FEWEST, MOST, BUDGET_S = 5, 25, 8.0


def units(job: Job) -> Sequence[str]:
    return jobs.names(job)


def run(unit: str, job: Job) -> Row:
    """Record once, judge where that is possible."""
    recorded = recording(unit, job)
    if "failed" in recorded:
        return recorded
    missing = lacking()
    if missing:
        return {**recorded, "pending": f"recorded; judging it needs {', '.join(missing)}"}
    return recorded | judged(trace_of(unit, job), recorded)


def trace_of(unit: str, job: Job, ending: str = "") -> Path:
    return job.folder / "steps" / "traces" / f"{unit}{ending}.json.gz"


def recording(unit: str, job: Job) -> Row:
    """What was recorded of a workload, now if not before."""
    path = path_of("steps/recorded", unit, job)
    row = read(path)
    if row is None or not trace_of(unit, job).is_file():
        try:
            row = record(unit, job)
        except WindtunnelError as error:  # an extra that is not here
            return {"failed": error.message}
        write(path, row)
    return row


def record(unit: str, job: Job) -> Row:
    """Time bare blocks, then trace one, then time bare blocks again."""
    built = jobs.build(unit, job)
    try:
        for _ in range(WARMUP):
            built.step()
        block = block_of(built.step)
        before = bare_ns(block, job)
        profiled_ns = profiled(built.step, job, trace_of(unit, job))
        profiled(built.step, job, trace_of(unit, job, ending="-shapes"), SHAPED_ITERATIONS, record_shapes=True)
        after = bare_ns(block, job)
    finally:
        built.close()
    return {
        "bare_ns": quiet(before + after),
        "bare_spread": spread_ratio(before + after),
        "drift": statistics.median(after) / statistics.median(before) - 1,
        "num_blocks": len(before) + len(after),
        "iterations_per_block": ITERATIONS,
        "profiled_ns": profiled_ns,
        "device": job.device,
        "batch_size": built.batch_size,
    }


def block_of(step: Callable[[], Any], num_iterations: int = ITERATIONS) -> Callable[[], None]:
    def block() -> None:
        for _ in range(num_iterations):
            step()

    return block


def bare_ns(block: Callable[[], None], job: Job) -> list[float]:
    """Of an iteration, block by block."""
    time_with_sync_ns(block, job.device)
    budget_s = 0.2 if job.is_small else BUDGET_S / 2
    return [time_with_sync_ns(block, job.device) / ITERATIONS for _ in rounds(FEWEST, MOST, budget_s)]


def profiled(
    step: Callable[[], Any],
    job: Job,
    path: Path,
    num_iterations: int = ITERATIONS,
    *,
    mark: str = MARK,
    **options: Any,
) -> float:
    """Trace one block; returns what an iteration took meanwhile."""
    profile_block(step, job, 1)  # the first start of the profiler is slow
    profiler, iteration_ns = profile_block(step, job, num_iterations, mark=mark, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"part-{path.name}")
    profiler.export_chrome_trace(str(scratch))
    scratch.replace(path)
    return iteration_ns


def profile_block(
    step: Callable[[], Any], job: Job, num_iterations: int, *, mark: str = MARK, **options: Any
) -> tuple[Any, float]:
    """A profiler that has seen one block, and what an iteration took; ``{}`` in ``mark`` is the iteration's number."""
    from torch.profiler import ProfilerActivity, profile, record_function

    numbers = count()

    def marked() -> None:
        with record_function(mark.format(next(numbers))):
            step()

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if uses_gpu(job.device) else [])]
    with profile(activities=activities, **options) as profiler:
        elapsed_ns = time_with_sync_ns(block_of(marked, num_iterations), job.device)
    return profiler, elapsed_ns / num_iterations


def judged(trace: Path, recorded: Row) -> Row:
    """Replay the traced block and compare."""
    from windtunnel.simulate import replay
    from windtunnel.sources.kineto.reader import load_kineto

    try:
        graph = load_kineto(trace, window=MARK)
        replayed_ns = replay(graph).makespan_ns / recorded["iterations_per_block"]
    except WindtunnelError as error:
        return {"failed": f"{error.message} ({error.where})"}
    return {
        "replayed_ns": replayed_ns,
        "replay_error": replayed_ns / recorded["profiled_ns"] - 1,
        "bare_error": replayed_ns / recorded["bare_ns"] - 1,
        "profiled_ratio": recorded["profiled_ns"] / recorded["bare_ns"],
        "num_tasks": graph.num_tasks,
    }


def summary(rows: Mapping[str, Row], _job: Job) -> Row:
    good = {unit: row for unit, row in rows.items() if "replay_error" in row}
    return {
        "replay_errors": {unit: round(row["replay_error"], 4) for unit, row in good.items()},
        "bare_errors": {unit: round(row["bare_error"], 4) for unit, row in good.items()},
        "replay_median": statistics.median([abs(row["replay_error"]) for row in good.values()]) if good else None,
        "bare_median": statistics.median([abs(row["bare_error"]) for row in good.values()]) if good else None,
    }
