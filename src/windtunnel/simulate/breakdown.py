"""Where the time goes.

In: a played graph. Out: the makespan divided over kinds, phases or layers along the critical path; how busy each
resource is; what changed between two timelines. Every division is exact: the parts add up to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.graph import Discipline, Graph, Kind, Phase, Strings
from windtunnel.simulate.arrays import flow_mask
from windtunnel.simulate.critical import CriticalPath
from windtunnel.simulate.flows import pad_routes
from windtunnel.units import format_duration

__all__ = ["TimelineDiff", "breakdown_of", "communication_ns", "task_labels", "utilization_of"]

_ENUMS: dict[str, type[IntEnum]] = {"kind": Kind, "phase": Phase}


def task_labels(graph: Graph, by: str) -> Strings:
    """A task column as text: names of kinds and phases, names of resources, numbers as they are.

    Raises
    ------
    InputError
        The graph has no such column.
    """
    if by not in graph.tasks:
        known = [name for name in graph.tasks if name not in ("samples_ns", "duration_ns")]
        raise InputError(f"tasks have no column {by!r}", fix=f"use one of {', '.join(known)}")
    values = graph.tasks[by]
    if isinstance(values, Strings):
        return values.compact()
    distinct, codes = np.unique(values, return_inverse=True)
    if by in _ENUMS:
        strings = [_ENUMS[by](code).name.lower() for code in distinct.tolist()]
    elif by == "resource":
        names = graph.resources.strings("name")
        strings = [names.decode(row) if row >= 0 else "unplaced" for row in distinct.tolist()]
    else:
        strings = [str(value) for value in distinct.tolist()]
    return Strings(codes.astype(np.int32), tuple(strings)).compact()


def breakdown_of(path: CriticalPath, by: str) -> pa.Table:
    """Divide the critical path: one row per value of the column and per kind of wait, longest first.

    Returns
    -------
    table with ``label``, ``is_wait``, ``duration_ns``, ``share``, ``num_tasks``; the durations add up to the makespan.
    """
    labels = task_labels(path.graph, by).take(path.task)
    spent = np.bincount(labels.codes, minlength=len(labels.values))
    duration_ns = np.zeros(len(labels.values), dtype=np.int64)
    np.add.at(duration_ns, labels.codes, path.duration_ns)
    rows = [
        (label, False, int(duration_ns[code]), int(spent[code]))
        for code, label in enumerate(labels.values)
        if spent[code]
    ]
    waits = Strings.of(path.wait_labels())
    for code, label in enumerate(waits.values):
        selected = waits.codes == code
        wait_ns = int(path.wait_ns[selected].sum())
        if wait_ns:
            rows.append((label, True, wait_ns, int((path.wait_ns[selected] > 0).sum())))
    rows.sort(key=lambda row: (-row[2], row[1], row[0]))
    total = max(path.length_ns, 1)
    return pa.table(
        {
            "label": pa.array([row[0] for row in rows], pa.string()),
            "is_wait": pa.array([row[1] for row in rows], pa.bool_()),
            "duration_ns": pa.array([row[2] for row in rows], pa.int64()),
            "share": pa.array([row[2] / total for row in rows], pa.float64()),
            "num_tasks": pa.array([row[3] for row in rows], pa.int64()),
        }
    )


def utilization_of(graph: Graph, start_ns: NDArray[np.int64], finish_ns: NDArray[np.int64]) -> pa.Table:
    """How busy each resource is: one row per resource.

    ``busy_ns`` is the time over all slots, for a SHARED resource the time with at least one user, for a link that
    messages flow over the time in which any does; ``num_tasks`` then counts these messages. ``utilization`` is its
    share of what the resource could do in the makespan.
    """
    makespan_ns = int(finish_ns.max(initial=0))
    resource = graph.tasks["resource"]
    num_resources = graph.num_resources
    is_shared = graph.resources["discipline"] == Discipline.SHARED
    num_tasks = np.bincount(resource[resource >= 0], minlength=num_resources)
    busy_ns = np.zeros(num_resources, dtype=np.int64)
    placed = resource >= 0
    np.add.at(busy_ns, resource[placed], (finish_ns - start_ns)[placed])
    # Durations on a shared resource overlap: it is busy while at least one task runs.
    for r in np.flatnonzero(is_shared).tolist():
        busy_ns[r] = _union_ns(start_ns[resource == r], finish_ns[resource == r])
    slots = np.where(is_shared, 1, graph.resources["slots"].astype(np.int64))
    # A flow keeps its links busy from the end of its latency (the duration) on.
    for r, rows in _flows_over(graph).items():
        num_tasks[r], slots[r] = len(rows), 1
        busy_ns[r] = _union_ns((start_ns + graph.duration_ns)[rows], finish_ns[rows])
    available = makespan_ns * slots
    names = graph.resources.strings("name")
    return pa.table(
        {
            "resource": [names.decode(r) for r in range(num_resources)],
            "num_tasks": num_tasks,
            "busy_ns": busy_ns,
            "idle_ns": available - busy_ns,
            "utilization": busy_ns / np.maximum(available, 1),
        }
    )


def _flows_over(graph: Graph) -> dict[int, NDArray[np.int64]]:
    """Tasks whose bytes flow over each link that has some."""
    rows = np.flatnonzero(flow_mask(graph))
    if not len(rows):
        return {}
    links = pad_routes(graph.meta.routes)[graph.tasks["route"][rows]]
    number, index = np.nonzero(links >= 0)
    order = np.argsort(links[number, index], kind="stable")
    used, first = np.unique(links[number, index][order], return_index=True)
    return dict(zip(used.tolist(), np.split(rows[number[order]], first[1:]), strict=True))


def communication_ns(graph: Graph, start_ns: NDArray[np.int64], finish_ns: NDArray[np.int64]) -> tuple[int, int]:
    """How long a rank communicates, and how much of that is exposed: the rank computes nothing meanwhile.

    Of several ranks, the one with the most exposed communication.
    """
    ranks = graph.tasks["rank"] if "rank" in graph.tasks else np.zeros(graph.num_tasks, dtype=np.int64)
    totals = []
    for rank in np.unique(ranks[graph.select(kind=Kind.COMM)]):
        computes, communicates = (graph.select(kind=kind) & (ranks == rank) for kind in (Kind.COMPUTE, Kind.COMM))
        busy, sends, both = (
            _union_ns(start_ns[mask], finish_ns[mask]) for mask in (computes, communicates, computes | communicates)
        )
        # exposed = time of both together - time of computing: what communication adds
        totals.append((both - busy, sends))
    exposed, total = max(totals, default=(0, 0))
    return total, exposed


def _union_ns(start_ns: NDArray[np.int64], finish_ns: NDArray[np.int64]) -> int:
    """Time covered by at least one interval."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, finish_ns = start_ns[order], finish_ns[order]
    covered_to = np.maximum.accumulate(finish_ns)
    gaps = np.maximum(start_ns[1:] - covered_to[:-1], 0).sum() if len(order) else 0
    return int(covered_to[-1] - start_ns[0] - gaps) if len(order) else 0


