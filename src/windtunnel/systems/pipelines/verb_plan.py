"""``windtunnel pipeline plan``: stages, replicas and what is computed again, for devices with little memory.

Three kinds of input: a workload, captured here for processes of this host; a graph, on any device; layers with variants
in Piper's form.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from windtunnel import registry
from windtunnel.base.documents import json_text
from windtunnel.base.outputs import whole
from windtunnel.cli.console import Progress, advise, show, stdout_to_stderr, suggest
from windtunnel.cli.files import derive_path, open_graph, require_free
from windtunnel.cli.options import Force, Json, MaxDownsets, whole_numbers
from windtunnel.errors import InputError
from windtunnel.systems.pipelines.plans_output import lines_of_piper, lines_of_plans, piper_document, table_document
from windtunnel.units import format_duration, format_rate, parse_rate, parse_size

if TYPE_CHECKING:
    from windtunnel.hardware import Fabric
    from windtunnel.search.blocks import Blocks
    from windtunnel.systems.pipelines.replayed import Played
    from windtunnel.systems.pipelines.two_bw import Job, PlanTable

__all__ = ["plan"]

_AGAIN = {"auto": (False, True), "yes": (True,), "no": (False,)}
_SCHEDULES = {"auto": ("2bw", "1f1b"), "2bw": ("2bw",), "1f1b": ("1f1b",), "flush": ("1f1b",)}


class _SearchOptions(NamedTuple):
    """What of the search was asked for."""

    batch: int
    microbatches: list[int]
    memory: str
    schedules: tuple[str, ...]
    widths: list[int]
    depths: list[int]
    again: tuple[bool, ...]
    precision: str
    base: str
    num_replayed: int


@registry.verb("pipeline plan", source="PipeDream-2BW")
def plan(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Workload (mlp:depth=9), captured graph (train.wt), or table of layers in Piper's format (.json).",
        ),
    ],
    devices: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="LIST",
            help="Hardware for a graph, such as 8xh100; otherwise the number of devices.",
        ),
    ] = "",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory per device, such as 16GiB (default: that of the device).")
    ] = "",
    batch: Annotated[int, typer.Option("--batch-size", min=0, metavar="N", help="Global batch size.")] = 0,
    schedule: Annotated[
        str, typer.Option(help="Pipeline schedule: auto, 2bw (no flush) or 1f1b (flush after each batch).")
    ] = "auto",
    microbatches: Annotated[
        str, typer.Option(metavar="LIST", help="Microbatch sizes to try (default: powers of two).")
    ] = "",
    width: Annotated[str, typer.Option(metavar="LIST", help="Data-parallel degrees to try (default: all).")] = "",
    depth: Annotated[str, typer.Option(metavar="LIST", help="Pipeline depths to try (default: all).")] = "",
    recompute: Annotated[str, typer.Option(help="Activation recomputation: auto, yes or no.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="fp32, or mixed (half-precision weights with fp32 master weights).")
    ] = "fp32",
    base: Annotated[
        str,
        typer.Option("--base-memory", metavar="SIZE", help="Memory that a process holds before the model is built."),
    ] = "0B",
    bandwidth: Annotated[
        str,
        typer.Option(
            metavar="RATE", help="Bandwidth between devices (default: 16 GB/s for a graph; measured for a workload)."
        ),
    ] = "",
    network: Annotated[
        str,
        typer.Option(
            "--network-bandwidth", metavar="RATE", help="Bandwidth between servers (default: that of --bandwidth)."
        ),
    ] = "",
    per_server: Annotated[
        int, typer.Option("--devices-per-host", min=1, metavar="N", help="Number of devices per server.")
    ] = 8,
    samples: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Captured graph: number of samples in its step (default: as captured)."),
    ] = 0,
    replay: Annotated[int, typer.Option(min=1, metavar="K", help="Number of best plans to rank by replay.")] = 16,
    time_unit: Annotated[str, typer.Option(metavar="UNIT", help="Unit of times in Piper's format: s, ms or us.")] = "s",
    max_downsets: MaxDownsets = 40_000,
    shows_all: Annotated[bool, typer.Option("--all", help="Show all combinations.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="JSON",
            help="Plan for `pipeline run --plan` (default for a workload: WORKLOAD.plan.json).",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option("--html", metavar="HTML", help="Write all plans as a page.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel pipeline plan mlp:depth=9 --on 2 --memory 2GiB --batch-size 64

    Choose pipeline and data-parallel degree, microbatch size, recomputation, 1F1B or 2BW.
    """
    from windtunnel.search.blocks import cut_evenly
    from windtunnel.systems.pipelines.piper_format import is_piper

    path = Path(target)
    name = Path(target.partition(":")[0].strip())
    is_workload = not (path.exists() or name.suffix)
    if is_workload:
        output = derive_path(name, ".plan.json", output)
    for item in filter(None, (output, report)):
        require_free(item, force=force)
    if is_piper(path):
        _plan_piper(path, devices, memory, bandwidth, time_unit, max_downsets, as_json=as_json)
        return
    if batch < 1:
        raise InputError("the batch size is missing", where="--batch-size", fix="--batch-size 64")
    samples_of, widths, depths = (
        whole_numbers(text, option, least=1)
        for text, option in ((microbatches, "--microbatches"), (width, "--width"), (depth, "--depth"))
    )
    requested = _SearchOptions(
        batch, samples_of, memory, _one_of(schedule, _SCHEDULES, "--schedule"), widths, depths,
        _one_of(recompute, _AGAIN, "--recompute"), precision, base, replay,
    )  # fmt: skip
    with Progress("planning") as progress, stdout_to_stderr():
        if is_workload:
            result = _of_workload(target, devices, requested, progress)
        else:
            links = _links(bandwidth or "16 GB/s", network, per_server)
            result = _of_graph(path, devices, samples, links, requested, progress)
    stages = [
        list(result.blocks.names[first:last]) for first, last in cut_evenly(result.blocks.num_blocks, result.depth)
    ]
    document = {**table_document(result.table, result.played, stages, result.note, batch), **result.runs}
    if output is not None:
        with whole(output) as scratch:
            scratch.write_text(json_text(document, indent=1) + "\n")
    if report is not None:
        from windtunnel.systems.pipelines.plans_page import plans_page

        plans_page(result.table, result.played, report, title=path.stem, note=result.note, overwrite=True)
    lines = lines_of_plans(result.table, result.played, stages, result.note, batch, shows_all=shows_all)
    show(document, lines, as_json=as_json)
    num_feasible = len(result.table.feasible)
    if num_feasible > len(result.played) and not (shows_all or as_json):
        more = num_feasible - len(result.played)
        advise(f"{more} more fit (--all shows them, --replay {num_feasible} replays them)")
    for item in filter(None, (output, report)):
        advise(f"wrote {item}")
    if is_workload:
        suggest("windtunnel", "pipeline", "run", "--plan", output)


