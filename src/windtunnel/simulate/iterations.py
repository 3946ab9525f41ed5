"""How long an iteration of a replayed graph takes.

In: a replay, or durations drawn for one. Out: the time of one iteration, of the tasks that take part in it. Not here:
what a change buys (``answer``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Graph, Kind, Phase
from windtunnel.simulate import Timeline, draw_durations, replay_many

__all__ = ["iteration_ns", "iterations_ns", "sample_iterations_ns", "takes_part"]


def iteration_ns(timeline: Timeline, num_iterations_before: int) -> float:
    """Time of one iteration: until the last task of a thread, stream or link that takes part in it.

    A graph that was repeated in time, so that iterations overlap, is judged by the distance between their ends: the
    first one has no iteration before it.
    """
    return _time_of(timeline.graph, num_iterations_before)(timeline.finish_ns)


def sample_iterations_ns(graph: Graph, num_iterations_before: int, like: Timeline) -> NDArray[np.float64]:
    """Times of an iteration by the durations that each captured one had, or that could have been, float64 [K]."""
    return iterations_ns(graph, draw_durations(graph), num_iterations_before, like)


def iterations_ns(
    graph: Graph, durations_KT: NDArray[np.int64], num_iterations_before: int, like: Timeline
) -> NDArray[np.float64]:
    """Times of an iteration with other durations of its tasks, float64 [K]."""
    if _is_mean(graph, num_iterations_before) and takes_part(graph).all():  # then the ends of tasks need not be kept
        return replay_many(graph, durations_KT, like=like).makespan_ns / max(graph.num_iterations, 1)
    replays = replay_many(graph, durations_KT, finishes=True, like=like)
    assert replays.finish_ns is not None
    return np.array(list(map(_time_of(graph, num_iterations_before), replays.finish_ns)))


def _is_mean(graph: Graph, num_iterations_before: int) -> bool:
    """Whether an iteration takes its part of the whole: there is one, or none was added so that they overlap."""
    count = graph.num_iterations
    return count < 2 or (count <= num_iterations_before and not graph.meta.steady_iterations)


def _time_of(graph: Graph, num_iterations_before: int) -> Callable[[NDArray[np.int64]], float]:
    """What tells the time of an iteration by the ends of all tasks [T]."""
    counts, num_iterations = takes_part(graph), max(graph.num_iterations, 1)

    def mean_ns(finish_ns: NDArray[np.int64]) -> float:
        return int(finish_ns[counts].max(initial=0)) / num_iterations

    if _is_mean(graph, num_iterations_before):
        return mean_ns
    labels, member = np.unique(graph.tasks["iteration"], return_inverse=True)
    first, last = graph.meta.steady_iterations or (0, len(labels) - 1)
    is_first, is_last = counts & (member == first), counts & (member == last)

    def period_ns(finish_ns: NDArray[np.int64]) -> float:
        distance_ns = int(finish_ns[is_last].max(initial=0)) - int(finish_ns[is_first].max(initial=0))
        return distance_ns / (last - first) if distance_ns > 0 else mean_ns(finish_ns)

    return period_ns


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
