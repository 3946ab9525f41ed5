"""Edits of rows: fuse, split, insert, replicate over workers, repeat in time.

In: a graph and a mask. Out: a new graph with other rows, the work in them conserved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.graph.schema import EDGE_COLUMNS, TASK_COLUMNS, UNPLACED, Discipline, EdgeKind
from windtunnel.graph.select import as_mask
from windtunnel.graph.structure import connect, keep_rows, lags, starts
from windtunnel.graph.table import Array, Strings, Table

if TYPE_CHECKING:
    from windtunnel.graph.graph import Graph

__all__ = ["concat", "ends_and_starts", "fuse", "insert", "pair_within_groups", "split"]

Mask = NDArray[np.bool_]


def fuse(
    graph: Graph,
    mask: ArrayLike,
    by: Sequence[str] = ("rank", "iteration", "resource", "route"),
    name: str | None = None,
) -> Graph:
    """Make one task of each group of masked tasks.

    The group becomes its first row, with the sum of the durations and of the work. Edges inside a group go, with
    their lags; edges to and from outside stay. Results that only tasks of the same group read are never allocated,
    so the fused task neither outputs nor frees them.

    Parameters
    ----------
    graph : Graph
    mask : bool [T]
    by : columns
        Tasks with equal values in all of them form a group; absent columns count as equal.
    name : str, optional
        The name of the fused tasks.

    Raises
    ------
    GraphError
        A path leaves a group and comes back: fusing would make a cycle (take the tasks between along, or remove
        them first).
    """
    #      before   a --> b --> c        group {a, b}         after   ab --> c
    # Every member is replaced by its leader, the first row of its group; edges within a group vanish, and
    # the others are merged, the strictest of parallel ones winning. A path that leaves a group and comes
    # back would now be a cycle: ``topological_order`` refuses it.
    selected = as_mask(mask, graph.num_tasks)
    if not selected.any():
        return graph
    rows = np.flatnonzero(selected)
    leader = np.arange(graph.num_tasks, dtype=np.int32)
    leader[rows] = _group_leaders(graph, rows, by)
    src, dst = leader[graph.edges["src"]], leader[graph.edges["dst"]]
    outer = (src != dst) | (graph.edges["src"] == graph.edges["dst"])
    edges = graph.edges.replace(src=src, dst=dst).take(outer)
    tasks = _without_inner_results(graph, _merge_rows(graph.tasks, rows, leader[rows]), leader)
    if name is not None:
        tasks = tasks.replace(name=tasks.strings("name").assign(np.unique(leader[rows]), name))
    fused = keep_rows(replace(graph, tasks=tasks, edges=edges), leader == np.arange(graph.num_tasks))
    fused.topological_order()
    return replace(fused, edges=_longest_of_parallel(fused.edges))


def _group_leaders(graph: Graph, rows: Array, by: Sequence[str]) -> NDArray[np.int32]:
    keys = [_group_key(graph.tasks[column])[rows] for column in by if column in graph.tasks]
    if not keys:
        return np.full(len(rows), rows[0], dtype=np.int32)
    # Rows with equal keys are one group; ``first`` is the first row of each, by position within ``rows``.
    _, first, group = np.unique(np.stack(keys, axis=1), axis=0, return_index=True, return_inverse=True)
    leaders: NDArray[np.int32] = rows[first][group.reshape(-1)].astype(np.int32)
    return leaders


def _group_key(column: Array | Strings) -> Array:
    # Codes of texts can be compared only after equal texts were merged.
    return column.compact().codes if isinstance(column, Strings) else column


def _without_inner_results(graph: Graph, merged: Table, leader: NDArray[np.int32]) -> Table:
    """Deduct the results that are read by their own group alone from what its leader outputs and frees."""
    if "output_bytes" not in merged:
        return merged
    src, dst = (graph.edges[end][graph.edges["kind"] == EdgeKind.DATA] for end in ("src", "dst"))
    # Inner results: read within the group only. They are never allocated.
    is_inner = np.zeros(graph.num_tasks, dtype=np.bool_)
    is_inner[src] = True
    is_inner[src[leader[src] != leader[dst]]] = False
    inner_bytes = np.zeros(graph.num_tasks, dtype=np.int64)
    np.add.at(inner_bytes, leader[is_inner], graph.tasks["output_bytes"][is_inner])
    names = [name for name in ("output_bytes", "freed_bytes") if name in merged]
    return merged.replace(**{name: np.maximum(merged[name] - inner_bytes, 0) for name in names})


def _merge_rows(tasks: Table, rows: Array, leaders: Array) -> Table:
    columns: dict[str, Any] = {}
    for name in tasks:
        # The schema of a column says how rows merge: durations and bytes add up, names are the leader's.
        how = TASK_COLUMNS[name].merge if name in TASK_COLUMNS else "first"
        if how != "first":
            columns[name] = _merge_column(tasks[name], rows, leaders, how)
    return tasks.replace(**columns)


def _merge_column(column: Array, rows: Array, leaders: Array, how: str) -> Array:
    merged = column.copy()
    followers = rows != leaders
    target, values = leaders[followers], column[rows[followers]]
    if how == "sum":
        np.add.at(merged, target, values)
    elif how == "max":
        np.maximum.at(merged, target, values)
    elif how == "min":
        np.minimum.at(merged, target, values)
    else:
        # independent spreads add as squares
        square = column.astype(np.float64) ** 2
        np.add.at(square, target, values.astype(np.float64) ** 2)
        merged[leaders] = np.rint(np.sqrt(square[leaders])).astype(np.int64)
    return merged


def _longest_of_parallel(edges: Table) -> Table:
    """Of several edges with the same ends, kind and sense keep the one with the longest lag and the largest size."""
    key = (edges["src"], edges["dst"], edges["kind"], starts(edges))
    size_bytes = edges.get("size_bytes", np.zeros(edges.num_rows, dtype=np.int64))
    # Sorted by key, then the longest lag, then the largest size: the first of each run of equal keys stays.
    order = np.lexsort((-size_bytes, -lags(edges), *key[::-1]))
    same = np.ones(edges.num_rows, dtype=bool)
    for column in key:
        same[1:] &= column[order][1:] == column[order][:-1]
    if len(same):
        same[0] = False
    return edges.take(np.sort(order[~same]))


def split(graph: Graph, mask: ArrayLike, parts: int, chain: bool = True) -> Graph:
    """Cut each masked task into ``parts`` tasks that share its duration and work exactly.

    Parameters
    ----------
    graph : Graph
    mask : bool [T]
    parts : int
        At least 1; remainders go to the first parts.
    chain : bool
        True: one after the other (ORDER). False: side by side, each needing and feeding all that the whole did.

    Raises
    ------
    InputError
        ``parts`` is below 1.
    """
    if parts < 1:
        raise InputError(f"a task cannot be split into {parts} parts", fix="use 1 or more")
    rows = np.flatnonzero(as_mask(mask, graph.num_tasks))
    if parts == 1 or not len(rows):
        return graph
    copies = graph.tasks.take(np.tile(rows, parts - 1))
    # Which part each row is: 0 for the original rows, 1, 2, ... for the appended copies.
    position = np.concatenate([np.zeros(graph.num_tasks, dtype=np.int64), np.repeat(np.arange(1, parts), len(rows))])
    affected = np.concatenate([as_mask(rows, graph.num_tasks), np.ones(copies.num_rows, dtype=bool)])
    tasks = _share_out(graph.tasks.concat(copies, TASK_COLUMNS), affected, position, parts)
    # pieces[k] are the rows of the k-th parts
    pieces = np.concatenate([rows, graph.num_tasks + np.arange(copies.num_rows)]).reshape(parts, len(rows))
    bare = replace(graph, tasks=tasks)
    if chain:
        return _chain_pieces(bare, pieces)
    return _side_by_side(bare, pieces)


def _share_out(tasks: Table, affected: Mask, position: Array, parts: int) -> Table:
    columns: dict[str, Any] = {}
    for name in tasks:
        if name in TASK_COLUMNS and TASK_COLUMNS[name].merge == "sum":
            column = tasks[name].copy()
            whole = column[affected]
            index = position[affected].reshape(-1, *[1] * (column.ndim - 1))
            # The first ``whole % parts`` parts get one more, so that the parts add up exactly.
            column[affected] = whole // parts + (index < whole % parts)
            columns[name] = column
    return tasks.replace(**columns)


def _chain_pieces(graph: Graph, pieces: NDArray[np.int64]) -> Graph:
    #      before   p --> t --> s            after   p --> t0 --> t1 --> t2 --> s
    # Edges into the task stay at its first part; edges from its end leave from the last one; those from
    # its start still leave from the first.
    last = np.arange(graph.num_tasks, dtype=np.int32)
    last[pieces[0]] = pieces[-1]
    from_end = ~starts(graph.edges)
    src = np.where(from_end, last[graph.edges["src"]], graph.edges["src"])
    moved = replace(graph, edges=graph.edges.replace(src=src))
    return connect(moved, pieces[:-1].ravel(), pieces[1:].ravel(), EdgeKind.ORDER)


def _side_by_side(graph: Graph, pieces: NDArray[np.int64]) -> Graph:
    edges = graph.edges
    #      before   p --> t --> s            after   p --> t0, t1, t2 --> s      (each edge once per part)
    for end in ("src", "dst"):
        partner = np.full(graph.num_tasks, -1, dtype=np.int64)
        partner[pieces[0]] = np.arange(pieces.shape[1])
        column = partner[edges[end]]
        touched = edges.take(column >= 0)
        for piece in pieces[1:]:
            copy = touched.replace(**{end: piece[column[column >= 0]].astype(np.int32)})
            edges = edges.concat(copy, EDGE_COLUMNS)
    return replace(graph, edges=edges)


def insert(
    graph: Graph,
    columns: Mapping[str, Any],
    after: Sequence[Any] | None = None,
    before: Sequence[Any] | None = None,
    edge_kind: EdgeKind = EdgeKind.DATA,
    lag_ns: int = 0,
    splice: bool = False,
) -> Graph:
    """Add tasks; the new rows come last, T, T+1, …

    Parameters
    ----------
    graph : Graph
    columns : mapping
        Values of the new tasks by column; a scalar is repeated. ``name`` and ``duration_ns`` must be there;
        other columns of the graph get their defaults.
    after, before : one entry per new task, optional
        A task row, several, or None: what it waits for and what waits for it. Rows T+i mean new tasks.
    edge_kind : EdgeKind
    lag_ns : int
        Of the edges from ``after``.
    splice : bool
        True puts each new task into program order right behind ``after[i]``: outgoing ORDER edges of that task
        move to the new one.

    Raises
    ------
    InputError
        ``name`` or ``duration_ns`` is missing, or lists differ in length.
    GraphError
        The new edges make a cycle.
    """
    added = _new_rows(graph, columns)
    extended = replace(graph, tasks=graph.tasks.concat(added, TASK_COLUMNS))
    new = np.arange(graph.num_tasks, extended.num_tasks)
    sources, behind = _pairs(after, new)
    heads, ahead = _pairs(before, new)
    #      before   a --ORDER--> b           after   a --ORDER--> new --ORDER--> b
    if splice:
        extended = _splice_tasks(extended, sources, behind)
    extended = connect(extended, sources, behind, EdgeKind.ORDER if splice else edge_kind, lag_ns)
    return connect(extended, ahead, heads, edge_kind)


def _new_rows(graph: Graph, columns: Mapping[str, Any]) -> Table:
    missing = {"name", "duration_ns"} - set(columns)
    if missing:
        raise InputError(f"new tasks need {' and '.join(sorted(missing))}", where="insert")
    lengths = {len(value) for value in columns.values() if isinstance(value, Strings) or np.ndim(value) > 0}
    if len(lengths) > 1:
        raise InputError(f"the columns of new tasks differ in length: {sorted(lengths)}", where="insert")
    count = lengths.pop() if lengths else 1
    full = {
        name: value if isinstance(value, Strings) else _repeat_scalar(value, count) for name, value in columns.items()
    }
    full.setdefault("kind", np.full(count, int(TASK_COLUMNS["kind"].default)))
    full.setdefault("resource", np.full(count, UNPLACED))
    if "samples_ns" in graph.tasks and "samples_ns" not in full:
        width = graph.tasks["samples_ns"].shape[1:]
        full["samples_ns"] = np.broadcast_to(np.asarray(full["duration_ns"])[:, None], (count, *width))
    return Table.from_columns(full, TASK_COLUMNS)


def _repeat_scalar(value: Any, count: int) -> Any:
    return [value] * count if np.ndim(value) == 0 else value


def _pairs(entries: Sequence[Any] | None, new: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Flatten per-task lists of partners into (partner, new task) arrays."""
    if entries is None:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    if len(entries) != len(new):
        raise InputError(f"{len(entries)} entries of neighbors for {len(new)} new tasks", where="insert")
    lists = [np.atleast_1d(np.asarray([] if entry is None else entry, dtype=np.int64)) for entry in entries]
    partners = np.concatenate(lists) if lists else np.empty(0, dtype=np.int64)
    return partners, np.repeat(new, [len(values) for values in lists])


