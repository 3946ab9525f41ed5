"""Scripts of users recorded in every way, and what their changes really bring (stage ``pairs`` of ``benchmarks.gpu``).

In: the name of a script of ``scripts``, or ``SCRIPT@CHANGE``. Out of a script: bare times by the clock and by events,
the profiler's overhead, traces and an execution trace of the same window, the allocator's history, and facts. Out of a
change: blocks of both arms, interleaved in one process. Every part is written as soon as it exists; a part that fails
is a row with the error. Needs torch alone.
"""

from __future__ import annotations

import gc
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import histories, jobs, steps
from benchmarks.gpu.stages import Job, Row, path_of, read, write
from windtunnel.measure.devices import IterationClock, finish, time_with_sync_ns, uses_gpu
from windtunnel.measure.turns import rounds

IS_APART = True
UNIT_S = 30.0  # on an H200
LIMIT_S = 75.0  # of a unit
SCRIPTS = (
    "decoder_lm",
    "residual_net",
    "compiled_lm",
    "streams_net",
    "attention_by_hand",
    "perceptron",
    "lora_accumulation",
    "graphed_net",
)
SMALL_UNITS = ("perceptron", "perceptron@fused-optimizer")
WARMUP, COMPILED_WARMUP, REPEATS = 8, 12, 3
PLAIN_ITERATIONS, RICH_ITERATIONS = 3, 1
FEWEST_PAIRS, MOST_PAIRS, PAIRS_S = 7, 40, 2.0
EAGER, CHANGES_S = "changes", 60.0
MARK = "ProfilerStep#{}"
RICH = {"record_shapes": True, "with_stack": True, "profile_memory": True}


def script_of(name: str, job: Job) -> Any:
    """The script as a module, on the job's device."""
    jobs.alone_on_host(job)
    module = importlib.import_module(f"benchmarks.gpu.scripts.{name}")
    module.DEVICE = job.device  # type: ignore[attr-defined]
    return module


def units(job: Job) -> Sequence[str]:
    if job.is_small:
        return SMALL_UNITS
    changes = {name: list(script_of(name, job).CHANGES) for name in SCRIPTS}
    first, others = SCRIPTS[:2], SCRIPTS[2:]
    turns = range(max(map(len, changes.values())))  # the scripts take turns, each with its most informative change
    compiled = [
        *(f"{name}@{change}" for name in first for change in changes[name]),
        *(f"{name}@{changes[name][turn]}" for turn in turns for name in others if turn < len(changes[name])),
    ]
    return [*SCRIPTS, *(f"{name}@{EAGER}" for name in SCRIPTS), *(unit for unit in compiled if _compiles(unit))]


def _compiles(unit: str) -> bool:
    """Whether an arm is compiled, which takes long and leaves much behind in a process."""
    return "compile" in unit


def run(unit: str, job: Job) -> Row:
    name, _, change = unit.partition("@")
    folder = Path(tempfile.gettempdir()) / f"benchmarks-gpu-inductor-{os.getuid()}" / name
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    script = script_of(name, job)
    if change == EAGER:
        return compared_in_turns(unit, script, job)
    if change:
        return compared(script, script.CHANGES[change], job)
    return recorded(unit, script, folder, job)


def recorded(unit: str, script: Any, cache: Path, job: Job) -> Row:
    """Record a script part by part; what an earlier call recorded is not recorded again."""
    path = path_of("pairs/recorded", unit, job)
    row = read(path) or {}
    built = script.build(small=job.is_small)
    try:
        steps.block_of(built.step, WARMUP)()
        finish(job.device)
        parts: dict[str, Callable[[], Row]] = {
            "facts": lambda: facts(built, job),
            "bare": lambda: bare(built.step, job),
            "plain": lambda: traced(built.step, job, file_of(unit, "plain", job)),
            "rich": lambda: traced_richly(built.step, job, unit),
            "memory": lambda: histories.memory(built.step, job, file_of(unit, "memory", job)),
            "overhead": lambda: overhead(built.step, job),
            "sources": lambda: histories.sources(cache, file_of(unit, "sources", job)),
        }
        for part, record in parts.items():
            if "failed" not in row.get(part, {"failed": "not recorded"}):
                continue
            try:
                row[part] = record()
            except Exception as error:
                row[part] = {"failed": f"{type(error).__name__}: {error}"[:400]}
            write(path, row)
    finally:
        built.close()
    return row


