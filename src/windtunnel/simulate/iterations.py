"""How long an iteration of a replayed graph takes.

In: a replay, or durations drawn for one. Out: the time of one iteration, of the tasks that take part in it. Not here:
what a change buys (``answer``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Graph, Kind, Phase
from windtunnel.simulate import Timeline, draw_durations, replay_many

__all__ = ["iteration_ns", "iterations_ns", "sample_iterations_ns", "takes_part"]


def iteration_ns(timeline: Timeline, num_iterations_before: int) -> float:
    """Time of one iteration: until the last task of a thread, stream or link that takes part in it.

    A change that had to repeat the graph in time to be seen is judged by the distance between the ends of its
    iterations, as the first one has no iteration before it to overlap with.
    """
    return _iteration_ns(timeline.graph, timeline.finish_ns, num_iterations_before)


def sample_iterations_ns(graph: Graph, num_iterations_before: int, like: Timeline) -> NDArray[np.float64]:
    """Times of an iteration by the durations that each captured one had, or that could have been, float64 [K]."""
    return iterations_ns(graph, draw_durations(graph), num_iterations_before, like)


def iterations_ns(
    graph: Graph, durations_KT: NDArray[np.int64], num_iterations_before: int, like: Timeline
) -> NDArray[np.float64]:
    """Times of an iteration with other durations of its tasks, float64 [K]."""
    replays = replay_many(graph, durations_KT, finishes=True, like=like)
    assert replays.finish_ns is not None
    return np.array([_iteration_ns(graph, finish_ns, num_iterations_before) for finish_ns in replays.finish_ns])


def _iteration_ns(graph: Graph, finish_ns: NDArray[np.int64], num_iterations_before: int) -> float:
    finish_ns = np.where(takes_part(graph), finish_ns, 0)
    count, end = max(graph.num_iterations, 1), int(finish_ns.max(initial=0))
    if count <= num_iterations_before or count < 2:
        return end / count
    labels, member = np.unique(graph.tasks["iteration"], return_inverse=True)
    end_ns = np.zeros(len(labels), dtype=np.int64)
    np.maximum.at(end_ns, member, finish_ns)
    first, last = graph.meta.steady_iterations or (0, count - 1)
    period = (int(end_ns[last]) - int(end_ns[first])) / (last - first)
    return period if period > 0 else end / count


def takes_part(graph: Graph) -> NDArray[np.bool_]:
    """Tasks on resources that train, bool [T]: not those of threads that only watch, poll or log during the training.

    A resource trains if any of its tasks belongs to a phase, or is other work than the host's.
    """
    if "phase" not in graph.tasks:
        return graph.all_tasks
    idle = graph.select(phase=Phase.OTHER) & graph.select(kind=(Kind.HOST, Kind.SYNC))
    resource = graph.tasks["resource"]
    trains = np.zeros(graph.num_resources + 1, dtype=bool)  # the last entry is for unplaced tasks
    trains[resource[~idle]] = True
    result: NDArray[np.bool_] = trains[resource]
    return result if result.any() else graph.all_tasks
