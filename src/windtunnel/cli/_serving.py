"""What the verbs of serving share: the profile, and what busy neighbors cost (room cli)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from windtunnel.serving.model import Slowdown
    from windtunnel.serving.profile import Profile

__all__ = ["FlownPath", "ProfilePath", "slowdown_of"]

ProfilePath = Annotated[Path, typer.Argument(metavar="PROFILE", help="That serve profile wrote, or one like it.")]
FlownPath = Annotated[
    Path | None,
    typer.Option("--flown", metavar="FILE", help="That serve fly wrote: what busy neighbors cost is taken from it."),
]


def slowdown_of(profile: Profile, flown: Path | None) -> Slowdown | None:
    """What busy neighbors cost, by a file of instances that ran at once, where there is one."""
    from windtunnel.serving.model import fit_slowdown
    from windtunnel.serving.profile import read_cells

    return None if flown is None else fit_slowdown(profile, [(cell, ns) for _, cell, ns in read_cells(flown)])
