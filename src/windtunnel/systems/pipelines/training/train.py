"""A pipeline that trains: any schedule, on processes of this host.

In: a workload, the stage of each of its modules, a table of actions. Out: ``Trained``: losses batch by batch, what a
batch took. Not here: what a process does (``trainer``), which layer goes where (``pipelines``), what a step is
predicted to take (``model``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.hardware.host import usable_cores
from windtunnel.measure.stats import Estimate, estimate_median
from windtunnel.measure.workers import Workers
from windtunnel.systems.pipelines.schedules import Schedule
from windtunnel.systems.pipelines.verify import require_shared

if TYPE_CHECKING:
    from windtunnel.systems.pipelines.training.trainer import RankReport, TrainOrders

__all__ = ["Trained", "merge_reports", "orders_of", "pipeline_workers", "train_pipeline"]

MakeTable = Callable[[int], Schedule]
_MODULE = "windtunnel.systems.pipelines.training.trainer"
_WARM = 2  # batches that are not timed


@dataclass(frozen=True)
class Trained:
    """Result of training a pipeline.

    Parameters
    ----------
    first_batch : int
        Batches before, from a checkpoint.
    losses : tuple of float
        Of each batch from there on, the mean of all replicas, before its update.
    step_ns : Estimate or None
        From one batch done to the next, on the rank that is done last; None where too few were run.
    reports : tuple of RankReport
        What each rank says.
    alone_ns : Estimate or None
        A step of one process, before and after in the same processes; None where it was not asked for.
    """

    first_batch: int
    losses: tuple[float, ...]
    step_ns: Estimate | None
    reports: tuple[RankReport, ...]
    alone_ns: Estimate | None = None


def orders_of(
    workload: str,
    parameters: Mapping[str, Any],
    stage_of: Mapping[str, int],
    make_table: MakeTable,
    num_batches: int,
    *,
    num_replicas: int = 1,
    recomputes: bool = False,
    max_norm: float | None = None,
    folder: Path | None = None,
    every: int = 0,
    resumes: bool = False,
    **more: Any,
) -> TrainOrders:
    """Return the orders of the ranks of a pipeline.

    Parameters
    ----------
    workload, parameters
        A registered one whose step is a model and a loss.
    stage_of : mapping of str to int
        Stage by path of a module.
    make_table : callable
        Function that returns the schedule of a number of batches; where the weights are those after all earlier
        batches, a schedule of one batch is enough.
    num_batches : int
        To train on altogether, those before a checkpoint included.
    num_replicas : int
        Number of data-parallel pipelines; the batch is divided among them.
    recomputes : bool
        Keep a microbatch's inputs only.
    max_norm : float, optional
        Clip the gradient of a batch; a pipeline that is not flushed does so by the norm of the batch before.
    folder : Path, optional
        For checkpoints; the last state is written there at the end.
    every : int
        Batches between checkpoints; 0 for none but the last.
    resumes : bool
        Go on from the folder's checkpoint.
    more
        Further fields of ``TrainOrders``.

    Raises
    ------
    InputError
        The folder holds a checkpoint of another pipeline, or one that would be overwritten; no batches are left; a
        batch has fewer microbatches than a stage has replicas.
    """
    from windtunnel.systems.pipelines.training.checkpoints import last_checkpoint
    from windtunnel.systems.pipelines.training.parts import home_of
    from windtunnel.systems.pipelines.training.trainer import TrainOrders

    tables = {1: make_table(1)}
    require_shared(tables[1])
    orders = TrainOrders(
        workload, home_of(workload), dict(parameters), dict(stage_of), tables, (), num_replicas, recomputes, max_norm,
        folder, **more,
    )  # fmt: skip
    first = last_checkpoint(folder, orders.identity) if folder is not None else 0
    if first and not resumes:
        raise InputError(
            f"there is a checkpoint after {first} batches", where=str(folder), fix="--resume, or another folder"
        )
    if first >= num_batches:
        raise InputError(
            f"{first} batches are done, of {num_batches}", where=str(folder or "steps"), fix="ask for more steps"
        )
    left = num_batches - first
    length = min(every or left, left)
    segments = tuple(min(length, left - index) for index in range(0, left, length))
    if orders.table.versions != "flush":
        tables |= {segment: make_table(segment) for segment in set(segments)}
    return dataclasses.replace(orders, segments=segments, first_batch=first)


def train_pipeline(orders: TrainOrders, *, progress: Progress | None = None) -> Trained:
    """Train in processes of this host, each on its core or its share of one.

    Raises
    ------
    FlightError
        A process failed or was killed; says which and what it printed.
    """
    with pipeline_workers(_MODULE, orders, orders.table.num_ranks * orders.num_replicas) as ranks:
        reports = ranks.gather(None if progress is None else lambda update: progress(*update))
    return merge_reports(orders, reports)


def pipeline_workers(module: str, config: Any, num_ranks: int) -> Workers:
    """Pin each process of a pipeline to its core or its fraction of one, because the model has no migration."""
    cores = usable_cores()
    own = [[cores[rank % len(cores)]] for rank in range(num_ranks)]
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return Workers(module, config, num_ranks=num_ranks, title="pipeline", cores=own, environment=one_thread)


def merge_reports(orders: TrainOrders, reports: list[RankReport]) -> Trained:
    """Merge the reports of all ranks."""
    batches = range(orders.first_batch, orders.first_batch + sum(orders.segments))
    losses = tuple(sum(report.losses.get(batch, 0.0) for report in reports) / orders.num_replicas for batch in batches)
    last = np.max([[report.updated_ns[batch] for batch in batches] for report in reports], axis=0)
    steps_ns = np.diff(last)[_WARM - 1 :]
    step_ns = estimate_median(steps_ns.tolist()) if len(steps_ns) else None
    if orders.watches_memory:
        step_ns = None
    alone_ns = [used for report in reports for used in report.alone_ns]
    alone = estimate_median(alone_ns) if alone_ns else None
    return Trained(orders.first_batch, losses, step_ns, tuple(reports), alone)