def _splice_tasks(graph: Graph, sources: NDArray[np.int64], new: NDArray[np.int64]) -> Graph:
    """Move outgoing ORDER edges of each source to the last new task behind it; further ones chain up in front."""
    if len(np.unique(sources)) != len(sources):
        raise InputError("two new tasks cannot be spliced behind the same one", fix="insert them one after the other")
    heir = np.arange(graph.num_tasks, dtype=np.int32)
    heir[sources] = new
    src = np.where(graph.edges["kind"] == EdgeKind.ORDER, heir[graph.edges["src"]], graph.edges["src"])
    return replace(graph, edges=graph.edges.replace(src=src.astype(np.int32)))


def _copies(table: Table, count: int) -> Table:
    return table.take(np.tile(np.arange(table.num_rows), count))


def _copy_edges(graph: Graph, count: int) -> Table:
    edges = _copies(graph.edges, count)
    offset = (np.repeat(np.arange(count), graph.num_edges) * graph.num_tasks).astype(np.int32)
    return edges.replace(src=edges["src"] + offset, dst=edges["dst"] + offset)


def concat(graph: Graph, num_iterations: int, across: ArrayLike | None = None) -> Graph:
    """Repeat the graph in time: on every resource, the next copy's first tasks wait for this copy's last ones.

    A resource that chooses by priority joins nothing: its tasks may overtake those of the copy before.

    Parameters
    ----------
    graph : Graph
    num_iterations : int
    across : int [M, 2], optional
        Further dependencies (task of one copy, task of the next), such as an update and the forward that reads it.

    Raises
    ------
    InputError
        ``num_iterations`` is below 1.
    """
    if num_iterations < 1:
        raise InputError(f"cannot make {num_iterations} iterations")
    tasks = _copies(graph.tasks, num_iterations)
    base = graph.tasks.get("iteration", np.zeros(graph.num_tasks, dtype=np.int32))
    span = int(base.max()) + 1 if len(base) else 1
    iteration = np.tile(base, num_iterations) + np.repeat(np.arange(num_iterations, dtype=np.int32) * span, len(base))
    edges = _copy_edges(graph, num_iterations)
    repeated = replace(graph, tasks=tasks.replace(iteration=iteration.astype(np.int32)), edges=edges)
    given = np.empty((0, 2), dtype=np.int64) if across is None else np.asarray(across, dtype=np.int64).reshape(-1, 2)
    offset = np.arange(num_iterations - 1)[:, None] * graph.num_tasks
    # Edge (u, v) from copy i to copy i + 1: u + i * T to v + (i + 1) * T, for all i at once.
    for pairs, kind in ((_ends_to_starts(graph), EdgeKind.ORDER), (given, EdgeKind.DATA)):
        src, dst = pairs[:, 0] + offset, pairs[:, 1] + offset + graph.num_tasks
        repeated = connect(repeated, src.ravel(), dst.ravel(), kind)
    return repeated


