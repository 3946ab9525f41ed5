"""Edits of columns, and the memory of all edits: printed, stored as JSON, applied again, undone.

In: a graph and a mask. Out: a new graph with the same rows and edges, with an ``Edit`` at the end of ``graph.edits``.
A graph keeps the graph that its edits began with and no other: to undo is to apply all edits but the last. Masks are
stored as runs of rows, so that an edit of a million tasks stays a few numbers.
"""

from __future__ import annotations

import base64
import functools
import inspect
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.reading import ReadLimit, format_value
from windtunnel.errors import GraphError, InputError
from windtunnel.graph.meta import ProcessGroup
from windtunnel.graph.select import as_mask
from windtunnel.graph.table import Array, Strings

if TYPE_CHECKING:
    from windtunnel.graph.graph import Graph

__all__ = ["Edit", "apply_edits", "as_one_edit", "prioritize", "record_edit", "scale", "set_duration", "undone"]

P = ParamSpec("P")
# what an edit of columns alone may keep from the graph before
_ADJACENCY = ("_successors", "_predecessors", "_order")
_WIDEST = 1 << 16  # bytes of one value
_WRITTEN_OUT = 64  # longer arrays are stored compressed, not number by number
_PRIMITIVES: dict[str, Callable[..., Graph]] = {}
# what numpy, zlib and base64 say of a document that is no edit
_DAMAGE = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError, zlib.error)


def scale(graph: Graph, mask: ArrayLike, factor: ArrayLike) -> Graph:
    """Multiply durations, their spread and their samples, rounding to whole nanoseconds.

    Parameters
    ----------
    graph : Graph
    mask : bool [T]
    factor : float or float [selected]
        At least 0, finite.

    Raises
    ------
    InputError
        A factor is negative or not finite, or there are more or fewer factors than masked tasks.
    """
    selected = as_mask(mask, graph.num_tasks)
    factors = _factors(factor, int(selected.sum()))
    columns = {
        name: _scale_column(graph.tasks[name], selected, factors)
        for name in ("duration_ns", "duration_std_ns", "samples_ns")
        if name in graph.tasks
    }
    return replace(graph, tasks=graph.tasks.replace(**columns))


def _factors(factor: ArrayLike, count: int) -> NDArray[np.float64]:
    factors = np.asarray(factor, dtype=np.float64)
    if not np.isfinite(factors).all() or (factors < 0).any():
        raise InputError(
            "a duration cannot be scaled by a negative or infinite factor", fix="use a factor of 0 or more"
        )
    if factors.ndim and factors.shape != (count,):
        raise InputError(f"{factors.size} factors for {count} masked tasks", fix="give one factor, or one per task")
    return factors


def _scale_column(column: NDArray[Any], mask: NDArray[np.bool_], factors: NDArray[np.float64]) -> NDArray[Any]:
    scaled = column.copy()
    per_task = factors if factors.ndim == 0 or column.ndim == 1 else factors[:, None]
    scaled[mask] = _times(column[mask], per_task)
    return scaled


def _times(values: NDArray[Any], factors: NDArray[np.float64]) -> NDArray[Any]:
    # a whole factor keeps integers exact beyond 2**53 ns
    if (factors == np.floor(factors)).all():
        product: NDArray[Any] = values * factors.astype(np.int64)
        return product
    return np.rint(values * factors).astype(np.int64)


def set_duration(graph: Graph, mask: ArrayLike, duration_ns: ArrayLike, cost_source: str | None = None) -> Graph:
    """Set durations; samples and spread scale with them where the old duration was positive.

    Parameters
    ----------
    graph : Graph
    mask : bool [T]
    duration_ns : int or int [selected]
    cost_source : str, optional
        Who set them, for the column of that name.

    Raises
    ------
    InputError
        A duration is negative or not finite.
    """
    selected = as_mask(mask, graph.num_tasks)
    requested = np.broadcast_to(np.asarray(duration_ns, dtype=np.float64), (int(selected.sum()),))
    if not np.isfinite(requested).all() or (requested < 0).any():
        raise InputError("a duration must be a finite number of nanoseconds, 0 or more")
    old = graph.duration_ns[selected]
    ratio = np.divide(requested, old, out=np.zeros(len(requested)), where=old > 0)
    columns: dict[str, Any] = {
        name: _scale_column(graph.tasks[name], selected, ratio)
        for name in ("duration_std_ns", "samples_ns")
        if name in graph.tasks
    }
    if "samples_ns" in columns:
        born = np.flatnonzero(selected)[old == 0]
        columns["samples_ns"][born] = np.rint(requested[old == 0]).astype(np.int64)[:, None]
    columns["duration_ns"] = graph.duration_ns.copy()
    columns["duration_ns"][selected] = np.rint(np.asarray(duration_ns)).astype(np.int64)
    if cost_source is not None:
        sources = graph.tasks.get("cost_source", Strings.repeat("", graph.num_tasks))
        columns["cost_source"] = sources.assign(selected, cost_source)
    return replace(graph, tasks=graph.tasks.replace(**columns))


