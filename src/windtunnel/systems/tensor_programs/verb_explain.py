"""``windtunnel cost explain``: why a tensor program is predicted to be slower than another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from windtunnel import registry
from windtunnel.cli.console import advise, print_json, print_table, say
from windtunnel.cli.options import Json

__all__ = ["explain_program"]


@registry.verb("cost explain", source="CDMPP")
def explain_program(
    program: Annotated[int, typer.Argument(min=0, metavar="PROGRAM", help="Its number in the set.")],
    data: Annotated[Path | None, typer.Option("--data", metavar="NPZ", help="A set of programs; the shipped.")] = None,
    model: Annotated[Path | None, typer.Option("--model", metavar="FILE", help="A predictor; the shipped.")] = None,
    against: Annotated[int, typer.Option(min=-1, help="Another program; -1: the fastest of its kind.")] = -1,
    device: Annotated[str, typer.Option(metavar="NAME", help="Of the set; by default its first.")] = "",
    as_json: Json = False,
) -> None:
    """Example: windtunnel cost explain 17 --data programs.npz --model cdmpp.safetensors

    Say which features make a program slower than another one of its task, and which primitive changes them.
    """
    from windtunnel.errors import InputError
    from windtunnel.systems.tensor_programs.model.attribution import GROUPS, fastest_alike, why_slower
    from windtunnel.systems.tensor_programs.model.shipped import shipped_programs
    from windtunnel.systems.tensor_programs.program_set import ProgramSet
    from windtunnel.systems.tensor_programs.verb_search import needed_predictor
    from windtunnel.units import format_duration

    programs = ProgramSet.load(data) if data is not None else shipped_programs()
    if programs is None:
        raise InputError("no set comes with this build of the package", where="--data", fix="windtunnel cost sample")
    for number in (program, against):
        if number >= programs.num_programs:
            raise InputError(f"there is no program {number}", fix=f"the set holds {programs.num_programs:,}")
    predictor, name = needed_predictor(model), device or programs.device_names[0]
    other = against if against >= 0 else fastest_alike(predictor, programs, program, name)
    found = why_slower(predictor, programs, program, other, name)
    if as_json:
        print_json(
            {
                "schema": "windtunnel.cost.explain/1",
                "program": program,
                "against": other,
                "device": name,
                "predicted_s": found.seconds,
                "against_s": found.reference_s,
                "groups": found.groups,
                "stores": list(found.leaves),
                "primitive": found.advice,
            }
        )
        return
    times = [format_duration(1e9 * one) for one in (found.seconds, found.reference_s)]
    say(f"program {program} is predicted to take {times[0]} on {name}, program {other} {times[1]}")
    rows = [
        (group, f"{math.exp(part):.2f}x", GROUPS[group][1]) for group, part in found.groups.items() if abs(part) > 5e-4
    ]
    print_table(("features", "slower by", "changed by"), rows, numbers=(1,))
    advise(f"the largest part: {found.advice}" if found.advice else "nothing makes it slower")
