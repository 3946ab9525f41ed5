"""A pipeline as it was asked for, cut and predicted.

In: a workload, ranks, a schedule by name. Out: ``PlannedPipeline``: the stage of each layer, what a step is predicted
to take, orders for its ranks. Not here: the search over depths and widths (``pipelines``), running (``train``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.measure.fingerprint import machine
from windtunnel.search.placement.baselines import even
from windtunnel.search.placement.search import place
from windtunnel.systems.pipelines.generate import generate
from windtunnel.systems.pipelines.schedules import Schedule
from windtunnel.systems.pipelines.training.checkpoints import read_saved_plan
from windtunnel.systems.pipelines.training.model import PipelineJob, stage_of_modules, step_ns, whole_ns
from windtunnel.systems.pipelines.training.run import job_of
from windtunnel.systems.pipelines.training.search import improve
from windtunnel.systems.pipelines.training.train import orders_of

if TYPE_CHECKING:
    from windtunnel.search.placement.throughput import Plan
    from windtunnel.systems.pipelines.training.trainer import TrainOrders

__all__ = ["PipelineSpec", "PlannedPipeline", "plan_pipeline", "read_saved_pipeline"]

_PREDICTED = ("step_ns", "one_process_ns")


@dataclass(frozen=True)
class PipelineSpec:
    """Specification of a pipeline.

    Parameters
    ----------
    workload, parameters
    num_ranks, num_microbatches : int
        Sizes of each replica.
    schedule : str
    num_chunks : int, optional
        Stages per rank, where the schedule leaves a choice.
    num_replicas : int
    recomputes : bool
    max_norm : float, optional
    """

    workload: str
    parameters: dict[str, Any]
    num_ranks: int
    num_microbatches: int
    schedule: str = "2bw"
    num_chunks: int | None = None
    num_replicas: int = 1
    recomputes: bool = False
    max_norm: float | None = None

    def __post_init__(self) -> None:
        """Refuse a job of no pipelines."""
        if self.num_replicas < 1:
            raise InputError(f"{self.num_replicas} pipelines", where="width", fix="one or more")

    def table(self, num_batches: int) -> Schedule:
        """Return the schedule of ``num_batches`` batches."""
        return generate(
            self.schedule, self.num_ranks, self.num_microbatches, num_batches=num_batches, num_chunks=self.num_chunks
        )


@dataclass(frozen=True, eq=False)
class PlannedPipeline:
    """A pipeline that can train.

    Parameters
    ----------
    spec : PipelineSpec
    stage_of : mapping of str to int
        Stage by path of a module.
    predicted_ns : float or None
        A step; None where it is not known.
    predicted_alone_ns : float or None
        A step of one process; None where it is not known.
    """

    spec: PipelineSpec
    stage_of: Mapping[str, int]
    predicted_ns: float | None
    predicted_alone_ns: float | None

    @property
    def stages(self) -> list[list[str]]:
        """Names of the layers of each stage."""
        num_stages = 1 + max(self.stage_of.values())
        return [[name for name, stage in self.stage_of.items() if stage == index] for index in range(num_stages)]

    def orders(self, num_batches: int, **more: Any) -> TrainOrders:
        """Return the orders of the ranks; ``more`` is passed to ``orders_of``."""
        spec = self.spec
        known = {"step_ns": self.predicted_ns, "one_process_ns": self.predicted_alone_ns, "hardware": machine()}
        return orders_of(
            spec.workload, spec.parameters, self.stage_of, spec.table, num_batches, num_replicas=spec.num_replicas,
            recomputes=spec.recomputes, max_norm=spec.max_norm, predicted=known, **more,
        )  # fmt: skip


def read_saved_pipeline(spec: PipelineSpec, folder: Path) -> PlannedPipeline | None:
    """The pipeline that has left a checkpoint, with what was predicted for this host; None where there is none.

    Raises
    ------
    InputError
        The checkpoint cannot be read.
    """
    stage_of, known = read_saved_plan(folder)
    if not stage_of:
        return None
    is_here = known.get("hardware") == machine()
    return PlannedPipeline(spec, stage_of, *(known.get(name) if is_here else None for name in _PREDICTED))


def plan_pipeline(spec: PipelineSpec, *, progress: Progress | None = None) -> PlannedPipeline:
    """Capture a microbatch of a workload, cut its layers into stages, predict the step.

    Raises
    ------
    InputError
        No schedule has that name or can have these numbers; the batch does not divide into equal microbatches.
    NotApplicableError
        A step of the workload is more than a model and a loss.
    FlightError
        A process failed.
    """
    table = spec.table(1)
    job = job_of(
        spec.workload, spec.parameters, table.num_stages, spec.num_microbatches, table=table,
        num_replicas=spec.num_replicas, progress=progress,
    )  # fmt: skip
    plan = _cut_stages(job, table)
    known_ns = step_ns(
        job, plan, job.conditions, spec.table, recomputes=spec.recomputes, num_replicas=spec.num_replicas
    )
    return PlannedPipeline(spec, stage_of_modules(job, plan), known_ns, whole_ns(job, job.conditions))


def _cut_stages(job: PipelineJob, table: Schedule) -> Plan:
    """Cut the layers into as many stages as the schedule has, with the lightest busiest stage."""
    plan = place(job.layers.problem)
    if len(set(plan.device.tolist())) != table.num_stages:
        return even(job.layers.problem)
    return improve(job, plan) if table.num_stages == table.num_ranks else plan