def file_of(unit: str, ending: str, job: Job) -> Path:
    path = job.folder / "pairs" / "files" / f"{unit}-{ending}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def bare(step: Callable[[], None], job: Job) -> Row:
    """Blocks by the host's clock and iterations by the device's events, in turns."""
    before = steps.bare_ns(steps.block_of(step), job)
    by_events = iterations_ns(step, job, 2 * steps.ITERATIONS)
    after = steps.bare_ns(steps.block_of(step), job)
    return {"blocks_ns": before, "iterations_ns": by_events, "blocks_after_ns": after}


def iterations_ns(step: Callable[[], None], job: Job, num_iterations: int) -> list[int]:
    """Of every iteration by events, without waiting between them."""
    clock = IterationClock(is_on_gpu=uses_gpu(job.device))
    finish(job.device)
    clock.begin()
    for _ in range(num_iterations):
        step()
        clock.mark()
    return clock.durations_ns()


def overhead(step: Callable[[], None], job: Job) -> Row:
    """Per iteration: bare, profiled, bare, profiled richly, and so on."""
    block = steps.block_of(step)
    found: dict[str, list[float]] = {"bare_ns": [], "plain_ns": [], "bare_again_ns": [], "rich_ns": []}
    for _ in range(1 if job.is_small else REPEATS):
        found["bare_ns"].append(time_with_sync_ns(block, job.device) / steps.ITERATIONS)
        found["plain_ns"].append(steps.profile_block(step, job, steps.ITERATIONS, mark=MARK)[1])
        found["bare_again_ns"].append(time_with_sync_ns(block, job.device) / steps.ITERATIONS)
        found["rich_ns"].append(steps.profile_block(step, job, PLAIN_ITERATIONS, mark=MARK, **RICH)[1])
    return dict(found)


def traced(step: Callable[[], None], job: Job, path: Path) -> Row:
    profiled_ns = steps.profiled(step, job, path, PLAIN_ITERATIONS, mark=MARK)
    return {"profiled_ns": profiled_ns, "num_iterations": PLAIN_ITERATIONS, "size_bytes": path.stat().st_size}


def traced_richly(step: Callable[[], None], job: Job, unit: str) -> Row:
    """Everything the profiler can tell, and an execution trace of the same window; both join by record function id."""
    path, execution = file_of(unit, "rich", job), file_of(unit, "execution", job)
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(execution))
    try:
        profiled_ns = steps.profiled(
            step,
            job,
            path,
            RICH_ITERATIONS,
            mark=MARK,
            with_modules=True,
            execution_trace_observer=observer,
            **RICH,
        )
    finally:
        observer.unregister_callback()
    return {
        "profiled_ns": profiled_ns,
        "num_iterations": RICH_ITERATIONS,
        "size_bytes_before": path.stat().st_size,
        "num_events_dropped": histories.slim(path),
        "size_bytes": path.stat().st_size,
        "execution_size_bytes": execution.stat().st_size,
    }


def facts(built: Any, job: Job) -> Row:
    """What stands in no trace: versions, flags, optimizers, loaders and sizes."""
    found = gc.get_objects()
    optimizers = [thing for thing in found if issubclass(type(thing), torch.optim.Optimizer)]
    loaders = [thing for thing in found if issubclass(type(thing), torch.utils.data.DataLoader)]
    trained = [parameter for one in optimizers for group in one.param_groups for parameter in group["params"]]
    weights = {id(thing): thing for thing in found if issubclass(type(thing), torch.nn.Parameter)}
    return {
        "device": torch.cuda.get_device_name() if uses_gpu(job.device) else job.device,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "flags": flags() | {"cudnn_benchmark": torch.backends.cudnn.benchmark},
        "num_threads": torch.get_num_threads(),
        "num_cpus": os.cpu_count(),
        "batch_size": built.batch_size,
        "num_parameters": sum(weight.numel() for weight in weights.values()),
        "num_trained_parameters": sum(parameter.numel() for parameter in trained),
        "optimizers": [
            {"kind": type(one).__name__, "num_tensors": sum(len(group["params"]) for group in one.param_groups)}
            | {key: repr(value) for key, value in one.defaults.items()}
            for one in optimizers
        ],
        "loaders": [
            {
                "num_workers": loader.num_workers,
                "is_pinned": loader.pin_memory,
                "prefetch_factor": loader.prefetch_factor,
                "batch_size": loader.batch_size,
            }
            for loader in loaders
        ],
    }


def flags() -> dict[str, bool]:
    return {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32}


def set_flags(given: Mapping[str, bool]) -> None:
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = given["matmul"], given["cudnn"]


