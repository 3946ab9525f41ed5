"""Data of the package: measured tensor programs and the predictor that learned from them.

In: nothing. Out: the set, the predictor, and their paths. ``DATASHEET.md`` in the same folder describes how both were
made and how far to trust them. Not here: making them (``windtunnel models sample``, ``models train programs``).
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.systems.tensor_programs.program_set import ProgramSet

if TYPE_CHECKING:
    from windtunnel.systems.tensor_programs.model.predictor import Predictor

__all__ = ["DATA_SHEET", "PREDICTOR", "PROGRAMS", "load_shipped_programs", "predictor_of"]

FOLDER = Path(__file__).parent / "shipped_files"
PROGRAMS, PREDICTOR, DATA_SHEET = FOLDER / "programs.npz", FOLDER / "cdmpp.safetensors", FOLDER / "DATASHEET.md"


@functools.cache
def load_shipped_programs() -> ProgramSet | None:
    """Programs measured on six targets of two CPUs; None where the package was built without them."""
    return ProgramSet.load(PROGRAMS) if PROGRAMS.is_file() else None


def predictor_of(path: str | os.PathLike[str] = "") -> Predictor | None:
    """The predictor of a file, or the shipped one; None where the package was built without it."""
    if not path and not PREDICTOR.is_file():
        return None
    from windtunnel.systems.tensor_programs.model.checkpoint import load_predictor

    return load_predictor(path or PREDICTOR)
