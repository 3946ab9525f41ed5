"""Store a graph as a folder of Parquet tables (room graph).

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

from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.graph.graph import Graph
from windtunnel.graph.history import Edit
from windtunnel.graph.meta import Meta
from windtunnel.graph.schema import EDGE_COLUMNS, RESOURCE_COLUMNS, SCHEMA_VERSION, TASK_COLUMNS, Column
from windtunnel.graph.table import Array, Strings, Table, frozen
from windtunnel.outputs import cannot_write

__all__ = ["from_arrow", "load", "save", "to_arrow"]

_TABLES: dict[str, Mapping[str, Column]] = {
    "tasks": TASK_COLUMNS,
    "edges": EDGE_COLUMNS,
    "resources": RESOURCE_COLUMNS,
}


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
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise cannot_write(target, error) from error
    try:
        _write(graph, scratch)
        scratch.chmod(0o755)
        _swap(scratch, target)
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


def _swap(scratch: Path, target: Path) -> None:
    """Put the finished folder in place; the one that it replaces goes last."""
    old = scratch.with_name(scratch.name + ".old")
    if target.exists():
        target.replace(old)
    scratch.replace(target)
    shutil.rmtree(old, ignore_errors=True)


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


def load(path: str | Path) -> Graph:
    """Read and validate the graph in the folder ``path``.

    Raises
    ------
    InputError
        The folder is not there, or a table or column in it is damaged.
    SchemaVersionError
        It was written by a version that this one does not know.
    GraphError
        Its rows break a rule of the graph.
    """
    folder = Path(path)
    document = _read_meta(folder)
    tables = {title: _read_table(folder / f"{title}.parquet", schema) for title, schema in _TABLES.items()}
    edits = tuple(Edit.from_json(edit) for edit in document.get("edits", []))
    meta = Meta.of(document.get("meta", {}))
    return Graph(tables["tasks"], tables["edges"], tables["resources"], meta, edits).validate()


def _read_meta(folder: Path) -> dict[str, Any]:
    meta = folder / "meta.json"
    if not meta.is_file():
        raise InputError(
            f"{folder} is no stored graph", where=str(meta), fix="name a folder that capture or save wrote"
        )
    try:
        document = json.loads(meta.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"meta.json cannot be read: {error}", where=str(meta)) from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise SchemaVersionError(
            f"schema version {version} is not known",
            where=str(meta),
            fix=f"this windtunnel reads version {SCHEMA_VERSION}; update it, or capture again",
        )
    return dict(document)


def _read_table(path: Path, schema: Mapping[str, Column]) -> Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path.name} cannot be read: {error}", where=str(path)) from error
    return from_arrow(table, schema)


def from_arrow(table: pa.Table, schema: Mapping[str, Column]) -> Table:
    """Read what ``to_arrow`` made."""
    columns = {name: _numpy_column(table.column(name)) for name in table.column_names}
    return Table.typed(columns, schema) if columns else Table({}, table.num_rows)


def _numpy_column(column: pa.ChunkedArray) -> Array | Strings:
    if pa.types.is_dictionary(column.type):
        merged = column.unify_dictionaries().combine_chunks()
        array = merged.chunk(0) if isinstance(merged, pa.ChunkedArray) and merged.num_chunks else merged
        if isinstance(array, pa.ChunkedArray):
            return Strings.of([])
        codes = array.indices.to_numpy(zero_copy_only=False).astype(np.int32)
        return Strings(frozen(codes), tuple(array.dictionary.to_pylist()))
    if pa.types.is_fixed_size_list(column.type):
        flat = column.combine_chunks()
        flat = flat.chunk(0) if isinstance(flat, pa.ChunkedArray) and flat.num_chunks else flat
        values = flat.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(column), column.type.list_size)  # type: ignore[no-any-return]
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return Strings.of(column.to_pylist())
    return column.to_numpy()  # type: ignore[no-any-return]
