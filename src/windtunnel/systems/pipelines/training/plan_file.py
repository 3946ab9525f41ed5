"""Plans of pipelines as files: the cut that was planned is the cut that runs.

In: a ``PlannedPipeline``, or a document that holds one. Out: the other one: workload, stage of each layer, numbers,
schedule, what a step was predicted to take. Not here: planning, running.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.search.fields import document_of, number_of, whole_of
from windtunnel.systems.pipelines.training.job import PipelineSpec, PlannedPipeline

__all__ = ["PLAN_SCHEMA", "plan_fields", "read_plan"]

PLAN_SCHEMA = "windtunnel.pipeline-plan/1"
_KEY = "pipeline"


def plan_fields(planned: PlannedPipeline) -> dict[str, Any]:
    """What a document of ``PLAN_SCHEMA`` says of a pipeline that can run."""
    spec = planned.spec
    return {
        _KEY: {
            "workload": spec.workload,
            "parameters": spec.parameters,
            "ranks": spec.num_ranks,
            "width": spec.num_replicas,
            "microbatches": spec.num_microbatches,
            "schedule": spec.schedule,
            "chunks": spec.num_chunks,
            "recompute": spec.recomputes,
            "stage_of": dict(planned.stage_of),
            "predicted_step_ns": planned.predicted_ns,
            "predicted_one_process_ns": planned.predicted_alone_ns,
        }
    }


def read_plan(path: Path) -> PlannedPipeline:
    """The pipeline of a document that ``windtunnel pipeline plan`` has written.

    Raises
    ------
    InputError
        It is no such document, or of no workload; a field is missing, or no schedule has these numbers.
    """
    where = str(path)
    document = document_of(path, "plan of a pipeline")
    if document.get("schema") != PLAN_SCHEMA:
        raise InputError("this is no plan of a pipeline", where=where, fix="windtunnel pipeline plan mlp --out PATH")
    result = document.get(_KEY)
    if not isinstance(result, dict):
        raise InputError(
            "the plan is of a graph, which cannot be trained here", where=where, fix="plan a workload, such as mlp"
        )
    spec = _spec(result, where)
    stage_of = _stages(result.get("stage_of"), where)
    num_stages, needed = 1 + max(stage_of.values()), spec.table(1).num_stages
    if num_stages != needed:
        raise InputError(
            f"the plan has {num_stages} stages, {spec.schedule} on {spec.num_ranks} ranks has {needed}", where=where,
            fix="plan anew",
        )  # fmt: skip
    times = [
        None if result.get(name) is None else number_of(result, name, where)
        for name in ("predicted_step_ns", "predicted_one_process_ns")
    ]
    return PlannedPipeline(spec, stage_of, *times)


def _spec(document: Mapping[str, Any], where: str) -> PipelineSpec:
    workload, parameters, schedule = (document.get(name) for name in ("workload", "parameters", "schedule"))
    if not isinstance(workload, str) or not isinstance(schedule, str) or not isinstance(parameters, dict):
        raise InputError("workload, parameters or schedule are missing", where=where, fix="plan anew")
    registry.get("workload", workload)
    return PipelineSpec(
        workload, parameters, whole_of(document, "ranks", where), whole_of(document, "microbatches", where), schedule,
        None if document.get("chunks") is None else whole_of(document, "chunks", where),
        whole_of(document, "width", where),
        document.get("recompute") is True,
    )  # fmt: skip


def _stages(given: Any, where: str) -> dict[str, int]:
    """The stage of each module; every stage has one."""
    if not isinstance(given, dict) or not given:
        raise InputError("stage_of names no modules", where=where, fix="plan anew")
    result = {name: whole_of(given, name, where) for name in given}
    known = sorted(set(result.values()))
    empty = next((index for index, stage in enumerate(known) if index != stage), None)
    if empty is not None:
        raise InputError(f"stage_of leaves stage {empty} empty", where=where, fix="stages from 0 on, without gaps")
    return result
