"""The cheapest machines for a pipeline: tried from the cheapest on, as people read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.cli.console import Progress, advise, print_json, print_table, say, say_wrapped
from windtunnel.cli.files import open_graph
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.systems.pipelines.machines import Offer, Rental

__all__ = ["plan_machines"]

_SHOWN = 12


def plan_machines(
    path: Path,
    names: str,
    batch: int,
    microbatches: list[int],
    samples_per_s: float,
    max_machines: int,
    samples: int,
    num_replayed: int,
    *,
    as_json: bool,
) -> None:
    """Print which machines of the catalog, or of those named, cost least and reach so many samples per second."""
    from windtunnel.hardware import instance, instances
    from windtunnel.systems.pipelines.machines import cheapest_machines
    from windtunnel.systems.pipelines.profiles import sizes_of
    from windtunnel.whatifs.another_batch import batch_of

    if not (path.exists() or Path(path.name.partition(":")[0]).suffix):
        raise InputError(
            "a workload is planned for this host", where="--min-throughput", fix="capture it, and name its .wt"
        )
    requested = [instance(name.strip()) for name in names.split(",") if name.strip()] or list(instances().values())
    with Progress("planning") as progress:
        graph = open_graph(path, progress=progress, needs_times=False)
        result = cheapest_machines(
            graph, samples or batch_of(graph), batch, sizes_of(batch, microbatches), samples_per_s, requested,
            max_machines=max_machines, num_replayed=num_replayed, progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(_document(result, batch, samples_per_s))
    else:
        _print(result, batch, samples_per_s)


def _document(found: Rental, batch: int, samples_per_s: float) -> dict[str, Any]:
    return {
        "schema": "windtunnel.pipeline-machines/1",
        "batch": batch,
        "least_samples_per_s": samples_per_s,
        "is_proven": found.is_proven,
        "best": _row(found.best, batch),
        "cheaper": [_row(item, batch) for item in found.cheaper],
    }


def _row(one: Offer, batch: int) -> dict[str, Any]:
    plan = one.played
    return {
        "instance": one.instance.name,
        "count": one.count,
        "devices": one.num_devices,
        "device": one.instance.device.name,
        "usd_per_h": one.usd_per_h,
        "price_date": one.instance.price_date,
        "price_source": one.instance.source,
        "reason": one.reason,
        "is_sure": one.is_sure,
        "samples_per_s": None if plan is None else batch / plan.step_ns * 1e9,
        "step_ns": None if plan is None else plan.step_ns,
        "width": None if plan is None else plan.row.width,
        "depth": None if plan is None else plan.row.depth,
        "microbatch": None if plan is None else plan.row.microbatch,
        "schedule": None if plan is None else plan.row.schedule,
        "recomputes": None if plan is None else plan.row.recomputes,
    }


def _print(found: Rental, batch: int, samples_per_s: float) -> None:
    best, plan = found.best, found.best.played
    assert plan is not None
    rate = batch / plan.step_ns * 1e9
    per_million = best.usd_per_h / 3600 / rate * 1e6
    say_wrapped(
        f"{best.usd_per_h:,.2f} USD per h for {samples_per_s:,.6g} samples per s: {best.count} x {best.instance.name} "
        f"of {best.instance.num_devices} {best.instance.device.name}"
    )
    say_wrapped(f"  {rate:,.1f} samples per s by replay, {per_million:,.3g} USD per million samples: {plan.row}")
    instance = best.instance
    say_wrapped(f"  prices of {instance.price_date}: {instance.source}")
    if found.cheaper:
        say()
        rows = [
            (f"{item.count} x {item.instance.name}", f"{item.usd_per_h:,.2f}", item.reason)
            for item in found.cheaper[-_SHOWN:]
        ]
        print_table(("cheaper machines", "USD/h", "rejected because"), rows, numbers=(1,), gives_way=2)
        if len(found.cheaper) > _SHOWN:
            say(f"and {len(found.cheaper) - _SHOWN} cheaper ones")
    unsure = sum(not item.is_sure for item in found.cheaper)
    if unsure:
        advise(f"note: not all plans of {unsure} cheaper machines were replayed; a larger --replay tries more")
