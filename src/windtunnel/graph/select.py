"""Choose tasks by what they are.

In: a graph and criteria. Out: a mask, bool [T]; masks combine with ``& | ~``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.graph.schema import Kind, Phase, ResourceKind
from windtunnel.graph.table import Strings

if TYPE_CHECKING:
    from windtunnel.graph.graph import Graph

__all__ = ["as_mask", "select"]

Mask = NDArray[np.bool_]


def select(
    graph: Graph,
    *,
    kind: Kind | Iterable[Kind] | None = None,
    phase: Phase | Iterable[Phase] | None = None,
    layer: str | None = None,
    name: str | None = None,
    op: str | None = None,
    resource: int | Iterable[int] | None = None,
    resource_kind: ResourceKind | Iterable[ResourceKind] | None = None,
    rank: int | Iterable[int] | None = None,
    iteration: int | Iterable[int] | None = None,
    where: ArrayLike | Callable[[Graph], ArrayLike] | None = None,
) -> Mask:
    """Mask the tasks for which every given criterion holds.

    Parameters
    ----------
    graph : Graph
    kind, phase, resource, resource_kind, rank, iteration
        One value or several. ``resource_kind`` is that of the resource that a task runs on; an unplaced task has none.
    layer, name, op : str
        Regular expressions that must match the whole text.
    where : bool [T] or callable
        A mask, or a function of the graph that gives one.

    Returns
    -------
    bool [T]. A criterion on a column that the graph lacks matches nothing, except ``rank`` and ``iteration`` 0.

    Raises
    ------
    InputError
        A pattern is no regular expression, or a mask has another length.
    """
    mask = np.ones(graph.num_tasks, dtype=bool)
    for column, requested in (("kind", kind), ("phase", phase), ("resource", resource)):
        mask &= _among(graph, column, requested, absent=False)
    if resource_kind is not None:
        rows = np.flatnonzero(np.isin(graph.resources["kind"], _as_integers(resource_kind)))
        mask &= _among(graph, "resource", rows, absent=False)
    for column, requested in (("rank", rank), ("iteration", iteration)):
        mask &= _among(graph, column, requested, absent=0)
    for column, pattern in (("layer", layer), ("name", name), ("op", op)):
        mask &= _matching(graph, column, pattern)
    if where is not None:
        mask &= as_mask(where(graph) if callable(where) else where, graph.num_tasks)
    return mask


def as_mask(values: ArrayLike, size: int) -> Mask:
    """Read a mask, or row numbers, as a mask of the given size.

    Raises
    ------
    InputError
        The mask has another length, or a row is not there.
    """
    array = np.asarray(values)
    if array.dtype == np.bool_:
        if array.shape != (size,):
            raise InputError(f"a mask of {array.size} rows does not fit {size} rows")
        return array
    rows = array.astype(np.int64).reshape(-1)
    if rows.size and (rows.min() < 0 or rows.max() >= size):
        raise InputError(f"row {int(rows.max() if rows.max() >= size else rows.min())} is not there, of {size}")
    mask = np.zeros(size, dtype=bool)
    mask[rows] = True
    return mask


def _among(graph: Graph, column: str, selection: Any, absent: int | bool) -> Mask:
    if selection is None:
        return np.ones(graph.num_tasks, dtype=bool)
    values = _as_integers(selection)
    if column not in graph.tasks:
        return np.full(graph.num_tasks, absent is not False and absent in values)
    return np.isin(graph.tasks[column], values)


def _as_integers(selection: Any) -> list[int]:
    return [int(value) for value in (selection if isinstance(selection, Iterable) else (selection,))]


def _matching(graph: Graph, column: str, pattern: str | None) -> Mask:
    if pattern is None:
        return np.ones(graph.num_tasks, dtype=bool)
    strings = graph.tasks.get(column)
    try:
        is_wanted_V = _fitting(pattern, strings.values if isinstance(strings, Strings) else ())
    except re.error as error:
        raise InputError(f"{pattern!r} is no regular expression: {error}", where=f"select {column}=") from error
    if not isinstance(strings, Strings) or not len(is_wanted_V):
        return np.zeros(graph.num_tasks, dtype=bool)
    return is_wanted_V[strings.codes]


@functools.lru_cache(maxsize=256)
def _fitting(pattern: str, values: tuple[str, ...]) -> Mask:
    """Which values match; many what-ifs ask the same of the texts that a graph shares with its edits."""
    compiled = re.compile(pattern, re.DOTALL)
    return np.array([compiled.fullmatch(value) is not None for value in values], dtype=bool)
