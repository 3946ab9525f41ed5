"""Options that several verbs share, each said once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.sources.torch.launch import Ranks

__all__ = [
    "AlignChoice",
    "AllowMissing",
    "Bandwidth",
    "Force",
    "Fresh",
    "GraphPath",
    "HtmlPath",
    "Json",
    "KinetoPath",
    "Latency",
    "LedgerPath",
    "MaxDownsets",
    "NumProcesses",
    "Output",
    "PricesChoice",
    "ReadLimitSize",
    "TimeLimit",
    "numbers",
    "ranks_of",
    "seconds_of",
    "whole_numbers",
]

GraphPath = Annotated[
    Path,
    typer.Argument(
        metavar="GRAPH", help="Stored graph (.wt), Kineto trace (.json, .json.gz), or folder with one trace per rank."
    ),
]
KinetoPath = Annotated[
    Path | None,
    typer.Option(
        "--kineto", metavar="TRACE", help="Kineto trace of the same run, from which an execution trace takes its times."
    ),
]
AlignChoice = Annotated[
    str,
    typer.Option(
        "--align", metavar="HOW", help="Clock alignment of traces per rank: auto (by common collectives) or none."
    ),
]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Accept a folder in which the traces of some ranks are missing.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document with raw units.")]
GuessValues = Annotated[
    bool,
    typer.Option(
        "--guess-values",
        help="Without computing: treat values that only a real run computes as 1 when the script branches on them.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
Output = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="PATH", help="Output path (default: derived from the input)."),
]
HtmlPath = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the result as a page.")]
LedgerPath = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="FILE", help="Ledger of receipts (default: ~/.windtunnel/receipts.db)."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Measure again instead of using saved measurements (listed by `db prices`).")
]
MaxDownsets = Annotated[
    int,
    typer.Option(
        "--max-downsets",
        min=1,
        metavar="N",
        help="Maximum number of downsets to search exactly; larger graphs are split along linear orders.",
    ),
]
PricesChoice = Annotated[
    str,
    typer.Option(
        "--prices",
        metavar="HOW",
        help="Source of operator times: auto, measured (run the changed operators here) or paper (published ratios).",
    ),
]
ReadLimitSize = Annotated[
    str,
    typer.Option(
        "--read-limit",
        metavar="SIZE",
        help="Memory limit for reading a file, such as 8GiB (default: 256 times its size).",
    ),
]
TimeLimit = Annotated[
    str,
    typer.Option(
        "--time-limit",
        metavar="TIME",
        help="Time limit for captures, predictions and flights together (default: 60s per flight).",
    ),
]


def seconds_of(time_limit: str) -> float | None:
    """Return the value of ``--time-limit`` in seconds, None if it is not given."""
    from windtunnel.units import parse_duration

    return parse_duration(time_limit) / 1e9 if time_limit else None


def whole_numbers(text: str, option: str, *, least: int = 0) -> list[int]:
    """Parse a comma-separated list of whole numbers.

    Raises
    ------
    InputError
        Something else, or a number below the least.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise InputError(f"{text!r} is no list of whole numbers", where=option, fix=f"such as {option} 1,2,4")
    return [int(part) for part in parts]


def numbers(text: str, option: str, *, least: float | None = None) -> list[float]:
    """Parse a comma-separated list of numbers; with ``least``, the list must not be empty.

    Raises
    ------
    InputError
        Something else, or a number below the least.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        result = [int(part) if part.isdecimal() else float(part) for part in parts]
    except ValueError:
        result = [math.nan]
    is_wrong = any(not math.isfinite(item) for item in result)
    if is_wrong or (least is not None and (not result or min(result) < least)):
        more = "" if least is None else f" of {least:g} or more"
        raise InputError(f"{text!r} is no list of numbers{more}", where=option, fix=f"such as {option} 0.1,2,4")
    return result


NumProcesses = Annotated[
    int,
    typer.Option("--nproc", min=1, metavar="N", help="Number of processes to launch the script in, as torchrun does."),
]
Bandwidth = Annotated[
    str,
    typer.Option(
        "--bandwidth", metavar="RATE", help="Bandwidth of the emulated link of each process, such as 125MB/s."
    ),
]
Latency = Annotated[
    str, typer.Option("--latency", metavar="TIME", help="One-way latency of the emulated link, such as 100us.")
]


def ranks_of(nproc: int, bandwidth: str, latency: str) -> Ranks:
    """What the options say.

    Raises
    ------
    InputError
        A link for one process, or no rate or time.
    """
    from windtunnel.sources.torch.launch import Ranks
    from windtunnel.units import parse_duration, parse_rate

    if nproc == 1 and (bandwidth or latency):
        raise InputError("--bandwidth and --latency need several processes", fix="add --nproc 2, or leave them out")
    rate = parse_rate(bandwidth) if bandwidth else None
    return Ranks(nproc, rate, parse_duration(latency) if latency else 0)