def prioritize(graph: Graph, mask: ArrayLike, priority: ArrayLike) -> Graph:
    """Set the priority of the masked tasks: smaller runs first; tasks without one have 0.

    Parameters
    ----------
    graph : Graph
    mask : bool [T]
    priority : int or int [selected]
    """
    selected = as_mask(mask, graph.num_tasks)
    old = graph.tasks.get("priority")
    column = np.zeros(graph.num_tasks, dtype=np.int32) if old is None else old.copy()
    column[selected] = np.asarray(priority, dtype=np.int32)
    return replace(graph, tasks=graph.tasks.replace(priority=column))


@dataclass(frozen=True, slots=True)
class Edit:
    """One recorded edit: a primitive with its arguments, or a change of another name made of several.

    Parameters
    ----------
    name : str
        Of the primitive, or of the change that ``steps`` make.
    arguments : mapping
    steps : tuple of Edit
        Empty for a primitive.
    """

    name: str
    arguments: Mapping[str, Any]
    steps: tuple[Edit, ...] = ()

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={_format_argument(value)}" for key, value in self.arguments.items())
        return f"{self.name}({arguments})"

    def json(self) -> dict[str, Any]:
        """A document that ``from_json`` reads back."""
        document: dict[str, Any] = {
            "edit": self.name,
            "arguments": {key: _encode(value) for key, value in self.arguments.items()},
        }
        return document | ({"steps": [step.json() for step in self.steps]} if self.steps else {})

    @classmethod
    def from_json(cls, document: Mapping[str, Any], *, limit: ReadLimit | None = None) -> Edit:
        """Read what ``json`` wrote.

        Parameters
        ----------
        document : mapping
        limit : ReadLimit, optional
            How much its arrays may take; anything by default.

        Raises
        ------
        InputError
            The document is no edit, names a primitive that does not exist or arguments that it has not, or its arrays
            take more than the limit.
        """
        limit = limit or ReadLimit(Path(), sys.maxsize)
        try:
            name = document["edit"]
            arguments = {key: _decode(value, limit) for key, value in document["arguments"].items()}
            steps = tuple(cls.from_json(step, limit=limit) for step in document.get("steps", ()))
            if name in _PRIMITIVES and not steps:
                inspect.signature(_PRIMITIVES[name]).bind(None, **arguments)
        except InputError:
            raise
        except _DAMAGE as error:
            raise InputError(
                f"this is no recorded edit: {error!r}"[:300], fix="use what Edit.json() returns"
            ) from error
        if not isinstance(name, str) or (name not in _PRIMITIVES and not steps):
            raise InputError(f"no edit is called {format_value(name)}", fix=f"known: {', '.join(sorted(_PRIMITIVES))}")
        return cls(name, arguments, steps)


