"""More, fewer or slower workers (what-if family "workers").

In: a distributed graph. Out: its collectives priced for another number of ranks, or one rank made slower, with the
others waiting for it where they meet.
"""

from __future__ import annotations

import numpy as np

from windtunnel import registry
from windtunnel.cost.collective import ring_all_reduce_ns, ring_ratio
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph, Kind
from windtunnel.graph.collectives import (
    all_reduces,
    find_parameter_broadcasts,
    find_scattered_gradients,
    message_bytes,
    world_size,
)
from windtunnel.simulate.limits import Baseline, up_to
from windtunnel.whatifs.insert_tasks import rescale
from windtunnel.whatifs.layer_gradients import link_in_use

__all__ = ["rank_count", "straggler"]


def _more_ranks(baseline: Baseline) -> float:
    """New over old number of ranks; where there are fewer, messages become no shorter than nothing."""
    before = world_size(baseline.graph, baseline.options["from_ranks"])
    num_ranks = baseline.options["num_ranks"] or 2 * before
    if num_ranks >= before:
        return float(num_ranks / before)
    work_ns = baseline.work_ns(baseline.graph.select(kind=Kind.COMM))
    return float(num_ranks / before * baseline.iteration_ns / max(baseline.iteration_ns - work_ns, 1.0))


@registry.whatif(
    "rank-count",
    source="Daydream, ATC 2020; ring formula, Patarasuk and Yuan, JPDC 2009",
    limits=up_to(_more_ranks, "n times the workers train at most n times the samples"),
)
def rank_count(graph: Graph, num_ranks: int | None = None, from_ranks: int | None = None) -> Graph:
    """Run on another number of workers of the same speed, each with the batch that it has now.

    Where the link is known each all-reduce is scaled by the ratio of its ring prices; else by that of the bytes
    that a ring sends.

    Parameters
    ----------
    graph : Graph
    num_ranks : int, optional
        Workers then; by default twice as many as now.
    from_ranks : int, optional
        Workers now, where the graph does not say.

    Raises
    ------
    NotApplicableError
        Nothing is all-reduced, the number of workers is unknown, or a traced job would take more hosts.
    """
    messages = all_reduces(graph)
    if find_scattered_gradients(graph).any() or find_parameter_broadcasts(graph).any():
        raise NotApplicableError(
            "the job is sharded: memory and messages of a rank depend on the number of ranks",
            fix="trace it with that number of ranks: windtunnel capture --dry-run --ranks N",
        )
    before = world_size(graph, from_ranks)
    num_ranks = 2 * before if num_ranks is None else num_ranks
    if num_ranks < 2:
        raise InputError(f"{num_ranks} ranks do not communicate", fix="give 2 or more")
    per_host = int(graph.meta.distributed.get("devices_per_host", 0))
    if per_host and num_ranks > per_host:
        raise NotApplicableError(
            f"{num_ranks} ranks take several hosts of {per_host} devices, whose messages use other links",
            fix=f"trace it with that number of ranks: windtunnel capture --dry-run --ranks {num_ranks}",
        )
    wire = link_in_use(graph)
    if wire is None:
        ratio = np.full(int(messages.sum()), ring_ratio(num_ranks) / ring_ratio(before))
    else:
        prices = [
            [ring_all_reduce_ns(size, count, wire) for size in message_bytes(graph, messages).tolist()]
            for count in (num_ranks, before)
        ]
        ratio = np.array(prices[0]) / np.maximum(prices[1], 1)
    requested = np.rint(graph.duration_ns[messages] * ratio).astype(np.int64)
    # each worker keeps its batch, so a step does more samples
    samples = graph.meta.samples_ratio * num_ranks / before
    scaled = graph.set_duration(messages, requested, cost_source="ring model")
    return scaled.note({"world_size": num_ranks, "samples_ratio": samples})


@registry.whatif(
    "straggler",
    source="dPRO, MLSys 2022, and Daydream, ATC 2020: virtual slow-down of one worker",
    limits=up_to(lambda baseline: max(1.0, 1.0 / baseline.options["factor"]), "a slower worker makes a step no faster"),
)
def straggler(graph: Graph, factor: float = 1.5, rank: int | None = None) -> Graph:
    """Make one worker slower and see how much of it the others wait for.

    In a graph of several ranks the tasks of one are scaled. In a graph of one rank that stands for all, a second,
    slow rank is added, and every collective waits for both.

    Parameters
    ----------
    graph : Graph
    factor : float
        How many times longer the slow worker takes for everything but communication.
    rank : int, optional
        Which one; by default the last.

    Raises
    ------
    NotApplicableError
        No worker waits for another: the graph has one rank and no collectives.
    """
    if not np.isfinite(factor) or factor <= 0:
        raise InputError(f"a worker cannot be {factor} times as slow", fix="give a factor above 0")
    communicates = graph.select(kind=Kind.COMM)
    if not communicates.any():
        raise NotApplicableError("no worker waits for another here", fix="put data-parallel first")
    together = graph if graph.num_ranks > 1 else _with_second_rank(graph, communicates)
    ranks = np.unique(together.tasks["rank"])
    selected = int(ranks[-1]) if rank is None else rank
    if selected not in ranks:
        raise InputError(f"there is no rank {selected}", fix=f"ranks here: {ranks.min()} to {ranks.max()}")
    slow = together.select(rank=selected) & ~together.select(kind=Kind.COMM)
    return rescale(together, slow, factor, "assumed factor")


def _with_second_rank(graph: Graph, communicates: np.ndarray) -> Graph:
    """Two ranks that meet in every collective: each waits for what the other's waits for."""
    rows = np.flatnonzero(communicates)
    number = np.arange(len(rows))
    return graph.replicate(2).meet(np.append(rows, rows + graph.num_tasks), np.append(number, number))
