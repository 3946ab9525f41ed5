"""A pipeline in processes that ``torchrun`` has started.

In: a specification, the environment that torchrun makes. Out: on the first rank, what all have trained. Not here: our
own launcher (``train``).
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.measure.allocator import hold_heap
from windtunnel.measure.workers import die_with
from windtunnel.systems.pipelines.training.job import PipelineSpec, PlannedPipeline, plan_pipeline
from windtunnel.systems.pipelines.training.train import Trained, merge_reports
from windtunnel.systems.pipelines.training.trainer import PATIENCE, RankReport, train_rank

__all__ = ["train_elastic"]


def train_elastic(
    spec: PipelineSpec, *, known: PlannedPipeline | None = None, progress: Progress, **more: Any
) -> tuple[PlannedPipeline, Trained] | None:
    """Train; None on all ranks but the first.

    Parameters
    ----------
    spec : PipelineSpec
    known : PlannedPipeline, optional
        Planned already.
    progress : callable
    more
        As of ``PlannedPipeline.orders``.

    Raises
    ------
    InputError
        There are not as many processes as the pipelines have ranks.
    """
    die_with(os.getppid())
    torch.set_num_threads(1)
    hold_heap()
    dist.init_process_group("gloo", timeout=PATIENCE)
    rank, size = dist.get_rank(), dist.get_world_size()
    try:
        if size != spec.num_ranks * spec.num_replicas:
            raise InputError(
                f"{size} processes for {spec.num_replicas} pipelines of {spec.num_ranks} ranks", where="torchrun",
                fix=f"--nproc-per-node {spec.num_ranks * spec.num_replicas}",
            )  # fmt: skip
        reported: list[Any] = [known or plan_pipeline(spec, progress=progress) if rank == 0 else None]
        dist.broadcast_object_list(reported)
        planned: PlannedPipeline = reported[0]
        orders = planned.orders(**more)
        report = train_rank(orders, rank, lambda update: progress(*update))
        gathered: list[RankReport | None] = [None] * size
        dist.gather_object(report, gathered if rank == 0 else None)
        if rank:
            return None
        return planned, merge_reports(orders, [item for item in gathered if item is not None])
    finally:
        dist.destroy_process_group()