def compared_in_turns(unit: str, script: Any, job: Job) -> Row:
    """All changes of a script that compile nothing, in one process, until the time of a unit is over."""
    path, until_s = path_of("pairs/recorded", unit, job), time.monotonic() + CHANGES_S
    row, usual = read(path) or {}, flags()
    for change, given in script.CHANGES.items():
        if _compiles(f"{unit}{change}") or change in row:
            continue
        if time.monotonic() > until_s:
            return {"pending": f"{len(row)} changes of {len(script.CHANGES)} were run"}
        set_flags(usual)
        try:
            row[change] = compared(script, given, job)
        except Exception as error:
            row[change] = {"failed": f"{type(error).__name__}: {error}"[:400]}
        write(path, row)
        gc.collect()
        if uses_gpu(job.device):
            torch.cuda.empty_cache()
    return row


def compared(script: Any, change: Mapping[str, Any], job: Job) -> Row:
    """Blocks of the script as it is and changed, in turns; flags that a process has once are set for each block."""
    base = arm(script, {}, job)
    missing = missing_bytes(job)
    if missing > 0:
        base[0].close()
        return {"failed": f"the changed script may need {missing / 2**30:.1f} GiB more memory than is free"}
    changed = arm(script, change, job)
    arms = {"base": base, "changed": changed}
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in rounds(FEWEST_PAIRS, MOST_PAIRS, 0.2 if job.is_small else PAIRS_S):
        for name, (built, its_flags, _) in arms.items():
            set_flags(its_flags)
            found[name].append(time_with_sync_ns(steps.block_of(built.step), job.device) / steps.ITERATIONS)
    row: Row = {"change": dict(change), "iterations_per_block": steps.ITERATIONS}
    for name, (built, its_flags, peak_bytes) in arms.items():
        set_flags(its_flags)
        row[name] = {
            "blocks_ns": found[name],
            "quartiles_ns": statistics.quantiles(found[name], n=4),
            "iterations_ns": iterations_ns(built.step, job, steps.ITERATIONS),
            "batch_size": built.batch_size,
            "flags": its_flags,
            "peak_bytes": peak_bytes,
            "losses_are_finite": losses_are_finite(built.step),
        }
        built.close()
    samples = changed[0].batch_size / base[0].batch_size
    row["speedup_of_samples"] = samples * statistics.median(found["base"]) / statistics.median(found["changed"])
    ratios = [samples * first / second for first, second in zip(found["base"], found["changed"], strict=True)]
    row["speedup_quartiles"] = statistics.quantiles(ratios, n=4)
    return row


def arm(script: Any, change: Mapping[str, Any], job: Job) -> tuple[Any, dict[str, bool], int]:
    """A script that has run warm, its flags, and its peak of memory above what was there before."""
    resting_bytes = 0
    if uses_gpu(job.device):
        resting_bytes = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    built = script.build(small=job.is_small, **change)
    if "torch._dynamo" in sys.modules:  # the other arm's sizes make none of this arm's dynamic
        sys.modules["torch._dynamo"].config.automatic_dynamic_shapes = False
    steps.block_of(built.step, COMPILED_WARMUP)()
    finish(job.device)
    peak_bytes = torch.cuda.max_memory_allocated() - resting_bytes if uses_gpu(job.device) else 0
    return built, flags(), peak_bytes


def missing_bytes(job: Job, *, factor: float = 3.0) -> float:
    """How much memory a changed arm may lack, if it needs ``factor`` times what the base needs."""
    if not uses_gpu(job.device):
        return 0.0
    torch.cuda.empty_cache()
    return factor * torch.cuda.max_memory_allocated() - torch.cuda.mem_get_info()[0]


def losses_are_finite(step: Callable[[], None]) -> bool | None:
    """Whether what a step goes backward from is finite; None where it does not (a graph is replayed)."""
    losses: list[torch.Tensor] = []
    backward = torch.Tensor.backward

    def watched(loss: torch.Tensor, *arguments: Any, **options: Any) -> None:
        losses.append(loss.detach().clone())
        backward(loss, *arguments, **options)

    torch.Tensor.backward = watched  # type: ignore[assignment, method-assign]
    try:
        step()
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]
    return all(bool(loss.isfinite().all()) for loss in losses) if losses else None


def summary(rows: Mapping[str, Row], _job: Job) -> Row:
    return {
        "speedups": {
            f"{unit}/{part}" if part else unit: round(found["speedup_of_samples"], 4)
            for unit, row in rows.items()
            for part, found in (("", row), *row.items())
            if isinstance(found, dict) and "speedup_of_samples" in found
        },
        "failed_parts": {
            f"{unit}/{part}": found["failed"]
            for unit, row in rows.items()
            for part, found in row.items()
            if isinstance(found, dict) and "failed" in found
        },
    }
