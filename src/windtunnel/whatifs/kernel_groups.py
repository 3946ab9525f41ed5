"""One kernel in place of several that follow each other.

In: a graph whose kernels are launched one by one, groups of them. Out: the graph with one kernel for each group, one
launch for it, and without the host's work between the first and the last launch of the group. Not here: which kernels
become one (``sdpa``, ``compilation``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Graph, Kind
from windtunnel.whatifs.device_tasks import lies_on_device
from windtunnel.whatifs.insert_tasks import is_on_host, launch_calls
from windtunnel.whatifs.layer_gradients import positions

__all__ = ["KernelGroup", "replace_groups", "streams_in_order"]

Rows = NDArray[np.int64]


class KernelGroup(NamedTuple):
    """Kernels in the order of their stream, and how long the one in their place takes."""

    rows: tuple[int, ...]
    duration_ns: int
    added_host_ns: int = 0  # of its launch, more than that of the first one


def streams_in_order(graph: Graph) -> list[Rows]:
    """Kernels and copies of each stream, in order."""
    rows = np.flatnonzero(lies_on_device(graph))
    rows = rows[np.lexsort((positions(graph)[rows], graph.tasks["resource"][rows]))]
    borders = np.flatnonzero(np.diff(graph.tasks["resource"][rows])) + 1
    return [part for part in np.split(rows, borders) if len(part)]


def replace_groups(graph: Graph, groups: Sequence[KernelGroup], *, name: str, op: str) -> Graph:
    """Put one kernel in the place of the first of each group; the others go, with what only launches them.

    Parameters
    ----------
    graph : Graph
    groups : sequence of KernelGroup
        Without common kernels, each on one stream.
    name, op : str
        Of the new kernels.
    """
    order, calls, on_host = positions(graph), launch_calls(graph), is_on_host(graph)
    removed = np.zeros(graph.num_tasks, dtype=bool)
    grouped = np.full(graph.num_tasks, -1, dtype=np.int64)
    for number, group in enumerate(groups):
        grouped[list(group.rows)] = number
    launched_by = np.full(graph.num_tasks, -1, dtype=np.int64)  # the only group whose kernels a call launches
    mixed = np.zeros(graph.num_tasks, dtype=bool)
    for row in np.flatnonzero(calls >= 0).tolist():
        call, number = calls[row], grouped[row]
        mixed[call] |= number < 0 or launched_by[call] not in (-1, number)
        launched_by[call] = number
    threads = _rows_by_resource(graph, order, on_host)
    waits = graph.select(kind=Kind.SYNC)
    duration_ns = graph.duration_ns.copy()
    touched = np.zeros(graph.num_tasks, dtype=bool)
    for number, group in enumerate(groups):
        first, *rest = group.rows
        removed[rest] = True
        duration_ns[first] = group.duration_ns
        touched[first] = True
        own = [int(calls[row]) for row in group.rows if calls[row] >= 0]
        if calls[first] < 0 or not own:
            continue
        call = int(calls[first])
        duration_ns[call] += group.added_host_ns
        touched[call] |= group.added_host_ns > 0
        thread, places = threads[int(graph.tasks["resource"][call])]
        own = [row for row in own if graph.tasks["resource"][row] == graph.tasks["resource"][call]]
        until = max(int(order[row]) for row in own)
        between = thread[np.searchsorted(places, order[call], "right") : np.searchsorted(places, until, "right")]
        other = (launched_by[between] >= 0) & ((launched_by[between] != number) | mixed[between])
        removed[between[~other & ~waits[between]]] = True
    firsts = np.array([group.rows[0] for group in groups], dtype=np.int64)
    columns: dict[str, Any] = {"name": graph.tasks.strings("name").assign(firsts, name)}
    if "op" in graph.tasks:
        columns["op"] = graph.tasks.strings("op").assign(firsts, op)
    changed = graph.set_duration(touched, duration_ns[touched], cost_source="estimated fusion").with_columns(**columns)
    return changed.remove(removed, keep_gaps=False) if removed.any() else changed


def _rows_by_resource(graph: Graph, order: Rows, on_host: NDArray[np.bool_]) -> dict[int, tuple[Rows, Rows]]:
    """Host tasks of each thread in order, and their positions."""
    result = {}
    resource = graph.tasks["resource"]
    for thread in np.unique(resource[on_host]).tolist():
        rows = np.flatnonzero(on_host & (resource == thread))
        rows = rows[np.argsort(order[rows], kind="stable")]
        result[thread] = rows, order[rows]
    return result
