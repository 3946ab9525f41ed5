"""``windtunnel place``: which device runs which operator.

Two verbs: a graph or a problem (the one that needs no name), and a flight.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, quote_word, show
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json, MaxDownsets
from windtunnel.errors import InputError
from windtunnel.systems.placement.output import lines_of_plan
from windtunnel.units import parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from windtunnel.search.placement.model import Problem
    from windtunnel.search.placement.throughput import Plan

_SCHEMA = "windtunnel.place/1"
_SHOWN_MOVES = 5


@registry.verb("place plan", source="optimal device placement")
def split(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="Captured graph (.wt), trace, or placement problem (.json).")
    ],
    objective: Annotated[
        str,
        typer.Option(help="Objective: throughput, flush (throughput of a flushed pipeline) or latency of one sample."),
    ] = "throughput",
    devices: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="LIST",
            help="Hardware for a graph, such as 2xh100,1xcpu; for a problem, its number of accelerators.",
        ),
    ] = "",
    cpus: Annotated[
        int, typer.Option(min=-1, metavar="N", help="Problem: number of CPUs; -1: as stated in the file.")
    ] = -1,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory per accelerator, such as 16GiB (default: that of the device).")
    ] = "",
    bandwidth: Annotated[
        str, typer.Option(metavar="RATE", help="Graph: bandwidth of the link between each accelerator and its host.")
    ] = "16 GB/s",
    links: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Graph: bandwidths between device types, such as h100:h100=900GB/s,h100:a100=32GB/s."
        ),
    ] = "",
    replicas: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of devices of one type that replicate a stage.")
    ] = 1,
    sync: Annotated[
        str, typer.Option(help="Gradient averaging among replicas, over --bandwidth: pipedream or ring.")
    ] = "pipedream",
    solver: Annotated[str, typer.Option(help="Solver: auto, dp, dpl, ilp, ilp-any, cp-sat or greedy.")] = "auto",
    combine: Annotated[
        str, typer.Option(help="Combination of compute and transfers: sum, overlap, duplex or overlap-duplex.")
    ] = "sum",
    pieces: Annotated[
        int, typer.Option("--max-pieces", min=1, help="Latency: maximum number of contiguous pieces per accelerator.")
    ] = 1,
    max_downsets: MaxDownsets = 60_000,
    time_limit: Annotated[
        str, typer.Option("--time-limit", metavar="TIME", help="Time limit for integer programming.")
    ] = "2m",
    compare: Annotated[bool, typer.Option("--compare", help="Also show the even split.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what limits each device and what moving a layer costs.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="JSON", help="Write the placement (JSON).")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--html", metavar="HTML", help="Write the graph, colored by device, as a page.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel place train.wt --on 4xh100,1xcpu --explain

    Choose which device runs which operator, and prove a bound for every placement.
    """
    from windtunnel.search.placement.search import place as best_plan

    for path in filter(None, (output, picture)):
        require_free(path, force=force)
    with Progress("placing") as progress:
        problem = _problem(source, devices, cpus, memory, bandwidth, links)
        if replicas > 1:
            problem = _add_replicas(problem, replicas, bandwidth, sync)
        plan = best_plan(
            problem,
            objective=objective,  # type: ignore[arg-type]
            solver=solver,  # type: ignore[arg-type]
            combine=combine,  # type: ignore[arg-type]
            num_pieces=pieces,
            time_limit_s=parse_duration(time_limit) / 1e9,
            max_downsets=max_downsets,
            progress=progress,
        )
    even = _even_split(plan, objective, combine) if compare else None
    _write(plan, output, picture)
    document = _document(plan, objective, even, is_explained=explain)
    show(document, lines_of_plan(document, plan), as_json=as_json)


def _document(plan: Plan, objective: str, even: Plan | None, *, is_explained: bool) -> dict[str, Any]:
    """All that is known of the answer, in raw units."""
    assignment = dict(zip(plan.problem.names, plan.device.tolist(), strict=True))
    document = {"schema": _SCHEMA, "objective": objective, **_row(plan), "devices": _devices(plan)}
    if even is not None:
        document["even"] = _row(even)
    if is_explained:
        document["moves"] = _moves(plan, objective)
    return {**document, "assignment": assignment}