def _ends_to_starts(graph: Graph) -> NDArray[np.int64]:
    """Per resource, every task without a successor there paired with every task without a predecessor there."""
    is_end, is_start = ends_and_starts(graph)
    return pair_within_groups(np.flatnonzero(is_end), np.flatnonzero(is_start), graph.tasks["resource"])


def ends_and_starts(graph: Graph) -> tuple[Mask, Mask]:
    """Tasks without a successor on their resource, and those without a predecessor there, bool [T] each.

    None of a resource that chooses by priority.
    """
    resource = graph.tasks["resource"]
    src, dst = graph.edges["src"], graph.edges["dst"]
    inside = (resource[src] == resource[dst]) & (resource[src] != UNPLACED)
    # row -1 of the appended column stands for the unplaced
    keeps_order = np.append(graph.resources["discipline"] != Discipline.PRIORITY, False)
    is_end = keeps_order[resource]
    is_start = is_end.copy()
    # A task with a successor on its resource is no end, one with a predecessor no start. Where the order is
    # by priority, none is needed: the replay decides it.
    is_end[src[inside]] = False
    is_start[dst[inside]] = False
    return is_end, is_start


def pair_within_groups(
    left: NDArray[np.int64], right: NDArray[np.int64], group: NDArray[np.integer[Any]]
) -> NDArray[np.int64]:
    """Every row of ``left`` with every row of ``right`` of the same group, int64 [M, 2].

    Examples
    --------
    >>> pair_within_groups(np.array([0, 1]), np.array([2, 3, 4]), np.array([0, 1, 0, 1, 0])).tolist()
    [[0, 2], [0, 4], [1, 3]]
    """
    right = right[np.argsort(group[right], kind="stable")]
    first, stop = (np.searchsorted(group[right], group[left], side=side) for side in ("left", "right"))
    counts = stop - first
    begin = np.cumsum(counts) - counts
    index = np.arange(int(counts.sum())) - np.repeat(begin - first, counts)
    return np.stack([np.repeat(left, counts), right[index]], axis=1)
