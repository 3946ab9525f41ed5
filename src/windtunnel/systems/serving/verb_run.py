"""``windtunnel serve run``: a server that answers requests, and whose instances follow its queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show
from windtunnel.cli.options import Json
from windtunnel.errors import InputError
from windtunnel.systems.serving.options import (
    FlownPath,
    JobName,
    MemoryLimit,
    NumThreads,
    ProfilePath,
    memory_limit,
    profile_of,
)
from windtunnel.units import format_duration, parse_duration

if TYPE_CHECKING:
    from windtunnel.systems.serving.live import LiveServer
    from windtunnel.systems.serving.record import Batch
    from windtunnel.systems.serving.tail import Answered

__all__ = ["run"]


@registry.verb("serve run", source="Packrat")
def run(
    job: JobName,
    profile: ProfilePath,
    batch: Annotated[
        int, typer.Option("--batch-size", min=1, metavar="N", help="Initial batch size, a power of two.")
    ] = 1,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="Keep the initial instances instead of adapting them to the queue.")
    ] = False,
    wait: Annotated[
        str, typer.Option("--max-wait", metavar="TIME", help="Maximum time that a request waits for its batch to fill.")
    ] = "5ms",
    period: Annotated[
        str, typer.Option(metavar="TIME", help="Interval between decisions to change the instances.")
    ] = "1s",
    threads: NumThreads = 0,
    flown: FlownPath = None,
    memory: MemoryLimit = "",
    requests: Annotated[
        str,
        typer.Option(
            metavar="PATTERN",
            help="Request pattern or file to serve before exiting, as for `serve plan threads` (default: HTTP).",
        ),
    ] = "",
    host: Annotated[str, typer.Option(metavar="NAME", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on; 0: any free port.")
    ] = 8000,
    as_json: Json = False,
) -> None:
    """Example: windtunnel serve run resnet50:size=tiny resnet50.profile.csv --requests poisson:rate=20,seconds=5

    Serve requests over HTTP or from a pattern, with instances that adapt to the queue.

    POST / answers one request, GET /status shows the instances. Ctrl-C answers the waiting requests and exits.
    """
    from windtunnel.systems.serving.adapt import adapt_to_queue
    from windtunnel.systems.serving.drive import send
    from windtunnel.systems.serving.live import LiveServer
    from windtunnel.systems.serving.requests import requests_of
    from windtunnel.systems.serving.search import best_splits
    from windtunnel.systems.serving.tail import Server
    from windtunnel.systems.serving.web import listening, serve_http

    known = profile_of(profile, flown)
    splits = best_splits(known, threads or known.max_threads, memory_limit(memory))
    if batch not in splits:
        raise InputError(
            f"no split starts with a batch size of {batch}",
            where="--batch-size",
            fix=f"choose one of {', '.join(map(str, splits))}",
        )
    arrivals = requests_of(requests) if requests else None
    period_s, wait_ns = parse_duration(period) / 1e9, parse_duration(wait)
    if period_s <= 0 or wait_ns < 0:
        raise InputError("a period has to be above 0, and a wait at least 0", where="--period, --max-wait")
    server, answered = Server(splits[batch], wait_ns), None
    with ExitStack() as held:
        address = None if arrivals is not None else held.enter_context(listening(host, port))
        live = held.enter_context(LiveServer(job, server, max_inputs=max(splits)))
        if not fixed:
            held.enter_context(adapt_to_queue(live, splits, period_s))
        if address is not None:
            serve_http(live, address, lambda url: advise(f"serving at {url}, as {live.split}"))
        elif arrivals is not None:
            with Progress("answering") as progress:
                answered = send(live, arrivals, progress=progress)
    show(_document(live, answered), _lines(live, answered), as_json=as_json)


def _by_split(live: LiveServer) -> dict[str, list[Batch]]:
    result: dict[str, list[Batch]] = {}
    for batch in live.batches:
        result.setdefault(f"{batch.split}, {batch.split.batch} together", []).append(batch)
    return result


def _full_ns(batches: list[Batch]) -> float | None:
    """What a full batch took, the median; None if there was none."""
    full = [batch.answered_ns - batch.begun_ns for batch in batches if batch.inputs == batch.split.batch]
    return median(full) if full else None


def _document(live: LiveServer, answered: Answered | None) -> dict[str, Any]:
    return {
        "schema": "windtunnel.serve-run/1",
        "job": live.job,
        "num_requests": sum(batch.inputs for batch in live.batches) if answered is None else len(answered.arrival_ns_R),
        "latency_ns": None if answered is None else {str(part): answered.latency_ns(part) for part in (0.5, 0.99)},
        "splits": [
            {"split": str(used[0].split), "batch": used[0].split.batch, "num_batches": len(used),
             "num_requests": sum(item.inputs for item in used),
             "predicted_ns": used[0].split.latency_ns, "full_batch_ns": _full_ns(used)}
            for used in _by_split(live).values()
        ],
        "changes": [
            {"before": str(change.before), "after": str(change.after), "batch": change.after.batch,
             "starting_ns": change.serving_ns - change.begun_ns, "draining_ns": change.ended_ns - change.serving_ns,
             "failed": change.failed or None}
            for change in live.changes
        ],
    }  # fmt: skip


def _lines(live: LiveServer, answered: Answered | None) -> Iterator[str | Table]:
    columns = {"instances <threads,batch>": str, "batch size": "{}", "batches": "{:,}", "requests": "{:,}",
               "predicted": format_duration, "measured": format_duration, "error": "{:+.1%}"}  # fmt: skip
    rows = []
    for used in _by_split(live).values():
        split, full_ns = used[0].split, _full_ns(used)
        error = None if full_ns is None else split.latency_ns / full_ns - 1
        num_requests = sum(item.inputs for item in used)
        rows.append((split, split.batch, len(used), num_requests, split.latency_ns, full_ns, error))
    yield Table(columns, rows)
    yield ""
    for change in live.changes:
        words = f"{change.before} to {change.after}, batch size {change.after.batch}"
        took = format_duration(change.ended_ns - change.begun_ns)
        yield f"failed, {words}: {change.failed}" if change.failed else f"changed in {took}: {words}"
    if answered is not None:
        half, tail = (format_duration(answered.latency_ns(part)) for part in (0.5, 0.99))
        yield f"{len(answered.arrival_ns_R):,} requests answered, p50 {half}, p99 {tail}"
