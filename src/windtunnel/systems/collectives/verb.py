"""``windtunnel collectives show``: a program, its schedules, and what one of them does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import show, suggest
from windtunnel.cli.options import Json
from windtunnel.errors import InputError
from windtunnel.units import format_size

if TYPE_CHECKING:
    from windtunnel.systems.collectives.program import Program
    from windtunnel.systems.collectives.schedules import Schedule

__all__ = ["ProgramName", "ScheduleName", "find_schedule", "program_document", "schedule_document", "show_program"]

ProgramName = Annotated[
    str,
    typer.Argument(
        metavar="PROGRAM",
        help="Program: adam, lamb, sgd, tensor-parallel or pipeline (adam:num_ranks=4), or file.py:function.",
    ),
]
ScheduleName = Annotated[
    str,
    typer.Option(
        "--schedule", metavar="LABEL", help="Schedule, by its label such as 'RS - fuse(C) - AG', or by its number."
    ),
]


@registry.verb("collectives", source="CoCoNet")
def _group() -> None:
    """Example: windtunnel collectives plan tensor-parallel:num_ranks=16 --on dgx-2

    Find the fastest schedule of a step's computation and communication.
    """


@registry.verb("collectives show", source="CoCoNet")
def show_program(
    name: ProgramName,
    schedule: ScheduleName = "",
    source: Annotated[
        bool, typer.Option("--source", help="Show the kernels and instructions that rank 0 runs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel collectives show tensor-parallel --schedule 'overlap(MM, fuse(RS-C-AG))' --source

    Show a program with its layouts, all its schedules, and one of them with its proof.
    """
    from windtunnel.systems.collectives.schedules import Schedule, certify, closure
    from windtunnel.systems.collectives.workloads import read_program

    program = read_program(name)
    schedules = closure(program)
    selected = find_schedule(schedules, schedule) if schedule else None
    certificate = certify(program, selected.steps) if selected is not None and selected.steps else None
    document: dict[str, Any] = {
        "schema": "windtunnel.collectives-show/1",
        "program": program_document(program),
        "warnings": program.lint(),
        "schedules": [schedule_document(item) for item in schedules],
    }
    if selected is not None:
        document["schedule"] = {**schedule_document(selected), "program": program_document(selected.program)}
    if certificate is not None:
        errors = {str(ranks): error for ranks, error in certificate.errors.items()}
        document["certificate"] = {"derivation": list(certificate.derivation), "errors": errors}
    text = _plan_source(selected or Schedule(program)) if source else ""
    if source:
        document["source"] = text

    def lines() -> Iterator[str | Table]:
        yield from str(selected.program if selected is not None else program).splitlines()
        yield from (f"warning: {warning}" for warning in program.lint())
        if certificate is not None:
            yield from ("", "layouts derived:", *(f"  {line}" for line in certificate.derivation))
            worst = max(certificate.errors.values())
            yield f"proof: computes the same on 2, 3 and 4 ranks (largest relative error in float64 {worst:.1g})"
        if selected is None:
            yield ""
            yield _schedules_table(schedules)
        if text:
            yield from ("", *text.splitlines())

    show(document, lines(), as_json=as_json)
    if not as_json:
        suggest("windtunnel", "collectives", "plan", name)


def find_schedule(schedules: Sequence[Schedule], text: str) -> Schedule:
    """The schedule of a number (from 1) or of a label; of several with one label, that with the smallest state.

    Raises
    ------
    InputError
        There is none.
    """
    if text.strip().isdigit() and 1 <= int(text) <= len(schedules):
        return schedules[int(text) - 1]
    from windtunnel.systems.collectives.search import state_bytes

    matching = [item for item in schedules if _plain(item.label) == _plain(text)]
    if not matching:
        labels = list(dict.fromkeys(item.label for item in schedules))
        fix = registry.did_you_mean(text, labels) or f"see windtunnel collectives show; the first is {labels[0]!r}"
        raise InputError(f"there is no schedule {text!r}", where="--schedule", fix=fix)
    return min(matching, key=lambda item: state_bytes(item.program))


def _plain(label: str) -> str:
    return "".join(label.split()).lower()


def program_document(program: Program) -> dict[str, Any]:
    """A program in JSON."""
    return {
        "name": program.name,
        "group_sizes": list(program.group_sizes),
        "inputs": {name: str(item) for name, item in program.inputs.items()},
        "stages": [{"stage": str(stage), "type": str(program.types[stage.name])} for stage in program.stages],
        "fusions": [{"name": item.name, "kind": item.kind, "members": list(item.members)} for item in program.fusions],
        "overlaps": [{"items": list(item.items), "order": item.order} for item in program.overlaps],
        "outputs": list(program.outputs),
    }


def schedule_document(schedule: Schedule) -> dict[str, Any]:
    """A schedule in JSON."""
    from windtunnel.systems.collectives.search import state_bytes

    return {
        "label": schedule.label,
        "steps": [str(step) for step in schedule.steps],
        "state_bytes": state_bytes(schedule.program),
    }


def _schedules_table(schedules: Sequence[Schedule]) -> Table:
    from windtunnel.systems.collectives.search import state_bytes

    rows = [(number, item.label, state_bytes(item.program)) for number, item in enumerate(schedules, 1)]
    return Table({"": str, "schedule": str, "state per rank": format_size}, rows, wraps="schedule")


def _plan_source(schedule: Schedule) -> str:
    from windtunnel.systems.collectives.lower import lower

    return lower(schedule.program).source()
