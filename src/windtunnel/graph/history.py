"""Edits remember themselves: printed, stored as JSON, applied again (room graph).

In: a call of an edit primitive. Out: an ``Edit`` at the end of ``graph.edits``. Masks are stored as runs of
rows, so that an edit of a million tasks stays a few numbers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

import numpy as np

from windtunnel.errors import InputError
from windtunnel.graph.table import Array, Strings

if TYPE_CHECKING:
    from windtunnel.graph.graph import Graph

__all__ = ["Edit", "apply_edits", "recorded"]

P = ParamSpec("P")
# what an edit of columns alone may keep from the graph before
_ADJACENCY = ("_successors", "_predecessors", "_order")
_PRIMITIVES: dict[str, Callable[..., Graph]] = {}


@dataclass(frozen=True, slots=True)
class Edit:
    """One recorded edit: the primitive's name and its arguments."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={_shown(value)}" for key, value in self.arguments.items())
        return f"{self.name}({shown})"

    def json(self) -> dict[str, Any]:
        """A document that ``from_json`` reads back."""
        return {
            "edit": self.name,
            "arguments": {key: _encode(value) for key, value in self.arguments.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Edit:
        """Read what ``json`` wrote.

        Raises
        ------
        InputError
            The document is no edit, or names a primitive that does not exist.
        """
        try:
            name = document["edit"]
            arguments = {key: _decode(value) for key, value in document["arguments"].items()}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"this is no recorded edit: {error}", fix="use what Edit.json() returns") from error
        if name not in _PRIMITIVES:
            raise InputError(f"no edit is called {name!r}", fix=f"known: {', '.join(sorted(_PRIMITIVES))}")
        return cls(name, arguments)


def recorded(method: Callable[Concatenate[Graph, P], Graph]) -> Callable[Concatenate[Graph, P], Graph]:
    """Append the call to the edits of the graph that it returns, and remember the graph before."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def wrapper(self: Graph, *args: P.args, **kwargs: P.kwargs) -> Graph:
        bound = signature.bind(self, *args, **kwargs).arguments
        arguments = {key: value for key, value in bound.items() if key != "self"}
        after = method(self, *args, **kwargs)
        after = replace(after, edits=(*self.edits, Edit(method.__name__, arguments)), before=self)
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
        graph = _PRIMITIVES[edit.name](graph, **edit.arguments)
    return graph


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{int(value.sum())} of {value.size}>" if value.dtype == bool else f"<{value.size} values>"
    if isinstance(value, Mapping):
        return f"<{', '.join(value)}>"
    return repr(value)


def _encode(value: Any) -> Any:
    if isinstance(value, Strings):
        return {"strings": value.to_numpy().tolist()}
    if isinstance(value, np.ndarray | np.generic):
        return _encode_array(np.asarray(value))
    if isinstance(value, IntEnum):
        return int(value)
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
    return {"array": array.tolist(), "dtype": str(array.dtype)}


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "mask" in value:
        flips = np.zeros(value["size"] + 1, dtype=np.int8)
        np.add.at(flips, np.array(value["mask"], dtype=np.int64), 1)
        return (np.cumsum(flips)[:-1] % 2).astype(bool)
    if "array" in value:
        return np.array(value["array"], dtype=value["dtype"])
    if "strings" in value:
        return Strings.of(value["strings"])
    if "list" in value:
        return [_decode(item) for item in value["list"]]
    return {key: _decode(item) for key, item in value["mapping"].items()}
