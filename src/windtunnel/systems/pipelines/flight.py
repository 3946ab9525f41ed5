"""Receipts of placements that were really run as pipelines.

In: a job and plans for its layers. Out: a ``Receipt`` per plan. Not here: processes and stages (``training``), which
layer goes where (``pipelines``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windtunnel.flights.receipt import Receipt
from windtunnel.measure.fingerprint import machine
from windtunnel.measure.stats import Estimate

if TYPE_CHECKING:
    from windtunnel.base.progress import Progress
    from windtunnel.search.placement.throughput import Plan
    from windtunnel.systems.pipelines.model import ScheduleName
    from windtunnel.systems.pipelines.schedules import Schedule
    from windtunnel.systems.pipelines.training.job import PlannedPipeline
    from windtunnel.systems.pipelines.training.model import PipelineJob
    from windtunnel.systems.pipelines.training.train import Trained

__all__ = ["fly_pipelines", "receipt_of_training"]


def fly_pipelines(
    job: PipelineJob,
    plans: Sequence[Plan],
    *,
    schedule: ScheduleName | Schedule = "1f1b",
    recomputes: bool = False,
    rounds: int = 12,
    time_limit_s: float = 120.0,
    progress: Progress | None = None,
) -> list[Receipt]:
    """Run plans interleaved and compare each with its prediction; parameters as in ``training.run_pipelines``.

    Returns
    -------
    list of Receipt
        In the order of the plans. Their baseline is the step of one process on one thread.
    """
    from windtunnel.systems.pipelines.training.run import run_pipelines

    runs = run_pipelines(
        job, plans, schedule=schedule, recomputes=recomputes, rounds=rounds, time_limit_s=time_limit_s,
        progress=progress,
    )  # fmt: skip
    return [
        Receipt(
            whatif="pipeline",
            predicted_baseline_ns=run.predicted_baseline_ns,
            predicted_ns=run.predicted_ns,
            baseline=run.baseline,
            changed=run.changed,
            speedup=run.speedup,
            parameters={
                "stages": len(run.plan.kind),
                "microbatches": job.num_microbatches,
                "schedule": schedule if isinstance(schedule, str) else schedule.name,
                "solver": run.plan.solver,
                "slowdown": [round(item, 3) for item in run.slowdown],
                **({"recompute": True} if recomputes else {}),
            },
            target=job.workload,
            hardware_fingerprint=machine(),
            num_rounds=run.num_rounds,
        )
        for run in runs
    ]


def receipt_of_training(planned: PlannedPipeline, trained: Trained) -> Receipt:
    """The receipt of a pipeline that trained; its baseline are steps of one process before and after.

    They are not interleaved with the pipeline's steps, so the interval of the speed-up combines those of both steps.
    """
    assert planned.predicted_ns is not None
    assert planned.predicted_alone_ns is not None
    assert trained.step_ns is not None
    assert trained.alone_ns is not None
    spec, step, alone = planned.spec, trained.step_ns, trained.alone_ns
    return Receipt(
        whatif="pipeline",
        predicted_baseline_ns=planned.predicted_alone_ns,
        predicted_ns=planned.predicted_ns,
        baseline=alone,
        changed=step,
        speedup=Estimate(alone.value / step.value, alone.low / step.high, alone.high / step.low),
        parameters={
            "stages": len(planned.stages),
            "ranks": spec.num_ranks,
            "width": spec.num_replicas,
            "microbatches": spec.num_microbatches,
            "schedule": spec.schedule,
            "recompute": spec.recomputes,
        },
        target=spec.workload,
        hardware_fingerprint=machine(),
        num_rounds=len(trained.losses),
        notes=("baseline before and after, not in turns",),
    )
