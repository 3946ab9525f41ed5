"""Critical path and slack.

In: a played graph. Out: which constraint bound each task, the path that makes the makespan, the room others have.
Not here: the loops (``start_causes.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windtunnel.graph import Discipline, EdgeKind, Graph
from windtunnel.simulate.arrays import column, edge_column, join_mask
from windtunnel.simulate.start_causes import (
    EARLIEST,
    RESOURCE,
    bind,
    latest_starts,
    previous_on_slot,
    resolve_joins,
    walk_back,
)
from windtunnel.units import format_duration

__all__ = ["CONSTRAINTS", "CriticalPath", "Execution"]

Ints = NDArray[Any]

CONSTRAINTS = ("nothing", "earliest", "dependency", "resource")


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The tasks of the critical path in time order, P of them.

    The path spends ``wait_ns`` before and ``duration_ns`` in each task; all of both add up to the makespan. A task
    that is left at its start (the next one waits only for that) has duration 0 here.

    Attributes
    ----------
    task : int32 [P]
        Rows of the graph's tasks.
    wait_ns : int64 [P]
        Lag of the edge that bound the task; for the first task the time before its earliest start.
    duration_ns : int64 [P]
    constraint : int8 [P]
        Index into ``CONSTRAINTS``: what the task waited for last.
    edge : int32 [P]
        Row of the edge that bound it, -1 if none did.
    """

    graph: Graph = field(repr=False)
    task: NDArray[np.int32]
    wait_ns: NDArray[np.int64] = field(repr=False)
    duration_ns: NDArray[np.int64] = field(repr=False)
    constraint: NDArray[np.int8] = field(repr=False)
    edge: NDArray[np.int32] = field(repr=False)

    def __len__(self) -> int:
        return len(self.task)

    def __str__(self) -> str:
        return f"{len(self):,} of {self.graph.num_tasks:,} tasks, {format_duration(self.length_ns)}"

    @property
    def length_ns(self) -> int:
        """Waits and durations together: the makespan."""
        return int(self.wait_ns.sum() + self.duration_ns.sum())

    def wait_labels(self) -> list[str]:
        """What each wait was: the kind of the edge that bound the task, ``earliest`` or ``nothing``."""
        kinds = [kind.name.lower() for kind in EdgeKind]
        edge_kind = self.graph.edges["kind"]
        return [
            kinds[edge_kind[edge]] if edge >= 0 else CONSTRAINTS[constraint]
            for edge, constraint in zip(self.edge.tolist(), self.constraint.tolist(), strict=True)
        ]

    def table(self) -> pa.Table:
        """One row per task of the path: row, name, wait, duration, what it waited for."""
        names = self.graph.tasks.strings("name")
        return pa.table(
            {
                "task": self.task,
                "name": [names.decode(row) for row in self.task.tolist()],
                "wait_ns": self.wait_ns,
                "duration_ns": self.duration_ns,
                "constraint": [CONSTRAINTS[code] for code in self.constraint.tolist()],
                "wait": self.wait_labels(),
            }
        )


@dataclass(frozen=True, eq=False)
class Execution:
    """The graph as it was played: its edges, with arrival joins resolved, and the task before each one on its slot."""

    graph: Graph
    start_ns: Ints
    finish_ns: Ints
    sequence: Ints
    previous: Ints
    src: Ints
    lag: Ints
    from_start: Ints

    @classmethod
    def of(cls, graph: Graph, start_ns: Ints, finish_ns: Ints, sequence: Ints, engine: str) -> Execution:
        """Work out the realized order of a timeline."""
        src = edge_column(graph, "src", np.int32)
        lag = edge_column(graph, "lag_ns", np.int64)
        from_start = edge_column(graph, "from_start", np.bool_)
        is_join = join_mask(graph)
        if is_join.any():
            resolve_joins(
                graph.topological_order().copy(), *_copies(graph.predecessors_csr()), *_copies(graph.successors_csr()),
                is_join, src, lag, from_start, start_ns, finish_ns, np.argsort(sequence),
            )  # fmt: skip
        previous = _previous(graph, finish_ns, sequence, is_join, engine)
        return cls(graph, start_ns, finish_ns, sequence, previous, src, lag, from_start)

    @cached_property
    def bindings(self) -> tuple[Ints, Ints, Ints]:
        """Per task: index into ``CONSTRAINTS`` int8 [T], the task waited for and the edge int32 [T], -1 if none."""
        num_tasks = self.graph.num_tasks
        result = np.empty(num_tasks, np.int8), np.empty(num_tasks, np.int32), np.empty(num_tasks, np.int32)
        bind(
            *_copies(self.graph.predecessors_csr()), self.src, self.lag, self.from_start, self.previous,
            column(self.graph, "earliest_ns", np.int64), self.start_ns, self.finish_ns, *result,
        )  # fmt: skip
        return result

    def critical_path(self, end: int | None = None) -> CriticalPath:
        """Walk back from a task; by default from the one that ends last (of several the smallest row)."""
        constraint, task, edge = self.bindings
        if not self.graph.num_tasks:
            empty = np.empty(0, np.int32)
            return CriticalPath(self.graph, empty, empty.astype(np.int64), empty.astype(np.int64), constraint, edge)
        path, left_at_start = walk_back(
            int(np.argmax(self.finish_ns)) if end is None else end, task, edge, self.from_start
        )
        # A task that is left at its start (the next one waits for that) adds nothing but its wait to the path.
        duration = np.where(left_at_start, 0, self.finish_ns[path] - self.start_ns[path])
        wait = np.where(edge[path] >= 0, self.lag[edge[path]] if len(self.lag) else 0, 0)
        if constraint[path[0]] <= EARLIEST:
            wait[0] = self.start_ns[path[0]]
        return CriticalPath(self.graph, path, wait, duration, constraint[path], edge[path])

    def latest_starts(self) -> NDArray[np.int64]:
        """Latest start of each task that does not delay the end, int64 [T]."""
        latest: NDArray[np.int64] = latest_starts(
            self.sequence, *_copies(self.graph.predecessors_csr()), self.src, self.lag, self.from_start,
            self.previous, self.start_ns, self.finish_ns, int(self.finish_ns.max(initial=0)),
        )  # fmt: skip
        return latest


def _previous(graph: Graph, finish_ns: Ints, sequence: Ints, is_join: Ints, engine: str) -> Ints:
    """The task before each on its slot; none where edges fix the order anyway, or where tasks share."""
    if engine == "static":
        return np.full(graph.num_tasks, -1, dtype=np.int32)
    resource = np.where(is_join, -1, graph.tasks["resource"]).astype(np.int32)
    users = np.bincount(resource[resource >= 0], minlength=graph.num_resources)
    slots = graph.resources["slots"].astype(np.int64)
    contends = (users > slots) & (graph.resources["discipline"] != Discipline.SHARED)
    result: Ints = previous_on_slot(sequence, finish_ns, resource, slots, contends)
    return result


def _copies(csr: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    # compiled functions are specialized on writability; one form of each array keeps it at one compilation
    return csr[0].copy(), csr[1].copy()


assert CONSTRAINTS[RESOURCE] == "resource"
