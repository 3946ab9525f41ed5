"""Graphs -> Chakra execution traces.

In: a graph. Out: ``.et`` (protobuf) or JSON files, packed or not, one per rank, with the same bytes for the same graph.
Device tasks keep all that waits for them, and the order of their streams. What Chakra has no field for (nanoseconds,
lags, start-to-start edges, resources) is written as attributes that other tools skip. Not here: reading (``reader``).
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.outputs import whole
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import UNPLACED, EdgeKind, Graph, Kind, ResourceKind
from windtunnel.graph.structure import keep_rows
from windtunnel.sources.chakra.fields import (
    COMM_TYPES,
    INTEGERS,
    NODE_TYPE,
    NODE_TYPES,
    RESOURCES,
    WORK,
    kinds,
)
from windtunnel.sources.chakra.resources import encode_resources
from windtunnel.sources.chakra.wire import encode_varints, field_bytes, field_varint, unpack_varints, varint

__all__ = ["SUFFIXES", "paths_of", "save_chakra"]

Ints = NDArray[Any]
SUFFIXES = (".et", ".et.gz", ".json", ".json.gz")
_METADATA, _COMP, _COLL, _SEND, _RECV, _LOAD = (
    NODE_TYPES.index(name) for name in ("METADATA", "COMP", "COMM_COLL", "COMM_SEND", "COMM_RECV", "MEM_LOAD")
)
_INT64, _BOOL, _TEXT, _INT64_LIST = 9, 27, 29, 10
_SCHEMA, _VERSION = "windtunnel", "0.0.4"


def paths_of(graph: Graph, path: str | Path) -> dict[int, Path]:
    """The file of each rank: the path itself where there is one, else ``NAME.RANK.et``.

    Raises
    ------
    InputError
        The name ends in none of ``SUFFIXES``.
    """
    path = Path(path)
    suffix = next((item for item in reversed(SUFFIXES) if path.name.endswith(item)), "")
    if not suffix:
        raise InputError(f"{path.name} is no name of a Chakra trace", fix=f"let it end in {', '.join(SUFFIXES)}")
    ranks = np.unique(graph.tasks["rank"]).tolist() if "rank" in graph.tasks else [0]
    if len(ranks) == 1:
        return {ranks[0]: path}
    return {rank: path.with_name(f"{path.name.removesuffix(suffix)}.{rank}{suffix}") for rank in ranks}


def save_chakra(graph: Graph, path: str | Path) -> list[Path]:
    """Write a graph as Chakra traces, each whole or not at all.

    CONTROL edges become control dependencies, all others data dependencies. Edges between ranks are left out, as Chakra
    matches collectives by group and order, and messages by source, destination and tag; what waits for a task of
    another rank that is no message waits for what that one waited for on the own rank.

    Parameters
    ----------
    graph : Graph
    path : str or Path
        Ends in ``.et`` or ``.json``, with ``.gz`` or without.

    Returns
    -------
    list of Path
        The files that were written, one per rank.

    Raises
    ------
    InputError
        The name has another end, or a file cannot be written.
    NotApplicableError
        Messages share links of a network, which Chakra has no word for.
    """
    if "route" in graph.tasks and (graph.tasks["route"] >= 0).any():
        raise NotApplicableError(
            "messages here share the links of their routes, which a Chakra trace cannot say",
            where="column route",
            fix="keep the graph as NAME.wt",
        )
    targets = paths_of(graph, path)
    for rank, target in targets.items():
        _write(graph if len(targets) == 1 else _of_rank(graph, rank), target)
    return list(targets.values())


def _of_rank(graph: Graph, rank: int) -> Graph:
    """The tasks of one rank, and the resources that they use."""
    src, dst, ranks = graph.edges["src"], graph.edges["dst"], graph.tasks["rank"]
    crosses = ranks[src] != ranks[dst]
    is_hub = np.zeros(graph.num_tasks, dtype=bool)
    is_hub[dst[crosses]] = True
    is_hub &= (graph.tasks["kind"] == Kind.VIRTUAL) & (graph.tasks["resource"] == UNPLACED)
    kept = (ranks == rank) & ~is_hub
    inside = (kept | is_hub)[src] & (kept | is_hub)[dst]
    alone = keep_rows(replace(graph, edges=graph.edges.take(inside)), kept | is_hub)
    alone = alone.remove(is_hub[kept | is_hub])
    used, index = np.unique(alone.tasks["resource"], return_inverse=True)
    placed = used[used != UNPLACED]
    column = np.where(alone.tasks["resource"] == UNPLACED, UNPLACED, index - (len(used) - len(placed)))
    tasks = alone.tasks.replace(resource=column.astype(np.int32))
    return replace(alone, tasks=tasks, resources=graph.resources.take(placed))


def _write(graph: Graph, path: Path) -> None:
    nodes = _nodes(graph)
    about = {"schema": _SCHEMA, RESOURCES: encode_resources(graph.resources)}
    data = _json(nodes, about) if ".json" in path.name else _protobuf(nodes, about)
    with whole(path) as scratch:
        scratch.write_bytes(gzip.compress(data, mtime=0) if path.name.endswith(".gz") else data)


# --- the two forms ------------------------------------------------------------------------------------


def _protobuf(nodes: list[dict[str, Any]], about: dict[str, str]) -> bytes:
    first = field_bytes(1, _VERSION.encode()) + b"".join(
        field_bytes(2, _attribute(name, text)) for name, text in about.items()
    )
    return b"".join(_add_length_prefix(message) for message in (first, *map(_message, nodes)))


def _add_length_prefix(message: bytes) -> bytes:
    return varint(len(message)) + message


def _message(node: dict[str, Any]) -> bytes:
    return b"".join(
        [
            field_varint(1, node["Id"]),
            field_bytes(2, node["Name"].encode("utf-8", "replace")),
            field_varint(3, node["NodeType"]),
            field_bytes(4, node["ctrl"]) if node["ctrl"] else b"",
            field_bytes(5, node["data"]) if node["data"] else b"",
            field_varint(6, node["start_us"]),
            field_varint(7, node["duration_ns"] // 1000),
            *(field_bytes(10, _attribute(name, value)) for name, value in node["attr"].items()),
        ]
    )


def _attribute(name: str, value: bool | int | str | bytes) -> bytes:
    """One attribute; bytes are a list of packed integers. A member of a oneof is written even if it is 0."""
    key = field_bytes(1, name.encode())
    if isinstance(value, bool):
        return key + varint(_BOOL << 3) + varint(int(value))
    if isinstance(value, int):
        return key + varint(_INT64 << 3) + varint(value)
    if isinstance(value, bytes):
        return key + field_bytes(_INT64_LIST, field_bytes(1, value))
    return key + field_bytes(_TEXT, value.encode("utf-8", "replace"))


def _json(nodes: list[dict[str, Any]], about: dict[str, str]) -> bytes:
    rows = [
        {
            "Id": node["Id"],
            "Name": node["Name"].encode("utf-8", "replace").decode(),
            "NodeType": node["NodeType"],
            "runtime": node["duration_ns"] / 1000,
            "is_cpu_op": node["attr"]["is_cpu_op"],
            "data_deps": unpack_varints(node["data"]),
            "ctrlDeps": unpack_varints(node["ctrl"]),
            "attr": {
                name: unpack_varints(value) if isinstance(value, bytes) else value
                for name, value in node["attr"].items()
                if name != "is_cpu_op"
            },
        }
        for node in nodes
    ]
    return json.dumps({"workload_graph": rows, "global_attr": about}, separators=(",", ":")).encode()


# --- nodes --------------------------------------------------------------------------------------------


def _nodes(graph: Graph) -> list[dict[str, Any]]:
    """What each node says; dependencies and lists as packed integers."""
    tasks = graph.tasks
    ids, types, is_cpu = _ids(graph), _types(graph), _runs_on_host(graph)
    ctrl, data = (_pack_dependencies(graph, ids, is_control) for is_control in (True, False))
    names = tasks.strings("name").to_numpy()
    start_us = tasks["start_ns"] // 1000 if "start_ns" in tasks else np.zeros(graph.num_tasks, np.int64)
    parent = tasks.get("parent", np.full(graph.num_tasks, -1))
    nodes = [
        {
            "Id": node,
            "Name": name,
            "NodeType": kind,
            "ctrl": waits or (varint(above) if above >= 0 else b""),
            "data": needs,
            "start_us": max(start, 0),
            "duration_ns": duration_ns,
            "attr": {"is_cpu_op": on_cpu},
        }
        for node, name, kind, waits, needs, above, start, duration_ns, on_cpu in zip(
            ids.tolist(), names, types.tolist(), ctrl, data, parent.tolist(), start_us.tolist(),
            tasks["duration_ns"].tolist(), is_cpu.tolist(), strict=True,
        )
    ]  # fmt: skip
    for name, values in _attributes(graph, types, is_cpu).items():
        for node, value in zip(nodes, values, strict=True):
            if value is not None:
                node["attr"][name] = value
    return nodes


def _ids(graph: Graph) -> Ints:
    """Node ids: those of the trace, if every task still has its own in rising order; else the rows."""
    order = graph.tasks.get("order")
    is_whole = order is not None and len(order) and order[0] >= 0 and (np.diff(order) > 0).all()
    return order if is_whole and order is not None else np.arange(graph.num_tasks, dtype=np.int64)


def _types(graph: Graph) -> Ints:
    """Type of each node: as it was read, else by what the task does."""
    tasks = graph.tasks
    by_kind = {Kind.COMM: _COLL, Kind.COPY: _LOAD, Kind.VIRTUAL: _METADATA}
    types = np.array([by_kind.get(kind, _COMP) for kind in Kind])[tasks["kind"]]
    if "op" in tasks:
        operators, is_comm = tasks.strings("op"), tasks["kind"] == Kind.COMM
        for op, code in (("send", _SEND), ("recv", _RECV)):
            types = np.where(is_comm & operators.where({text: text == op for text in operators.values}), code, types)
    if NODE_TYPE in tasks:
        given = tasks.strings(NODE_TYPE)
        codes = np.array([NODE_TYPES.index(text) if text in NODE_TYPES else 0 for text in given.values])[given.codes]
        types = np.where(codes > 0, codes, types)
    result: Ints = types
    return result


def _runs_on_host(graph: Graph) -> Ints:
    on_thread = graph.select(resource_kind=ResourceKind.HOST_THREAD)
    is_host: Ints = on_thread | ((graph.tasks["kind"] == Kind.HOST) & (graph.tasks["resource"] < 0))
    return is_host


def _edges_by_task(graph: Graph, is_control: bool) -> tuple[Ints, Ints]:
    """Incoming edges of one sort: rows grouped by dst in row order, and where each task's group begins."""
    rows = np.flatnonzero((graph.edges["kind"] == EdgeKind.CONTROL) == is_control)
    dst = graph.edges["dst"][rows]
    rows = rows[np.argsort(dst, kind="stable")]
    return rows, np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=graph.num_tasks))])


