"""Leave out threads that only look on.

In: a graph and its timeline. Out: the part that does the work. A watchdog that polls during a training, and that no
edge joins to it, often ends last; explained from there, all time would be idle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Graph
from windtunnel.simulate import Timeline, replay
from windtunnel.simulate.iterations import takes_part

__all__ = ["without_bystanders"]


def without_bystanders(graph: Graph, timeline: Timeline) -> tuple[Timeline, tuple[str, ...]]:
    """The timeline that ends with the training, and the names of the resources left out for that (mostly none).

    Who takes part is what the what-ifs go by, so that both tell the same time. Where the last task to end takes no part
    and no edge joins its resource, not even through others, to one that does, such resources are left out; the replay
    of the rest stays as it was.
    """
    trains = takes_part(graph)
    if trains.all() or trains[int(np.argmax(timeline.finish_ns))]:
        return timeline, ()
    resource = graph.tasks["resource"].astype(np.int64)
    part = _parts(graph, resource)
    inside = np.isin(part[resource], part[resource[trains]]) | (resource < 0)
    if inside[int(np.argmax(timeline.finish_ns))]:
        return timeline, ()
    names = graph.resources.strings("name")
    left_out = tuple(names.decode(row) for row in np.unique(resource[~inside]).tolist())
    return replay(graph.remove(~inside)), left_out


def _parts(graph: Graph, resource: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each resource the smallest that it is joined to, directly or through others, int64 [R+1]."""
    src, dst = resource[graph.edges["src"]], resource[graph.edges["dst"]]
    joined = np.unique(np.stack([src, dst], axis=1), axis=0)
    part = np.arange(graph.num_resources + 1)  # tasks without a resource (-1, the last entry) are one part of their own
    while True:
        lowest = part.copy()
        np.minimum.at(lowest, joined[:, 0], part[joined[:, 1]])
        np.minimum.at(lowest, joined[:, 1], part[joined[:, 0]])
        if np.array_equal(lowest, part):
            return part
        part = lowest
