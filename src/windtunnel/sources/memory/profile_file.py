"""A stored memory profile, checked.

In: a Parquet file that somebody may have changed. Out: its table of events with the columns of a profile, and what it
says beside them. Not here: what a profile answers (``profile``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windtunnel.base.reading import ReadLimit, format_value, parse_json
from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.graph.store import read_parquet

__all__ = ["read_events"]

_LARGEST_BYTES = 2**48
_FIX = "write the profile again with windtunnel memory"


def read_events(
    path: Path, columns: Mapping[str, pa.DataType], categories: Sequence[str], schema: str, limit: ReadLimit
) -> tuple[pa.Table, dict[str, Any]]:
    """Events and meta of the file.

    Raises
    ------
    InputError
        It is no memory profile, or a column of it is missing, of another type, or holds what cannot be.
    SchemaVersionError
        It was written by a version that this one does not know.
    """
    table = read_parquet(path, limit, what="a memory profile", fix=_FIX)
    document = parse_json((table.schema.metadata or {}).get(b"windtunnel", b"{}"), f"{path}: its metadata")
    result = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(result, str) or not result.startswith("windtunnel.memory/"):
        raise InputError(f"{path} is no memory profile", where=str(path), fix=_FIX)
    if result != schema:
        raise SchemaVersionError(f"{path} has the schema {result}", where=str(path), fix=f"this one reads {schema}")
    meta = document.get("meta")
    if not isinstance(meta, dict):
        raise InputError(f"meta of the profile is {format_value(meta)} instead of a mapping", where=str(path), fix=_FIX)
    missing = [name for name in columns if table.column_names.count(name) != 1]
    if missing:
        raise InputError(f"the profile lacks the column {missing[0]!r}, or has two", where=str(path), fix=_FIX)
    arrays = [_cast_column(path, name, table.column(name), kind) for name, kind in columns.items()]
    events = pa.table(arrays, names=list(columns))
    _check(path, events, categories)
    return events, meta


def _cast_column(path: Path, name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_dictionary(kind):
            column = column.cast(pa.string()).dictionary_encode()
        return pa.concat_arrays([pa.array([], kind), *column.cast(kind).unify_dictionaries().chunks])
    except (pa.ArrowException, UnicodeError, TypeError) as error:
        raise InputError(f"column {name!r} holds {column.type}, not {kind}", where=str(path), fix=_FIX) from error


def _check(path: Path, events: pa.Table, categories: Sequence[str]) -> None:
    for name in events.column_names:
        if events.column(name).null_count:
            raise InputError(f"column {name!r} has nulls", where=str(path), fix=_FIX)
    unknown = set(events.column("category").unique().to_pylist()) - set(categories)
    if unknown:
        raise InputError(
            f"there is no category {format_value(min(unknown))}", where=f"{path}: column category", fix=_FIX
        )
    size, time = events.column("size_bytes"), events.column("time_ns")
    if events.num_rows and not (0 <= pc.min(size).as_py() and pc.max(size).as_py() <= _LARGEST_BYTES):
        raise InputError("a size is negative or larger than any memory", where=f"{path}: column size_bytes", fix=_FIX)
    if events.num_rows and not (-(2**62) < pc.min(time).as_py() and pc.max(time).as_py() < 2**62):
        raise InputError("a time is beyond 146 years", where=f"{path}: column time_ns", fix=_FIX)
