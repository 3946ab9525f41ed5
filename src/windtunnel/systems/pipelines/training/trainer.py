"""One process of a pipeline that trains.

In: ``TrainOrders`` and a rank. Out: a ``RankReport``. The process builds the workload, keeps its own stages of it, and
runs its row of the schedule, segment by segment; a checkpoint ends a segment. Not here: who starts it (``measure``),
who reads the report (``train``).
"""

from __future__ import annotations

import datetime
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.workers import Place
from windtunnel.systems.pipelines.schedules import Schedule
from windtunnel.systems.pipelines.training.checkpoints import finish_checkpoint, read_rank, write_rank
from windtunnel.systems.pipelines.training.memory import measure_stage_memory
from windtunnel.systems.pipelines.training.parts import Batches, build_parts, optimizer_like
from windtunnel.systems.pipelines.training.rank import WholeModel
from windtunnel.systems.pipelines.training.reduction import Reduction
from windtunnel.systems.pipelines.training.runtime import PipelineRank, pipeline_rank
from windtunnel.systems.pipelines.training.stages import cut_stages, split_model

__all__ = ["PATIENCE", "RankReport", "TrainOrders", "train_rank"]

PATIENCE = datetime.timedelta(minutes=10)


@dataclass(frozen=True)
class TrainOrders:
    """Orders of all ranks.

    Parameters
    ----------
    workload, home, parameters
        The workload, the module that registers it, its parameters.
    stage_of : dict of str to int
        Stage by path of a module.
    tables : dict of int to Schedule
        Schedules by number of batches.
    segments : tuple of int
        Batches between checkpoints, each with its table.
    num_replicas : int
    recomputes : bool
    max_norm : float, optional
        Maximum norm of a batch's gradient.
    folder : Path, optional
        Folder of checkpoints.
    first_batch : int
        Where to go on, from a checkpoint.
    returns_weights : bool
        Whether reports hold the newest weights.
    watches_memory : bool
        Follow every storage, which costs as much as many a step.
    num_alone : int
        Steps that the first rank runs alone, before and again after training, while the others wait.
    predicted : dict
        What a step was predicted to take, for the checkpoints.
    """

    workload: str
    home: str
    parameters: dict[str, Any]
    stage_of: dict[str, int]
    tables: dict[int, Schedule]
    segments: tuple[int, ...]
    num_replicas: int = 1
    recomputes: bool = False
    max_norm: float | None = None
    folder: Path | None = None
    first_batch: int = 0
    returns_weights: bool = False
    watches_memory: bool = False
    num_alone: int = 0
    predicted: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> Schedule:
        """First of the schedules; all of them have the same stages."""
        return next(iter(self.tables.values()))

    @property
    def identity(self) -> dict[str, Any]:
        """Facts that have to agree with a checkpoint."""
        table = self.table
        return {
            "workload": self.workload,
            "parameters": self.parameters,
            "schedule": table.name,
            "ranks": table.num_ranks,
            "microbatches": table.num_microbatches,
            "replicas": self.num_replicas,
            "versions": table.versions,
            "recomputes": self.recomputes,
            "max_norm": self.max_norm,
            "stages": self.stage_of,
        }


@dataclass
class RankReport:
    """Report of a rank.

    Parameters
    ----------
    losses : dict of int to float
        Of batches whose last stage lies here: this replica's mean.
    updated_ns : dict of int to int
        When each batch was done here.
    weights : dict of int to dict of str to array
        Of the stages that lie here, if asked for.
    memory : dict of str to int
        Bytes: ``peak``, ``base`` (what lies here before the first batch), and the most of each category at any time.
    alone_ns : list of int
        Steps of the whole workload, one process on one thread.
    """

    losses: dict[int, float] = field(default_factory=dict)
    updated_ns: dict[int, int] = field(default_factory=dict)
    weights: dict[int, dict[str, NDArray[np.float32]]] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    alone_ns: list[int] = field(default_factory=list)


def main(process: Place) -> None:
    """Train as the orders say, under the launcher."""
    torch.set_num_threads(1)
    hold_heap()
    process.join(PATIENCE.total_seconds())
    orders: TrainOrders = process.config
    before = _alone(orders, process.rank)
    report = train_rank(orders, process.rank, process.tell)
    report.alone_ns = before + _alone(orders, process.rank)
    dist.barrier()
    dist.destroy_process_group()
    process.tell(report)


def _alone(orders: TrainOrders, rank: int) -> list[int]:
    """Time the whole workload in one process while all others wait."""
    dist.barrier()
    used: list[int] = []
    if rank == 0 and orders.num_alone:
        num_parts = orders.table.num_microbatches * orders.num_replicas
        whole = WholeModel(orders.workload, orders.parameters, num_parts, orders.home)
        whole.step()
        for _ in range(orders.num_alone):
            begin_ns = time.perf_counter_ns()
            whole.step()
            used.append(time.perf_counter_ns() - begin_ns)
    dist.barrier()
    return used


