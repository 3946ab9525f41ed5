"""Memory over time.

In: a played graph with ``output_bytes`` and ``workspace_bytes``. Out: how many bytes are held when, and by whom at
the peak. A task's output is held from its start to the end of its last DATA consumer (its own end, if there is
none), its workspace while it runs, and ``meta.memory_base_bytes`` (parameters, optimizer state) always, with
``meta.rank_base_bytes`` of the ranks that are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windtunnel.graph import EdgeKind, Graph
from windtunnel.simulate.arrays import column
from windtunnel.units import format_duration, format_size

__all__ = ["MemoryCurve", "memory_of"]


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Bytes held over time.

    Attributes
    ----------
    time_ns : int64 [M]
        When the number changes, increasing.
    size_bytes : int64 [M]
        Bytes held from each of those times on.
    base_bytes : int
        What is held all the time.
    free_ns : int64 [T]
        When each task's output is released.
    """

    graph: Graph = field(repr=False)
    start_ns: NDArray[np.int64] = field(repr=False)
    finish_ns: NDArray[np.int64] = field(repr=False)
    free_ns: NDArray[np.int64] = field(repr=False)
    time_ns: NDArray[np.int64] = field(repr=False)
    size_bytes: NDArray[np.int64] = field(repr=False)
    base_bytes: int

    def __str__(self) -> str:
        return f"peak {format_size(self.peak_bytes)} at {format_duration(self.peak_ns)}"

    @cached_property
    def peak_bytes(self) -> int:
        """The most that is held at any time."""
        return int(self.size_bytes.max(initial=self.base_bytes))

    @cached_property
    def peak_ns(self) -> int:
        """When that is, for the first time."""
        return int(self.time_ns[np.argmax(self.size_bytes)]) if len(self.time_ns) else 0

    def alive_at(self, time_ns: int) -> NDArray[np.int64]:
        """Bytes that each task holds from ``time_ns`` on, int64 [T]."""
        has_begun = self.start_ns <= time_ns
        output = np.where(has_begun & (time_ns < self.free_ns), column(self.graph, "output_bytes", np.int64), 0)
        runs = has_begun & (time_ns < self.finish_ns)
        return output + np.where(runs, column(self.graph, "workspace_bytes", np.int64), 0)

    def alive_at_peak(self) -> pa.Table:
        """What the peak consists of: one row per task that holds bytes then, largest first."""
        held = self.alive_at(self.peak_ns)
        rows = np.flatnonzero(held)
        rows = rows[np.argsort(-held[rows], kind="stable")]
        names = self.graph.tasks.strings("name")
        return pa.table({"task": rows, "name": [names.decode(row) for row in rows.tolist()], "size_bytes": held[rows]})

    def table(self) -> pa.Table:
        """One row per change: time, bytes."""
        return pa.table({"time_ns": self.time_ns, "size_bytes": self.size_bytes})


def memory_of(
    graph: Graph,
    start_ns: NDArray[np.int64],
    finish_ns: NDArray[np.int64],
    where: NDArray[np.bool_] | None = None,
) -> MemoryCurve:
    """Add up allocations and releases; ``where`` keeps only some tasks (those of one worker)."""
    selected = graph.all_tasks if where is None else where
    output = np.where(selected, column(graph, "output_bytes", np.int64), 0)
    workspace = np.where(selected, column(graph, "workspace_bytes", np.int64), 0)
    free_ns = finish_ns.copy()
    is_data = graph.edges["kind"] == EdgeKind.DATA
    np.maximum.at(free_ns, graph.edges["src"][is_data], finish_ns[graph.edges["dst"][is_data]])
    base_bytes = graph.meta.memory_base_bytes + _of_ranks(graph, selected)
    time_ns, change = _merge_instants(
        np.concatenate([start_ns, finish_ns, free_ns]),
        np.concatenate([output + workspace, -workspace, -output]),
    )
    size_bytes = base_bytes + np.cumsum(change)
    return MemoryCurve(graph, start_ns, finish_ns, free_ns, time_ns, size_bytes, base_bytes)


def _of_ranks(graph: Graph, mask: NDArray[np.bool_]) -> int:
    """What the ranks of some tasks have all the time, each its own."""
    bases = graph.meta.rank_base_bytes
    ranks = np.unique(column(graph, "rank", np.int32)[mask]).tolist() if bases else ()
    return sum(bases[rank] for rank in ranks if rank < len(bases))


def _merge_instants(
    time_ns: NDArray[np.int64], change: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Merge the changes at an instant, as an allocator reuses a block that is released when another is allocated."""
    order = np.argsort(time_ns[change != 0], kind="stable")
    time_ns, change = time_ns[change != 0][order], change[change != 0][order]
    is_first = np.diff(time_ns, prepend=-1) != 0
    if not len(time_ns):
        return time_ns, change
    return time_ns[is_first], np.add.reduceat(change, np.flatnonzero(is_first))
