"""``windtunnel serve plan threads``: threads, instances and batch of a server that has to answer in time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show
from windtunnel.cli.options import Json, LedgerPath
from windtunnel.systems.serving.options import FlownPath, MemoryLimit, ProfilePath, memory_limit, slowdown_of
from windtunnel.units import format_duration, parse_duration, parse_ratio

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from windtunnel.systems.serving.model import Slowdown
    from windtunnel.systems.serving.profile import Profile
    from windtunnel.systems.serving.sizing import Sized
    from windtunnel.systems.serving.tail import Answered

__all__ = ["size"]


@registry.verb("serve plan threads", source="Packrat")
def size(
    profile: ProfilePath,
    requests: Annotated[
        str,
        typer.Option(
            metavar="PATTERN",
            help="Request pattern, such as poisson:rate=20,seconds=30, constant or bursts, or a file of arrivals "
            "(CSV).",
        ),
    ],
    limit: Annotated[str, typer.Option("--slo", metavar="TIME", help="Latency SLO.")],
    share: Annotated[
        str, typer.Option("--percentile", metavar="RATIO", help="Percentile of requests that must meet the SLO.")
    ] = "99%",
    threads: Annotated[
        int,
        typer.Option("--max-threads", min=0, metavar="N", help="Maximum number of threads; 0: those of the profile."),
    ] = 0,
    flown: FlownPath = None,
    memory: MemoryLimit = "",
    job: Annotated[
        str,
        typer.Option(
            "--verify",
            metavar="JOB",
            help="Workload or my_model.py:make with which to verify the result by real requests.",
        ),
    ] = "",
    rounds: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="With --verify: number of rounds, interleaved with one instance that has all threads.",
        ),
    ] = 1,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel serve plan threads resnet50.profile.csv --requests poisson:rate=20,seconds=30 --slo 500ms

    Find the fewest threads, their instances and batch size that meet a latency SLO.

    The exit code is 1 if no server does.
    """
    from windtunnel.flights import Ledger
    from windtunnel.systems.serving.flight import receipt_of_requests
    from windtunnel.systems.serving.profile import read_profile
    from windtunnel.systems.serving.requests import requests_of
    from windtunnel.systems.serving.sizing import size_servers

    known, limit_ns, part = read_profile(profile), parse_duration(limit), parse_ratio(share)
    slowdown = slowdown_of(known, flown)
    arrivals = requests_of(requests)
    with Progress("sizing") as progress:
        result = size_servers(
            known, arrivals, limit_ns, share=part, num_threads=threads, slowdown=slowdown,
            max_bytes=memory_limit(memory), progress=progress,
        )  # fmt: skip
    selected = next((item for item in result if item.latency_ns <= limit_ns), None)
    best = selected if selected is not None else min(result, key=lambda one: one.latency_ns)
    flights: list[tuple[Sized, list[Answered]]] = []
    if job:
        flights = _fly(job, [best, *_one_instance(known, best, arrivals, part, slowdown)], rounds)
        if len(flights) > 1:
            Ledger(ledger).add(receipt_of_requests(job, requests, part, flights[1], flights[0]))
    document = {
        "schema": "windtunnel.serve-size/1", "num_requests": len(arrivals), "limit_ns": limit_ns, "share": part,
        "servers": [_document(item, part) for item in result],
        "chosen": None if selected is None else _document(selected, part),
        "flights": [{"foretold": _document(item, part), "measured": [_latencies(it, part) for it in used]}
                    for item, used in flights],
    }  # fmt: skip
    lines: list[str | Table] = [_table(result, limit_ns, part), ""]
    if selected is None:
        limit = format_duration(limit_ns)
        lines.append(f"no server meets the SLO: {_percentile(part)} of {len(arrivals):,} requests within {limit}")
    else:
        lines.append(f"fewest threads that meet the SLO: {selected.server.split.threads}, as {selected.server}")
    if flights:
        lines += ["", _flight_table(flights, part)]
    show(document, lines, as_json=as_json)
    if not (flights or as_json):
        advise("next: --verify JOB answers such requests for real")
    if selected is None:
        raise typer.Exit(1)


def _one_instance(
    known: Profile, best: Sized, arrivals: NDArray[np.int64], part: float, slowdown: Slowdown | None
) -> list[Sized]:
    """The same threads as one instance, where that is another server and the profile has it."""
    from windtunnel.systems.serving.search import equal_split
    from windtunnel.systems.serving.sizing import predict_server
    from windtunnel.systems.serving.tail import Server, batch_latencies

    split = best.server.split
    whole = equal_split(known, split.threads, 1, split.batch)
    if whole is None or whole.cells == split.cells:
        return []
    return [predict_server(Server(whole, best.server.wait_ns), arrivals, batch_latencies(known, whole, slowdown), part)]


def _fly(job: str, sized: Sequence[Sized], rounds: int) -> list[tuple[Sized, list[Answered]]]:
    """Each server in its turn in every round."""
    from windtunnel.systems.serving.drive import fly_requests

    result: list[tuple[Sized, list[Answered]]] = [(entry, []) for entry in sized]
    with Progress("answering") as progress:
        for _ in range(rounds):
            for item, used in result:
                used.append(fly_requests(job, item.server, item.answered.arrival_ns_R, progress=progress))
    return result


def _latencies(one: Answered, part: float) -> dict[str, Any]:
    return {
        "median_ns": one.latency_ns(0.5),
        "latency_ns": one.latency_ns(part),
        "num_batches": one.num_batches,
    }


def _document(one: Sized, part: float) -> dict[str, Any]:
    split = one.server.split
    instances = [{"threads": it.threads, "batch": it.batch} for it in split.instances]
    return {"threads": split.threads, "batch": split.batch, "wait_ns": one.server.wait_ns, "instances": instances,
            **_latencies(one.answered, part)}  # fmt: skip


def _table(found: Sequence[Sized], limit_ns: int, part: float) -> Table:
    columns = {"threads": "{}", "instances <threads,batch>": str, "batch size": "{}", "max wait": format_duration,
               "p50": format_duration, _percentile(part): format_duration, "meets SLO": str}  # fmt: skip
    rows = [
        (item.server.split.threads, item.server.split, item.server.split.batch, item.server.wait_ns,
         item.answered.latency_ns(0.5), item.answered.latency_ns(part), "yes" if item.latency_ns <= limit_ns else "")
        for item in found
    ]  # fmt: skip
    return Table(columns, rows, wraps="instances <threads,batch>")


def _percentile(part: float) -> str:
    return f"p{100 * part:.4g}"


def _flight_table(flights: Sequence[tuple[Sized, list[Answered]]], part: float) -> Table:
    columns = [("instances <threads,batch>", str), ("p50 predicted", format_duration),
               (_percentile(part), format_duration), ("p50 measured", format_duration),
               (_percentile(part), format_duration), ("error", "{:+.1%}")]  # fmt: skip
    rows = []
    for item, used in flights:
        predicted = [item.answered.latency_ns(level) for level in (0.5, part)]
        middle, tail = (median(it.latency_ns(level) for it in used) for level in (0.5, part))
        rows.append((item.server.split, *predicted, middle, tail, item.latency_ns / tail - 1))
    return Table(columns, rows)
