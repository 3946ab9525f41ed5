"""``windtunnel place``: which device runs which operator (room cli)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.cli._console import Progress, advise, print_json, print_table, say, say_wrapped
from windtunnel.cli._files import require_free
from windtunnel.cli._options import Force, Json, LedgerPath

if TYPE_CHECKING:
    from windtunnel.planning.placement.model import Problem
    from windtunnel.planning.placement.throughput import Plan

__all__ = ["place"]

_SCHEMA = "windtunnel.place/1"
_SHOWN_MOVES = 5


def place(
    source: Annotated[
        Path,
        typer.Argument(metavar="GRAPH", help="A .wt folder, a trace, a problem (.json), a PipeDream profile (.txt)."),
    ],
    objective: Annotated[
        str, typer.Option(help="throughput; flush: a pipeline that is emptied; latency: of one sample.")
    ] = "throughput",
    devices: Annotated[
        str, typer.Option(metavar="LIST", help="Of a graph: 2xh100,1xcpu; of a problem: accelerators, 6.")
    ] = "",
    cpus: Annotated[int, typer.Option(min=-1, metavar="N", help="Of a problem: CPUs; -1: as it says.")] = -1,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of each accelerator; by default its own.")] = "",
    bandwidth: Annotated[str, typer.Option(metavar="RATE", help="Of a graph: accelerator to host.")] = "16 GB/s",
    links: Annotated[
        str, typer.Option(metavar="LIST", help="Of a graph, between types: h100:h100=900GB/s,h100:a100=32GB/s.")
    ] = "",
    replicas: Annotated[int, typer.Option(min=1, metavar="N", help="Devices of a type that may share a stage.")] = 1,
    sync: Annotated[str, typer.Option(help="How replicas agree, over --bandwidth: pipedream, ring.")] = "pipedream",
    solver: Annotated[str, typer.Option(help="auto, dp, dpl, ilp, ilp-any, cp-sat, greedy.")] = "auto",
    combine: Annotated[str, typer.Option(help="Compute and transfers: sum, overlap, duplex, overlap-duplex.")] = "sum",
    pieces: Annotated[int, typer.Option(min=1, help="Of latency: contiguous pieces per accelerator.")] = 1,
    time_limit: Annotated[str, typer.Option("--time-limit", metavar="TIME", help="Of integer programmes.")] = "2m",
    compare: Annotated[bool, typer.Option("--compare", help="Show what simple rules reach, too.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="What binds each device, what a move costs.")] = False,
    robust: Annotated[
        str, typer.Option(metavar="LOW-HIGH", help="Try bandwidths of 0.25-4 times the stated one.")
    ] = "",
    levels: Annotated[
        str,
        typer.Option(metavar="LIST", help="Of a profile: machines at a bandwidth, innermost first: 4@8GB/s,4@1GB/s."),
    ] = "",
    split: Annotated[Path | None, typer.Option("--out", "-o", metavar="JSON", help="The split, public form.")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="HTML", help="The graph, colored by device.")] = None,
    fly: Annotated[
        bool, typer.Option("--fly", help="Of a workload, such as vit: train with the plan's stages, in processes.")
    ] = False,
    microbatches: Annotated[int, typer.Option(min=1, metavar="N", help="Of a flight, per step.")] = 8,
    schedule: Annotated[str, typer.Option(help="Of a flight: 1f1b or gpipe.")] = "1f1b",
    ledger: LedgerPath = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel place train.wt --devices 4xh100,1xcpu --explain

    Say which device runs which operator, how good that is, and what no other placement is below.
    """
    from windtunnel.planning.placement.search import place as best_plan
    from windtunnel.units import parse_duration

    if fly:
        from windtunnel.cli._place_flight import fly_placement

        fly_placement(str(source), devices, microbatches, schedule, ledger, compare=compare, as_json=as_json)
        return
    if source.suffix == ".txt":
        _plan_stages(source, levels, memory, as_json=as_json)
        return
    for path in filter(None, (split, picture)):
        require_free(path, force=force)
    with Progress("placing") as progress:
        problem = _problem(source, devices, cpus, memory, bandwidth, links)
        if replicas > 1:
            problem = _replicated(problem, replicas, bandwidth, sync)
        plan = best_plan(
            problem,
            objective=objective,  # type: ignore[arg-type]
            solver=solver,  # type: ignore[arg-type]
            combine=combine,  # type: ignore[arg-type]
            num_pieces=pieces,
            time_limit_s=parse_duration(time_limit) / 1e9,
            progress=progress,
        )
        others = _others(problem, objective) if compare else []
        spread = _robust(problem, robust, progress) if robust else None
    document = {"schema": _SCHEMA, "objective": objective, **_row(plan), "devices": _devices(plan)}
    if compare:
        document["others"] = [_row(one) for one in others]
    if explain:
        document["moves"] = _moves(plan, objective)
    if spread is not None:
        document["robust"] = spread
    _write(plan, split, picture)
    if as_json:
        assignment = dict(zip(problem.names, plan.device.tolist(), strict=True))
        print_json({**document, "assignment": assignment})
        return
    _print_plan(document, plan)
    _print_more(document)