def _pack_dependencies(graph: Graph, ids: Ints, is_control: bool) -> list[bytes]:
    rows, indptr = _edges_by_task(graph, is_control)
    return encode_varints(ids[graph.edges["src"][rows]], indptr)


def _attributes(graph: Graph, types: Ints, is_cpu: Ints) -> dict[str, list[Any]]:
    """Attributes by name: one value per task, None where the task lacks it."""
    tasks = graph.tasks
    duration_ns, resource = tasks["duration_ns"], tasks["resource"]
    result: dict[str, list[Any]] = {"duration_ns": _where(duration_ns % 1000 != 0, duration_ns)}
    if "op" in tasks:
        operators = tasks.strings("op")
        codes = np.array([COMM_TYPES.index(op) if op in COMM_TYPES else -1 for op in operators.values])[operators.codes]
        result["comm_type"] = _where((types == _COLL) & (codes >= 0), codes)
    for names, least in ((WORK, 1), (INTEGERS, 0)):
        for attribute, column in names.items():
            values = tasks.get(column)
            values = _derive_attribute(graph, attribute, types) if values is None else values
            if values is not None:
                result[attribute] = _where(values >= least, values)
    if "group" in tasks and graph.meta.groups:
        named = [group.name or None for group in graph.meta.groups]
        result["pg_name"] = [named[task] if task >= 0 else None for task in tasks["group"].tolist()]
    result["kind"] = _where(kinds(types, is_cpu) != tasks["kind"], tasks["kind"])
    result["resource"] = _where(resource != UNPLACED, resource)
    for name in ("earliest_ns", "priority", "is_arrival_join"):
        if name in tasks:
            result[name] = _where(tasks[name] != 0, tasks[name].astype(np.int64))
    return result | {name: _edge_lists(graph, name) for name in ("lag_ns", "from_start") if name in graph.edges}


