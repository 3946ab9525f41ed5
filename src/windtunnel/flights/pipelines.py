"""Receipts of placements that were really run as pipelines (room flights).

In: a job and plans for its layers. Out: a ``Receipt`` per plan. Not here: processes and stages (``training``), which
layer goes where (``planning``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windtunnel.flights.receipt import Receipt
from windtunnel.measure.fingerprint import machine

if TYPE_CHECKING:
    from windtunnel.measure.turns import Progress
    from windtunnel.planning.pipelines.model import ScheduleName
    from windtunnel.planning.placement.throughput import Plan
    from windtunnel.training.pipelines.model import PipelineJob

__all__ = ["fly_pipelines"]


def fly_pipelines(
    job: PipelineJob,
    plans: Sequence[Plan],
    *,
    schedule: ScheduleName = "1f1b",
    rounds: int = 12,
    time_limit_s: float = 120.0,
    progress: Progress | None = None,
) -> list[Receipt]:
    """Run plans in turns and put each beside its prediction; parameters and errors as in ``training.run_pipelines``.

    Returns
    -------
    list of Receipt
        In the order of the plans. Their baseline is the step of one process on one thread.
    """
    from windtunnel.training.pipelines.run import run_pipelines

    runs = run_pipelines(job, plans, schedule=schedule, rounds=rounds, time_limit_s=time_limit_s, progress=progress)
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
                "schedule": schedule,
                "solver": run.plan.solver,
                "slowdown": [round(one, 3) for one in run.slowdown],
            },
            target=job.workload,
            hardware_fingerprint=machine(),
            num_rounds=run.num_rounds,
        )
        for run in runs
    ]
