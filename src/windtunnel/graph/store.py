"""Store a graph as a folder of Parquet tables.

In: a graph and a path. Out: ``NAME.wt/`` with ``tasks.parquet``, ``edges.parquet``, ``resources.parquet`` and
``meta.json``, which any Parquet reader opens; and back, column for column. Written beside its place, then
renamed: a graph that is there is whole.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from windtunnel.base.outputs import cannot_write
from windtunnel.base.reading import ReadLimit, format_value, read_json
from windtunnel.errors import GraphError, InputError, SchemaVersionError
from windtunnel.graph.edits import Edit
from windtunnel.graph.graph import Graph
from windtunnel.graph.meta import read_meta
from windtunnel.graph.schema import EDGE_COLUMNS, RESOURCE_COLUMNS, SCHEMA_VERSION, TASK_COLUMNS, Column
from windtunnel.graph.table import Array, Strings, Table, as_read_only

__all__ = ["from_arrow", "load", "read_parquet", "save", "to_arrow"]

_TABLES: dict[str, Mapping[str, Column]] = {
    "tasks": TASK_COLUMNS,
    "edges": EDGE_COLUMNS,
    "resources": RESOURCE_COLUMNS,
}
_AGAIN = "save or capture the graph again"
_BYTES_PER_VALUE = 8


def save(graph: Graph, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the graph to the folder ``path``.

    Raises
    ------
    InputError
        The folder is there already and ``overwrite`` is False, or it is no graph.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise InputError(f"{target} is there already", fix="choose another name, or overwrite it with --force")
    if target.exists() and not (target / "meta.json").exists():
        raise InputError(f"{target} is no stored graph and is not overwritten")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # On the same file system as the target, so that ``replace`` is atomic: a reader finds the old graph or
        # the new one, never a half.
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise cannot_write(target, error) from error
    try:
        _write(graph, scratch)
        scratch.chmod(0o755)
        # Put the finished folder in place; the one that it replaces goes last.
        old = scratch.with_name(scratch.name + ".old")
        if target.exists():
            target.replace(old)
        scratch.replace(target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _write(graph: Graph, folder: Path) -> None:
    for title in _TABLES:
        table = to_arrow(getattr(graph, title))
        pq.write_table(table, folder / f"{title}.parquet", compression="zstd", compression_level=6)
    document = {
        "schema_version": SCHEMA_VERSION,
        "meta": graph.meta.to_dict(),
        "edits": [edit.json() for edit in graph.edits],
    }
    (folder / "meta.json").write_text(json.dumps(document, indent=1, default=_plain), encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise InputError(f"meta cannot hold a {type(value).__name__}", fix="use numbers, text, lists and mappings")


def to_arrow(table: Table) -> pa.Table:
    """The table as Arrow: text dictionary-encoded, two-dimensional columns as fixed-size lists."""
    return pa.table({name: _arrow_column(column) for name, column in table.items()})


def _arrow_column(column: Array | Strings) -> pa.Array:
    if isinstance(column, Strings):
        values = pa.array([_storable(value) for value in column.values], type=pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(column.codes), values)
    if column.ndim == 2:
        flat = pa.array(np.ascontiguousarray(column).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, column.shape[1])
    return pa.array(column)


def _storable(text: str) -> str:
    # a lone surrogate, as invalid UTF-8 gives, cannot be stored; it is written as its escape
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def load(path: str | Path, *, read_limit: int | None = None) -> Graph:
    """Read and validate the graph in the folder ``path``.

    Parameters
    ----------
    path : str or Path
    read_limit : int, optional
        The most bytes of memory that reading may take (`windtunnel.base.reading.ReadLimit`).

    Raises
    ------
    InputError
        The folder is not there, or a table, a column or a field of ``meta.json`` in it is damaged: file, row and field.
    SchemaVersionError
        It was written by a version that this one does not know.
    GraphError
        Its rows break a rule of the graph.
    """
    folder = Path(path)
    limit = ReadLimit(folder, read_limit)
    document = _read_meta(folder, limit)
    where = str(folder / "meta.json")
    edits = _read_edits(document.get("edits", []), where, limit)
    meta = read_meta(document.get("meta", {}), where)
    tables = {title: _read_table(folder / f"{title}.parquet", schema, limit) for title, schema in _TABLES.items()}
    try:
        return Graph(tables["tasks"], tables["edges"], tables["resources"], meta, edits).validate()
    except GraphError as error:
        location = f"{folder}: {error.where}" if error.where else str(folder)
        raise GraphError(error.message, where=location, fix=error.fix or _AGAIN) from error


def _read_meta(folder: Path, limit: ReadLimit) -> dict[str, Any]:
    meta = folder / "meta.json"
    if not meta.is_file():
        raise InputError(
            f"{folder} is no stored graph", where=str(meta), fix="name a folder that capture or save wrote"
        )
    document = read_json(ReadLimit(meta, limit.given_bytes))
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise SchemaVersionError(
            f"schema version {format_value(version)} is not known",
            where=str(meta),
            fix=f"this windtunnel reads version {SCHEMA_VERSION}; update it, or capture again",
        )
    return dict(document)


def _read_edits(edits: Any, where: str, limit: ReadLimit) -> tuple[Edit, ...]:
    if not isinstance(edits, list):
        raise InputError(f"edits is {format_value(edits)} instead of a list", where=f"{where}: edits", fix=_AGAIN)
    result = []
    for number, edit in enumerate(edits):
        try:
            result.append(Edit.from_json(edit, limit=limit))
        except InputError as error:
            raise InputError(error.message, where=f"{where}: edits[{number}]", fix=error.fix) from error
    return tuple(result)


def _read_table(path: Path, schema: Mapping[str, Column], limit: ReadLimit) -> Table:
    table = read_parquet(path, limit)
    try:
        return from_arrow(table, schema)
    except (InputError, GraphError) as error:
        raise InputError(error.message, where=f"{path}{error.where and f': {error.where}'}", fix=_AGAIN) from error


def read_parquet(path: Path, limit: ReadLimit, *, what: str = "a table of a graph", fix: str = _AGAIN) -> pa.Table:
    """A table as the file has it, every value checked to be one of its column's type.

    Parameters
    ----------
    path : Path
    limit : ReadLimit
    what, fix : str
        What the file should be and what to do if it is not, for messages.

    Raises
    ------
    InputError
        The file cannot be read, is damaged, or takes more than the limit.
    """
    try:
        with pq.ParquetFile(path) as file:
            facts = file.metadata
            num_values = facts.num_rows * facts.num_columns
            groups = [facts.row_group(number).total_byte_size for number in range(facts.num_row_groups)]
            # The footer states sizes before anything is unpacked, so that a file that was made to explode is refused.
            limit.check(_BYTES_PER_VALUE * num_values + sum(groups))
            table = file.read()
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeError, OverflowError) as error:
        why = " ".join(str(error).split())[:300]
        raise InputError(f"{path.name} cannot be read as {what}: {why}", where=str(path), fix=fix) from error
    return table


def from_arrow(table: pa.Table, schema: Mapping[str, Column]) -> Table:
    """Read what ``to_arrow`` made.

    Raises
    ------
    InputError
        A column holds nulls, or what no column of a graph can hold.
    GraphError
        A value does not fit its column, or no such column is declared.
    """
    names = table.column_names
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{names.count(twice[0])} columns are called {twice[0]!r}")
    columns = {name: _numpy_column(name, table.column(name)) for name in names}
    for name, column in columns.items():
        if name in schema and schema[name].dtype is None and not isinstance(column, Strings):
            raise InputError(f"column {name!r} holds {column.dtype}, not text")
    return Table.from_columns(columns, schema) if columns else Table({}, table.num_rows)


def _numpy_column(name: str, column: pa.ChunkedArray) -> Array | Strings:
    _refuse_nulls(name, column)
    kind = column.type
    if pa.types.is_dictionary(kind):
        merged = column.unify_dictionaries().combine_chunks()
        array = merged.chunk(0) if isinstance(merged, pa.ChunkedArray) and merged.num_chunks else merged
        if isinstance(array, pa.ChunkedArray):
            return Strings.of([])
        return Strings(as_read_only(_numbers(array.indices).astype(np.int32)), _texts(name, array))
    if pa.types.is_fixed_size_list(kind):
        flat = column.combine_chunks()
        flat = flat.chunk(0) if isinstance(flat, pa.ChunkedArray) and flat.num_chunks else flat
        values = flat.flatten()
        _refuse_nulls(name, values)
        if not _is_number(values.type):
            raise InputError(f"column {name!r} holds lists of {values.type}, not of numbers")
        return _numbers(values).reshape(len(column), kind.list_size)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Strings.of(column.to_pylist())
    if not _is_number(kind):
        raise InputError(f"column {name!r} holds {kind}: a graph has numbers and text")
    return _numbers(
        column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], kind)])
    )


def _numbers(values: pa.Array) -> Array:
    """Numbers without nulls as numpy, not copied; Arrow's own way imports pandas first wherever that is installed."""
    if pa.types.is_boolean(values.type):
        return _numbers(values.cast(pa.uint8())).astype(np.bool_)
    dtype = np.dtype(values.type.to_pandas_dtype())
    if not len(values):
        return np.empty(0, dtype)
    # A view of Arrow's buffer: large graphs are loaded without a second copy of their columns.
    return np.frombuffer(values.buffers()[1], dtype, count=len(values), offset=values.offset * dtype.itemsize)


def _texts(name: str, array: pa.DictionaryArray) -> tuple[str, ...]:
    values = array.dictionary
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise InputError(f"column {name!r} holds a dictionary of {values.type}, not of text")
    _refuse_nulls(name, values)
    return tuple(values.to_pylist())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _refuse_nulls(name: str, values: pa.ChunkedArray | pa.Array) -> None:
    if values.null_count:
        row = (
            values.is_null().to_numpy(zero_copy_only=False).argmax()
            if isinstance(values, pa.Array)
            else (values.is_null().to_numpy().argmax())
        )
        raise InputError(f"column {name!r} has {values.null_count:,} nulls, the first in row {int(row):,}")
