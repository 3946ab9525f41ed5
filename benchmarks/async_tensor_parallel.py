"""Async tensor parallelism is predicted from traces without hardware, against what torchtitan published.

The PyTorch team's benchmark of June 2025 in torchtitan's repository: tokens per second and GPU with vanilla and with
async tensor parallelism, bfloat16, torch.compile, on the H100s of ``torchtitan_published``. torchtitan 0.2.2 runs under
a dry run with FSDP and tensor parallelism of 8, is priced for that device by the shipped prices, pointwise operators
fused as the compiler does; then what-if ``async-tensor-parallel`` rewrites the graph. Nothing is fitted to these rows.

Chunks of products take whole waves of tiles; messages are taken to be as fast during computation as alone; barriers
cost nothing. With the ratio that Daydream measured (``in_situ_ratio=1.34``) less of that is left; the bar judges the
what-if as it is asked by default.

    WINDTUNNEL_TORCHTITAN=FOLDER python -m benchmarks.async_tensor_parallel --verbose
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import bar
from benchmarks.torchtitan_published import SEQUENCE, inputs, of_the_page, traced
from windtunnel.hardware import Fabric, machine
from windtunnel.simulate import replay
from windtunnel.systems.collectives.whatif import async_tensor_parallel
from windtunnel.whatifs.forecast import forecast
from windtunnel.whatifs.fusion import fuse_kernels

DEGREE, DAYDREAM = 8, 1.34
MAX_ERROR = 0.05
TARGET = f"speed-up within {MAX_ERROR:.0%} of both published ones"


@dataclass(frozen=True)
class Job:
    """A row of the table."""

    flavor: str
    num_gpus: int
    batch: int
    checkpointing: str
    vanilla: float
    overlapped: float

    @property
    def speedup(self) -> float:
        """Of async over vanilla, as published."""
        return self.overlapped / self.vanilla


JOBS = (Job("8B", 64, 12, "selective", 4378.0, 4809.4), Job("70B", 256, 16, "full", 597.3, 652.4))


def arguments_of(job: Job, given: list[str]) -> list[str]:
    """The trainer's arguments for a job."""
    changed = {
        "--model.flavor": job.flavor,
        "--training.local_batch_size": str(job.batch),
        "--activation_checkpoint.mode": job.checkpointing,
        "--parallelism.tensor_parallel_degree": str(DEGREE),
    }
    pairs = dict(zip(given[::2], given[1::2], strict=True)) | changed
    return [word for pair in pairs.items() for word in pair]


def predicted(job: Job, titan: str, folder: Path) -> dict[str, object]:
    """Speed and speed-up of a job."""
    folder.mkdir()
    given = inputs(folder)
    graph, traced_s = traced(titan, folder / "train.py", arguments_of(job, given), job.num_gpus)
    dgx = machine("dgx-h100")
    assert dgx.device_link is not None
    assert dgx.network_link is not None
    priced = forecast(graph, of_the_page(), fabric=Fabric(dgx.device_link, dgx.network_link, 8)).graph
    vanilla = fuse_kernels(priced)
    vanilla_ns = replay(vanilla).makespan_ns
    speedup, in_situ = (
        vanilla_ns / replay(async_tensor_parallel(vanilla, in_situ_ratio=ratio)).makespan_ns
        for ratio in (1.0, DAYDREAM)
    )
    tokens_per_s = job.batch * SEQUENCE / DEGREE / (vanilla_ns * 1e-9)
    return {
        "job": f"{job.flavor}, {job.num_gpus} GPUs",
        "vanilla_error": tokens_per_s / job.vanilla - 1,
        "speedup": speedup,
        "published": job.speedup,
        "error": speedup / job.speedup - 1,
        "error_in_situ": in_situ / job.speedup - 1,
        "traced_s": traced_s,
    }


def main() -> int:
    """Print the bar."""
    titan = os.environ.get("WINDTUNNEL_TORCHTITAN", "")
    if not (Path(titan) / "torchtitan").is_dir():
        needed = "pip install --no-deps --target FOLDER torchtitan==0.2.2, and what it imports"
        bar.report("async_tensor_parallel", 0.0, TARGET, holds=False, skipped=f"no torchtitan: {needed}")
        return 0
    with tempfile.TemporaryDirectory() as name:
        rows = [predicted(job, titan, Path(name) / job.flavor) for job in JOBS]
    if bar.is_verbose():
        print(bar.table(rows))
    worst = max(abs(float(str(row["error"]))) for row in rows)
    bar.report("async_tensor_parallel", worst, TARGET, worst <= MAX_ERROR, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
