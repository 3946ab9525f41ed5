"""``windtunnel recommend``: which machines to rent for a training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, print_json, print_table, say, say_wrapped
from windtunnel.cli.files import open_graph
from windtunnel.cli.options import GraphPath, Json
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.search.advice.model import Quote, Rented
    from windtunnel.search.advice.search import Advice

__all__ = ["recommend"]

_SHOWN = 8


@registry.verb("recommend", source="Stash")
def recommend(
    graph: GraphPath,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Of one epoch.")],
    epochs: Annotated[int, typer.Option(min=1, metavar="N")] = 1,
    deadline: Annotated[str, typer.Option(metavar="TIME", help="To be done in, such as 24h.")] = "",
    budget: Annotated[float, typer.Option(min=0, metavar="USD", help="At most; 0 for no limit.")] = 0.0,
    on: Annotated[str, typer.Option("--on", metavar="NAME,NAME", help="Machines of the catalog; all by default.")] = "",
    machines: Annotated[int, typer.Option(min=1, metavar="N", help="Most of one kind.")] = 4,
    batch: Annotated[int, typer.Option(min=0, metavar="N", help="Of each device; 0: as captured.")] = 0,
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="tf32, bf16 ...; as captured by default.")] = "",
    host_factor: Annotated[
        float, typer.Option("--host-factor", min=0, metavar="F", help="The host's time over what it was; 0: left out.")
    ] = 1.0,
    dataset: Annotated[str, typer.Option(metavar="SIZE", help="On the disk, such as 150GB.")] = "",
    disk: Annotated[str, typer.Option(metavar="RATE", help="At which a machine reads what is not in memory.")] = "",
    prep: Annotated[float, typer.Option(min=0, metavar="N", help="Samples that one core prepares in a second.")] = 0.0,
    billing: Annotated[str, typer.Option(metavar="UNIT", help="second (a minute at least) or hour.")] = "second",
    measured: Annotated[
        Path | None, typer.Option(metavar="CSV", help="instance,count,compute_ms,interconnect_ms,network_ms.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel recommend train.wt --samples 1281167 --epochs 90 --deadline 24h --dtype bf16

    Price a training on every machine of the catalog; take the cheapest that is in time, and say why none cheaper is.
    """
    from windtunnel.hardware import instance, instances
    from windtunnel.search.advice.model import Rented, quoted
    from windtunnel.search.advice.search import advise_on
    from windtunnel.search.advice.steps import GraphSteps, offers_of, read_steps
    from windtunnel.units import parse_duration, parse_rate, parse_size
    from windtunnel.whatifs.another_batch import batch_of

    asked = [instance(name.strip()) for name in on.split(",") if name.strip()] or list(instances().values())
    deadline_s = parse_duration(deadline) / 1e9 if deadline else math.inf
    with Progress(f"pricing {graph.name}") as progress:
        captured = open_graph(graph, progress=progress, needs_times=False)
        per_device = batch or batch_of(captured)
        if not per_device:
            raise InputError("the graph does not say how many samples a step takes", where=str(graph),
                             fix="give --batch")  # fmt: skip
        job = Rented(
            samples, epochs, per_device, parse_size(dataset) if dataset else 0.0, prep,
            parse_rate(disk) if disk else 0.0, float(captured.meta.memory.get("peak_bytes") or 0),
        )  # fmt: skip
        offers = offers_of(asked, machines)
        known = read_steps(measured) if measured is not None else None
        steps = GraphSteps(captured, dtype, host_factor, known).of(offers, progress=progress)
    quotes = [quoted(job, offer, step, billing=billing) for offer, step in zip(offers, steps, strict=True)]
    found = advise_on(quotes, deadline_s=deadline_s, budget_usd=budget or math.inf)
    if as_json:
        print_json(_document(found, quotes, job))
    else:
        _print(found)
    if found.best is None:
        raise typer.Exit(1)


def _document(found: Advice, quotes: list[Quote], job: Rented) -> dict[str, Any]:
    return {
        "schema": "windtunnel.recommend/1",
        "training": vars(job),
        "best": None if found.best is None else _row(found.best),
        "front": [_row(one) for one in found.front],
        "cheaper": [{**_row(one), "why_not": why} for one, why in found.cheaper],
        "relaxed": found.relaxed,
        "offers": [_row(one) for one in quotes],
    }


def _row(one: Quote) -> dict[str, Any]:
    runs = not one.reason
    return {
        "instance": one.offer.instance.name,
        "count": one.offer.count,
        "devices": one.offer.num_devices,
        "usd_per_h": one.offer.usd_per_h,
        "price_date": one.offer.instance.price_date,
        "price_source": one.offer.instance.source,
        "time_s": one.time_s if runs else None,
        "cost_usd": one.cost_usd if runs else None,
        "bound_by": one.bound_by,
        "reason": one.reason,
        "step": {**vars(one.step), "step_ns": one.step.step_ns},
    }


def _print(found: Advice) -> None:
    best = found.best
    if best is None:
        say_wrapped(f"nothing will do; {found.relaxed}")
    else:
        say_wrapped(
            f"{best.offer} of {best.offer.instance.num_devices} {best.offer.instance.device.name}: "
            f"{best.cost_usd:,.2f} USD in {best.time_s / 3600:.2f} h, held up by {best.bound_by}"
        )
        step = best.step
        say_wrapped(
            f"  a step takes {step}: compute "
            f"{step.compute_ns / 1e6:.2f}, interconnect {step.interconnect_ns / 1e6:.2f}, network "
            f"{step.network_ns / 1e6:.2f}"
        )
        say_wrapped(f"  prices of {best.offer.instance.price_date}: {best.offer.instance.source}")
    if found.front:
        say()
        rows = [
            (str(one.offer), f"{one.time_s / 3600:,.2f}", f"{one.cost_usd:,.2f}", one.bound_by) for one in found.front
        ]
        print_table(("no other is faster and cheaper", "hours", "USD", "held up by"), rows, numbers=(1, 2))
    if found.cheaper:
        say()
        shown = [(str(one.offer), f"{one.offer.usd_per_h:,.2f}", why) for one, why in found.cheaper[:_SHOWN]]
        print_table(("cheaper", "USD per h", "why not"), shown, numbers=(1,), gives_way=2)
        if len(found.cheaper) > _SHOWN:
            say(f"and {len(found.cheaper) - _SHOWN} that cost even less")
