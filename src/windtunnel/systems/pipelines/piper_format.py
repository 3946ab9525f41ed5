"""Layers with variants, in the JSON form of Piper's public inputs.

In: a file. Out: ``PiperProblem``: for each layer, tensor degree and variant its time, weights and memory, and what
layers send to each other; checked field by field. Not here: planning (``piper``).

Source: Piper (Tarnawski et al., NeurIPS 2021), its released inputs.
"""

# N layers, T tensor degrees, V variants, E edges

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.reading import format_value
from windtunnel.errors import InputError
from windtunnel.search.fields import document_of, ends_of, has_text, number_of, rows_of, unique_ids, whole_of

__all__ = ["PiperProblem", "is_piper", "read_piper"]

Floats = NDArray[np.float64]
_COLUMNS = ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")
_Cells = dict[tuple[int, str], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class PiperProblem:
    """Layers, and the devices that they are planned for.

    Parameters
    ----------
    names : tuple of str
        Name of each layer; several may share one.
    degrees : tuple of int [T]
        On how many devices one layer may be split.
    variants : tuple of str [V]
        Such as ``vanilla`` and ``activation recomp``.
    time_s_NTV : float64 [N, T, V]
        Seconds of one microbatch, forward and backward; infinite where a layer has no such variant.
    weights_NTV : float64 [N, T, V]
        Bytes that replicas synchronize, on each device.
    kept_NTV, fixed_NTV : float64 [N, T, V]
        Bytes per device: the first for every microbatch under way, the second once.
    src, dst : int64 [E]
    sent_E : float64 [E]
        Bytes.
    sync_in_ETV, sync_out_ETV : float64 [E, T, V]
        Bytes that the devices of the reading (of the sending) layer share besides, where the edge crosses stages.
    num_devices : int
    memory_bytes : float
        Memory of a device.
    bandwidth_bytes_per_s : float
    num_microbatches : int
    """

    names: tuple[str, ...]
    degrees: tuple[int, ...]
    variants: tuple[str, ...]
    time_s_NTV: Floats
    weights_NTV: Floats
    kept_NTV: Floats
    fixed_NTV: Floats
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    sent_E: Floats
    sync_in_ETV: Floats
    sync_out_ETV: Floats
    num_devices: int
    memory_bytes: float
    bandwidth_bytes_per_s: float
    num_microbatches: int

    @property
    def num_layers(self) -> int:
        """Number of layers, N."""
        return len(self.names)


def is_piper(path: str | os.PathLike[str]) -> bool:
    """Whether a file is in this form: JSON with variants of layers by tensor degree."""
    return has_text(path, "TMPCs")


def read_piper(
    path: str | os.PathLike[str],
    *,
    num_devices: int | None = None,
    memory_bytes: float | None = None,
    bandwidth_bytes_per_s: float | None = None,
    seconds_per_unit: float = 1.0,
) -> PiperProblem:
    """Read layers with variants; what is given replaces what the file says.

    The form does not say the unit of its times: ``seconds_per_unit`` does.

    Raises
    ------
    InputError
        It is no such file, or a field is missing or of a wrong kind: names file, layer or edge, and field.
    """
    where = os.fspath(path)
    document = document_of(path, "input of Piper")
    nodes, edges = rows_of(document, "nodes", where), rows_of(document, "edges", where)
    if not nodes:
        raise InputError("there are no layers", where=where)
    row_of = {unique_identifier: row for row, unique_identifier in enumerate(unique_ids(nodes, where))}
    src, dst = (ends_of(edges, field, row_of, where) for field in ("sourceId", "destId"))
    if (src == dst).any():
        raise InputError("an edge leads from a layer to itself", where=f"{where}, edge {int((src == dst).argmax())}")
    cells = [_cells(node, f"{where}, node {node['id']}") for node in nodes]
    degrees = sorted({degree for cell in cells for degree, _ in cell})
    variants = tuple(dict.fromkeys(variant for cell in cells for _, variant in cell))
    time, weights, kept, fixed = _columns(cells, degrees, variants)
    sync_in, sync_out = (_sync_times(cells, nodes, degrees, variants, edges, side) for side in ("Fw", "Bw"))
    limit = number_of(document, "maxMemoryPerDevice", where) if memory_bytes is None else memory_bytes
    value = bandwidth_bytes_per_s or number_of(document, "bandwidth", where)
    if not value > 0:
        raise InputError(f"bandwidth is {value:g}", where=where, fix="above zero")
    return PiperProblem(
        tuple(str(node.get("name", node["id"])) for node in nodes),
        tuple(degrees), variants, time * seconds_per_unit, weights, kept, fixed, src, dst,
        np.array([_size(edge, "communicationCost", f"{where}, edge {row}") for row, edge in enumerate(edges)], float),
        sync_in, sync_out,
        _count("maxDevices", whole_of(document, "maxDevices", where) if num_devices is None else num_devices, where),
        limit,
        value,
        _count("mbsInBatch", whole_of(document, "mbsInBatch", where), where),
    )  # fmt: skip


def _cells(node: Mapping[str, Any], where: str) -> _Cells:
    """The variants of one layer by tensor degree and name, their numbers checked."""
    degrees = node.get("TMPCs")
    if not isinstance(degrees, dict) or not degrees:
        raise InputError("there are no TMPCs", where=where, fix="variants by tensor degree")
    result: _Cells = {}
    for text in degrees:
        if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) == int(text):
            raise InputError(f"{format_value(text)} is no tensor degree", where=where, fix="1, 2, 4 ...")
        for variant in rows_of(degrees, text, where):
            name = str(variant.get("id"))
            location = f"{where}, tensor degree {text}, {name}"
            if (int(text), name) in result:
                raise InputError("a layer has two variants of one name", where=location)
            for column in _COLUMNS:
                _size(variant, column, location)
            for side in ("syncTimeFw", "syncTimeBw"):
                shares = variant.get(side, {})
                if not isinstance(shares, dict):
                    raise InputError(
                        f"{side} is {format_value(shares)}", where=location, fix="bytes by neighboring node"
                    )
                for other in shares:
                    _size(shares, other, f"{location}, {side}")
            result[int(text), name] = variant
    return result


