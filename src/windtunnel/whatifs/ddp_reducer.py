"""What DistributedDataParallel's reducer and its hook cost a worker.

In: a graph whose all-reduces data-parallel has put there. Out: what must be priced with the parameters' own shapes,
the price of each message, and tasks in front of the messages that take it. Not here: the messages' own time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.rerun import ReducingNeed
from windtunnel.graph import Graph, Kind
from windtunnel.graph.collectives import world_size
from windtunnel.graph.parameters import parameter_shapes
from windtunnel.graph.ranks import arrivals
from windtunnel.whatifs.insert_tasks import insert_behind
from windtunnel.whatifs.layer_gradients import Bucket, last_per_group, positions
from windtunnel.whatifs.measured import MEASURE, PUBLISHED, has_program

__all__ = ["OWN_WORK", "describe_buckets", "reducing_needs", "split_by_bytes", "way_between", "work_ahead"]

Ints = NDArray[np.int64]
# note of the buckets of one iteration, in the order of its messages
OWN_WORK = "reduce gradients"
_MAX_PROCESSES = 32  # more are started only for prices="measured"


def describe_buckets(buckets: list[Bucket], bucket_bytes: int, first_bucket_bytes: int) -> dict[str, Any]:
    """The buckets of one iteration as plain values."""
    filled = [
        {"reducer": bucket.reducer, "size_bytes": bucket.size_bytes, "layers": list(bucket.layers)}
        for bucket in buckets
    ]
    return {"bucket_bytes": bucket_bytes, "first_bucket_bytes": first_bucket_bytes, "filled": filled}


def reducing_needs(
    graph: Graph,
    messages: Ints,
    num_ranks: int | None = None,
    *,
    sender: str = "",
    options: Mapping[str, Any] | None = None,
) -> tuple[ReducingNeed, ...]:
    """What each reducer of an iteration adds to a pass in ``num_ranks`` processes.

    Empty where the graph does not know its buckets or the shapes of its parameters.
    """
    noted = graph.meta.buckets
    if noted is None or not parameter_shapes(graph) or len(messages) % len(noted["filled"]):
        return ()
    caps = {name: int(noted[name]) for name in ("bucket_bytes", "first_bucket_bytes")}
    ranks = num_ranks or world_size(graph, None)
    needs = []
    for _, local in _by_reducer(noted["filled"]):
        layers = {layer for item in local for layer in noted["filled"][item]["layers"]}
        needs.append(ReducingNeed(parameter_shapes(graph, layers), ranks, sender, dict(options or {}), **caps))
    return tuple(needs)


def way_between(graph: Graph, num_processes: int) -> str:
    """Choose how ``prices="auto"`` prices ``num_processes`` processes: large jobs are not started on this host."""
    return MEASURE if has_program(graph) and num_processes <= _MAX_PROCESSES else PUBLISHED


def split_by_bytes(graph: Graph, messages: Ints, total_ns: Sequence[int]) -> Ints:
    """The prices of ``reducing_needs`` shared out among each reducer's messages by their bytes, int64 [M]."""
    filled = (graph.meta.buckets or {})["filled"]
    prices = np.zeros(len(filled))
    # A reducer is measured as a whole, over all of its buckets.
    for (_, local), each_ns in zip(_by_reducer(filled), total_ns, strict=True):
        sizes = np.array([filled[number]["size_bytes"] for number in local], dtype=np.float64)
        prices[local] = each_ns * sizes / sizes.sum()
    return np.tile(np.rint(prices).astype(np.int64), len(messages) // len(filled))


def _by_reducer(filled: Sequence[Mapping[str, Any]]) -> list[tuple[int, list[int]]]:
    """Numbers of the buckets of each reducer."""
    reducers: dict[int, list[int]] = {}
    for number, item in enumerate(filled):
        reducers.setdefault(int(item["reducer"]), []).append(number)
    return list(reducers.items())


def work_ahead(graph: Graph, messages: Ints, duration_ns: Ints, name: str, cost_source: str) -> Graph:
    """Work behind the last task of its own rank that each message waits for; work behind one task is done together."""
    index, edges = positions(graph), graph.edges
    number = np.full(graph.num_tasks, -1, dtype=np.int64)
    entry = arrivals(graph, messages)  # where ranks meet, work comes before its own has arrived
    number[entry] = np.arange(len(messages))
    # Only edges from the message's own rank: what other ranks do is not this rank's work.
    into = (number[edges["dst"]] >= 0) & (number[edges["src"]] < 0)
    if "rank" in graph.tasks:
        rank = graph.tasks["rank"]
        into &= rank[edges["src"]] == rank[edges["dst"]]
    last = last_per_group(index, edges["src"][into].astype(np.int64), number[edges["dst"][into]])
    fed = np.array(sorted(last), dtype=np.int64)
    if not len(fed):
        return graph
    # Messages that wait for the same task share one new task, with the sum of their work.
    unique, member = np.unique([last[message] for message in fed.tolist()], return_inverse=True)
    together = np.zeros(len(unique), dtype=np.int64)
    np.add.at(together, member, duration_ns[fed])
    columns = {"name": name, "op": name, "duration_ns": together, "cost_source": cost_source}
    extended, new = insert_behind(graph, unique, {**columns, "kind": int(Kind.COMPUTE)})
    return extended.connect(new[member], entry[fed])
