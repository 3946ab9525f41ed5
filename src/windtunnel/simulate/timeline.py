"""The result of a replay.

In: start and finish of every task. Out: makespan, critical path, slack, use of resources, memory over time, pictures.
Not here: running the graph (``engine.py``). A timeline never changes; what it derives it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windtunnel.graph import Graph, Strings
from windtunnel.simulate.breakdown import TimelineDiff, breakdown_of, utilization_of
from windtunnel.simulate.critical import CriticalPath, Execution
from windtunnel.simulate.memory import MemoryCurve, memory_of
from windtunnel.simulate.perfetto import write_perfetto
from windtunnel.units import format_duration

if TYPE_CHECKING:
    from windtunnel.simulate.folding import Fold

__all__ = ["Timeline"]

Ints = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each task of a graph starts and ends.

    Attributes
    ----------
    graph : Graph
        What was played.
    start_ns, finish_ns : int64 [T]
    sequence : int32 [T]
        The tasks in an order in which they can have begun (every task after all that it waited for).
    engine : str
        ``"static"`` or ``"event"``.
    fold : Fold, optional
        What was played for all of them, where equal ranks were folded (:mod:`windtunnel.simulate.folding`).
    """

    graph: Graph = field(repr=False)
    start_ns: NDArray[np.int64] = field(repr=False)
    finish_ns: NDArray[np.int64] = field(repr=False)
    sequence: NDArray[np.int32] = field(repr=False)
    engine: str
    fold: Fold | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{format_duration(self.makespan_ns)} for {self.graph.num_tasks:,} tasks"

    @property
    def num_played(self) -> int:
        """Tasks that were played: all, or one of each class where equal ranks were folded."""
        return self.graph.num_tasks if self.fold is None else self.fold.small.num_tasks

    @cached_property
    def makespan_ns(self) -> int:
        """When the last task ends; 0 for an empty graph."""
        return int(self.finish_ns.max(initial=0))

    @cached_property
    def execution(self) -> Execution:
        """The realized order and the binding constraint of every task."""
        return Execution.of(self.graph, self.start_ns, self.finish_ns, self.sequence, self.engine)

    def critical_path(self) -> CriticalPath:
        """The chain of tasks and waits that makes the run as long as it is; sums to the makespan exactly."""
        return self.execution.critical_path()

    def slack_ns(self) -> NDArray[np.int64]:
        """How much later each task could start without a later end of the whole, int64 [T], 0 on the critical path.

        The order realized on each resource is kept, and so is the time that sharing added to a task.
        """
        return self.execution.latest_starts() - self.start_ns

    def breakdown(self, by: str = "kind") -> pa.Table:
        """Divide the makespan along the critical path by a task column; the parts add up to the makespan exactly.

        Parameters
        ----------
        by : str
            ``"kind"``, ``"phase"``, ``"layer"``, ``"op"``, ``"resource"`` or any other task column.

        Returns
        -------
        table with ``label``, ``is_wait`` (the time was a lag, the label says of which kind of edge), ``duration_ns``,
        ``share`` and ``num_tasks``, longest first.

        Raises
        ------
        InputError
            The graph has no such column.
        """
        return breakdown_of(self.critical_path(), by)

    def utilization(self) -> pa.Table:
        """How busy each resource is: ``resource``, ``num_tasks``, ``busy_ns``, ``idle_ns``, ``utilization``."""
        return utilization_of(self.graph, self.start_ns, self.finish_ns)

    def memory(self, where: NDArray[np.bool_] | None = None) -> MemoryCurve:
        """Bytes held over time, the peak and what it consists of; ``where`` keeps only some tasks (one worker's)."""
        return memory_of(self.graph, self.start_ns, self.finish_ns, where)

    def diff(self, other: Timeline, by: str = "kind") -> TimelineDiff:
        """Compare with a later timeline: makespans, and time on the critical path by a task column."""
        return TimelineDiff(self.makespan_ns, other.makespan_ns, by, self.breakdown(by), other.breakdown(by))

    def to_perfetto(self, path: str | Path, *, max_flows: int = 100_000) -> Path:
        """Write a trace for https://ui.perfetto.dev; see :func:`windtunnel.simulate.perfetto.write_perfetto`."""
        return write_perfetto(self, path, max_flows=max_flows)

    def table(self) -> pa.Table:
        """One row per task: name, kind, resource, start, finish."""
        tasks = self.graph.tasks
        return pa.table(
            {
                "name": _dictionary(tasks.strings("name")),
                "kind": tasks["kind"],
                "resource": tasks["resource"],
                "start_ns": self.start_ns,
                "finish_ns": self.finish_ns,
            }
        )


def _dictionary(texts: Strings) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(texts.codes), pa.array(texts.values, pa.string()))
