"""``windtunnel pipeline show``: a schedule, checked and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import COLUMNS, advise, show
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json
from windtunnel.errors import InputError
from windtunnel.units import format_duration, format_ratio, parse_duration

if TYPE_CHECKING:
    from windtunnel.systems.pipelines.played import PlayedSchedule
    from windtunnel.systems.pipelines.schedules import Schedule
    from windtunnel.systems.pipelines.timed import StageTimes

__all__ = ["show_schedule"]

_SCHEMA = "windtunnel.pipeline-show/1"
_SHOWN_BATCHES = 3  # the first fills the pipeline, the last drains it


@registry.verb("pipeline show", source="PipeDream-2BW")
def show_schedule(
    schedule: Annotated[
        str,
        typer.Argument(
            metavar="SCHEDULE",
            help="Schedule: gpipe, 1f1b, interleaved, zb-h1, zbv, dualpipe, dualpipev, forward-only, 2bw, "
            "pipedream, or a file that torch.distributed.pipelining loads (.csv).",
        ),
    ],
    ranks: Annotated[int, typer.Option(min=1, metavar="N", help="Named schedule: number of ranks.")] = 4,
    microbatches: Annotated[
        int, typer.Option(min=1, metavar="N", help="Named schedule: number of microbatches per batch.")
    ] = 8,
    batches: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Number of consecutive batches (default: 1, or 3 for a schedule without flushes)."
        ),
    ] = 0,
    chunks: Annotated[
        int, typer.Option(min=0, metavar="N", help="Interleaved schedule: number of stages per rank (default: 2).")
    ] = 0,
    versions: Annotated[str, typer.Option(help="Schedule file: weight versions: flush, 2bw or stash.")] = "flush",
    forward: Annotated[
        str, typer.Option(metavar="TIME", help="Duration of a forward pass; a list has one duration per stage.")
    ] = "1ms",
    backward: Annotated[
        str,
        typer.Option(metavar="TIME", help="Duration of a backward pass, or a list (default: twice the forward pass)."),
    ] = "",
    message: Annotated[str, typer.Option(metavar="TIME", help="Duration of a message between two ranks.")] = "0ms",
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write the schedule in the format of torch.distributed.pipelining."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--html", metavar="HTML", help="Write the schedule as a page.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel pipeline show zbv --ranks 4 --microbatches 8

    Validate a pipeline schedule, draw it, and show the idle time of its ranks.
    """
    from windtunnel.systems.pipelines.page import pipeline_page
    from windtunnel.systems.pipelines.played import play
    from windtunnel.systems.pipelines.schedule_file import write_schedule

    for path in filter(None, (csv, output)):
        require_free(path, force=force)
    table = _table(schedule, ranks, microbatches, batches, chunks, versions)
    played = play(table, _times(forward, backward, message))
    if csv is not None:
        write_schedule(table, csv)
        advise(f"wrote {csv}")
    if output is not None:
        pipeline_page(played, output, overwrite=force)
        advise(f"wrote {output}")
    show({"schema": _SCHEMA, **played.json()}, _lines(played), as_json=as_json)
    if output is None and not as_json:
        advise("next: --html FILE draws it as a page, --csv FILE writes it for torch")


def _table(name: str, ranks: int, microbatches: int, batches: int, chunks: int, versions: str) -> Schedule:
    from windtunnel.systems.pipelines.generate import NEVER_EMPTIED, generate
    from windtunnel.systems.pipelines.schedule_file import read_schedule

    batches = batches or (_SHOWN_BATCHES if name in NEVER_EMPTIED else 1)
    if not name.endswith(".csv"):
        return generate(name, ranks, microbatches, num_batches=batches, num_chunks=chunks or None)
    if versions not in ("flush", "2bw", "stash"):
        raise InputError(f"no rule is called {versions!r}", where="--versions", fix="flush, 2bw or stash")
    return read_schedule(Path(name), num_batches=batches, versions=versions)  # type: ignore[arg-type]


def _times(forward: str, backward: str, message: str) -> StageTimes:
    from windtunnel.systems.pipelines.timed import StageTimes

    forward_ns, message_ns = _durations(forward), _durations(message)
    return StageTimes(
        forward_ns=forward_ns,
        backward_ns=_durations(backward) if backward else [2 * item for item in forward_ns],
        message_ns=message_ns if any(message_ns) else None,
    )


def _durations(text: str) -> list[float]:
    return [float(parse_duration(part)) for part in text.split(",")]


def _lines(played: PlayedSchedule) -> Iterator[str | Table]:
    from windtunnel.systems.pipelines.page import pipeline_lines
    from windtunnel.systems.pipelines.verify import in_flight, weight_versions

    schedule = played.schedule
    yield from pipeline_lines(played, COLUMNS)
    yield ""
    columns = {"rank": "{}", "idle": format_ratio, "passes in flight": "{}", "weight versions": "{}"}
    ranks = range(len(played.idle_ratios))
    yield Table(columns, zip(ranks, played.idle_ratios, in_flight(schedule), weight_versions(schedule), strict=True))
    yield ""
    batches = f"{schedule.num_batches} batches of " if schedule.num_batches > 1 else ""
    yield (
        f"{schedule.name}: {batches}{schedule.num_microbatches} microbatches, {schedule.num_stages} stages, "
        f"{format_duration(played.makespan_ns)}, idle {format_ratio(played.idle_ratio)}"
    )
