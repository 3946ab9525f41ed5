"""Shard what every worker holds twice (what-if family "sharded data parallelism").

In: a graph with gradient all-reduces and updates. Out: updates of one share per worker, parameters gathered behind
them, and less resident memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase
from windtunnel.graph.collectives import all_reduces, message_bytes, world_size
from windtunnel.whatifs._gradients import last_per_group, positions
from windtunnel.whatifs._kernels import rescale

__all__ = ["zero_1", "zero_2"]

_SOURCE = "Rajbhandari et al., ZeRO, SC 2020"


@registry.whatif("zero-1", source=_SOURCE, decides="what is sharded")
def zero_1(graph: Graph, num_ranks: int | None = None, state_ratio: float = 2.0) -> Graph:
    """Each worker keeps and updates its share of the optimizer state; parameters are gathered afterwards.

    Parameters
    ----------
    graph : Graph
    num_ranks : int, optional
        Workers, where the graph does not say.
    state_ratio : float
        Bytes of optimizer state over bytes of gradients (Adam in fp32: 2).

    Raises
    ------
    NotApplicableError
        Nothing is all-reduced or updated, or the number of workers or the sizes are unknown.
    """
    return _sharded(graph, num_ranks, state_ratio, shards_gradients=False)


@registry.whatif("zero-2", source=_SOURCE, decides="what is sharded")
def zero_2(graph: Graph, num_ranks: int | None = None, state_ratio: float = 2.0) -> Graph:
    """Shard the gradients, too: they are reduce-scattered, which is half of an all-reduce.

    Parameters and errors as for ``zero-1``.
    """
    return _sharded(graph, num_ranks, state_ratio, shards_gradients=True)


def _sharded(graph: Graph, num_ranks: int | None, state_ratio: float, *, shards_gradients: bool) -> Graph:
    if state_ratio < 0:
        raise InputError(f"optimizer state cannot be {state_ratio} of the gradients")
    messages = all_reduces(graph)
    size_bytes = message_bytes(graph, messages)
    count = world_size(graph, num_ranks)
    updates = graph.select(phase=Phase.UPDATE) & ~graph.select(kind=Kind.COMM)
    if not updates.any():
        raise NotApplicableError("no task updates parameters", where="phase UPDATE")
    sharded = rescale(graph, updates, 1 / count, "share of the update")
    sharded = _gathered(sharded, np.flatnonzero(messages), updates)
    if shards_gradients:
        still = np.append(messages, np.zeros(sharded.num_tasks - graph.num_tasks, dtype=bool))
        sharded = rescale(sharded, still, 0.5, "half of an all-reduce")
        ops = sharded.tasks.get("op", sharded.tasks["name"]).assign(still, "reduce_scatter")
        sharded = sharded.with_columns(op=ops)
    per_worker = size_bytes.sum() / (graph.num_iterations * graph.num_ranks)
    kept = state_ratio + (1.0 if shards_gradients else 0.0)
    saved = round(kept * per_worker * (1 - 1 / count))
    base = graph.meta.memory_base_bytes
    return sharded.note({"memory_base_bytes": max(0, base - saved), "world_size": count})


def _gathered(graph: Graph, messages: NDArray[np.int64], updates: NDArray[np.bool_]) -> Graph:
    """Behind each iteration's last updates one all-gather per message: the same ring, half the way."""
    tasks = graph.tasks
    iteration = tasks.get("iteration", np.zeros(graph.num_tasks, dtype=np.int64))
    rows = np.flatnonzero(updates)
    key = iteration[rows].astype(np.int64) * (graph.num_resources + 1) + tasks["resource"][rows] + 1
    last: dict[int, list[int]] = {}
    for group, row in last_per_group(positions(graph), rows, key).items():
        last.setdefault(group // (graph.num_resources + 1), []).append(row)
    columns = {
        "name": "all-gather parameters",
        "op": "all_gather",
        "kind": int(Kind.COMM),
        "phase": int(Phase.UPDATE),
        "resource": tasks["resource"][messages],
        "duration_ns": (tasks["duration_ns"][messages] + 1) // 2,
        "message_bytes": tasks["message_bytes"][messages],
        "cost_source": "half of an all-reduce",
        **{name: tasks[name][messages] for name in ("iteration", "rank") if name in tasks},
    }
    after = [last.get(int(iteration[row])) for row in messages]
    grown = graph.insert(columns, after=after)
    new = np.arange(graph.num_tasks, grown.num_tasks)
    following = iteration[messages][1:] == iteration[messages][:-1]
    return grown.connect(new[:-1][following], new[1:][following], EdgeKind.ORDER)
