"""``windtunnel pipeline plan``: stages, replicas and variants of layers for devices with limited memory (room cli)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.cli._console import Progress, print_json, print_table, say, say_wrapped
from windtunnel.cli._files import require_there
from windtunnel.cli._options import Json, MostDownsets
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.planning.pipelines.piper import PiperPlan
    from windtunnel.planning.pipelines.piper_format import PiperProblem

__all__ = ["plan"]

_SHOWN_LAYERS = 3


def plan(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Layers with variants, in Piper's form (.json).")],
    devices: Annotated[int, typer.Option(min=0, metavar="N", help="How many; as the file says unless given.")] = 0,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of each device; as the file says unless given.")] = "",
    bandwidth: Annotated[str, typer.Option(metavar="RATE", help="Between devices; as the file says by default.")] = "",
    time_unit: Annotated[str, typer.Option(metavar="UNIT", help="Of the file's times: s, ms, us.")] = "s",
    most_downsets: MostDownsets = 40_000,
    as_json: Json = False,
) -> None:
    """Example: windtunnel pipeline plan layers.json --devices 8 --memory 8GiB

    Cut layers into stages; say which devices each has and what it computes again.
    """
    from windtunnel.planning.pipelines.piper import equal_stages, plan_piper, require_memory
    from windtunnel.planning.pipelines.piper_format import is_piper, read_piper
    from windtunnel.units import parse_rate, parse_size

    require_there(target)
    if not is_piper(target):
        raise InputError(f"{target} holds no layers with variants", fix="a file in Piper's form, with TMPCs")
    with Progress("planning") as progress:
        problem = read_piper(
            target,
            num_devices=devices or None,
            memory_bytes=float(parse_size(memory)) if memory else None,
            bandwidth_bytes_per_s=parse_rate(bandwidth) if bandwidth else None,
            seconds_per_unit=_seconds(time_unit),
        )
        found = plan_piper(problem, cap=most_downsets, progress=progress)
        equal = equal_stages(problem)
    if found is None:
        require_memory(problem)
        return
    if as_json:
        print_json(_document(problem, found, equal))
    else:
        _print(problem, found, equal)


def _seconds(unit: str) -> float:
    known = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    if unit not in known:
        raise InputError(f"{unit!r} is no unit of time", where="--time-unit", fix=", ".join(known))
    return known[unit]


def _document(problem: PiperProblem, found: PiperPlan, equal: PiperPlan | None) -> dict[str, Any]:
    return {
        "schema": "windtunnel.piper-plan/1",
        **_plan(problem, found),
        "num_downsets": found.num_downsets,
        "num_pairs": found.num_pairs,
        "equal_stages": None if equal is None else _plan(problem, equal),
    }


def _plan(problem: PiperProblem, one: PiperPlan) -> dict[str, Any]:
    stages = [
        {
            "layers": [problem.names[row] for row in stage.layers],
            "rows": stage.layers,
            "data": stage.data,
            "tensor": stage.tensor,
            "variants": [problem.variants[variant] for variant in stage.variants],
            "microbatches_kept": stage.num_kept,
            "time_s": stage.time_s,
            "memory_bytes": stage.memory_bytes,
        }
        for stage in one.stages
    ]
    return {"time_s": one.time_s, "stages": stages}


def _print(problem: PiperProblem, found: PiperPlan, equal: PiperPlan | None) -> None:
    from windtunnel.units import format_duration, format_size

    say(f"{format_duration(round(1e9 * found.time_s))} per microbatch in the slowest stage; no plan is faster")
    say_wrapped("  " + _versus(problem, found, equal))
    say()
    rows = []
    for at, one in enumerate(found.stages):
        again = [problem.variants[variant] for variant in one.variants]
        kinds = ", ".join(f"{again.count(name)} {name}" for name in dict.fromkeys(again))
        rows.append([
            str(at), str(one.data), str(one.tensor), str(len(one.layers)), format_duration(round(1e9 * one.time_s)),
            format_size(round(one.memory_bytes)), kinds,
        ])  # fmt: skip
    head = ["stage", "replicas", "tensor", "layers", "time", "memory", "variants"]
    print_table(head, rows, numbers=range(1, 6), gives_way=6)


def _versus(problem: PiperProblem, found: PiperPlan, equal: PiperPlan | None) -> str:
    from windtunnel.units import format_duration

    if equal is None:
        return "equal stages with one data and tensor degree for all do not fit into memory"
    one = equal.stages[0]
    again = problem.variants[one.variants[0]]
    return (
        f"{equal.time_s / found.time_s:.2f}x as fast as the best equal stages: {len(equal.stages)} of them, "
        f"{one.data} replicas, tensor degree {one.tensor}, {again}, {format_duration(round(1e9 * equal.time_s))}"
    )
