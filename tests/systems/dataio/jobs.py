"""Small jobs with real files, and costs that a test can compute by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.systems.dataio.calibrate import LoadingCosts
from windtunnel.systems.dataio.config import DlioConfig, TimeDraw
from windtunnel.systems.dataio.job import LoadingJob
from windtunnel.systems.dataio.order import Dataset
from windtunnel.systems.dataio.source import ensure_files, job_of

MS = 1_000_000


def config_in(folder: Path, **data: Any) -> DlioConfig:
    """A data set of a few small arrays."""
    base = DlioConfig(name="tiny", framework="pytorch")
    dataset = replace(
        base.dataset, **{
            "format": "npy", "num_files_train": 24, "record_length_bytes": 4096.0, "data_folder": str(folder), **data,
        },
    )  # fmt: skip
    reader = replace(base.reader, batch_size=2, read_threads=1, sample_shuffle="seed", data_loader="pytorch")
    train = replace(base.train, computation_time=TimeDraw("constant", 0.002), epochs=2)
    return replace(base, dataset=dataset, reader=reader, train=train)


def real_job(folder: Path, num_ranks: int = 1, **changes: Any) -> LoadingJob:
    """The same with its files written."""
    config = config_in(folder)
    ensure_files(config)
    return replace(job_of(config, num_ranks), **changes)


def planned_job(num_files: int = 400, **changes: Any) -> LoadingJob:
    """A job without files: batches of 4 samples of 1 MB, 10 ms per step."""
    job = LoadingJob(
        "planned", "npy", (), (), Dataset(num_files), 1_000_000, 4, tensor_bytes=1_000_000, num_workers=1,
        compute=TimeDraw("constant", 0.010),
    )  # fmt: skip
    return replace(job, **changes)


def costs(**changes: Any) -> LoadingCosts:
    """Samples of 1 ms in memory and 1 ms more from a device of 1 GB/s, on 8 cores, without other costs."""
    known: dict[str, Any] = {
        "format": "npy", "file_bytes": [1e6] * 4, "warm_ns": [1.0 * MS] * 4, "cold_ns": [2.0 * MS] * 4,
        "overhead_ns": 0.0, "sample_device_bytes": 1e6, "latency_ns": 0.0, "curve": {1: 1e9, 2: 1e9},
        "burst_bytes": 0.0, "batch_ns": {"main": 0.0, "worker": 0.0}, "batch_size": 4, "transfer_ns": 0.0,
        "get_ns": 0.0, "barrier_ns": 0.0, "slowdown": [1.0] * 8, "num_cores": 8, "memory_bytes": 1 << 34,
    }  # fmt: skip
    return LoadingCosts(**{**known, **changes})


def mean_ns(values: Any) -> float:
    """Mean of times."""
    return float(np.mean(values))