def _plan_stages(source: Path, levels: str, memory: str, *, as_json: bool) -> None:
    """PipeDream's planner on a profile."""
    from windtunnel.errors import InputError
    from windtunnel.planning.pipelines.profile import read_profile
    from windtunnel.planning.pipelines.search import Level, plan_stages
    from windtunnel.units import format_duration, parse_rate, parse_size

    topology = []
    for entry in filter(None, levels.split(",")):
        count, sign, rate = entry.partition("@")
        if not sign or not count.strip().isdigit():
            raise InputError(f"{entry!r} is no level", where="--levels", fix="4@8GB/s,4@1.25GB/s, innermost first")
        topology.append(Level(int(count), parse_rate(rate)))
    plan = plan_stages(read_profile(source), topology, memory_bytes=float(parse_size(memory)) if memory else None)
    if as_json:
        print_json({"schema": "windtunnel.stages/1", **dataclasses.asdict(plan)})
        return
    say(f"{format_duration(round(1e9 * plan.time_s))} per minibatch, {plan.speedup:.2f}x one machine,")
    say(f"  {plan.speedup_over_data_parallel:.2f}x every layer on all machines")
    say()
    rows = [
        [str(at), str(one.replicas), str(len(one.layers)), ", ".join(one.layers[:4])]
        for at, one in enumerate(plan.stages)
    ]
    print_table(["stage", "machines", "layers", "first of them"], rows, numbers=(1, 2), gives_way=3)


def _problem(source: Path, devices: str, cpus: int, memory: str, bandwidth: str, links: str) -> Problem:
    from windtunnel.cli._files import open_graph
    from windtunnel.errors import InputError
    from windtunnel.planning.placement.formats import is_problem, read_problem
    from windtunnel.units import parse_rate, parse_size

    memory_bytes = float(parse_size(memory)) if memory else None
    if is_problem(source):
        if devices and not devices.isdigit():
            raise InputError(f"--devices {devices!r} is no number", where=str(source), fix="--devices 6 --cpus 1")
        if links:
            raise InputError("a problem states the cost of each transfer itself", where="--links")
        return read_problem(
            source,
            num_accelerators=int(devices) if devices else None,
            num_cpus=cpus if cpus >= 0 else None,
            memory_bytes=memory_bytes,
        )
    from windtunnel.planning.placement.fleet import problem_on

    return problem_on(open_graph(source), devices, parse_rate(bandwidth), memory_bytes, links)


def _replicated(problem: Problem, replicas: int, bandwidth: str, sync: str) -> Problem:
    from windtunnel.planning.placement.fleet import with_replicas
    from windtunnel.units import parse_rate

    return with_replicas(problem, replicas, parse_rate(bandwidth), sync)  # type: ignore[arg-type]


def _others(problem: Problem, objective: str) -> list[Plan]:
    """Baselines, each judged by the objective."""
    from windtunnel.errors import WindtunnelError
    from windtunnel.planning.placement import baselines
    from windtunnel.planning.placement.latency import greedy, of_plan
    from windtunnel.planning.placement.throughput import exact, linearized

    rules: list[Any] = [
        baselines.single,
        baselines.even,
        baselines.min_cut,
        baselines.local_search,
        baselines.pipedream,
        linearized,
    ]
    if objective == "latency":
        rules = [greedy, lambda one: of_plan(exact(one), solver="max-load split")]
    found = []
    for rule in rules:
        try:
            found.append(rule(problem))
        except WindtunnelError as error:
            advise(f"{getattr(rule, '__name__', 'a rule')}: {error.message}")
    return found


def _row(plan: Plan) -> dict[str, Any]:
    names = ("solver", "value_ns", "bound_ns", "gap", "is_optimal", "seconds", "note")
    return {name: getattr(plan, name) for name in names}


def _devices(plan: Plan) -> list[dict[str, Any]]:
    from windtunnel.planning.placement.explain import device_rows

    return [dataclasses.asdict(one) for one in device_rows(plan)]


