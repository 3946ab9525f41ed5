"""``windtunnel calibrate``: measure this host, so that prices for it are good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.calibrate_links import calibrate_links
from windtunnel.cli.console import Progress, advise, print_json, print_table, say, say_wrapped
from windtunnel.cli.files import open_graph
from windtunnel.cli.options import Force, Json, Output

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
    from windtunnel.measure.busyness import free_share
    from windtunnel.units import parse_duration

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
    if as_json:
        print_json({"schema": "windtunnel.calibration/1", "free_share": free, "num_learned": learned,
                    **_as_dict(result, limits, slowed)})  # fmt: skip
    else:
        _print_limits(result, limits)
        _print_errors(result)
        _print_interference(slowed)
        if learned:
            say(f"{learned:,} operators of captures were added with their measured times")
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


def _print_limits(found: Calibrated, limits: dict[int, Device]) -> None:
    from windtunnel.units import format_duration, format_rate, format_size

    device = found.device
    say(f"{device.source}, sampled with {device.num_units} thread{'s' if device.num_units > 1 else ''}")
    sizes = {"L1": device.l1_bytes, "L2": device.l2_bytes, "L3": device.l3_bytes}
    say("  caches: " + ", ".join(f"{name} {format_size(size)}" for name, size in sizes.items() if size))
    say(f"  dispatch overhead: {format_duration(device.launch_overhead_ns or 0)}")
    say()
    names = list(device.peak_flops_per_s)
    rows = [
        (
            str(count),
            *(format_rate(limit.peak_flops_per_s[name], "FLOP/s") for name in names),
            format_rate(limit.bandwidth_bytes_per_s),
            format_rate(limit.cache_bandwidth_bytes_per_s or 0),
        )
        for count, limit in limits.items()
    ]
    print_table(("threads", *names, "memory", "cache"), rows, numbers=tuple(range(len(names) + 3)))


def _print_errors(found: Calibrated) -> None:
    from windtunnel.units import format_ratio

    say()
    counts = {name: len(process.left_out) for name, process in found.calibration.processes.items()}
    rows = [(name, f"{counts[name]}", format_ratio(error)) for name, error in found.errors.items()]
    print_table(("class", "samples", "expected error"), rows, numbers=(1, 2))
    say_wrapped(
        f"expected error: {format_ratio(found.error)} ({format_ratio(found.bound_error)} with the roofline alone)"
    )
    say(
        "converged: another round would reduce the error by less than half a percent"
        if found.reason == "settled"
        else "stopped at the time limit; a longer --time-limit may reduce the error"
    )


def _print_interference(slowed: list[Interference]) -> None:
    rows = [(item.what, *(f"{factor:.2f}x" for factor in item.slowdown)) for item in slowed]
    widest = max(len(row) for row in rows)
    if widest > 1:
        say()
        head = ("shared resource", *(f"{users} user{'s' if users > 1 else ''}" for users in range(1, widest)))
        print_table(head, [(*row, *[""] * (widest - len(row))) for row in rows], numbers=tuple(range(1, widest)))
