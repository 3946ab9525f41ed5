"""How much computing slows while messages are carried by the same cores, as a capture shows it.

In: a captured graph of ranks that average gradients. Out: a factor. Products of equal work run both while messages are
under way and while none is; their durations give the factor. Not here: what is done with it (``whatif_optimizer``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Graph, Kind
from windtunnel.simulate import replay
from windtunnel.whatifs.buckets import Averaging

__all__ = ["slowdown_by_messages"]

_MAX_SLOWDOWN = 2.0  # one more thread on a core takes half of it at most
_MIN_NS = 200_000  # shorter tasks are mostly noise


def slowdown_by_messages(graph: Graph, averaging: Averaging) -> float:
    """Fit how many times as long a task takes while a message is under way; 1 where the capture does not show it.

    Least squares over groups of tasks with the same operator and the same work: within a group, durations grow with
    the part of the task during which a message was under way.
    """
    timeline = replay(graph)
    overlap = _overlap(graph, averaging, timeline.start_ns, timeline.finish_ns)
    duration = graph.duration_ns.astype(np.float64)
    long = np.flatnonzero(graph.select(kind=Kind.COMPUTE) & (duration >= _MIN_NS))
    if not len(long):
        return 1.0
    numerator = denominator = 0.0
    names = graph.tasks.strings("name").codes[long].astype(np.int64)
    work = graph.tasks.get("flops", np.zeros(graph.num_tasks, np.int64))[long]
    _, group = np.unique(np.stack([names, work], axis=1), axis=0, return_inverse=True)
    for number in range(int(group.max()) + 1):
        rows = long[group.ravel() == number]
        part = overlap[rows] / duration[rows]
        is_free = part < 0.1
        if is_free.all() or not is_free.any():
            continue
        base = float(np.median(duration[rows[is_free]]))
        # extra time of the task against the time for which it shared its core
        numerator += float((duration[rows[~is_free]] - base).sum())
        denominator += float((part[~is_free] * base).sum())
    return float(np.clip(1.0 + numerator / denominator, 1.0, _MAX_SLOWDOWN)) if denominator else 1.0


def _overlap(
    graph: Graph, averaging: Averaging, start_ns: NDArray[np.int64], finish_ns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Time of each task during which a message of its rank is under way, [T]; messages of a rank do not overlap."""
    result = np.zeros(graph.num_tasks)
    for rank, rows in zip(averaging.ranks, averaging.messages, strict=True):
        on_rank = graph.tasks["rank"] == rank
        for row in rows.tolist():
            both = np.minimum(finish_ns, finish_ns[row]) - np.maximum(start_ns, start_ns[row])
            result[on_rank] += np.maximum(both[on_rank], 0)
    return result
