"""Predicted peaks of memory beside what the device's allocator counted (stage ``memory`` of ``benchmarks.gpu``).

In: the name of a workload. Out: the allocator's peak of a step, handed out and reserved (torch alone), and what a dry
run with fake tensors says before anything runs: with the rounding of CUDA's allocator and what cuBLAS keeps, and
replayed through a model of it. What operators take as workspace for one call is in the measured peak and not in the
predicted one. On the host the tracker of storages stands in for the allocator.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from benchmarks.gpu import jobs
from benchmarks.gpu.stages import Job, Row, lacking, path_of, read, write
from windtunnel.errors import WindtunnelError
from windtunnel.measure.devices import uses_gpu

IS_APART = True
WARMUP = 3


def units(job: Job) -> Sequence[str]:
    return jobs.names(job)


def run(unit: str, job: Job) -> Row:
    """Measure once, predict where that is possible."""
    path = path_of("memory/recorded", unit, job)
    missing = lacking()
    try:
        measured = read(path) or _measured(unit, job, missing)
    except WindtunnelError as error:
        return {"failed": error.message}
    if measured:
        write(path, measured)
    if missing:
        return {**measured, "pending": f"predicting needs {', '.join(missing)}"}
    from windtunnel import hardware
    from windtunnel.sources.memory.tracking import predict_memory

    try:
        chip = hardware.recognize(measured["device"], measured["device_bytes"]) if "device" in measured else None
        predicted = predict_memory(lambda: jobs.build(unit, replace(job, device="cpu")), warmup=WARMUP, chip=chip)
    except WindtunnelError as error:  # its form hangs on values
        return {**measured, "failed": error.message}
    row = {
        **measured,
        "predicted_bytes": predicted.peak_rounded_bytes if uses_gpu(job.device) else predicted.peak_bytes,
        "predicted_reserved_bytes": predicted.peak_reserved_bytes,
    }
    row["error"] = row["predicted_bytes"] / row["measured_bytes"] - 1
    if "measured_reserved_bytes" in row:
        row["reserved_error"] = row["predicted_reserved_bytes"] / row["measured_reserved_bytes"] - 1
    return row


def _measured(unit: str, job: Job, missing: Sequence[str]) -> Row:
    built = jobs.build(unit, job)
    try:
        return _on_gpu(built.step) if uses_gpu(job.device) else {} if missing else _on_host(built)
    finally:
        built.close()


def _on_gpu(step: object) -> Row:
    assert callable(step)
    for _ in range(WARMUP):
        step()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    resting = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    about = torch.cuda.get_device_properties(0)
    return {
        "device": about.name,
        "device_bytes": about.total_memory,
        "measured_bytes": torch.cuda.max_memory_allocated(),
        "measured_reserved_bytes": torch.cuda.max_memory_reserved(),
        "resting_bytes": resting,
    }


def _on_host(built: object) -> Row:
    from windtunnel.sources.memory.tracking import track_memory
    from windtunnel.workloads import Workload

    assert isinstance(built, Workload)
    found = track_memory(built.step, model=built.models, optimizer=built.optimizers, warmup=WARMUP, workspace=False)
    return {"measured_bytes": found.peak_bytes}


def summary(rows: Mapping[str, Row], _job: Job) -> Row:
    good = {unit: row for unit, row in rows.items() if "error" in row}
    return {
        "errors": {unit: round(row["error"], 4) for unit, row in good.items()},
        "median": statistics.median([abs(row["error"]) for row in good.values()]) if good else None,
        "reserved_errors": {
            unit: round(row["reserved_error"], 4) for unit, row in good.items() if "reserved_error" in row
        },
    }
