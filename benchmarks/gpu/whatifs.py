"""What-ifs predicted from a trace of the baseline and really run beside it (stage ``whatifs`` of ``benchmarks.gpu``).

In: a workload and a what-if. Out: predicted and measured speed-up. The trace is that of stage ``steps``; what was flown
is kept apart, so that it can be predicted again on another machine. A what-if whose prediction needs operators to be
run again has none from a trace: it is flown and listed as not predicted.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import torch

from benchmarks.gpu import jobs, steps
from benchmarks.gpu.stages import Job, Row, lacking, path_of, read, write
from windtunnel.errors import NotApplicableError, WindtunnelError

IS_APART = True
PAIRS = {
    "vit-paper": ("amp", "tf32", "fused-optimizer", "batch-size:factor=2", "compile-block"),
    "resnet50-paper": ("amp", "tf32", "channels-last", "amp+channels-last"),
    "bert-paper": ("amp", "tf32", "activation-checkpointing"),
    "translation-transformer-paper": ("amp", "tf32", "fused-optimizer"),
    "diffusion-unet-paper": ("amp", "channels-last"),
    "convnext-paper": ("amp",),
    "seq2seq-paper": ("amp",),
    "decoder-lm": (
        "amp",
        "amp:dtype=float16",
        "tf32",
        "fused-optimizer",
        "foreach-optimizer",
        "compile-block",
        "batch-size:factor=2",
        "gradient-accumulation:passes=2",
        "activation-checkpointing",
        "cuda-graphs",
        "gc-pauses",
    ),
    "resnet50": ("amp", "fused-optimizer"),
    "bert": ("fused-optimizer", "compile-block"),
    "mlp": ("amp", "tf32", "fused-optimizer", "freeze-layers:layer=[0-2]", "batch-size:factor=2", "cuda-graphs"),
    "cnn": ("channels-last", "loader-workers:num_workers=2", "pinned-memory", "prefetch"),
}
SMALL_PAIRS = {"mlp": ("fused-optimizer", "tf32")}


def units(job: Job) -> Sequence[str]:
    pairs = SMALL_PAIRS if job.is_small else PAIRS
    return [f"{model}@{change}" for model, changes in pairs.items() for change in changes]


def run(unit: str, job: Job) -> Row:
    missing = lacking()
    if missing:
        return {"pending": f"needs {', '.join(missing)}"}
    model, _, change = unit.partition("@")
    recorded = steps.recording(model, job)
    if "failed" in recorded:
        return recorded
    return predicted(model, change, job, recorded["bare_ns"]) | recording(unit, job)


def recording(unit: str, job: Job) -> Row:
    """What was flown of a pair, now if not before."""
    path = path_of("whatifs/recorded", unit, job)
    row = read(path)
    if row is None:
        model, _, change = unit.partition("@")
        row = flown(model, change, job)
        write(path, row)
    return row


def predicted(model: str, change: str, job: Job, bare_ns: float) -> Row:
    from windtunnel.sources.kineto.reader import load_kineto
    from windtunnel.sources.kineto.unprofiled import without_profiler
    from windtunnel.whatifs import whatif

    try:
        traced = load_kineto(steps.trace_of(model, job), window=steps.MARK)  # all its steps as one
        answer = whatif(without_profiler(traced, steps.ITERATIONS * bare_ns), change)[0]
    except WindtunnelError as error:
        return {"not_predicted": error.message}
    if not answer.is_applicable:
        return {"not_predicted": answer.reason}
    return {"predicted": answer.samples_ratio * answer.baseline_ns / answer.predicted_ns}


def flown(model: str, change: str, job: Job) -> Row:
    from windtunnel.flights import fly
    from windtunnel.measure import StopRule
    from windtunnel.sources.targets import WorkloadName

    torch.set_default_device(job.device)  # whose that of the lanes is
    jobs.alone_on_host(job)
    rule = StopRule(rounds=4, time_limit_s=1.0, turn_ns=2_000_000, warmup=2, min_rounds=4) if job.is_small else None
    begun = WorkloadName(jobs.workload_of(model), jobs.parameters(model, job))
    try:
        found = fly(begun, change, rule=rule or StopRule(rounds=30, precision=0.008, time_limit_s=15.0))
    except NotApplicableError as error:
        return {"not_flown": error.message}
    except WindtunnelError as error:
        return {"not_flown": f"{error.message} ({error.where})" if error.where else error.message}
    ratio = 2.0 if change.startswith("batch-size:factor=2") else 1.0  # samples of a changed iteration
    return {
        "measured": ratio * found.speedup.value,
        "low": ratio * found.speedup.low,
        "high": ratio * found.speedup.high,
        "baseline_ms": found.baseline.value / 1e6,
        "rounds": found.num_rounds,
    }


def summary(rows: Mapping[str, Row], _job: Job) -> Row:
    both = {
        unit: row["measured"] / row["predicted"] - 1
        for unit, row in rows.items()
        if {"measured", "predicted"} <= {*row}
    }
    return {
        "num_flown": sum("measured" in row for row in rows.values()),
        "errors": {unit: round(error, 4) for unit, error in both.items()},
        "median": statistics.median(map(abs, both.values())) if both else None,
        "not_flown": {unit: row["not_flown"] for unit, row in rows.items() if "not_flown" in row},
        "not_predicted": {unit: row["not_predicted"] for unit, row in rows.items() if "not_predicted" in row},
    }
