"""Placement problems and their answers as JSON: the form of the public NeurIPS 2020 inputs.

In: a file. Out: a ``Problem`` in nanoseconds, checked field by field; and back: devices with the nodes that they hold.
"FPGA" in this form means any accelerator. Not here: what is done with a problem.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.search.fields import document_of, ends_of, has_text, number_of, rows_of, unique_ids, whole_of
from windtunnel.search.placement.model import Problem, cost_of_nodes
from windtunnel.search.work import DeviceType

__all__ = ["ACCELERATOR", "CPU", "is_problem", "read_problem", "split_document"]

ACCELERATOR, CPU = 0, 1
MS = 1e6


def read_problem(
    path: str | os.PathLike[str],
    *,
    num_accelerators: int | None = None,
    num_cpus: int | None = None,
    memory_bytes: float | None = None,
) -> Problem:
    """Read a problem; what is given replaces what the file says.

    Raises
    ------
    InputError
        It is no such file, or a field is missing or of a wrong kind: names file, node or edge, and field.
    """
    where = os.fspath(path)
    document = document_of(path, "placement problem")
    nodes, edges = rows_of(document, "nodes", where), rows_of(document, "edges", where)
    nodes = sorted(nodes, key=lambda node: whole_of(node, "id", f"{where}, a node"))  # the file's order says nothing
    ids = unique_ids(nodes, where)
    row_of = {identifier: row for row, identifier in enumerate(ids)}
    location = [f"{where}, node {identifier}" for identifier in ids]
    names = tuple(str(identifier) for identifier in ids)
    src, dst = (ends_of(edges, field, row_of, where) for field in ("sourceId", "destId"))
    cost_E = np.array([number_of(edge, "cost", f"{where}, edge {row}") for row, edge in enumerate(edges)]) * MS
    supported = [_truth(node, "supportedOnFpga", index) for node, index in zip(nodes, location, strict=True)]
    memory = number_of(document, "maxSizePerFPGA", where) if memory_bytes is None else memory_bytes
    types = (
        DeviceType("accelerator", _count(document, "maxFPGAs", where, num_accelerators), memory),
        DeviceType("cpu", _count(document, "maxCPUs", where, num_cpus), comm_scale=0.0),
    )
    times = [
        [number_of(node, field, index) for field in ("fpgaLatency", "cpuLatency")]
        for node, index in zip(nodes, location, strict=True)
    ]
    # Color of every node; one without a color has its own.
    given = [None if node.get("colorClass") is None else whole_of(node, "colorClass", index)
             for node, index in zip(nodes, location, strict=True)]  # fmt: skip
    known = {color: number for number, color in enumerate(dict.fromkeys(item for item in given if item is not None))}
    own = iter(range(len(known), len(known) + len(nodes)))
    return Problem(
        names,
        types,
        np.array(times).reshape(-1, 2) * MS,
        np.array([number_of(node, "size", index, 0.0) for node, index in zip(nodes, location, strict=True)]),
        np.array([[not item, False] for item in supported]).reshape(-1, 2),
        np.array(
            [_truth(node, "isBackwardNode", index, False) for node, index in zip(nodes, location, strict=True)], bool
        ),
        np.array([next(own) if item is None else known[item] for item in given], np.int64),
        src,
        dst,
        cost_of_nodes(names, src, cost_E / MS, "ms") * MS,
    )


def is_problem(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a placement problem: JSON with nodes and edges, unlike a trace."""
    return has_text(path, "maxFPGAs")


def _count(document: Mapping[str, Any], field: str, where: str, given: int | None) -> int:
    count = whole_of(document, field, where) if given is None else given
    if count < 0:
        raise InputError(f"{field} is {count}", where=where, fix="none or more")
    return count


def _truth(row: Mapping[str, Any], field: str, where: str, default: bool | None = None) -> bool:
    """0, 1, true or false; the text "False" would be true."""
    value = row.get(field, default)
    if value is None or isinstance(value, str) or value not in (0, 1):
        raise InputError(f"{field} is {value!r}", where=where, fix="use true or false")
    return bool(value)


def split_document(problem: Problem, device_N: NDArray[Any], kind_D: NDArray[Any], value_ns: float) -> dict[str, Any]:
    """An answer in the public form, loads and value in milliseconds."""
    loads = problem.loads(device_N, kind_D).total_ns() / MS
    parts: dict[int, list[dict[str, Any]]] = {ACCELERATOR: [], CPU: []}
    for device, kind in enumerate(kind_D.tolist()):
        nodes = [problem.names[row] for row in np.flatnonzero(device_N == device).tolist()]
        ids = [int(name) if name.lstrip("-").isdigit() else name for name in nodes]
        parts[ACCELERATOR if problem.types[kind].comm_scale else CPU].append({"load": loads[device], "nodes": ids})
    return {"maxLoad": value_ns / MS, "fpgas": parts[ACCELERATOR], "cpus": parts[CPU]}
