"""``windtunnel place pipedream``: a profile cut into replicated stages."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.cli.console import print_json, print_table, say, say_wrapped
from windtunnel.cli.options import Json, MostDownsets
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.systems.pipelines.search import Level, StagePlan

__all__ = ["pipedream"]


@registry.verb("place pipedream", source="optimal device placement")
def pipedream(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="Layers in PipeDream's form (.txt).")],
    levels: Annotated[
        str, typer.Option(metavar="LIST", help="Machines at a bandwidth, innermost first: 4@8GB/s,4@1GB/s.")
    ],
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of each machine; without it all fits.")] = "",
    most_downsets: MostDownsets = 60_000,
    as_json: Json = False,
) -> None:
    """Example: windtunnel place pipedream profile.txt --levels 4@8GB/s,4@1.25GB/s

    Cut a profile of layers into stages with replicas, as PipeDream's planner does.
    """
    from windtunnel.systems.pipelines.profile import read_profile
    from windtunnel.systems.pipelines.search import plan_stages
    from windtunnel.units import parse_size

    plan = plan_stages(
        read_profile(profile),
        _topology(levels),
        memory_bytes=float(parse_size(memory)) if memory else None,
        cap=most_downsets,
    )
    if as_json:
        proof = {"gap": plan.gap, "is_optimal": plan.is_optimal}
        print_json({"schema": "windtunnel.stages/1", **dataclasses.asdict(plan), **proof})
    else:
        _print(plan)


def _topology(levels: str) -> list[Level]:
    from windtunnel.systems.pipelines.search import Level
    from windtunnel.units import parse_rate

    found = []
    for entry in filter(None, levels.split(",")):
        count, sign, rate = entry.partition("@")
        if not sign or not count.strip().isdigit():
            raise InputError(f"{entry!r} is no level", where="--levels", fix="4@8GB/s,4@1.25GB/s, innermost first")
        found.append(Level(int(count), parse_rate(rate)))
    return found


def _print(plan: StagePlan) -> None:
    from windtunnel.units import format_duration, format_ratio

    say(f"{format_duration(round(1e9 * plan.time_s))} per minibatch, {plan.speedup:.2f}x one machine,")
    say(f"  {plan.speedup_over_data_parallel:.2f}x every layer on all machines")
    if plan.note:
        bound = format_duration(round(1e9 * plan.bound_s))
        say_wrapped(f"  {plan.note}; no plan is below {bound}: at most {format_ratio(plan.gap)} above the best")
    say()
    rows = [
        [str(at), str(one.replicas), str(len(one.layers)), ", ".join(one.layers[:4])]
        for at, one in enumerate(plan.stages)
    ]
    print_table(["stage", "machines", "layers", "first of them"], rows, numbers=(1, 2), gives_way=3)
