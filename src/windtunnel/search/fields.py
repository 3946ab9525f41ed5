"""Fields of JSON documents, checked one by one.

In: a file, or an object of it. Out: rows and numbers, or an error that names file, row and field. Not here: what a
document means (``placement.formats``, ``pipelines.piper_format``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.reading import ReadLimit, format_value, read_json
from windtunnel.errors import InputError

__all__ = ["document_of", "ends_of", "has_text", "number_of", "rows_of", "unique_ids", "whole_of"]

_MOST = 1e300  # a sum of such numbers is a number still


def has_text(path: str | os.PathLike[str], *strings: str) -> bool:
    """Whether a file is named as JSON and one of its lines holds each of the texts."""
    source = Path(path)
    if source.suffix != ".json" or not source.is_file():
        return False
    missing = set(strings)
    with source.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            missing = {text for text in missing if text not in line}
            if not missing:
                return True
    return False


def document_of(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The object that a file holds.

    Raises
    ------
    InputError
    """
    document = read_json(ReadLimit(Path(path)))
    if not isinstance(document, dict):
        raise InputError(f"this is no {what}", where=os.fspath(path), fix="an object with nodes and edges")
    return document


def rows_of(document: Mapping[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    """A list of objects.

    Raises
    ------
    InputError
    """
    rows = document.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"there is no list of {name}", where=where)
    return rows


def number_of(row: Mapping[str, Any], field: str, where: str, default: float | None = None) -> float:
    """A number, which may be infinite.

    Raises
    ------
    InputError
    """
    value = row.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or _MOST < abs(value) < math.inf:
        raise InputError(f"{field} is {format_value(value)} instead of a number", where=where)
    return float(value)


def whole_of(row: Mapping[str, Any], field: str, where: str) -> int:
    """A whole number.

    Raises
    ------
    InputError
    """
    value = number_of(row, field, where)
    if not math.isfinite(value) or value != int(value):
        raise InputError(f"{field} is {value} instead of a whole number", where=where)
    return int(value)


def unique_ids(nodes: Sequence[Mapping[str, Any]], where: str) -> list[int]:
    """The ``id`` of every node.

    Raises
    ------
    InputError
        Two are alike.
    """
    ids = [whole_of(node, "id", f"{where}, a node") for node in nodes]
    if len(set(ids)) < len(ids):
        twice = next(identifier for identifier in ids if ids.count(identifier) > 1)
        raise InputError("two nodes have one id", where=f"{where}, id {twice}")
    return ids


def ends_of(edges: Sequence[Mapping[str, Any]], field: str, row_of: Mapping[int, int], where: str) -> NDArray[np.int64]:
    """Rows of the nodes that edges name.

    Raises
    ------
    InputError
    """
    result = []
    for row, edge in enumerate(edges):
        node = whole_of(edge, field, f"{where}, edge {row}")
        if node not in row_of:
            raise InputError(f"{field} is {node}, which is no node", where=f"{where}, edge {row}")
        result.append(row_of[node])
    return np.array(result, np.int64)
