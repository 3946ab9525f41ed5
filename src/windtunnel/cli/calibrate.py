"""``windtunnel calibrate``: measure this host, so that prices for it are good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.calibrate_links import calibrate_links
from windtunnel.cli.console import Progress, advise, show
from windtunnel.cli.files import open_graph
from windtunnel.cli.options import Force, Json, Output
from windtunnel.units import format_duration, format_rate, format_ratio, format_size, parse_duration

if TYPE_CHECKING:
    from windtunnel.cost.calibration import Calibrated
    from windtunnel.cost.interference import Interference
    from windtunnel.hardware import Device

__all__ = ["calibrate"]

_NS = 1e9
_BUSY = 0.9


@registry.verb("calibrate", source="windtunnel")
def calibrate(
    budget: Annotated[
        str, typer.Option("--time-limit", metavar="TIME", help="Time limit for sampling operators.")
    ] = "5m",
    threads: Annotated[int, typer.Option("--threads", min=0, help="Intra-op threads; 0: all cores.")] = 0,
    learn: Annotated[
        list[Path] | None,
        typer.Option(
            "--learn",
            metavar="GRAPH",
            help="Capture whose operator times (or, with --links, collectives) are added; may be repeated.",
        ),
    ] = None,
    database: Annotated[
        Path | None,
        typer.Option("--database", metavar="FILE", help="Profile database (default: ~/.windtunnel/profile.db)."),
    ] = None,
    links: Annotated[
        bool,
        typer.Option(
            "--links", help="Measure links between processes instead, or fit them to the captures named by --learn."
        ),
    ] = False,
    nproc: Annotated[int, typer.Option("--nproc", min=2, help="With --links: number of processes.")] = 2,
    bandwidth: Annotated[
        str,
        typer.Option(
            "--bandwidth",
            metavar="RATE",
            help="With --links: rate to which the link is shaped, such as 1Gbit (default: unlimited).",
        ),
    ] = "",
    latency: Annotated[
        str,
        typer.Option(
            "--latency", metavar="TIME", help="With --bandwidth: one-way latency added to the link, such as 1ms."
        ),
    ] = "",
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel calibrate --time-limit 5m

    Measure this host: peak rates, bandwidths, dispatch overhead, operator efficiency, and slowdown by neighbors.
    """
    from windtunnel.cost.calibration import calibrate as measure
    from windtunnel.cost.host import host_limits
    from windtunnel.cost.interference import measure_interference
    from windtunnel.cost.measured import remember
    from windtunnel.measure import ProfileDatabase
    from windtunnel.measure.disturbance import free_share

    kept = ProfileDatabase(database)
    if links:
        calibrate_links(nproc, bandwidth, latency, learn or (), output, kept, force=force, as_json=as_json)
        return
    graphs = [open_graph(path) for path in learn or ()]
    with Progress("calibrating") as progress:
        free = free_share()
        result = measure(parse_duration(budget) / _NS, num_threads=threads, database=kept, progress=progress)
        learned = sum(remember(graph, kept) for graph in graphs)
        limits = host_limits(database=kept, progress=progress)
        slowed = [measure_interference(what, database=kept) for what in ("core", "memory")]
    document = {"schema": "windtunnel.calibration/1", "free_share": free, "num_learned": learned,
                **_as_dict(result, limits, slowed)}  # fmt: skip
    show(document, _lines(result, limits, slowed, learned), as_json=as_json)
    if free < _BUSY:
        advise(
            f"warning: a thread got only {free:.0%} of a core; other programs are running, and these times may "
            f"be too long"
        )
    advise("next: windtunnel predict train.wt --on this-host")


def _as_dict(found: Calibrated, limits: dict[int, Device], slowed: list[Interference]) -> dict[str, Any]:
    device = found.device
    return {
        "num_threads": device.num_units,
        "limits": [
            {
                "num_threads": count,
                "peak_flops_per_s": dict(limit.peak_flops_per_s),
                "bandwidth_bytes_per_s": limit.bandwidth_bytes_per_s,
                "cache_bandwidth_bytes_per_s": limit.cache_bandwidth_bytes_per_s,
            }
            for count, limit in limits.items()
        ],
        "cache_bytes": {"l1d": device.l1_bytes, "l2": device.l2_bytes, "l3": device.l3_bytes},
        "dispatch_ns": device.launch_overhead_ns,
        "bound_error": found.bound_error,
        "error": found.error,
        "errors": found.errors,
        "rounds": [{"num_samples": round_.num_samples, "error": round_.error} for round_ in found.rounds],
        "reason": found.reason,
        "slowdown": {item.what: list(item.slowdown) for item in slowed},
    }


def _lines(
    found: Calibrated, limits: dict[int, Device], slowed: list[Interference], num_learned: int
) -> Iterator[str | Table]:
    device = found.device
    yield f"{device.source}, sampled with {device.num_units} thread{'s' if device.num_units > 1 else ''}"
    sizes = {"L1": device.l1_bytes, "L2": device.l2_bytes, "L3": device.l3_bytes}
    yield "  caches: " + ", ".join(f"{name} {format_size(size)}" for name, size in sizes.items() if size)
    yield f"  dispatch overhead: {format_duration(device.launch_overhead_ns or 0)}"
    yield ""
    names = list(device.peak_flops_per_s)
    rates = {name: partial(format_rate, unit="FLOP/s") for name in names}
    rows = [
        (count, *(limit.peak_flops_per_s[name] for name in names), limit.bandwidth_bytes_per_s,
         limit.cache_bandwidth_bytes_per_s or 0)
        for count, limit in limits.items()
    ]  # fmt: skip
    yield Table({"threads": "{}", **rates, "memory": format_rate, "cache": format_rate}, rows)
    yield ""
    counts = {name: len(process.left_out) for name, process in found.calibration.processes.items()}
    errors = [(name, counts[name], error) for name, error in found.errors.items()]
    yield Table({"class": str, "samples": "{}", "expected error": format_ratio}, errors)
    yield f"expected error: {format_ratio(found.error)} ({format_ratio(found.bound_error)} with the roofline alone)"
    yield (
        "converged: another round would reduce the error by less than half a percent"
        if found.reason == "settled"
        else "stopped at the time limit; a longer --time-limit may reduce the error"
    )
    widest = max(len(item.slowdown) for item in slowed)
    if widest:
        yield ""
        users = {f"{count} user{'s' if count > 1 else ''}": "{:.2f}x" for count in range(1, widest + 1)}
        slowdowns: list[Sequence[Any]] = [
            (item.what, *item.slowdown, *[None] * (widest - len(item.slowdown))) for item in slowed
        ]
        yield Table({"shared resource": str, **users}, slowdowns)
    if num_learned:
        yield f"{num_learned:,} operators of captures were added with their measured times"
