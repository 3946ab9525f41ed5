"""Edits of edges: remove and reconnect, move between resources, connect and disconnect.

In: a graph and a mask. Out: a new graph whose untouched dependencies are all still there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from windtunnel.errors import GraphError, InputError
from windtunnel.graph.schema import EDGE_COLUMNS, UNPLACED, EdgeKind
from windtunnel.graph.select import as_mask
from windtunnel.graph.table import Table
from windtunnel.graph.topology import bridge

if TYPE_CHECKING:
    from windtunnel.graph.graph import Graph

__all__ = ["connect", "disconnect", "keep_rows", "move", "remove", "set_lag", "unorder"]

Mask = NDArray[np.bool_]


def remove(graph: Graph, mask: ArrayLike, keep_gaps: bool = True) -> Graph:
    """Take tasks out; every predecessor then leads to every successor with the lags of the longest path between.

    The others start exactly as if the removed tasks took no time and no resource; the lag behind a removed task that
    nothing precedes goes with it. Memory passes along paths of DATA edges only: what a removed task read is not held
    for those that only waited for it.

    Parameters
    ----------
    graph : Graph
    mask : bool [T]
    keep_gaps : bool
        False drops the lags of ORDER edges into removed tasks: the host time that led up to them goes with them.
    """
    removed = as_mask(mask, graph.num_tasks)
    if not removed.any():
        return graph
    edges = graph.edges
    # Gaps in front of removed tasks were theirs (a pause of a thread, say); they are not handed on.
    if not keep_gaps:
        led_up = removed[edges["dst"]] & (edges["kind"] == EdgeKind.ORDER)
        edges = edges.replace(lag_ns=np.where(led_up, 0, lags(edges)))
    bridged = _bridge_removed_tasks(graph, edges, removed)
    untouched = ~(removed[edges["src"]] | removed[edges["dst"]])
    joined = edges.take(untouched).concat(bridged, EDGE_COLUMNS)
    return keep_rows(replace(graph, edges=joined), ~removed)


def _bridge_removed_tasks(graph: Graph, edges: Table, removed: Mask) -> Table:
    paths = bridge(
        graph.topological_order(),
        edges["src"],
        edges["dst"],
        lags(edges),
        starts(edges),
        edges["kind"],
        removed,
        int(EdgeKind.ORDER),
        int(EdgeKind.DATA),
        int(EdgeKind.CONTROL),
    )
    paths = paths[~removed[paths["target"]]]
    columns = {"src": "origin", "dst": "target", "kind": "kind", "lag_ns": "delay", "from_start": "from_start"}
    return Table.from_columns(
        {name: np.ascontiguousarray(paths[field]) for name, field in columns.items()}, EDGE_COLUMNS
    )


def keep_rows(graph: Graph, keep: Mask) -> Graph:
    """Drop the other task rows and renumber the edges, which may not touch them."""
    # New number of each kept row: how many kept rows lie before it.
    number = np.cumsum(keep, dtype=np.int32) - np.int32(1)
    edges = graph.edges.replace(src=number[graph.edges["src"]], dst=number[graph.edges["dst"]])
    return replace(graph, tasks=graph.tasks.take(keep), edges=edges)


def lags(edges: Table) -> NDArray[np.int64]:
    """The lag of every edge, int64 [E]; 0 where the column is absent."""
    column: NDArray[np.int64] | None = edges.get("lag_ns")
    return _read_only_zeros(edges, np.int64) if column is None else column


def starts(edges: Table) -> Mask:
    """Whether each edge waits for the start of its predecessor, bool [E]."""
    column: Mask | None = edges.get("from_start")
    return _read_only_zeros(edges, np.bool_) if column is None else column


def _read_only_zeros(edges: Table, dtype: DTypeLike) -> NDArray[Any]:
    """Return zeros that are read-only as columns are: numba compiles a function again for arrays that are not."""
    zeros = np.zeros(edges.num_rows, dtype)
    zeros.flags.writeable = False
    return zeros


def move(graph: Graph, mask: ArrayLike, resource: ArrayLike | None = None) -> Graph:
    """Run tasks on other resources.

    Moved tasks leave their program order: their ORDER edges go, and the chain that they leave is closed
    (with the lags that it had). What they need and feed stays.

    Parameters
    ----------
    graph : Graph
    mask : bool [T], or the whole resource column int [T] if ``resource`` is not given
    resource : int or int [selected], optional

    Raises
    ------
    InputError
        A resource that does not exist.
    """
    column = graph.tasks["resource"].copy()
    if resource is None:
        column[:] = np.asarray(mask, dtype=np.int32)
    else:
        column[as_mask(mask, graph.num_tasks)] = np.asarray(resource, dtype=np.int32)
    if column.size and (column.min() < UNPLACED or column.max() >= graph.num_resources):
        raise InputError(f"resource {int(column.max())} does not exist, there are {graph.num_resources}")
    moved = column != graph.tasks["resource"]
    edges = _leave_order(graph, moved)
    return replace(graph, tasks=graph.tasks.replace(resource=column), edges=edges)


def _leave_order(graph: Graph, moved: Mask) -> Table:
    is_order = graph.edges["kind"] == EdgeKind.ORDER
    touched = is_order & (moved[graph.edges["src"]] | moved[graph.edges["dst"]])
    if not touched.any():
        return graph.edges
    # A task that moves leaves its old chain: what stood before and behind it there follows each other now.
    # Only ORDER edges are bridged; data it passed on still waits for it.
    chain = replace(graph, edges=graph.edges.take(is_order))
    closed = _bridge_removed_tasks(chain, chain.edges, moved)
    return graph.edges.take(~touched).concat(closed, EDGE_COLUMNS)


def connect(
    graph: Graph,
    src: ArrayLike,
    dst: ArrayLike,
    kind: EdgeKind = EdgeKind.DATA,
    lag_ns: ArrayLike = 0,
    from_start: ArrayLike = False,
    size_bytes: ArrayLike | None = None,
) -> Graph:
    """Add edges from ``src[i]`` to ``dst[i]``; scalars are repeated.

    Raises
    ------
    GraphError
        A task that is not there, a negative lag, or a cycle (the shortest, with names).
    """
    columns = dict(zip(("src", "dst"), np.broadcast_arrays(np.atleast_1d(src), np.atleast_1d(dst)), strict=True))
    count = len(columns["src"])
    given: dict[str, Any] = {"kind": int(kind), "lag_ns": lag_ns, "from_start": from_start}
    if size_bytes is not None:
        given["size_bytes"] = size_bytes
    columns |= {key: np.broadcast_to(value, (count,)) for key, value in given.items()}
    added = Table.from_columns(columns, EDGE_COLUMNS)
    for end in ("src", "dst"):
        if count and not (added[end].min() >= 0 and added[end].max() < graph.num_tasks):
            raise GraphError(f"an edge's {end} is not one of the {graph.num_tasks} tasks", where="connect")
    if count and added["lag_ns"].min() < 0:
        raise GraphError(f"a lag cannot be negative: {int(added['lag_ns'].min())} ns", where="connect")
    joined = replace(graph, edges=graph.edges.concat(added, EDGE_COLUMNS))
    joined.topological_order()
    return joined


def disconnect(graph: Graph, edge_mask: ArrayLike) -> Graph:
    """Drop the masked edges.

    Parameters
    ----------
    graph : Graph
    edge_mask : bool [E]
    """
    dropped = as_mask(edge_mask, graph.num_edges)
    return replace(graph, edges=graph.edges.take(~dropped))


def set_lag(graph: Graph, edge_mask: ArrayLike, lag_ns: ArrayLike) -> Graph:
    """Set the lag of the masked edges.

    Parameters
    ----------
    graph : Graph
    edge_mask : bool [E]
    lag_ns : int or int [selected]

    Raises
    ------
    InputError
        A lag is negative.
    """
    selected = as_mask(edge_mask, graph.num_edges)
    column = lags(graph.edges).copy()
    column[selected] = np.asarray(lag_ns)
    if column.size and column.min() < 0:
        raise InputError("a lag cannot be negative")
    return replace(graph, edges=graph.edges.replace(lag_ns=column))


def unorder(graph: Graph, mask: ArrayLike) -> Graph:
    """Drop the ORDER edges between masked tasks, so that the replay decides their order.

    Parameters
    ----------
    graph : Graph
    mask : bool [T]
    """
    selected = as_mask(mask, graph.num_tasks)
    inner = selected[graph.edges["src"]] & selected[graph.edges["dst"]]
    return disconnect(graph, inner & (graph.edges["kind"] == EdgeKind.ORDER))
