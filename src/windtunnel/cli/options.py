"""Options that several verbs share, each said once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from windtunnel.errors import InputError

__all__ = [
    "AlignChoice",
    "AllowMissing",
    "Force",
    "Fresh",
    "GraphPath",
    "Json",
    "KinetoPath",
    "LedgerPath",
    "MostDownsets",
    "Output",
    "PricesChoice",
    "ReadLimitSize",
    "TimeLimit",
    "numbers",
    "seconds_of",
    "whole_numbers",
]

GraphPath = Annotated[
    Path, typer.Argument(metavar="GRAPH", help="A .wt folder, a Kineto trace (.json, .json.gz), or a folder of them.")
]
KinetoPath = Annotated[
    Path | None,
    typer.Option("--kineto", metavar="TRACE", help="Of an execution trace: the Kineto trace of its run, for times."),
]
AlignChoice = Annotated[
    str,
    typer.Option("--align", metavar="HOW", help="Clocks of traces per rank: auto (by what they did together) or none."),
]
AllowMissing = Annotated[bool, typer.Option("--allow-missing", help="Of traces per rank: join those that are here.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document with raw units.")]
GuessValues = Annotated[
    bool,
    typer.Option(
        "--guess-values", help="Without computing: let the script decide by values that only a real run has; all are 1."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="PATH", help="Where to write; by default named after the input."),
]
LedgerPath = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="FILE", help="Receipts of past flights (~/.windtunnel/receipts.db)."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Measure anew what was measured before; windtunnel db prices lists it.")
]
MostDownsets = Annotated[
    int,
    typer.Option("--most-downsets", min=1, metavar="N", help="Search exactly up to so many; along orders beyond."),
]
PricesChoice = Annotated[
    str,
    typer.Option(
        "--prices", metavar="HOW", help="auto, measured (run what changes here) or paper (ratios as published)."
    ),
]
ReadLimitSize = Annotated[
    str,
    typer.Option(
        "--read-limit", metavar="SIZE", help="Memory that a file may take, such as 8GiB; by default 256 times its size."
    ),
]
TimeLimit = Annotated[
    str,
    typer.Option(
        "--time-limit",
        metavar="TIME",
        help="End captures, predictions and flights after this time in all; by default each flight has 60s.",
    ),
]


def seconds_of(time_limit: str) -> float | None:
    """What ``--time-limit`` says; None where it is not given."""
    from windtunnel.units import parse_duration

    return parse_duration(time_limit) / 1e9 if time_limit else None


def whole_numbers(text: str, option: str, *, least: int = 0) -> list[int]:
    """What an option lists, with commas between.

    Raises
    ------
    InputError
        Something else, or a number below the least.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise InputError(f"{text!r} is no list of whole numbers", where=option, fix=f"write it like {option} 1,2,4")
    return [int(part) for part in parts]


def numbers(text: str, option: str, *, least: float | None = None) -> list[float]:
    """The same with fractions; whole numbers stay whole. Where a least is given, one number must be there.

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
        raise InputError(f"{text!r} is no list of numbers{more}", where=option, fix=f"write it like {option} 0.1,2,4")
    return result
