"""``windtunnel pipeline run``: a workload trains as a pipeline, by any schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, stdout_to_stderr
from windtunnel.cli.options import Json, LedgerPath
from windtunnel.errors import InputError
from windtunnel.units import format_duration, format_size

if TYPE_CHECKING:
    from windtunnel.systems.pipelines.training.job import PipelineSpec, PlannedPipeline
    from windtunnel.systems.pipelines.training.train import Trained

__all__ = ["run"]

_SCHEMA = "windtunnel.pipeline-run/1"
_SHOWN = 10
_RANKS, _MICROBATCHES, _SCHEDULE = 4, 8, "2bw"  # where neither options nor a plan say it


@registry.verb("pipeline run", source="PipeDream-2BW")
def run(
    target: Annotated[
        str, typer.Argument(metavar="[WORKLOAD]", help="Workload, such as mlp or decoder-lm:size=tiny.")
    ] = "",
    plan: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Plan to run, as written by `pipeline plan` (JSON).")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of processes per pipeline (default: 4).")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of microbatches per batch and pipeline (default: 8).")
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            help="Pipeline schedule: 2bw, 1f1b, gpipe, pipedream, interleaved, zb-h1, zbv, dualpipev ... (default: "
            "2bw)."
        ),
    ] = "",
    chunks: Annotated[
        int, typer.Option(min=0, metavar="N", help="Interleaved schedule: number of stages per rank (default: 2).")
    ] = 0,
    width: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of data-parallel pipelines (default: 1).")
    ] = None,
    recompute: Annotated[bool, typer.Option("--recompute", help="Recompute activations in the backward pass.")] = False,
    clip: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="NORM",
            help="Maximum gradient norm; without a flush, the norm of the previous batch is used; 0: no clipping.",
        ),
    ] = 0.0,
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Total number of batches, including those before a checkpoint.")
    ] = 20,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for checkpoints.")] = None,
    every: Annotated[
        int,
        typer.Option(
            "--checkpoint-interval", min=0, metavar="N", help="Number of steps between checkpoints; 0: only at the end."
        ),
    ] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint.")] = False,
    memory: Annotated[bool, typer.Option("--track-memory", help="Track the memory of each rank (slow).")] = False,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel pipeline run mlp --ranks 2 --schedule 2bw --steps 20

    Train a workload as a pipeline of processes on this host and compare with the predicted step.
    """
    from windtunnel.systems.pipelines.training.job import plan_pipeline
    from windtunnel.systems.pipelines.training.train import train_pipeline

    if resume and checkpoint is None:
        raise InputError("--resume needs a checkpoint", where="--resume", fix="add --checkpoint DIR")
    own = {
        "--ranks": ranks, "--microbatches": microbatches, "--schedule": schedule, "--chunks": chunks,
        "--width": width, "--recompute": recompute,
    }  # fmt: skip
    if plan is None:
        spec = _spec(target, ranks, microbatches, schedule, chunks, width, recompute=recompute, max_norm=clip)
        known = _read_checkpoint(spec, checkpoint) if resume else None
    else:
        known = _read(plan, target, [name for name, value in own.items() if value], max_norm=clip)
        spec = known.spec
    with Progress("training") as progress, stdout_to_stderr():
        planned = known or plan_pipeline(spec, progress=progress)
        orders = planned.orders(
            num_batches=steps, folder=checkpoint, every=every, resumes=resume, watches_memory=memory,
            num_alone=0 if memory else 3,
        )  # fmt: skip
        trained = train_pipeline(orders, progress=progress)
    receipt = None
    if trained.step_ns is not None and planned.predicted_ns is not None and trained.alone_ns is not None:
        from windtunnel.flights import Ledger
        from windtunnel.systems.pipelines.flight import receipt_of_training

        receipt = receipt_of_training(planned, trained)
        Ledger(ledger).add(receipt)
    document = {**_document(planned, trained), "receipt": None if receipt is None else receipt.to_dict()}
    show(document, _lines(document), as_json=as_json)
    if receipt is not None and not as_json:
        advise("next: windtunnel db receipts")


