"""A pipeline's plan improved by what its replay on this host says.

In: a job and a plan, such as the exact one for a device of its own per stage. Out: a plan for stages that share cores.
Not here: what a step takes (``model``), the moves (``pipelines``).
"""

from __future__ import annotations

from windtunnel.search.placement.baselines import random_cut
from windtunnel.search.placement.search import search_locally
from windtunnel.search.placement.throughput import Plan
from windtunnel.systems.pipelines.model import ScheduleName
from windtunnel.systems.pipelines.training.model import PipelineJob, predict_duration_ns

__all__ = ["improve"]

_STARTS = range(1000, 1060)  # seeds of random cuts


def improve(job: PipelineJob, plan: Plan, schedule: ScheduleName = "1f1b") -> Plan:
    """A plan after moves that make the predicted step shorter on what this job stands on: cores that stages share.

    Moves begin from the plan and from the cheapest of some random cuts.

    Raises
    ------
    NotApplicableError
        The plan uses one device only.
    """
    cuts = [random_cut(plan.problem, seed) for seed in _STARTS]
    starts = [cut for cut in cuts if len(cut.kind) == len(plan.kind) and cut.loads.is_allowed]
    return search_locally(plan, lambda candidate: predict_duration_ns(job, candidate, job.conditions, schedule), starts)
