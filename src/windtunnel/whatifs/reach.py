"""How far a predicted speed-up may be off by what it rests on: iterations, prices, and steps that were never run.

In: the replay before a change and the graph after it. Out: logarithms of the speed-up's error, one for each cause. Not
here: what past flights say (``flights.intervals``), adding the causes up (``answer``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from windtunnel.cost.host_times import HOST_TABLE
from windtunnel.cost.intervals import draw_alike, step_ends
from windtunnel.graph import Graph, Strings
from windtunnel.simulate import Timeline
from windtunnel.simulate.iterations import iterations_ns, sample_iterations_ns
from windtunnel.whatifs.insert_tasks import gpu_of_prices

__all__ = ["Z90", "price_log_error", "step_log_error", "variation_of"]

Z90 = 1.645 / 1.349  # an interquartile range is 1.349 standard deviations


def variation_of(baseline: Timeline, make_graph: Callable[[], Graph]) -> float:
    """How far the speed-up varies from one captured iteration to the next: interquartile range of its logarithm.

    Both sides are replayed with the durations of the same iteration, so that what slows both alike is in neither. Of a
    graph that cost models priced: with prices drawn from their intervals, the same error for an operator on both sides.

    Parameters
    ----------
    baseline : Timeline
    make_graph : callable
        Gives the changed graph; called only where something varies.
    """
    graph = baseline.graph
    if not {"samples_ns", "duration_std_ns"} & set(graph.tasks):
        return 0.0
    count, graphs = graph.num_iterations, (graph, make_graph())
    if graph.meta.priced_for:
        sampled = zip(graphs, draw_alike(graphs), strict=True)
        before, after = (iterations_ns(item, durations_KT, count, baseline) for item, durations_KT in sampled)
    else:
        before, after = (sample_iterations_ns(item, count, baseline) for item in graphs)
    size = max(len(before), len(after))
    before, after = (np.resize(item, size) for item in (before, after))
    takes_time = (before > 0) & (after > 0)
    if not takes_time.any():
        return 0.0
    low, high = np.percentile(np.log(before[takes_time] / after[takes_time]), [25, 75])
    return float(high - low)


def price_log_error(baseline: Timeline, graph: Graph) -> float:
    """How far the iteration moves with the prices that were measured for a change, at 90 %.

    All of them take as much longer, or shorter, as each varied between rounds. What was captured stays as it is: an
    all-reduce whose time varies by its double says nothing of the operators around it.
    """
    # A spread above 1 is that of a short time which was measured as a difference of long ones. It is an amount: the
    # exponential of it would be absurd.
    factor_T = 1.0 + Z90 * graph.tasks.get("price_spread_ratio", np.zeros(graph.num_tasks))
    durations = [graph.duration_ns, graph.duration_ns * factor_T, graph.duration_ns / factor_T]
    durations_KT = np.rint(np.stack(durations)).astype(np.int64)
    usual, longer, shorter = iterations_ns(graph, durations_KT, baseline.graph.num_iterations, baseline).tolist()
    return max(math.log(longer / usual), math.log(usual / shorter)) if shorter > 0 else 0.0


def step_log_error(graph: Graph) -> float:
    """How far predictions of steps that were never run were off on such a GPU; 0 of a step that was measured.

    Neither the host's times nor those of messages have intervals of their own there; whole steps were compared.
    """
    sources = graph.tasks.get("cost_source")
    gpu = gpu_of_prices(graph)
    if gpu is None or not (isinstance(sources, Strings) and HOST_TABLE in sources.values):
        return 0.0
    return max(map(abs, step_ends(gpu)))
