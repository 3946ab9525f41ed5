"""``windtunnel predict --cheapest``: which machines to rent for a training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, show
from windtunnel.cli.files import open_graph
from windtunnel.errors import InputError
from windtunnel.units import parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from windtunnel.search.advice.model import Quote, Rented
    from windtunnel.search.advice.search import Advice

__all__ = ["show_cheapest"]

_SHOWN = 8


def show_cheapest(
    graph: Path,
    *,
    on: str,
    samples: int,
    epochs: int,
    deadline: str,
    max_cost: float,
    max_machines: int,
    batch_size: int,
    dtype: str,
    host_factor: float,
    dataset_size: str,
    disk_bandwidth: str,
    prep: float,
    billing: str,
    measured: Path | None,
    as_json: bool,
) -> None:
    """Price a training on every machine of the catalog, and show the cheapest that meets the deadline.

    Raises
    ------
    typer.Exit
        No machine does: the code is 1.
    """
    from windtunnel.hardware import instance, instances
    from windtunnel.search.advice.model import Rented, quote_training
    from windtunnel.search.advice.search import advise_on
    from windtunnel.search.advice.steps import GraphSteps, offers_of, read_steps
    from windtunnel.whatifs.another_batch import batch_of

    requested = [instance(name.strip()) for name in on.split(",") if name.strip()] or list(instances().values())
    deadline_s = parse_duration(deadline) / 1e9 if deadline else math.inf
    with Progress(f"pricing {graph.name}") as progress:
        captured = open_graph(graph, progress=progress, needs_times=False)
        per_device = batch_size or batch_of(captured)
        if not per_device:
            raise InputError("the batch size is not known from the graph", where=str(graph),
                             fix="add --batch-size N")  # fmt: skip
        job = Rented(
            samples, epochs, per_device, parse_size(dataset_size) if dataset_size else 0.0, prep,
            parse_rate(disk_bandwidth) if disk_bandwidth else 0.0, float(captured.meta.memory.get("peak_bytes") or 0),
        )  # fmt: skip
        offers = offers_of(requested, max_machines)
        known = read_steps(measured) if measured is not None else None
        steps = GraphSteps(captured, dtype, host_factor, known).of(offers, progress=progress)
    quotes = [quote_training(job, offer, step, billing=billing) for offer, step in zip(offers, steps, strict=True)]
    result = advise_on(quotes, deadline_s=deadline_s, budget_usd=max_cost or math.inf)
    show(_document(result, quotes, job), _lines(result), as_json=as_json)
    if result.best is None:
        raise typer.Exit(1)


def _document(found: Advice, quotes: list[Quote], job: Rented) -> dict[str, Any]:
    return {
        "schema": "windtunnel.recommend/1",
        "training": vars(job),
        "best": None if found.best is None else _row(found.best),
        "front": [_row(item) for item in found.front],
        "cheaper": [{**_row(item), "why_not": why} for item, why in found.cheaper],
        "relaxed": found.relaxed,
        "offers": [_row(quote) for quote in quotes],
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


def _lines(found: Advice) -> Iterator[str | Table]:
    best = found.best
    if best is None:
        yield f"no machine meets the limits; {found.relaxed}"
    else:
        yield (
            f"{best.offer} of {best.offer.instance.num_devices} {best.offer.instance.device.name}: "
            f"{best.cost_usd:,.2f} USD in {best.time_s / 3600:.2f} h, limited by {best.bound_by}"
        )
        step = best.step
        yield (
            f"  step {step}: compute "
            f"{step.compute_ns / 1e6:.2f}, interconnect {step.interconnect_ns / 1e6:.2f}, network "
            f"{step.network_ns / 1e6:.2f}"
        )
        yield f"  prices of {best.offer.instance.price_date}: {best.offer.instance.source}"
    if found.front:
        yield ""
        columns = {"Pareto-optimal machines": str, "hours": "{:,.2f}", "USD": "{:,.2f}", "limited by": str}
        yield Table(columns, [(item.offer, item.time_s / 3600, item.cost_usd, item.bound_by) for item in found.front])
    if found.cheaper:
        yield ""
        columns = {"cheaper machines": str, "USD/h": "{:,.2f}", "rejected because": str}
        shown = [(item.offer, item.offer.usd_per_h, why) for item, why in found.cheaper[:_SHOWN]]
        yield Table(columns, shown, wraps="rejected because")
        if len(found.cheaper) > _SHOWN:
            yield f"and {len(found.cheaper) - _SHOWN} cheaper ones"