def _moves(plan: Plan, objective: str) -> list[dict[str, Any]]:
    from windtunnel.planning.placement.explain import moves

    if objective != "throughput" or (plan.replicas > 1).any():
        return []
    return [dataclasses.asdict(one) for one in moves(plan) if one.is_allowed][:_SHOWN_MOVES]


def _robust(problem: Problem, interval: str, progress: Any) -> dict[str, Any]:
    from windtunnel.errors import InputError
    from windtunnel.planning.placement.robust import robust_plan

    try:
        low, high = map(float, interval.split("-"))
    except ValueError as error:
        raise InputError(f"{interval!r} is no interval", where="--robust", fix="--robust 0.25-4") from error
    found = robust_plan(problem, low, high, progress=progress)
    low, high = found.range_of(found.stated)
    return {
        "bandwidth_factors": found.factor_B.tolist(),
        "best_ns": found.best_ns.tolist(),
        "num_plans": len(found.plans),
        "best_from": low,
        "best_to": high,
        "regret": float(found.regrets[found.stated]),
        "least_regret": float(found.regrets[found.chosen]),
        "is_stated_chosen": found.chosen == found.stated,
        "chosen": dict(zip(problem.names, found.plans[found.chosen].device.tolist(), strict=True)),
    }


def _write(plan: Plan, split: Path | None, picture: Path | None) -> None:
    import json

    from windtunnel.planning.placement.formats import split_document
    from windtunnel.reports.page import write_text
    from windtunnel.reports.placement import placement_page

    if split is not None:
        document = split_document(plan.problem, plan.device, plan.kind, plan.value_ns)
        write_text(split, json.dumps(document, indent=1) + "\n", overwrite=True)
        advise(f"wrote {split}")
    if picture is not None:
        placement_page(plan, picture, title=picture.stem, overwrite=True)
        advise(f"wrote {picture}")


def _print_plan(document: dict[str, Any], plan: Plan) -> None:
    from windtunnel.units import format_duration, format_ratio, format_size

    value, bound = (format_duration(round(document[name])) for name in ("value_ns", "bound_ns"))
    proof = "no contiguous plan is below it" if plan.solver == "dp" else "no plan of this kind is below it"
    quality = proof if plan.is_optimal else f"at least {bound}: at most {format_ratio(plan.gap)} above the best"
    say(f"{value} per sample by {plan.solver} in {plan.seconds:.2f} s; {quality}")
    if plan.note:
        say_wrapped(f"  {plan.note}")
    say()
    columns = {"load": ["load_ns"], "compute": ["compute_ns"], "sends": ["sent_ns"], "receives": ["received_ns"]}
    if (plan.replicas > 1).any():  # all of them side by side are too wide
        moved = columns.pop("sends") + columns.pop("receives")
        columns |= {"transfers": moved, "agrees": ["sync_ns"]}
    rows = []
    for at, one in enumerate(document["devices"]):
        name = f"{at} {one['kind']}" + (f" x {one['replicas']}" if one["replicas"] > 1 else "")
        times = [format_duration(round(sum(one[name] for name in names))) for names in columns.values()]
        rows.append([name, str(one["num_nodes"]), *times, format_size(round(one["memory_bytes"])), one["bound_by"]])
    head = ["device", "nodes", *columns, "memory", "bound"]
    print_table(head, rows, numbers=range(1, len(head) - 1), gives_way=0)


def _print_more(document: dict[str, Any]) -> None:
    from windtunnel.units import format_duration, format_ratio

    if document.get("others"):
        say()
        rows = [
            [one["solver"], format_duration(round(one["value_ns"])), f"{one['value_ns'] / document['value_ns']:.2f}x",
             one["note"]]
            for one in document["others"]
        ]  # fmt: skip
        print_table(["rule", "value", "of the plan", ""], rows, numbers=(1, 2), gives_way=3)
    if document.get("moves"):
        say()
        say("cheapest moves of one node to a neighboring device:")
        rows = [
            [", ".join(one["nodes"][:3]), f"{one['source']} to {one['target']}",
             f"+{format_duration(round(one['change_ns']))}"]
            for one in document["moves"]
        ]  # fmt: skip
        print_table(["node", "devices", "costs"], rows, numbers=(2,), gives_way=0)
    robust = document.get("robust")
    if robust:
        say()
        say(f"best for bandwidths of {robust['best_from']:.3g} to {robust['best_to']:.3g} times the stated one;")
        plans = f"{robust['num_plans']} plan{'s' if robust['num_plans'] > 1 else ''} compared"
        say(f"  at worst {format_ratio(robust['regret'])} above the best, {plans}")
        if not robust["is_stated_chosen"]:
            say(f"  another plan loses at most {format_ratio(robust['least_regret'])} (--json has it)")