def _size(row: Mapping[str, Any], field: str, where: str) -> float:
    value = number_of(row, field, where)
    if not 0 <= value < math.inf:
        raise InputError(f"{field} is {value:g}", where=where, fix="zero or more")
    return value


def _count(field: str, value: int, where: str) -> int:
    if value < 1:
        raise InputError(f"{field} is {value}", where=where, fix="one or more")
    return value


def _columns(cells: Sequence[_Cells], degrees: list[int], variants: tuple[str, ...]) -> list[Floats]:
    """Numbers [N, T, V] each; a missing variant takes for ever."""
    created = np.zeros((len(_COLUMNS), len(cells), len(degrees), len(variants)))
    created[0] = math.inf
    for row, own in enumerate(cells):
        for (degree, variant), numbers in own.items():
            created[:, row, degrees.index(degree), variants.index(variant)] = [
                float(numbers[item]) for item in _COLUMNS
            ]
    return list(created)


def _sync_times(
    cells: Sequence[_Cells],
    nodes: Sequence[Mapping[str, Any]],
    degrees: list[int],
    variants: tuple[str, ...],
    edges: Sequence[Mapping[str, Any]],
    side: str,
) -> Floats:
    """Return the synchronization time of each edge's reader (``Fw``) or sender (``Bw``), [E, T, V]."""
    own, other = ("destId", "sourceId") if side == "Fw" else ("sourceId", "destId")
    of_node = {int(node["id"]): cell for node, cell in zip(nodes, cells, strict=True)}
    created = np.zeros((len(edges), len(degrees), len(variants)))
    for row, edge in enumerate(edges):
        for (degree, variant), numbers in of_node[int(edge[own])].items():
            share = numbers.get(f"syncTime{side}", {}).get(str(int(edge[other])), 0.0)
            created[row, degrees.index(degree), variants.index(variant)] = share
    return created
