"""``windtunnel collectives plan``, ``run`` and ``verify``: price all schedules, run one, run the best.

Two kinds of hardware: processes of this host, with or without an emulated link, which also run; clusters of GPUs, which
are priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, show, suggest
from windtunnel.cli.files import database_of, require_free
from windtunnel.cli.options import Force, Fresh, HtmlPath, Json, LedgerPath, TimeLimit, seconds_of
from windtunnel.errors import InputError
from windtunnel.measure.disturbance import MAX_NEIGHBORS
from windtunnel.systems.collectives.verb import ProgramName, ScheduleName, find_schedule, schedule_document
from windtunnel.units import format_duration, format_ratio, format_size, parse_duration, parse_rate

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.hardware import Link
    from windtunnel.systems.collectives.program import Program
    from windtunnel.systems.collectives.run import MeasuredSchedule
    from windtunnel.systems.collectives.schedules import Schedule
    from windtunnel.systems.collectives.search import PricedSchedule

__all__ = ["plan", "run", "verify"]

_NUM_RUN, _MAX_ROWS, _BUDGET_S, _TRANSPORT = 3, 20, 60.0, "shared_memory"
_TORCH_NOTE = "fusions ran in their parts: PyTorch has no operators that compute and communicate"

Bandwidth = Annotated[
    str,
    typer.Option(metavar="RATE", help="Bandwidth of the emulated link between ranks (default: this host's memory)."),
]
Latency = Annotated[str, typer.Option(metavar="TIME", help="One-way latency of the emulated link.")]
Transport = Annotated[
    str,
    typer.Option(
        help="How ranks exchange messages: shared_memory or gloo; or torch or nccl, which run PyTorch's own operators "
        "and collectives, on CPUs (gloo) or GPUs (NCCL)."
    ),
]
MaxSchedules = Annotated[int, typer.Option("--max-schedules", min=1, metavar="N", help="Schedules to price at most.")]
Rounds = Annotated[int, typer.Option("--rounds", min=3, metavar="N", help="Number of interleaved rounds.")]


@dataclass(frozen=True)
class _Hardware:
    """What prices programs."""

    name: str
    build: Callable[[Program], Graph]


@registry.verb("collectives plan", source="CoCoNet")
def plan(
    name: ProgramName,
    on: Annotated[
        str, typer.Option("--on", metavar="CLUSTER", help="GPU cluster, such as 16xdgx-2 (default: this host).")
    ] = "",
    bandwidth: Bandwidth = "",
    latency: Latency = "0us",
    transport: Transport = _TRANSPORT,
    max_schedules: MaxSchedules = 5_000,
    report: HtmlPath = None,
    fresh: Fresh = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel collectives plan tensor-parallel:num_ranks=16,batch=8 --on dgx-2 --html plan.html

    Price all schedules of a program, the fastest first.
    """
    from windtunnel.systems.collectives.schedules import closure
    from windtunnel.systems.collectives.search import best_of_each_kind, search_schedules
    from windtunnel.systems.collectives.workloads import read_program

    if report is not None:
        require_free(report, force=force)
    program = read_program(name)
    schedules = closure(program, max_schedules)
    hardware = _hardware(schedules, on, bandwidth, latency, transport, fresh=fresh)
    with Progress(f"pricing schedules of {program.name}") as progress:
        priced = search_schedules(schedules, hardware.build, progress)
    baseline = _baseline(priced)
    document = {
        "schema": "windtunnel.collectives-plan/1",
        "program": name,
        "hardware": hardware.name,
        "baseline_ns": baseline.duration_ns,
        "schedules": [_price_document(item) for item in priced],
    }
    best = best_of_each_kind(priced)
    table = _price_table(best[:_MAX_ROWS], baseline)

    def lines() -> Iterator[str | Table]:
        yield f"{program.name} on {hardware.name}: {len(priced)} schedules, {len(best)} kinds"
        yield ""
        yield table
        yield ""
        yield f"baseline: {baseline.schedule.label}, {format_duration(baseline.duration_ns)}"

    if report is not None:
        _write_page(
            f"{program.name} on {hardware.name}",
            hardware,
            table,
            [baseline, *[item for item in best if item is not baseline][:2]],
            report,
            force=force,
        )
    show(document, lines(), as_json=as_json)
    if not as_json:
        given = (("--bandwidth", bandwidth, ""), ("--latency", latency, "0us"), ("--transport", transport, _TRANSPORT))
        options = [word for option, value, default in given if value != default for word in (option, value)]
        suggest("windtunnel", "collectives", *(["show", name] if on else ["verify", name, *options]))