def _problem(source: Path, devices: str, cpus: int, memory: str, bandwidth: str, links: str) -> Problem:
    from windtunnel.cli.files import open_graph
    from windtunnel.systems.placement.formats import is_problem, read_problem

    memory_bytes = float(parse_size(memory)) if memory else None
    _require_this_verb(source)
    if is_problem(source):
        if devices and not devices.isdigit():
            raise InputError(f"--on {devices!r} is no number", where=str(source), fix="--on 6 --cpus 1")
        if links:
            raise InputError("a problem states the cost of each transfer itself", where="--links")
        return read_problem(
            source,
            num_accelerators=int(devices) if devices else None,
            num_cpus=cpus if cpus >= 0 else None,
            memory_bytes=memory_bytes,
        )
    from windtunnel.search.placement.fleet import problem_on

    return problem_on(open_graph(source), devices, parse_rate(bandwidth), memory_bytes, links)


def _require_this_verb(source: Path) -> None:
    """Send workloads to the verb that knows them."""
    name = str(source).partition(":")[0]
    if not source.exists() and name in registry.all("workload"):
        raise InputError(
            f"{name} is a workload, not a graph",
            fix=f"windtunnel place verify {quote_word(source)} --ranks 2 trains it",
        )


def _add_replicas(problem: Problem, replicas: int, bandwidth: str, sync: str) -> Problem:
    from windtunnel.search.placement.fleet import with_replicas

    return with_replicas(problem, replicas, parse_rate(bandwidth), sync)  # type: ignore[arg-type]


def _row(plan: Plan) -> dict[str, Any]:
    names = ("solver", "value_ns", "bound_ns", "gap", "is_optimal", "searched", "seconds", "note")
    return {name: getattr(plan, name) for name in names}


def _devices(plan: Plan) -> list[dict[str, Any]]:
    from windtunnel.search.placement.explain import device_rows

    return [dataclasses.asdict(device_row) for device_row in device_rows(plan)]


def _moves(plan: Plan, objective: str) -> list[dict[str, Any]]:
    from windtunnel.search.placement.explain import is_in_stages, moves

    if objective != "throughput" or (plan.replicas > 1).any():
        return []
    result = moves(plan, is_contiguous=is_in_stages(plan))
    return [dataclasses.asdict(item) for item in result if item.is_allowed][:_SHOWN_MOVES]


def _even_split(plan: Plan, objective: str, combine: str) -> Plan:
    """As many layers on each accelerator, with the value that the objective gives that."""
    from windtunnel.search.placement.baselines import even
    from windtunnel.search.placement.latency import of_plan

    result = even(plan.problem)
    if objective == "latency":
        return of_plan(result, solver="even")
    loads = result.loads
    value_ns = loads.flush_load_ns() if objective == "flush" else loads.max_load_ns(combine)  # type: ignore[arg-type]
    return dataclasses.replace(result, value_ns=value_ns)


def _write(plan: Plan, output: Path | None, picture: Path | None) -> None:
    from windtunnel.base.documents import json_text
    from windtunnel.reports.page import write_text
    from windtunnel.systems.placement.formats import split_document
    from windtunnel.systems.placement.page import placement_page

    if output is not None:
        document = split_document(plan.problem, plan.device, plan.kind, plan.value_ns)
        write_text(output, json_text(document, indent=1) + "\n", overwrite=True)
        advise(f"wrote {output}")
    if picture is not None:
        placement_page(plan, picture, title=picture.stem, overwrite=True)
        advise(f"wrote {picture}")


@registry.verb("place", source="optimal device placement", default="plan")
def _group() -> None:
    """Example: windtunnel place train.wt --on 4xh100,1xcpu --explain

    Choose which device runs which operator, and verify it by real runs.
    """
