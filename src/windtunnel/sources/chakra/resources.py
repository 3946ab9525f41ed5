"""The resources of a graph as the text that our own Chakra files begin with, and back.

In: a table of resources. Out: one line of JSON, the same for the same table. Not here: nodes (``writer``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.base.reading import parse_json
from windtunnel.errors import TraceError
from windtunnel.graph import Strings, Table
from windtunnel.graph.schema import RESOURCE_COLUMNS

__all__ = ["encode_resources", "read_resources"]


def encode_resources(resources: Table) -> str:
    """All columns, by name."""
    columns = {name: _plain(resources[name]) for name in sorted(resources)}
    return json.dumps(columns, separators=(",", ":"))


def _plain(column: Any) -> list[Any]:
    values: list[Any] = (column.to_numpy() if isinstance(column, Strings) else column).tolist()
    return values


def read_resources(text: str, path: Path) -> dict[str, Any]:
    """Columns as :meth:`windtunnel.graph.Graph.from_columns` takes them.

    Raises
    ------
    TraceError
        The text is no table of equally long columns.
    """
    where = f"{path}: resources in the first message"
    document: dict[str, Any] = parse_json(text.encode("utf-8", "replace"), where, error=TraceError)
    known = isinstance(document, dict) and all(
        isinstance(values, list) and name in RESOURCE_COLUMNS for name, values in document.items()
    )
    if not known or len({len(values) for values in document.values()}) != 1:
        raise TraceError("the resources are no table", where=where, fix="export it again")
    for name, values in document.items():
        if RESOURCE_COLUMNS[name].dtype is not None and np.array(values, dtype=object).size:
            flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
            widths = {len(value) if isinstance(value, list) else 0 for value in values}
            if len(widths) > 1 or any(isinstance(item, bool) or not isinstance(item, int | float) for item in flat):
                raise TraceError("a column of the resources holds no numbers", where=where, fix="export it again")
    return document