def train_rank(orders: TrainOrders, rank: int, tell: Callable[[Any], None]) -> RankReport:
    """Train; the default group is there, if there are more ranks. Rank 0 tells how far it is."""
    report = RankReport()
    total = orders.first_batch + sum(orders.segments)

    def record_update(batch: int) -> None:
        report.updated_ns[batch] = time.perf_counter_ns()
        if rank == 0:
            tell(("steps", batch + 1, total))

    runs = _pipeline_rank(orders, rank, record_update)
    gc.collect()  # the other stages' weights
    if orders.watches_memory:
        report.memory = measure_stage_memory(lambda: _segments(orders, rank, runs), list(runs.stages.values()))
    else:
        _segments(orders, rank, runs)
    report.losses = {key: float(torch.stack(parts).sum()) for key, parts in runs.losses.items()}
    if orders.returns_weights:
        report.weights = {
            key: {name: item.detach().numpy().copy() for name, item in stage.weights.newest.named_parameters()}
            for key, stage in runs.stages.items()
        }
    return report


def _segments(orders: TrainOrders, rank: int, runs: PipelineRank) -> None:
    batch = orders.first_batch
    for length in orders.segments:
        _segment(runs, orders.tables, batch, length)
        batch += length
        if orders.folder is not None:
            _write(orders, orders.folder, batch, rank, runs)


def _segment(runs: PipelineRank, tables: dict[int, Schedule], batch: int, length: int) -> None:
    """Batches in one table, or one after another where there is only a table of one."""
    if length in tables:
        runs.run(tables[length], batch)
        return
    for index in range(batch, batch + length):
        runs.run(tables[1], index)


def _pipeline_rank(orders: TrainOrders, rank: int, on_update: Callable[[int], None]) -> PipelineRank:
    table, num_replicas = orders.table, orders.num_replicas
    replica, index = divmod(rank, table.num_ranks)
    built = build_parts(orders.workload, orders.parameters, table.num_microbatches * num_replicas, orders.home)
    assert built.supervised is not None  # ``build_parts`` refuses others
    feed = Batches(
        built.supervised, table.num_microbatches, num_replicas=num_replicas, replica=replica,
        num_reads=_reads(table, index), skip=orders.first_batch,
    )  # fmt: skip
    cut = cut_stages(split_model(built.model, feed.example, orders.stage_of))
    torch.manual_seed(torch.initial_seed() + rank)
    holders, pipeline = _groups(table, replica, num_replicas)
    reduction = Reduction(
        holders, num_replicas, pipeline=pipeline, max_norm=orders.max_norm, is_delayed=table.versions != "flush"
    )
    runs = pipeline_rank(
        cut, table, index, built.supervised.loss, feed, partial(optimizer_like, built.optimizer),
        replica=replica, recomputes=orders.recomputes, reduction=reduction, on_update=on_update,
    )  # fmt: skip
    if orders.first_batch and orders.folder is not None:
        state = read_rank(orders.folder, orders.first_batch, rank)
        for key, stage in runs.stages.items():
            stage.weights.restore(state["stages"][key])
        runs.reduction.restore(state["norm"])
        torch.set_rng_state(state["random"])
    return runs


def _reads(table: Schedule, position: int) -> tuple[int, int]:
    """Return how often a rank reads a batch: inputs for the first stage, targets for the last."""
    row = [
        action
        for action in table.actions[position]
        if action and action.kind == "F" and action.microbatch < table.num_microbatches
    ]
    return sum(item.stage == 0 for item in row), sum(item.stage == table.num_stages - 1 for item in row)


def _groups(table: Schedule, replica: int, num_replicas: int) -> tuple[dict[int, Any], Any]:
    """Make groups of each stage's holders and of this replica's ranks; every process has to make every group."""
    replicas = range(num_replicas)
    holders = {}
    for index, first in enumerate(table.rank_of):
        indices = table.replicas[index] if table.replicas else (first,)
        if len(indices) * num_replicas > 1:
            holders[index] = dist.new_group(
                [item * table.num_ranks + position for item in replicas for position in indices]
            )
    if num_replicas == 1:
        return holders, None
    whole = [
        dist.new_group([item * table.num_ranks + position for position in range(table.num_ranks)]) for item in replicas
    ]
    return holders, whole[replica]


def _write(orders: TrainOrders, folder: Path, batch: int, rank: int, runs: PipelineRank) -> None:
    stages = {key: stage.weights.state() for key, stage in runs.stages.items()}
    write_rank(folder, batch, rank, {"stages": stages, "norm": runs.reduction.state(), "random": torch.get_rng_state()})
    if dist.is_initialized():
        dist.barrier()
    if rank == 0:
        finish_checkpoint(folder, batch, orders.identity, orders.predicted)