def record_edit(method: Callable[Concatenate[Graph, P], Graph]) -> Callable[Concatenate[Graph, P], Graph]:
    """Append the call to the edits of the graph that it returns."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def wrapper(self: Graph, *args: P.args, **kwargs: P.kwargs) -> Graph:
        bound = signature.bind(self, *args, **kwargs).arguments
        arguments = {key: value for key, value in bound.items() if key != "self"}
        after = method(self, *args, **kwargs)
        edits = (*self.edits, Edit(method.__name__, arguments))
        after = replace(after, edits=edits, root=self if self.root is None else self.root)
        if after.edges is self.edges and after.num_tasks == self.num_tasks:
            after.__dict__.update({key: self.__dict__[key] for key in _ADJACENCY if key in self.__dict__})
        return after

    _PRIMITIVES[method.__name__] = wrapper
    return cast(Callable[Concatenate["Graph", P], "Graph"], wrapper)


def apply_edits(graph: Graph, edits: Iterable[Edit]) -> Graph:
    """Do recorded edits again, on the graph that they were recorded from.

    Raises
    ------
    GraphError
        An edit does not fit this graph (other rows than it was recorded with).
    """
    for edit in edits:
        if edit.steps:
            graph = as_one_edit(apply_edits(graph, edit.steps), graph, edit.name, edit.arguments)
        else:
            graph = _PRIMITIVES[edit.name](graph, **edit.arguments)
    return graph


def as_one_edit(graph: Graph, base: Graph, name: str, arguments: Mapping[str, Any]) -> Graph:
    """The graph with what was done since ``base`` recorded as one edit; as it is where nothing was done.

    Raises
    ------
    GraphError
        The graph does not come from ``base`` by recorded edits.
    """
    count = len(base.edits)
    root = base if base.root is None else base.root
    if graph is base:
        return graph
    if graph.root is not root or any(edit is not other for edit, other in zip(base.edits, graph.edits, strict=False)):
        raise GraphError(f"{name} did not edit the graph that it was given", fix="use the edit primitives of the graph")
    return replace(graph, edits=(*base.edits, Edit(name, arguments, graph.edits[count:])))


def undone(graph: Graph) -> Graph:
    """The graph before its last edit, by applying all edits but that one.

    Raises
    ------
    GraphError
        There is no edit to undo.
    """
    if graph.root is None:
        raise GraphError("there is no edit to undo", fix="apply the recorded edits to the captured graph instead")
    return apply_edits(graph.root, graph.edits[len(graph.root.edits) : -1])


def _format_argument(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{int(value.sum())} of {value.size}>" if value.dtype == bool else f"<{value.size} values>"
    if isinstance(value, Mapping):
        return f"<{', '.join(value)}>"
    return repr(value)


def _encode(value: Any) -> Any:
    if isinstance(value, Strings):
        used = value.compact()
        return {"strings": list(used.values), "codes": _encode_array(used.codes)}
    if isinstance(value, np.ndarray | np.generic):
        return _encode_array(np.asarray(value))
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, ProcessGroup):
        return _encode({"name": value.name, "ranks": value.ranks, "told": value.members_text})
    if isinstance(value, Mapping):
        return {"mapping": {key: _encode(item) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [_encode(item) for item in value]}
    return value


def _encode_array(array: Array) -> Any:
    if array.ndim == 0:
        return array.item()
    if array.dtype == np.bool_ and array.ndim == 1:
        # run starts and ends: where the mask, padded with False, changes
        runs = np.flatnonzero(np.diff(np.concatenate([[False], array, [False]]).astype(np.int8)))
        return {"mask": runs.tolist(), "size": int(array.size)}
    if array.size > _WRITTEN_OUT and array.dtype != object:
        packed = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), level=1)).decode("ascii")
        return {"packed": packed, "dtype": str(array.dtype), "shape": list(array.shape)}
    return {"array": array.tolist(), "dtype": str(array.dtype)}


def _decode(value: Any, limit: ReadLimit) -> Any:
    if not isinstance(value, dict):
        return value
    if "mask" in value:
        limit.check(2 * value["size"])
        flips = np.zeros(value["size"] + 1, dtype=np.int8)
        np.add.at(flips, np.array(value["mask"], dtype=np.int64), 1)
        return (np.cumsum(flips)[:-1] % 2).astype(bool)
    if "array" in value:
        return np.array(value["array"], dtype=_plain(value["dtype"]))
    if "packed" in value:
        return _unpack_array(value, limit)
    if "strings" in value:
        codes = _decode(value["codes"], limit)
        if len(codes) and not (0 <= codes.min() and codes.max() < len(value["strings"])):
            raise ValueError("codes of strings that are not there")
        return Strings(codes.astype(np.int32), tuple(map(str, value["strings"])))
    if "list" in value:
        return [_decode(item, limit) for item in value["list"]]
    return {key: _decode(item, limit) for key, item in value["mapping"].items()}


def _plain(name: Any) -> np.dtype[Any]:
    """The type of an array that was stored: numbers, or text as it was written out."""
    result: np.dtype[Any] = np.dtype(name)
    if result.kind not in "biufUO" or result.itemsize > _WIDEST:
        raise ValueError(f"an array of {result}")
    return result


def _unpack_array(value: Mapping[str, Any], limit: ReadLimit) -> Array:
    dtype = _plain(value["dtype"])
    num_bytes = math.prod(value["shape"]) * dtype.itemsize
    limit.check(2 * num_bytes)
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(value["packed"]), num_bytes + 1)
    return np.frombuffer(data, dtype=dtype).reshape(value["shape"])