@registry.verb("collectives run", source="CoCoNet")
def run(
    name: ProgramName,
    schedule: ScheduleName = "1",
    bandwidth: Bandwidth = "",
    latency: Latency = "0us",
    transport: Transport = _TRANSPORT,
    rounds: Rounds = 15,
    as_json: Json = False,
) -> None:
    """Example: windtunnel collectives run adam:num_ranks=2 --schedule 'fuse(RS-C-AG)' --bandwidth 1GB/s

    Run a schedule of a program in processes of this host, next to the program as it is.
    """
    from windtunnel.systems.collectives.run import run_schedules
    from windtunnel.systems.collectives.schedules import closure
    from windtunnel.systems.collectives.workloads import read_program

    schedules = closure(read_program(name))
    selected = find_schedule(schedules, schedule)
    both = [schedules[0], *([] if selected is schedules[0] else [selected])]
    with Progress(f"running {selected.label}") as progress:
        measured = run_schedules(
            both, transport=transport, link=_link(bandwidth, latency), num_rounds=rounds, progress=progress
        )
    document = {
        "schema": "windtunnel.collectives-run/1",
        "program": name,
        "schedules": [_measurement_document(item) for item in measured],
    }

    show(document, _lines(measured, (), transport), as_json=as_json)


@registry.verb("collectives verify", source="CoCoNet")
def verify(
    name: ProgramName,
    bandwidth: Bandwidth = "",
    latency: Latency = "0us",
    transport: Transport = _TRANSPORT,
    rounds: Rounds = 15,
    time_limit: TimeLimit = "",
    max_schedules: MaxSchedules = 5_000,
    fresh: Fresh = False,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel collectives verify tensor-parallel:num_ranks=2,hidden=1024 --bandwidth 200MB/s

    Run the three schedules that are predicted to be fastest next to the program as it is, and keep receipts.
    """
    from windtunnel.flights.ledger import Ledger
    from windtunnel.systems.collectives.run import receipts_of, run_schedules
    from windtunnel.systems.collectives.schedules import closure
    from windtunnel.systems.collectives.search import best_of_each_kind, search_schedules
    from windtunnel.systems.collectives.workloads import read_program

    program = read_program(name)
    schedules = closure(program, max_schedules)
    hardware = _hardware(schedules, "", bandwidth, latency, transport, fresh=fresh)
    with Progress(f"pricing schedules of {program.name}") as progress:
        priced = search_schedules(schedules, hardware.build, progress)
    baseline = _baseline(priced)
    selected = [baseline, *[item for item in best_of_each_kind(priced) if item is not baseline][:_NUM_RUN]]
    with Progress("running the best schedules") as progress:
        measured = run_schedules(
            [item.schedule for item in selected], transport=transport, link=_link(bandwidth, latency),
            num_rounds=rounds, budget_s=seconds_of(time_limit) or _BUDGET_S, progress=progress,
        )  # fmt: skip
    conditions = {"transport": transport, "bandwidth": bandwidth, "latency": latency}
    receipts = receipts_of(name, selected, measured, conditions)
    book = Ledger(ledger)
    for receipt in receipts:
        book.add(receipt)
    document = {
        "schema": "windtunnel.collectives-verify/1",
        "program": name,
        "hardware": hardware.name,
        "schedules": [
            {**_measurement_document(item), "predicted_ns": price.duration_ns}
            for price, item in zip(selected, measured, strict=True)
        ],
        "receipts": [receipt.json() for receipt in receipts],
    }

    show(document, _lines(measured, selected, transport), as_json=as_json)


def _baseline(priced: Sequence[PricedSchedule]) -> PricedSchedule:
    """The program as it is, without any transformation."""
    return next(item for item in priced if not item.schedule.steps)


def _lines(
    measured: Sequence[MeasuredSchedule], priced: Sequence[PricedSchedule], transport: str
) -> Iterator[str | Table]:
    """Times next to those that were predicted, how far results differ, what other programs took of the host."""
    from windtunnel.systems.collectives.torch_executor import TORCH_TRANSPORTS

    titles = {"schedule": str, "time per step": format_duration, "±": format_ratio, "speed-up": "{:.2f}x"}
    rows: list[tuple[Any, ...]] = [
        (
            item.schedule.label,
            item.duration.value,
            item.duration.half_width_ratio,
            measured[0].duration.value / item.duration.value,
        )
        for item in measured
    ]
    if priced:
        titles |= {"predicted": format_duration, "error": format_ratio}
        rows = [(*row, item.duration_ns, item.duration_ns / row[1] - 1) for row, item in zip(rows, priced, strict=True)]
    yield Table(titles, rows)
    yield ""
    worst = max(item.difference for item in measured)
    yield f"results: {'equal to the last bit' if not worst else f'equal up to {worst:.1g}, relative'}"
    if transport in TORCH_TRANSPORTS:
        yield _TORCH_NOTE
    if measured[0].neighbors_ratio > MAX_NEIGHBORS:
        yield f"warning: other programs took {measured[0].neighbors_ratio:.0%} of this machine's cores meanwhile"


def _link(bandwidth: str, latency: str) -> Link | None:
    """The emulated link, where one is requested."""
    from windtunnel.hardware import Link

    if not bandwidth:
        if parse_duration(latency):
            raise InputError("a latency is that of an emulated link", where="--latency", fix="add --bandwidth 1GB/s")
        return None
    return Link("emulated", parse_rate(bandwidth), latency_ns=parse_duration(latency))


def _hardware(
    schedules: Sequence[Schedule], on: str, bandwidth: str, latency: str, transport: str, *, fresh: bool
) -> _Hardware:
    """What prices programs: a cluster of GPUs, or this host after a calibration."""
    if on and on not in ("this-host", "localhost"):
        from windtunnel.systems.collectives.priced import build_graph, read_cluster

        cluster = read_cluster(on)
        return _Hardware(cluster.name, lambda item: build_graph(item, cluster))
    from windtunnel.systems.collectives.host import calibrate_programs
    from windtunnel.systems.collectives.torch_executor import TORCH_TRANSPORTS, make_executor

    link = _link(bandwidth, latency)
    programs = [item.program for item in schedules]
    num_ranks = sum(programs[0].group_sizes)
    if transport in TORCH_TRANSPORTS:
        make_executor(num_ranks, transport, link)
        from windtunnel.systems.collectives.torch_prices import price_stages

        with Progress("measuring stages with PyTorch") as progress:
            return _Hardware(
                f"PyTorch ({transport}), {num_ranks} ranks", price_stages(programs, transport, progress).build_graph
            )
    with Progress("measuring instructions on this host") as progress:
        prices = calibrate_programs(
            programs, transport=transport, link=link, database=database_of(fresh=fresh), progress=progress
        )
    where = f"this host, {num_ranks} processes" + (f", {bandwidth}" if bandwidth else "")
    return _Hardware(where, prices.build_graph)


def _price_document(item: PricedSchedule) -> dict[str, Any]:
    return {**schedule_document(item.schedule), "duration_ns": item.duration_ns}


def _measurement_document(item: MeasuredSchedule) -> dict[str, Any]:
    return {
        **schedule_document(item.schedule),
        "duration_ns": item.duration.value,
        "interval_ns": [item.duration.low, item.duration.high],
        "difference": item.difference,
        "neighbors_ratio": item.neighbors_ratio,
    }


def _price_table(best: Sequence[PricedSchedule], baseline: PricedSchedule) -> Table:
    rows = [
        (item.schedule.label, item.duration_ns, baseline.duration_ns / max(item.duration_ns, 1), item.state_bytes)
        for item in best
    ]
    titles = {"schedule": str, "time per step": format_duration, "speed-up": "{:.2f}x", "state per rank": format_size}
    return Table(titles, rows)


def _write_page(
    title: str, hardware: _Hardware, table: Table, pictured: Sequence[PricedSchedule], path: Path, *, force: bool
) -> None:
    from windtunnel.simulate import replay
    from windtunnel.systems.collectives.page import DrawnSchedule, collectives_page

    pictures = []
    for item in pictured:
        graph = hardware.build(item.schedule.program)
        pictures.append(DrawnSchedule(item.schedule.label, graph, replay(graph)))
    collectives_page(title, table, pictures, path, overwrite=force)
