"""``windtunnel place verify``: a plan as a pipeline that really trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, stdout_to_stderr
from windtunnel.cli.options import Json, LedgerPath
from windtunnel.units import format_duration

if TYPE_CHECKING:
    from windtunnel.flights import Receipt
    from windtunnel.search.placement.throughput import Plan
    from windtunnel.systems.pipelines.training.model import PipelineJob

__all__ = ["fly"]

_SHOWN_LAYERS = 3


@registry.verb("place verify", source="optimal device placement")
def fly(
    target: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="Workload, such as mlp or vit:size=tiny,batch_size=256.")
    ],
    devices: Annotated[
        int, typer.Option("--ranks", min=1, metavar="N", help="Number of processes on this host, one per stage.")
    ],
    microbatches: Annotated[int, typer.Option(min=1, metavar="N", help="Number of microbatches per step.")] = 8,
    schedule: Annotated[str, typer.Option(help="Pipeline schedule: 1f1b or gpipe.")] = "1f1b",
    compare: Annotated[bool, typer.Option("--compare", help="Also run the exact plan and the even split.")] = False,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel place verify mlp --ranks 2 --compare

    Place a workload's layers on processes of this host, train with these stages, and store receipts.
    """
    from windtunnel.flights import Ledger
    from windtunnel.search.placement.baselines import even
    from windtunnel.search.placement.search import place
    from windtunnel.systems.pipelines.flight import fly_pipelines
    from windtunnel.systems.pipelines.training.run import job_of
    from windtunnel.systems.pipelines.training.search import improve
    from windtunnel.whatifs import parse_step

    selected = parse_step(target, kind="workload")
    with Progress("flying") as progress, stdout_to_stderr():
        job = job_of(selected.name, selected.parameters, devices, microbatches, progress=progress)
        exact = place(job.layers.problem)
        plans = [improve(job, exact, schedule)]  # type: ignore[arg-type]
        if compare:
            plans += [exact] * (plans[0] is not exact) + [even(job.layers.problem)]
        receipts = fly_pipelines(job, plans, schedule=schedule, progress=progress)  # type: ignore[arg-type]
    kept = Ledger(ledger)
    for receipt in receipts:
        kept.add(receipt)
    rows = [{**receipt.to_dict(), "stages": _stages(job, plan)} for receipt, plan in zip(receipts, plans, strict=True)]
    document = {"schema": "windtunnel.place-flight/1", "flights": rows}
    show(document, _lines(job, plans, receipts), as_json=as_json)
    if not as_json:
        advise("next: windtunnel db receipts")


def _stages(job: PipelineJob, plan: Plan) -> list[list[str]]:
    from windtunnel.systems.pipelines.training.model import stage_of_modules

    stage_of = stage_of_modules(job, plan)
    return [[name for name, stage in stage_of.items() if stage == index] for index in range(len(plan.kind))]


def _lines(job: PipelineJob, plans: list[Plan], receipts: list[Receipt]) -> Iterator[str | Table]:
    columns = [("split", str), ("predicted", format_duration), ("measured", format_duration), ("predicted", "{:.2f}x"),
               ("measured", "{:.2f}x"), ("90 % interval", "{0[0]:.2f}-{0[1]:.2f}"), ("error", "{:+.1%}")]  # fmt: skip
    rows = [
        (plan.solver, receipt.predicted_ns, receipt.changed.value, receipt.predicted, receipt.measured,
         receipt.measured_interval, receipt.error_ratio)
        for plan, receipt in zip(plans, receipts, strict=True)
    ]  # fmt: skip
    yield Table(columns, rows)
    yield "first two columns: step; the others: speed-up over one process"
    yield ""
    for index, names in enumerate(_stages(job, plans[0])):
        yield f"stage {index}: {len(names)} layers, {', '.join(filter(None, names[:_SHOWN_LAYERS]))} ..."
