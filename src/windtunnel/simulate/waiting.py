"""Say how long a step waits for its data, instead of what loads them meanwhile.

In: a timeline. Out: a timeline of the same length, with the wait as time of the thread that waits. Where loader workers
are the bottleneck, the critical path runs through them alone; divided along that path the whole step would be data,
although the training thread computes for a part of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Graph, Kind, Phase
from windtunnel.simulate.engine import replay
from windtunnel.simulate.timeline import Timeline

__all__ = ["waits_for_data", "with_waits_for_data"]


def with_waits_for_data(timeline: Timeline) -> Timeline:
    """Give the time of loading elsewhere to the tasks that wait for it.

    Where the graph has no such loading, or the change would make the run longer or shorter, it stays as it is.
    """
    graph = timeline.graph
    src, dst = graph.edges["src"], graph.edges["dst"]
    ends_wait = _loads_elsewhere(graph)[src] & waits_for_data(graph)[dst]
    if not ends_wait.any():
        return timeline
    waiters, loads = np.zeros((2, graph.num_tasks), dtype=bool)
    waiters[dst[ends_wait]], loads[src[ends_wait]] = True, True
    ready_ns = np.zeros(graph.num_tasks, dtype=np.int64)
    others = waiters[dst] & ~ends_wait
    np.maximum.at(ready_ns, dst[others], timeline.finish_ns[src[others]])
    waited_ns = np.maximum(timeline.start_ns - ready_ns, 0)
    duration_ns = np.where(waiters, graph.duration_ns + waited_ns, np.where(loads, 0, graph.duration_ns))
    changed = replay(graph.with_columns(duration_ns=duration_ns))
    return changed if changed.makespan_ns == timeline.makespan_ns else timeline


def waits_for_data(graph: Graph) -> NDArray[np.bool_]:
    """Tasks that only wait for a batch."""
    return graph.select(kind=Kind.SYNC, phase=Phase.DATA)


def _loads_elsewhere(graph: Graph) -> NDArray[np.bool_]:
    """Reading on resources on which nothing is computed."""
    loads = graph.select(kind=Kind.IO, phase=Phase.DATA)
    if not loads.any() or "resource" not in graph.tasks:
        return loads
    resource = graph.tasks["resource"]
    return loads & ~np.isin(resource, resource[graph.select(kind=Kind.COMPUTE)])