class _Found(NamedTuple):
    """Every combination, the best by their replays, the blocks, what is worth knowing, what ``pipeline run`` reads."""

    table: PlanTable
    played: list[Played]
    blocks: Blocks
    note: str
    runs: dict[str, Any]

    @property
    def depth(self) -> int:
        """Stages of the best."""
        return self.played[0].row.depth


def _of_graph(
    path: Path, devices: str, samples: int, links: Fabric, options: _SearchOptions, progress: Progress
) -> _Found:
    """A graph on devices of its own."""
    from windtunnel.search.placement.fleet import fleet_of
    from windtunnel.systems.pipelines.profiles import profiles_of, sizes_of
    from windtunnel.systems.pipelines.replayed import rank_by_replay
    from windtunnel.whatifs.another_batch import batch_of

    graph = open_graph(path, progress=progress, needs_times=False)
    types, chips = fleet_of(f"{devices}xhere" if devices.isdigit() else devices)
    if len(types) != 1:
        raise InputError(f"{len(types)} kinds of devices in one pipeline", where="--on", fix="one kind: 8xh100")
    profiles = profiles_of(
        graph, samples or batch_of(graph), sizes_of(options.batch, options.microbatches), chips[0], progress=progress
    )
    job = _job(types[0].count, types[0].memory_bytes, links, options)
    table = _table(profiles, job, options)
    played = rank_by_replay(table.feasible[: options.num_replayed], profiles, job, progress=progress)
    note = "times of other microbatch sizes are scaled linearly" if chips[0] is None else ""
    return _Found(table, played, next(iter(profiles.values())), note, {})


