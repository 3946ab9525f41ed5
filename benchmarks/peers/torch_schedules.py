"""Pipeline schedules as torch makes, writes, loads and checks them.

In: names and numbers, or the text of a CSV file. Out: text of torch's own file; or what torch wrote again of ours,
after its validation and after it has put sends and receives in. No process group is needed: stages are stand-ins.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.pipelining import schedules

__all__ = ["NAMES", "made_by_torch", "through_torch"]

NAMES = ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "LoopedBFS")


def made_by_torch(name: str, num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> str:
    """The compute-only CSV text of one of torch's schedules."""
    kind: Any = getattr(schedules, f"Schedule{name}")
    return _dumped(kind(_stages(num_ranks, num_ranks * num_chunks), num_microbatches, loss_fn=_loss))


def through_torch(text: str, num_ranks: int, num_stages: int, num_microbatches: int) -> str:
    """Load, validate and lower a file in torch, and dump what it then has.

    Raises
    ------
    AssertionError, ValueError, RuntimeError
        Torch does not take it.
    """
    loader = schedules._PipelineScheduleRuntime(_stages(num_ranks, num_stages), num_microbatches, loss_fn=_loss)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.csv"
        path.write_text(text, newline="")
        loader._load_csv(str(path), format="compute_only")
    return _dumped(loader)


def _dumped(schedule: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.csv"
        schedule._dump_csv(str(path), format="compute_only")
        return path.read_text()


def _stages(num_ranks: int, num_stages: int) -> list[Any]:
    """What a schedule asks of the stages of the first rank."""
    one = SimpleNamespace(
        num_stages=num_stages, group_size=num_ranks, group_rank=0, stage_index=0, is_first=True, is_last=False,
        submod=torch.nn.Identity(),
    )  # fmt: skip
    return [one] * (num_stages // num_ranks)


def _loss(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return output.sum()
