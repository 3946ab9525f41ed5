"""Chakra nodes between file and graph.

In: bytes of an ``.et`` or a Chakra JSON file. Out: ``Nodes``, columns in id order with dependencies as rows.
Not here: what nodes become in a graph (``chakra.py``).
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from windtunnel.base.reading import ReadLimit, format_value, parse_json, read_decompressed
from windtunnel.errors import TraceError
from windtunnel.sources.chakra.fields import NODE_TYPES
from windtunnel.sources.chakra.wire import PROBLEMS, Scan, first_texts, scan, unpack_varints

__all__ = ["Nodes", "read_head", "read_nodes"]

# N nodes, D dependencies
Ints = NDArray[Any]

_GZIP = b"\x1f\x8b"
_BYTES_PER_JSON_BYTE = 8
_ZIGZAG_FIELDS = (15, 17)
_TEXT_FIELDS = (29, 31)
_LIST_FIELDS = (8, 10, 12, 14, 28)


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """What a Chakra file says, rows in id order.

    ``attrs`` maps a name to {row: value} with int, str or list of int values. Dependencies are pairs (row that waits,
    row waited for); ``parents`` are control dependencies on nodes that the file leaves out: (row, id).
    ``about`` are texts that the file says of itself.
    """

    ids: Ints  # [N]
    names: list[str]
    types: Ints  # [N]
    start_ns: Ints  # [N]
    duration_ns: Ints  # [N]
    data_deps: Ints  # [D, 2]
    ctrl_deps: Ints  # [C, 2]
    parents: Ints  # [P, 2]
    attrs: dict[str, dict[int, Any]]
    dropped: dict[str, int]
    about: dict[str, str]


def read_nodes(path: Path, read_limit: int | None = None) -> Nodes:
    """Read ``.et``, ``.et.gz``, ``.json`` or ``.json.gz``; the content decides, not the name.

    Raises
    ------
    TraceError
        The file is cut (byte), is no Chakra trace, takes more memory than the limit, or a node depends on one that is
        not there.
    """
    limit = ReadLimit(path, read_limit)
    data = read_decompressed(limit)
    if not data:
        raise TraceError("the file is empty", where=str(path), fix="export the trace again")
    if re.match(rb"\s*\{\s*[\"}]", data):
        limit.check(_BYTES_PER_JSON_BYTE * len(data), error=TraceError)
        return _from_json(path, data)
    return _from_scan(path, data, scan(data, lambda counts: limit.check(_memory_of(*counts), error=TraceError)))


def _memory_of(num_nodes: int, num_data: int, num_ctrl: int, num_attrs: int) -> int:
    """Bytes that a graph with these numbers of nodes, dependencies and attributes takes while it is built."""
    return 600 * num_nodes + 100 * (num_data + num_ctrl) + 300 * num_attrs


def read_head(path: Path) -> bytes:
    """The first 4 KiB of a file, packed with gzip or not; nothing if they cannot be read."""
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == _GZIP
        with gzip.open(path) if is_packed else path.open("rb") as file:
            return file.read(4096)
    except (OSError, EOFError, zlib.error):
        return b""


def _from_scan(path: Path, data: bytearray, found: Scan) -> Nodes:
    if found.problem:
        raise TraceError(
            PROBLEMS[found.problem],
            where=f"{path}: byte {found.problem_at:,} of {len(data):,}, after {len(found.node):,} nodes",
            fix="a Chakra .et file is a sequence of length-delimited messages; export or copy it again",
        )
    node = found.node
    names = [data[index : index + size].decode("utf-8", "replace") for index, size in node[:, 4:6].tolist()]
    return _assemble_nodes(
        path, node[:, 0], names, node[:, 1], node[:, 2] * 1000, node[:, 3] * 1000,
        found.data_deps, found.ctrl_deps, _attributes(data, found),
        {"tensor descriptions": found.num_texts} if found.num_texts else {}, first_texts(data),
    )  # fmt: skip


def _attributes(data: bytearray, found: Scan) -> dict[str, dict[int, Any]]:
    attrs: dict[str, dict[int, Any]] = {}
    _, first, group = np.unique(found.attrs[:, 1], return_index=True, return_inverse=True)
    names = [data[index : index + size].decode("utf-8", "replace") for index, size in found.attrs[first, 2:4].tolist()]
    for which, (node, _, _, _, number, value, extent) in zip(
        group.reshape(-1).tolist(), found.attrs.tolist(), strict=True
    ):
        attrs.setdefault(names[which], {})[node] = _value(data, number, value, extent)
    return attrs


def _value(data: bytearray, number: int, value: int, extent: int) -> Any:
    if number in _TEXT_FIELDS:
        return data[value : value + extent].decode("utf-8", "replace") if extent >= 0 else ""
    if number in _LIST_FIELDS and extent >= 0:
        # The integers of a list message: its key, the length as varint, then the packed values.
        inner = data[value : value + extent]
        end_of_length = next((i for i in range(1, len(inner)) if inner[i] < 128), len(inner))
        return unpack_varints(inner[end_of_length + 1 :])
    if number in _ZIGZAG_FIELDS:
        return (value >> 1) ^ -(value & 1)
    return value


class _Row(msgspec.Struct):
    """A node in JSON; what is not wanted is never made."""

    Id: Any
    Name: Any = ""
    NodeType: Any = 0
    runtime: Any = 0
    is_cpu_op: Any = None
    data_deps: Any = None
    ctrlDeps: Any = None
    ctrl_deps: Any = None
    attr: Any = None


class _Document(msgspec.Struct):
    workload_graph: msgspec.Raw = msgspec.Raw()
    nodes: msgspec.Raw = msgspec.Raw()
    global_attr: Any = None


def _from_json(path: Path, data: bytearray) -> Nodes:
    document: _Document = _decode(path, data, _Document)
    if not bytes(document.workload_graph):
        is_torch = bool(bytes(document.nodes))
        raise TraceError(
            "this is a PyTorch execution trace, not a Chakra graph" if is_torch else "there is no workload_graph",
            where=str(path),
            fix="convert it with a Chakra converter, or load the profiler's Kineto trace instead",
        )
    rows: list[_Row] = _decode(path, data, list[_Row], document.workload_graph)
    data_deps = [pair for n, row in enumerate(rows) for pair in _pairs(path, n, "data_deps", row.data_deps)]
    ctrl_deps = [
        pair
        for n, row in enumerate(rows)
        for key, deps in (("ctrlDeps", row.ctrlDeps), ("ctrl_deps", row.ctrl_deps))
        for pair in _pairs(path, n, key, deps)
    ]
    # What a file says of itself, as far as it is text.
    items = document.global_attr.items() if isinstance(document.global_attr, dict) else ()
    return _assemble_nodes(
        path,
        np.array([_whole(path, n, "Id", row.Id) for n, row in enumerate(rows)], np.int64),
        [_text(path, n, row.Name) for n, row in enumerate(rows)],
        np.array([_whole(path, n, "NodeType", row.NodeType) for n, row in enumerate(rows)], np.int64),
        np.zeros(len(rows), np.int64),
        np.array([_nanoseconds(path, n, row.runtime) for n, row in enumerate(rows)], np.int64),
        np.array(data_deps, np.int64).reshape(-1, 2),
        np.array(ctrl_deps, np.int64).reshape(-1, 2),
        _json_attributes(path, rows),
        {},
        {name: text for name, text in items if isinstance(text, str)},
    )


def _json_attributes(path: Path, rows: list[_Row]) -> dict[str, dict[int, Any]]:
    attrs: dict[str, dict[int, Any]] = {
        "is_cpu_op": {n: int(bool(row.is_cpu_op)) for n, row in enumerate(rows) if row.is_cpu_op is not None}
    }
    for n, row in enumerate(rows):
        if not isinstance(row.attr, dict | None):
            raise TraceError(
                f"attr {format_value(row.attr)} is no object", where=f"{path}: node {n}", fix="export it again"
            )
        for name, value in (row.attr or {}).items():
            items = value if isinstance(value, list) else [value]
            if all(isinstance(item, str) or _is_whole(item) for item in items):  # what is neither is of other tools
                attrs.setdefault(name, {})[n] = value
    return attrs


def _decode(path: Path, data: bytearray, kind: Any, part: msgspec.Raw | None = None) -> Any:
    try:
        return msgspec.json.decode(data if part is None else part, type=kind)
    except msgspec.ValidationError as error:
        location = str(error).replace("`$", "`workload_graph")
        raise TraceError(f"there is no workload_graph: {location}", where=str(path), fix="export it again") from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        parse_json(bytes(data), str(path), error=TraceError)  # says the line or the byte
        raise TraceError(f"the JSON is damaged: {error}", where=str(path), fix="export it again") from error


def _pairs(path: Path, n: int, key: str, deps: Any) -> list[tuple[int, int]]:
    """Dependencies of one node as (node, id waited for)."""
    if not isinstance(deps, list | None):
        raise TraceError(f"{key} {format_value(deps)} is not a list", where=f"{path}: node {n}", fix="export it again")
    return [(n, _whole(path, n, "dependency", dep)) for dep in deps or ()]


def _whole(path: Path, n: int, key: str, value: Any) -> int:
    if not _is_whole(value):
        raise TraceError(
            f"{key} {format_value(value)} is not a whole number", where=f"{path}: node {n}", fix="export it again"
        )
    whole: int = value
    return whole


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _text(path: Path, n: int, value: Any) -> str:
    if not isinstance(value, str):
        raise TraceError(f"Name {format_value(value)} is no text", where=f"{path}: node {n}", fix="export it again")
    return value


def _nanoseconds(path: Path, n: int, runtime_us: Any) -> int:
    is_number = isinstance(runtime_us, int | float) and not isinstance(runtime_us, bool)
    if not is_number or not 0 <= runtime_us < 2**50 or math.isnan(runtime_us):
        raise TraceError(
            f"runtime {format_value(runtime_us)} is no time in microseconds",
            where=f"{path}: node {n}",
            fix="export it again",
        )
    nanoseconds: int = round(runtime_us * 1000)
    return nanoseconds


def _assemble_nodes(
    path: Path, ids: Ints, names: list[str], types: Ints, start_ns: Ints, duration_ns: Ints,
    data_deps: Ints, ctrl_deps: Ints, attrs: dict[str, dict[int, Any]], dropped: dict[str, int], about: dict[str, str],
) -> Nodes:  # fmt: skip
    """Sort by id and turn ids into rows."""
    _check(path, ids, names, types, duration_ns)
    order = np.argsort(ids, kind="stable")
    row = np.empty(len(ids), np.int64)
    row[order] = np.arange(len(ids))
    ids = ids[order]
    data_rows, is_known = _rows_of(ids, data_deps)
    if not is_known.all():
        n, missing = data_deps[~is_known][0].tolist()
        raise TraceError(
            f"node {ids[row[n]]} depends on node {missing}, which is not there",
            where=f"{path}: {names[n][:80]!r}; {int((~is_known).sum()):,} such dependencies",
            fix="the trace was cut; export it whole",
        )
    ctrl_rows, is_known = _rows_of(ids, ctrl_deps)
    # a converter keeps the operator that called this one as control dependency, though it dropped the operator: then
    # they describe the call tree and not time
    is_tree = not is_known.all()
    waits = row[ctrl_deps[:, 0]]
    return Nodes(
        ids=ids,
        names=[names[n] for n in order.tolist()],
        types=types[order],
        start_ns=start_ns[order],
        duration_ns=duration_ns[order],
        data_deps=np.stack([row[data_deps[:, 0]], data_rows], axis=1),
        ctrl_deps=np.stack([waits, ctrl_rows], axis=1)[: 0 if is_tree else None],
        parents=np.stack([waits, ctrl_deps[:, 1]], axis=1)[: None if is_tree else 0],
        attrs={name: {int(row[n]): value for n, value in values.items()} for name, values in attrs.items()},
        dropped=dropped,
        about=about,
    )


def _check(path: Path, ids: Ints, names: list[str], types: Ints, duration_ns: Ints) -> None:
    if not len(ids):
        raise TraceError("there are no nodes", where=str(path), fix="export a trace that holds work")
    distinct, count = np.unique(ids, return_counts=True)
    if (count > 1).any():
        raise TraceError(
            f"node id {distinct[count > 1][0]} occurs {count.max()} times",
            where=str(path),
            fix="load one rank per file",
        )
    wrong = (types < 1) | (types >= len(NODE_TYPES))
    if wrong.any():
        n = int(np.flatnonzero(wrong)[0])
        known = ", ".join(f"{code} {name}" for code, name in enumerate(NODE_TYPES) if code)
        raise TraceError(
            f"node {ids[n]} has the unknown type {types[n]}",
            where=f"{path}: {names[n][:80]!r}",
            fix=f"known types: {known}",
        )
    if (duration_ns < 0).any():
        n = int(np.flatnonzero(duration_ns < 0)[0])
        raise TraceError(f"node {ids[n]} has a negative or too long duration", where=f"{path}: {names[n][:80]!r}")


def _rows_of(ids: Ints, deps: Ints) -> tuple[Ints, Ints]:
    """Rows of the nodes waited for, and which of them exist."""
    index = np.minimum(np.searchsorted(ids, deps[:, 1]), len(ids) - 1)
    return index, ids[index] == deps[:, 1]
