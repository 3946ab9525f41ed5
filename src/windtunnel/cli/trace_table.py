"""``windtunnel explain TRACE --table NAME``: the tables of a trace, printed."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, show
from windtunnel.cli.files import require_there
from windtunnel.errors import InputError
from windtunnel.units import format_duration, format_ratio, parse_size

__all__ = ["show_trace_table"]

# what a terminal has no room for
_HIDDEN = (
    "correlation",
    "non_compute_ratio",
    "mean_ns",
    "median_call_ns",
    *(f"{name}{unit}" for name in ("std", "min", "p25", "p75") for unit in ("", "_ns")),
)
_PER_EVENT = ("launches", "queue-series")
_LONGEST_NAME = 24


def show_trace_table(
    path: Path, name: str, *, top: int, like_hta: bool, read_limit: str, as_json: bool, as_csv: bool
) -> None:
    """Read the trace or the folder of traces, make the table, show it."""
    from windtunnel.sources.kineto.reader import read_tables
    from windtunnel.sources.ranks.reader import ranks_in
    from windtunnel.sources.stored import format_of
    from windtunnel.sources.timeline.tables import TABLES, TableRules

    if name not in TABLES:
        raise InputError(f"there is no table {name!r}", where="--table", fix=f"use one of {', '.join(TABLES)}")
    require_there(path)
    source = format_of(path)
    is_many = path.is_dir() and bool(ranks_in(path, "kineto"))
    if not is_many and (source is None or source.name != "kineto"):
        raise InputError(
            "this table is available for traces only", where=str(path), fix="name a Kineto trace, or a folder of them"
        )
    rules = TableRules(num_kernels=top, like_hta=like_hta)
    limit = parse_size(read_limit) if read_limit else None
    with Progress(f"reading {path.name}", heartbeat=True) as progress:
        tables = read_tables(path, rules=rules, read_limit=limit, progress=progress)
        table = tables.table(name)
    if as_csv and not as_json:
        from pyarrow import csv

        written = io.BytesIO()
        csv.write_csv(table, written)
        sys.stdout.write(written.getvalue().decode())
        return
    rows = table.to_pylist()
    document = {"schema": "windtunnel.table/1", "table": name, "note": tables.note, "rows": rows}
    show(document, _lines(rows, top if name in _PER_EVENT else None, tables.note), as_json=as_json)


def _lines(rows: list[dict[str, Any]], max_rows: int | None, note: str) -> Iterator[str | Table]:
    shown = [column for column in rows[0] if column not in _HIDDEN] if rows else []
    columns = [(_head(name), str if isinstance(rows[0][name], str) else partial(_cell, name)) for name in shown]
    cells = [[_cell(name, row[name]) if name == "name" else row[name] for name in shown] for row in rows[:max_rows]]
    yield Table(columns, cells, wraps="name" if "name" in shown else None)
    if max_rows is not None and len(rows) > max_rows:
        yield f"and {len(rows) - max_rows:,} more rows; --csv and --json print all"
    if note:
        yield note


def _head(column: str) -> str:
    if column.endswith("_ratio"):
        column = f"% {column.removesuffix('_ratio')}"
    return column.removesuffix("_ns").removeprefix("num_").replace("_", " ")


def _cell(column: str, value: Any) -> str:
    from windtunnel.reports.packing import shorten

    if column == "name":
        return shorten(value, _LONGEST_NAME)
    if isinstance(value, float) and math.isnan(value):
        return "-"
    if column.endswith("_ns"):
        return format_duration(value)
    if column.endswith("ratio"):
        return format_ratio(value)
    return f"{value:.2f}" if isinstance(value, float) else f"{value}"
