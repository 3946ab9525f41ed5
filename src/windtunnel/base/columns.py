"""Rows of CSV files with errors that say the line.

In: a path. Out: rows as text, fields as numbers. Not here: what they mean.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from windtunnel.base.reading import ReadLimit, read_decompressed
from windtunnel.errors import InputError

__all__ = ["number", "read_rows", "whole_number"]


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a file of fields with commas, or bars as ``sacct -P`` prints, packed or not, that has these columns.

    Raises
    ------
    InputError
        It cannot be read, has no rows, or lacks a column or a field.
    """
    data = read_decompressed(ReadLimit(path), cost=12, error=InputError)
    try:
        text = data.decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text), delimiter="|" if "|" in text.partition("\n")[0] else ",")
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(
                f"there is no column {missing[0]!r}", where=str(path), fix=f"the file needs {', '.join(columns)}"
            )
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as cause:
        raise InputError(f"this is no CSV file: {cause}", where=str(path), fix="check the file") from cause
    if not rows:
        raise InputError("the file has no rows", where=str(path), fix="give one row per line after the names")
    short = next((line for line, row in enumerate(rows, 2) if None in row or None in row.values()), None)
    if short is not None:
        raise InputError("the line has not as many fields as the file has names", where=f"{path}: line {short}")
    return rows


def number(row: Mapping[str, str], column: str, path: Path, line: int, *, least: float = 0.0) -> float:
    """A field as a finite number.

    Raises
    ------
    InputError
        It is none, or below the least; names line and column.
    """
    try:
        value = float(row[column])
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise InputError(
            f"{row[column]!r} is no number of {least:g} or more", where=f"{path}: line {line}, column {column}"
        )
    return value


def whole_number(row: Mapping[str, str], column: str, path: Path, line: int, *, least: int = 0) -> int:
    """A field as a whole number.

    Raises
    ------
    InputError
        It is none, or below the least; names line and column.
    """
    value = number(row, column, path, line, least=least)
    if value != int(value):
        raise InputError(f"{row[column]!r} is no whole number", where=f"{path}: line {line}, column {column}")
    return int(value)
