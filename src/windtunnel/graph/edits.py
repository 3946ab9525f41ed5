"""Edits of columns: durations and priorities.

In: a graph and a mask. Out: a new graph with the same rows and edges.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.graph.select import as_mask
from windtunnel.graph.table import Strings

if TYPE_CHECKING:
    from windtunnel.graph.graph import Graph

__all__ = ["prioritize", "scale", "set_duration"]


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