def _of_workload(target: str, devices: str, options: _SearchOptions, progress: Progress) -> _Found:
    """A workload on processes of this host, which share its cores."""
    import math

    from windtunnel.systems.pipelines.profiles import sizes_of
    from windtunnel.systems.pipelines.training import profiled
    from windtunnel.systems.pipelines.training.plan_file import plan_fields
    from windtunnel.whatifs import parse_step

    if not devices.isdigit() or not int(devices):
        raise InputError(f"--on {devices!r} is no number of processes", where=target, fix="--on 2")
    selected = parse_step(target, kind="workload")
    number = int(devices)
    sizes = sizes_of(options.batch, options.microbatches)
    profiles = profiled.capture_blocks(selected.name, selected.parameters, options.batch, sizes, progress=progress)
    conditions = profiled.conditions_for(selected.name, selected.parameters, profiles, number, options.batch)
    job = _job(number, math.inf, profiled.links_of(conditions, number), options)
    table = _table(profiles, job, options)
    played = profiled.rank_on_host(table.feasible[: options.num_replayed], profiles, conditions, progress=progress)
    note = (
        f"processes share the cores of this host: message latency "
        f"{format_duration(round(conditions.latency_ns))}, bandwidth "
        f"{format_rate(conditions.bandwidth_bytes_per_s)}, slowdown {conditions.slowdown[-1]:.2f}x with all processes"
    )
    runs = plan_fields(profiled.pipeline_of(played[0], profiles, selected.name, selected.parameters, options.batch))
    return _Found(table, played, next(iter(profiles.values())), note, runs)


def _job(number: int, own_bytes: float, links: Fabric, options: _SearchOptions) -> Job:
    from windtunnel.systems.pipelines.two_bw import Job

    if options.precision not in ("fp32", "mixed"):
        raise InputError(f"no precision is called {options.precision!r}", where="--precision", fix="fp32 or mixed")
    limit = float(parse_size(options.memory)) if options.memory else own_bytes
    base = float(parse_size(options.base))
    return Job(number, limit, options.batch, links, options.precision, base)  # type: ignore[arg-type]


def _table(profiles: dict[int, Blocks], job: Job, options: _SearchOptions) -> PlanTable:
    """Every combination; an error where none fits."""
    from windtunnel.systems.pipelines.two_bw import plan_2bw

    table = plan_2bw(
        profiles, job, schedules=options.schedules,  # type: ignore[arg-type]
        widths=options.widths, depths=options.depths, recomputes=options.again,
    )  # fmt: skip
    _ = table.best
    return table


def _links(bandwidth: str, network: str, per_server: int) -> Fabric:
    from windtunnel.hardware import Fabric

    inside, between = parse_rate(bandwidth), parse_rate(network or bandwidth)
    if min(inside, between) <= 0:
        raise InputError("a bandwidth of 0", where="--bandwidth", fix="above 0")
    return Fabric.of_rates(inside, between, per_server)


def _one_of(text: str, known: dict[str, Any], where: str) -> Any:
    if text not in known:
        raise InputError(f"{text!r} is not known", where=where, fix=", ".join(known))
    return known[text]


def _plan_piper(
    path: Path, devices: str, memory: str, bandwidth: str, time_unit: str, max_downsets: int, *, as_json: bool
) -> None:
    from windtunnel.systems.pipelines.piper import equal_stages, plan_piper, require_memory
    from windtunnel.systems.pipelines.piper_format import read_piper

    if devices and not devices.isdigit():
        raise InputError(f"--on {devices!r} is no number", where=str(path), fix="--on 8")
    seconds = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    with Progress("planning") as progress:
        problem = read_piper(
            path,
            num_devices=int(devices) if devices else None,
            memory_bytes=float(parse_size(memory)) if memory else None,
            bandwidth_bytes_per_s=parse_rate(bandwidth) if bandwidth else None,
            seconds_per_unit=_one_of(time_unit, seconds, "--time-unit"),
        )
        result = plan_piper(problem, cap=max_downsets, progress=progress)
        equal = equal_stages(problem)
    if result is None:
        require_memory(problem)
    else:
        show(piper_document(problem, result, equal), lines_of_piper(problem, result, equal), as_json=as_json)