@dataclass(frozen=True, eq=False)
class TimelineDiff:
    """What changed between two timelines.

    Attributes
    ----------
    before_ns, after_ns : int
        The makespans.
    by : str
        The column by which ``table()`` divides the change.
    """

    before_ns: int
    after_ns: int
    by: str
    before: pa.Table = field(repr=False)
    after: pa.Table = field(repr=False)

    @property
    def speedup(self) -> float:
        """Before over after: above 1 is faster."""
        return self.before_ns / self.after_ns if self.after_ns else float("inf" if self.before_ns else 1)

    def __str__(self) -> str:
        return f"{format_duration(self.before_ns)} -> {format_duration(self.after_ns)}: {self.speedup:.2f}x"

    def table(self) -> pa.Table:
        """Time on the critical path by label, before and after, largest change first; the changes add up exactly."""
        before, after = _by_label(self.before), _by_label(self.after)
        labels = sorted({*before, *after}, key=lambda key: (-abs(after.get(key, 0) - before.get(key, 0)), key))
        return pa.table(
            {
                "label": pa.array([label for label, _ in labels], pa.string()),
                "is_wait": pa.array([is_wait for _, is_wait in labels], pa.bool_()),
                "before_ns": pa.array([before.get(key, 0) for key in labels], pa.int64()),
                "after_ns": pa.array([after.get(key, 0) for key in labels], pa.int64()),
                "change_ns": pa.array([after.get(key, 0) - before.get(key, 0) for key in labels], pa.int64()),
            }
        )


def _by_label(table: pa.Table) -> dict[tuple[str, bool], int]:
    columns = (table[name].to_pylist() for name in ("label", "is_wait", "duration_ns"))
    return {(label, is_wait): duration_ns for label, is_wait, duration_ns in zip(*columns, strict=True)}
