"""``windtunnel predict``: a captured job on hardware that is not at hand (room cli)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.cli._console import Progress, advise, print_json, print_table, say, say_wrapped
from windtunnel.cli._files import open_graph
from windtunnel.cli._options import GraphPath, Json

if TYPE_CHECKING:
    from windtunnel.hardware import Device
    from windtunnel.whatifs.forecast import Forecast

__all__ = ["predict"]

_HALF, _UNSURE = 0.5, 0.05
_HOST = ("this-host", "this host", "localhost")


def predict(
    graph: GraphPath,
    on: Annotated[str, typer.Option("--on", metavar="DEVICE", help="h100 ..., this-host, or your own sheet (.json).")],
    dtype: Annotated[str, typer.Option("--dtype", metavar="TYPE", help="tf32, bf16 ...; as captured by default.")] = "",
    batch: Annotated[int, typer.Option("--batch", min=0, metavar="N", help="Another batch size.")] = 0,
    model: Annotated[str, typer.Option("--model", metavar="NAME,NAME", help="Cost models; auto chooses.")] = "auto",
    launch: Annotated[str, typer.Option("--launch", metavar="TIME", help="Of one operator on the host.")] = "5us",
    as_json: Json = False,
) -> None:
    """Example: windtunnel predict train.wt --on h100 --dtype bf16

    Price a captured job on a device of the catalog and replay it: how long, how sure, and what would change it.
    """
    from windtunnel.units import parse_duration
    from windtunnel.whatifs.forecast import changes, forecast

    launch_ns = parse_duration(launch)
    with Progress(f"predicting {graph.name}", heartbeat=True) as progress:
        chip = _device(on)
        captured = open_graph(graph, progress=progress)
        found = forecast(captured, chip, dtype=dtype, batch_size=batch, model=model, launch_ns=launch_ns)
        others = changes(captured, chip, found, model=model, launch_ns=launch_ns)
    if as_json:
        document = {"schema": "windtunnel.forecast/1", **_as_dict(found)}
        print_json({**document, "launch_ns": launch_ns, "changes": [_as_dict(one) for one in others]})
    else:
        _print_forecast(found)
        _print_shares(found)
        _print_classes(found)
        _print_changes(found, others)
    _advise_next(graph, on, found, others)


def _advise_next(graph: Path, on: str, found: Forecast, others: list[Forecast]) -> None:
    if on in _HOST and found.unsure_ratio > _UNSURE:
        advise("next: windtunnel calibrate --budget 5m")
        return
    best = min(others, key=_per_sample, default=found)
    if _per_sample(best) < _per_sample(found):
        options = f" --dtype {best.dtype}" if best.dtype != "as captured" else ""
        options += f" --batch {best.batch_size}" if best.batch_size != found.batch_size else ""
        advise(f"next: windtunnel predict {graph} --on {on}{options}")
    else:
        advise(f"next: windtunnel whatif {graph} --all")


def _device(name: str) -> Device:
    from windtunnel.cost.host import host_device
    from windtunnel.hardware import device
    from windtunnel.measure import ProfileDatabase

    return host_device(database=ProfileDatabase()) if name in _HOST else device(name)


def _per_sample(found: Forecast) -> float:
    return found.makespan_ns / max(found.batch_size, 1)


def _as_dict(found: Forecast) -> dict[str, Any]:
    names = ("device", "dtype", "batch_size", "makespan_ns", "low_ns", "high_ns", "unsure_ratio", "device_ns")
    shares = {name: [dataclasses.asdict(one) for one in getattr(found, name)] for name in ("sources", "bindings")}
    classes = [dataclasses.asdict(one) for one in found.classes]
    return {name: getattr(found, name) for name in names} | shares | {"classes": classes}


def _print_forecast(found: Forecast) -> None:
    from windtunnel.units import format_duration, format_ratio

    batch = f", batch {found.batch_size}" if found.batch_size else ""
    say(f"{format_duration(found.makespan_ns)} per iteration on {found.device}, {found.dtype}{batch}")
    if found.high_ns > found.low_ns:
        say(f"  90 % interval of the cost models: {format_duration(found.low_ns)} to {format_duration(found.high_ns)}")
    if found.unsure_ratio > 0:
        say_wrapped(
            f"  {format_ratio(found.unsure_ratio)} of it is priced by a bound that nothing beats: the truth is longer, "
            "and no interval says by how much"
        )
    busy = found.device_ns / max(found.makespan_ns, 1)
    say(f"  the device computes for {format_duration(found.device_ns)}, {format_ratio(busy)} of the time")
    if busy < _HALF:
        say_wrapped("  the host is the limit: Python and launches were measured here, or are assumed (--launch)")


def _print_shares(found: Forecast) -> None:
    from windtunnel.units import format_duration, format_ratio

    for title, shares in (("priced by", found.sources), ("bound by", found.bindings)):
        rows = [
            (one.name, format_duration(one.duration_ns), format_ratio(one.ratio), f"{one.num_tasks:,}")
            for one in shares
        ]
        if rows:
            say()
            whole = "of the time" if title == "priced by" else "of the device's"
            print_table((title, "time", whole, "tasks"), rows, numbers=(1, 2, 3))


def _print_classes(found: Forecast) -> None:
    from windtunnel.units import format_duration, format_ratio

    rows = [
        (one.name, format_duration(one.duration_ns), format_ratio(one.ratio), f"{one.num_tasks:,}",
         format_ratio(one.efficiency))
        for one in found.classes
    ]  # fmt: skip
    if rows:
        say()
        print_table(("operators", "time", "of the device's", "tasks", "of their bound"), rows, numbers=(1, 2, 3, 4))


def _print_changes(found: Forecast, others: list[Forecast]) -> None:
    from windtunnel.units import format_duration

    if not others:
        return
    rows = [
        (
            one.dtype,
            str(one.batch_size or ""),
            format_duration(one.makespan_ns),
            format_duration(one.device_ns),
            f"{_per_sample(found) / max(_per_sample(one), 1e-9):.2f}x",
        )
        for one in others
    ]
    say()
    print_table(("instead", "batch", "iteration", "device", "speed per sample"), rows, numbers=(1, 2, 3, 4))
