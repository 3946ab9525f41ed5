"""Options that the verbs of serving share: the profile, and the slowdown by busy neighbors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.systems.serving.model import Slowdown
    from windtunnel.systems.serving.profile import Profile

__all__ = [
    "FlownPath",
    "JobName",
    "MemoryLimit",
    "NumThreads",
    "ProfilePath",
    "memory_limit",
    "profile_of",
    "slowdown_of",
]

JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="Workload, such as resnet50:size=tiny, or my_model.py:make.")
]
NumThreads = Annotated[
    int, typer.Option(min=0, metavar="N", help="Number of threads of the server; 0: those of the profile.")
]

ProfilePath = Annotated[Path, typer.Argument(metavar="PROFILE", help="Profile written by `serve profile` (CSV).")]
FlownPath = Annotated[
    Path | None,
    typer.Option(
        "--measured",
        metavar="FILE",
        help="Latencies of busy instances written by `serve verify` (CSV), for the slowdown by neighbors.",
    ),
]
MemoryLimit = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Memory limit of all instances together, such as 8GiB.")
]


def memory_limit(text: str) -> float:
    """Return a memory limit in bytes; infinite if the option is empty."""
    from windtunnel.units import parse_size

    return parse_size(text) if text else math.inf


def profile_of(path: Path, flown: Path | None, where: Sequence[str] | None = None) -> Profile:
    """Read a profile, scaled to busy neighbors if a file of concurrent instances is given.

    Raises
    ------
    InputError
        Also where a condition is none.
    """
    from windtunnel.systems.serving.profile import read_profile

    pairs = [item.partition("=") for item in where or ()]
    if not all(sign for _, sign, _ in pairs):
        raise InputError("a condition has the form COLUMN=TEXT", where="--where", fix="such as mode=graph")
    known = read_profile(path, {column: text for column, _, text in pairs})
    slowdown = slowdown_of(known, flown)
    return known if slowdown is None else slowdown.of(known)


def slowdown_of(profile: Profile, flown: Path | None) -> Slowdown | None:
    """Fit the slowdown by busy neighbors to a file of concurrent instances, if there is one."""
    from windtunnel.systems.serving.model import fit_slowdown
    from windtunnel.systems.serving.profile import read_cells

    return None if flown is None else fit_slowdown(profile, [(row.cell, row.latency_ns) for row in read_cells(flown)])