def _where(mask: Ints, values: Ints) -> list[int | None]:
    return [value if has else None for has, value in zip(mask.tolist(), values.tolist(), strict=True)]


def _derive_attribute(graph: Graph, attribute: str, types: Ints) -> Ints | None:
    """Who sends, who receives, and the number of the stream, where no trace said so; None where nothing does."""
    tasks = graph.tasks
    if attribute in ("comm_src", "comm_dst") and "peer" in tasks and "rank" in tasks:
        other = _RECV if attribute == "comm_src" else _SEND
        is_message = np.isin(types, (_SEND, _RECV)) & (tasks["peer"] >= 0)
        return np.where(is_message, np.where(types == other, tasks["peer"], tasks["rank"]), -1)
    if attribute == "stream":
        ends = [re.search(r"stream (\d{1,9})$", name) for name in graph.resources.strings("name").to_numpy()]
        number = np.array([-1 if end is None else int(end[1]) for end in ends] + [-1])
        streams = np.append(graph.resources["kind"] == ResourceKind.STREAM, False)
        on_stream: Ints = np.where(streams, number, -1)[tasks["resource"]]
        return on_stream if (on_stream >= 0).any() else None
    return None


def _edge_lists(graph: Graph, name: str) -> list[bytes | None]:
    """Lags (or start flags) of each task's edges, data before control, as the reader will meet them."""
    data, control = _edges_by_task(graph, False)[0], _edges_by_task(graph, True)[0]
    rows = np.concatenate([data, control])
    dst = graph.edges["dst"][rows]
    rows = rows[np.argsort(dst, kind="stable")]
    values = graph.edges[name][rows].astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=graph.num_tasks))])
    packed = encode_varints(values, indptr)
    has_any = np.add.reduceat(np.append(values, 0), indptr[:-1]) * (np.diff(indptr) > 0)
    return [packed[row] if has_any[row] else None for row in range(graph.num_tasks)]
