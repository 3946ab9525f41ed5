"""Why each device task of a loaded trace started when it did.

In: a graph of a timeline. Out: for every device task its cause, and how much of its start nothing
explains. Not here: replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph
from windtunnel.sources.timeline.device import Cause
from windtunnel.units import format_duration

__all__ = ["DeviceStarts", "explain_device_tasks"]

_MAX_UNEXPLAINED_RATIO = 0.05
_LABELS = {cause: cause.name.lower().replace("_", "-") for cause in Cause}


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStarts:
    """Cause of the start of each of K device tasks.

    Attributes
    ----------
    task : int64 [K]
        Rows of the graph's tasks.
    cause : int8 [K]
        0 launch-bound, 1 stream-bound, 2 event-wait, 3 collective-peer, 4 unexplained.
    unexplained_ns : int64 [K]
        Delay beyond what is typical of the cause on that stream.
    span_ns : int
        Sum over the streams of the time from their first start to their last end.
    """

    graph: Graph
    task: NDArray[np.int64]
    cause: NDArray[np.int8]
    unexplained_ns: NDArray[np.int64]
    span_ns: int

    @property
    def unexplained_ratio(self) -> float:
        """Unexplained time over the time in which the streams were in use."""
        return float(self.unexplained_ns.sum()) / self.span_ns if self.span_ns else 0.0

    @property
    def warning(self) -> str:
        """What to say if too much is unexplained; empty if all is well."""
        if self.unexplained_ratio <= _MAX_UNEXPLAINED_RATIO:
            return ""
        return (
            f"{100 * self.unexplained_ratio:.1f} % of the streams' time went by before starts that neither launch nor "
            "stream nor event explains; record cuda_sync events to learn more"
        )

    def count(self) -> dict[str, int]:
        """Number of tasks by cause."""
        return {label: int((self.cause == cause).sum()) for cause, label in _LABELS.items()}

    def table(self) -> pa.Table:
        """One row per device task: task, name, stream, cause, unexplained_ns."""
        names, streams = self.graph.tasks.strings("name"), self.graph.resources.strings("name")
        resource = self.graph.tasks["resource"][self.task]
        return pa.table(
            {
                "task": self.task,
                "name": names.take(self.task).to_numpy(),
                "stream": streams.take(resource).to_numpy(),
                "cause": [_LABELS[Cause(code)] for code in self.cause.tolist()],
                "unexplained_ns": self.unexplained_ns,
            }
        )

    def __str__(self) -> str:
        parts = [f"{number:,} {label}" for label, number in self.count().items() if number]
        unexplained = format_duration(int(self.unexplained_ns.sum()))
        text = (
            f"{len(self.task):,} device tasks: {', '.join(parts)} ({unexplained}, {100 * self.unexplained_ratio:.1f} %)"
        )
        return f"{text}\nwarning: {self.warning}" if self.warning else text


def explain_device_tasks(graph: Graph) -> DeviceStarts:
    """Say why each device task started when it did, and how much of that the trace does not show.

    Parameters
    ----------
    graph : Graph
        Of a timeline, as ``load_kineto`` makes it.

    Raises
    ------
    NotApplicableError
        The graph does not come from a trace with device tasks.
    """
    cause = graph.tasks.get("start_cause")
    if cause is None:
        is_timeline = "event" in graph.tasks and (graph.tasks["event"] >= 0).any()
        if is_timeline and not graph.has_streams:
            nothing = np.empty(0, np.int64)
            return DeviceStarts(graph, nothing, nothing.astype(np.int8), nothing, 0)
        raise NotApplicableError(
            "the graph does not say why its device tasks started",
            where=f"source {graph.meta.source}",
            fix="load a trace of a device with load_kineto",
        )
    task = np.flatnonzero(cause >= 0)
    return DeviceStarts(graph, task, cause[task], graph.tasks["unexplained_ns"][task], _span_ns(graph, task))


def _span_ns(graph: Graph, task: NDArray[np.int64]) -> int:
    resource, start = graph.tasks["resource"][task], graph.tasks["start_ns"][task]
    first = np.full(graph.num_resources, 2**62, np.int64)
    last = np.full(graph.num_resources, -(2**62), np.int64)
    np.minimum.at(first, resource, start)
    np.maximum.at(last, resource, start + graph.duration_ns[task])
    return int((last - first)[last >= first].sum())