def _spec(
    target: str,
    ranks: int | None,
    microbatches: int | None,
    schedule: str,
    chunks: int,
    width: int | None,
    *,
    recompute: bool,
    max_norm: float,
) -> PipelineSpec:
    """What the options ask for."""
    from windtunnel.systems.pipelines.training.job import PipelineSpec
    from windtunnel.whatifs import parse_step

    if not target:
        raise InputError("there is no workload", where="WORKLOAD", fix="name one, such as mlp, or a plan: --plan JSON")
    selected = parse_step(target, kind="workload")
    return PipelineSpec(
        selected.name, dict(selected.parameters), ranks or _RANKS, microbatches or _MICROBATCHES, schedule or _SCHEDULE,
        chunks or None, width or 1, recompute, max_norm or None,
    )  # fmt: skip


def _read_checkpoint(spec: PipelineSpec, checkpoint: Path | None) -> PlannedPipeline | None:
    from windtunnel.systems.pipelines.training.job import read_saved_pipeline

    return None if checkpoint is None else read_saved_pipeline(spec, checkpoint)


def _read(plan: Path, target: str, own: list[str], *, max_norm: float) -> PlannedPipeline:
    """A plan as it is written: nothing but clipping can be added."""
    from windtunnel.cli.files import require_there
    from windtunnel.systems.pipelines.training.plan_file import read_plan

    reported = [*([target] if target else []), *own]
    if reported:
        raise InputError(
            f"the plan says what runs, not {', '.join(reported)}", where=str(plan), fix="leave one of them out"
        )
    require_there(plan)
    result = read_plan(plan)
    return dataclasses.replace(result, spec=dataclasses.replace(result.spec, max_norm=max_norm or None))


def _document(planned: PlannedPipeline, trained: Trained) -> dict[str, Any]:
    spec, step = planned.spec, trained.step_ns
    return {
        "schema": _SCHEMA,
        "workload": spec.workload,
        "parameters": spec.parameters,
        "schedule": spec.schedule,
        "ranks": spec.num_ranks,
        "width": spec.num_replicas,
        "microbatches": spec.num_microbatches,
        "recompute": spec.recomputes,
        "clipped_norm": spec.max_norm,
        "stages": planned.stages,
        "first_step": trained.first_batch,
        "losses": list(trained.losses),
        "step_ns": None if step is None else step.value,
        "step_interval_ns": None if step is None else [step.low, step.high],
        "predicted_step_ns": planned.predicted_ns,
        "one_process_ns": None if trained.alone_ns is None else trained.alone_ns.value,
        "memory_bytes": [report.memory for report in trained.reports if report.memory],
    }


def _lines(document: dict[str, Any]) -> Iterator[str | Table]:
    first, losses = document["first_step"], document["losses"]
    jump = max(1, -(-len(losses) // _SHOWN))
    shown = sorted({*range(0, len(losses), jump), len(losses) - 1})
    yield Table({"step": "{}", "loss": "{:.4f}"}, [(first + index + 1, losses[index]) for index in shown])
    yield ""
    for name, key in (("step", "step_ns"), ("predicted", "predicted_step_ns"), ("one process", "one_process_ns")):
        if document[key] is not None:
            yield f"{name:12} {format_duration(document[key])}"
    if document["memory_bytes"]:
        kinds = ("base", "peak", "weight", "gradient", "optimizer state", "feature map")
        rows = [(rank, *(item[kind] for kind in kinds)) for rank, item in enumerate(document["memory_bytes"])]
        yield Table({"rank": "{}", **dict.fromkeys(kinds, format_size)}, rows)
    yield ""
    for index, names in enumerate(document["stages"]):
        yield f"stage {index}: {len(names)} layers, {', '.join(filter(None, names[:3]))} ..."
