"""The same work on every worker (what-if family "balance").

In: a graph of several ranks that do the same with unequal speed or unequal shares. Out: each task, and each rest of a
thread, as long as it is on the median rank. What they wait for where they meet then follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, lags
from windtunnel.simulate.limits import all_work, less_work
from windtunnel.whatifs.insert_tasks import is_on_host

__all__ = ["balance_ranks"]

# T tasks, E edges
Int64s = NDArray[np.int64]
_MEETS = (Kind.COMM, Kind.SYNC, Kind.VIRTUAL)


@registry.whatif(
    "balance-ranks",
    source="virtual removal of imbalance, as dPRO, MLSys 2022, section 3: stragglers",
    limits=less_work(all_work, "the median worker's work stays", max_added_bytes=0, max_saved_bytes=0),
)
def balance_ranks(graph: Graph, rank: int | None = None) -> Graph:
    """Give every worker, or one of them, the durations that the median worker has.

    Tasks of several ranks are the same if they have one name and are the n-th of it in an iteration on a thread or
    stream. A task that most ranks have not keeps its duration. Where the window finds the workers at different places,
    all begin with the first, or the one with the median.

    Parameters
    ----------
    graph : Graph
        Of several ranks.
    rank : int, optional
        The only one to change; by default all.

    Raises
    ------
    NotApplicableError
        There is one rank, or all are alike.
    """
    if graph.num_ranks < 2:
        raise NotApplicableError("there is one worker, which has no one to wait for", fix="put data-parallel first")
    ranks = np.unique(graph.tasks["rank"])
    if rank is not None and rank not in ranks:
        raise InputError(f"there is no rank {rank}", fix=f"ranks here: {ranks.min()} to {ranks.max()}")
    same = _same_over_ranks(graph)
    selected = ~graph.select(kind=_MEETS) & (graph.all_tasks if rank is None else graph.select(rank=rank))
    requested = _medians(graph.duration_ns, same, len(ranks))
    changes = selected & (requested != graph.duration_ns)
    edges, lag_ns = graph.edges, lags(graph.edges)
    on_host = is_on_host(graph)
    rests = np.flatnonzero((edges["kind"] == EdgeKind.ORDER) & on_host[edges["src"]] & on_host[edges["dst"]])
    wanted_lag = lag_ns.copy()
    wanted_lag[rests] = _medians(lag_ns[rests], same[edges["dst"][rests]], len(ranks))
    moved = (wanted_lag != lag_ns) & selected[edges["dst"]]
    earliest_ns = _align_starts(graph, rank)
    if not changes.any() and not moved.any() and earliest_ns is None:
        raise NotApplicableError("all workers take the same time", where=f"{len(ranks)} ranks")
    balanced = graph.set_duration(changes, requested[changes], cost_source="median rank") if changes.any() else graph
    balanced = balanced.set_lag(moved, wanted_lag[moved]) if moved.any() else balanced
    return balanced if earliest_ns is None else balanced.with_columns(earliest_ns=earliest_ns)


def _align_starts(graph: Graph, rank: int | None) -> Int64s | None:
    """Moments before which tasks [T] cannot begin, moved by what their rank began too late; None if none did."""
    earliest, start = graph.tasks.get("earliest_ns"), graph.tasks.get("start_ns")
    if earliest is None or start is None:
        return None
    ranks, member = np.unique(graph.tasks["rank"], return_inverse=True)
    begin = np.full(len(ranks), np.iinfo(np.int64).max)
    begins = ~graph.select(kind=_MEETS)
    np.minimum.at(begin, member[begins], start[begins])
    late = begin - (begin.min() if rank is None else int(np.sort(begin)[(len(begin) - 1) // 2]))
    late = np.maximum(late, 0) if rank is None else np.where(ranks == rank, np.maximum(late, 0), 0)
    shift = np.where(earliest > 0, late[member], 0)
    return np.maximum(earliest - shift, 0) if shift.any() else None


def _same_over_ranks(graph: Graph) -> Int64s:
    """Number of each task [T] that its fellows of other ranks have, too."""
    tasks = graph.tasks
    names = tasks.strings("name").codes if "name" in tasks else np.zeros(graph.num_tasks, np.int32)
    iteration = tasks.get("iteration", np.zeros(graph.num_tasks, np.int32))
    order = tasks.get("start_ns", np.arange(graph.num_tasks))
    about: list[NDArray[Any]] = [is_on_host(graph), tasks["kind"], iteration, names]
    sorted_rows = np.lexsort((order, tasks["rank"], *about))
    new = _is_new([*about, tasks["rank"]], sorted_rows)
    first = np.maximum.accumulate(np.where(new, np.arange(graph.num_tasks), 0))
    nth = np.empty(graph.num_tasks, np.int64)
    nth[sorted_rows] = np.arange(graph.num_tasks) - first
    by_fellow = np.lexsort((nth, *about))
    number = np.empty(graph.num_tasks, np.int64)
    number[by_fellow] = np.cumsum(_is_new([*about, nth], by_fellow)) - 1
    return number


def _is_new(columns: Sequence[NDArray[Any]], rows: Int64s) -> NDArray[np.bool_]:
    """Where, along the rows, any of the columns changes."""
    new = np.zeros(len(rows), bool)
    new[:1] = True
    for column in columns:
        new[1:] |= column[rows][1:] != column[rows][:-1]
    return new


def _medians(values: Int64s, group: Int64s, num_ranks: int) -> Int64s:
    """Median of the group of each value, rounded down; its own value where less than half of the ranks are in it."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=1)
    first = np.cumsum(counts) - counts
    held = values[order]
    low = held[np.minimum(first + np.maximum(counts - 1, 0) // 2, len(held) - 1)] if len(held) else held
    high = held[np.minimum(first + counts // 2, len(held) - 1)] if len(held) else held
    middle = low + (high - low) // 2
    return np.where(2 * counts[group] > num_ranks, middle[group], values) if len(values) else values
