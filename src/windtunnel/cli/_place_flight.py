"""``windtunnel place WORKLOAD --fly``: the plan as a pipeline that really trains (room cli, private)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windtunnel.cli._console import Progress, advise, print_json, print_table, say
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.flights import Receipt
    from windtunnel.planning.placement.throughput import Plan
    from windtunnel.training.pipelines.model import PipelineJob

__all__ = ["fly_placement"]

_SHOWN_LAYERS = 3


def fly_placement(
    target: str, devices: str, microbatches: int, schedule: str, ledger: Any, *, compare: bool, as_json: bool
) -> None:
    """Place the layers of a workload on processes of this host, train with these stages, and keep the receipts."""
    from windtunnel.cli._stdout import stdout_to_stderr
    from windtunnel.flights import Ledger
    from windtunnel.flights.pipelines import fly_pipelines
    from windtunnel.planning.placement.baselines import even
    from windtunnel.planning.placement.search import place
    from windtunnel.training.pipelines.run import job_of
    from windtunnel.training.pipelines.search import improve
    from windtunnel.whatifs import parse_step

    if not devices.isdigit():
        raise InputError(f"--devices {devices!r} is no number of processes", fix="--devices 2")
    chosen = parse_step(target, kind="workload")
    with Progress("flying") as progress, stdout_to_stderr():
        job = job_of(chosen.name, chosen.parameters, int(devices), microbatches, progress=progress)
        exact = place(job.layers.problem)
        plans = [improve(job, exact, schedule)]  # type: ignore[arg-type]
        if compare:
            plans += [exact] * (plans[0] is not exact) + [even(job.layers.problem)]
        receipts = fly_pipelines(job, plans, schedule=schedule, progress=progress)  # type: ignore[arg-type]
    kept = Ledger(ledger)
    for receipt in receipts:
        kept.add(receipt)
    if as_json:
        rows = [
            {**receipt.to_dict(), "stages": _stages(job, plan)} for receipt, plan in zip(receipts, plans, strict=True)
        ]
        print_json({"schema": "windtunnel.place-flight/1", "flights": rows})
        return
    _print(job, plans, receipts)
    advise("next: windtunnel receipts")


def _stages(job: PipelineJob, plan: Plan) -> list[list[str]]:
    from windtunnel.training.pipelines.model import stage_of_modules

    stage_of = stage_of_modules(job, plan)
    return [[name for name, stage in stage_of.items() if stage == at] for at in range(len(plan.kind))]


def _print(job: PipelineJob, plans: list[Plan], receipts: list[Receipt]) -> None:
    from windtunnel.units import format_duration

    rows = [
        (plan.solver, format_duration(one.predicted_ns), format_duration(one.changed.value), f"{one.predicted:.2f}x",
         f"{one.measured:.2f}x", "{:.2f}-{:.2f}".format(*one.measured_interval), f"{one.error_ratio:+.1%}")
        for plan, one in zip(plans, receipts, strict=True)
    ]  # fmt: skip
    print_table(("split", "predicted", "measured", "of one process", "measured", "90 %", "error"), rows,
                numbers=(1, 2, 3, 4, 5, 6), gives_way=0)  # fmt: skip
    say()
    for at, names in enumerate(_stages(job, plans[0])):
        say(f"stage {at}: {len(names)} layers, {', '.join(filter(None, names[:_SHOWN_LAYERS]))} ...")
