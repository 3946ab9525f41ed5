"""The catalog's CSV files as rows of text.

In: the name of a file in this folder. Out: a dictionary per row. Not here: what a row means (``catalog``,
``templates``).
"""

from __future__ import annotations

import csv
from importlib import resources

__all__ = ["rows_of"]


def rows_of(file: str) -> list[dict[str, str]]:
    """Rows of one file, by its header."""
    text = resources.files("windtunnel.hardware").joinpath(file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
