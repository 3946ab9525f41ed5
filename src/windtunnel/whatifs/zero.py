"""Shard what every worker holds twice (what-if family "sharded data parallelism").

In: a graph with gradient all-reduces and updates. Out: updates of one share per worker, parameters gathered behind
them, and less resident memory. Not here: parameters that are sharded themselves (``fully_sharded``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InEffectError, InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase
from windtunnel.graph.collectives import (
    all_reduces,
    find_parameter_broadcasts,
    find_scattered_gradients,
    message_bytes,
    world_size,
)
from windtunnel.graph.parameters import optimizer_state_ratio
from windtunnel.simulate.limits import Baseline, less_work
from windtunnel.whatifs.insert_tasks import rescale
from windtunnel.whatifs.layer_gradients import last_per_group, positions
from windtunnel.whatifs.messages import PART, price_parts

__all__ = [
    "num_buffers",
    "require_replicas",
    "scatter_gradients",
    "shard_base_bytes",
    "share_updates",
    "zero_1",
    "zero_2",
]

_SOURCE = "Rajbhandari et al., ZeRO, SC 2020"


def _updates_and_messages(baseline: Baseline) -> NDArray[np.bool_]:
    return baseline.graph.select(phase=Phase.UPDATE) | baseline.graph.select(kind=Kind.COMM)


_LIMITS = less_work(_updates_and_messages, "sharding divides updates and messages", max_added_bytes=0)


@registry.whatif("zero-1", source=_SOURCE, decides="what is sharded", limits=_LIMITS)
def zero_1(graph: Graph, num_ranks: int | None = None, state_ratio: float | None = None) -> Graph:
    """Each worker keeps and updates its share of the optimizer state; parameters are gathered afterwards.

    Parameters
    ----------
    graph : Graph
    num_ranks : int, optional
        Workers, where the graph does not say.
    state_ratio : float, optional
        Bytes of optimizer state over bytes of gradients (Adam in fp32: 2); as captured by default.

    Raises
    ------
    NotApplicableError
        Nothing is all-reduced or updated, or the number of workers or the sizes are unknown.
    """
    require_replicas(graph)
    messages = all_reduces(graph)
    return _gather_parameters(share_updates(graph, messages, num_ranks, state_ratio), np.flatnonzero(messages))


@registry.whatif("zero-2", source=_SOURCE, decides="what is sharded", limits=_LIMITS)
def zero_2(graph: Graph, num_ranks: int | None = None, state_ratio: float | None = None) -> Graph:
    """Shard the gradients, too: they are reduce-scattered, which is about half of an all-reduce.

    Parameters and errors as for ``zero-1``.
    """
    require_replicas(graph)
    messages = all_reduces(graph)
    shared = share_updates(graph, messages, num_ranks, state_ratio, num_more=num_buffers(graph))
    sharded = _gather_parameters(shared, np.flatnonzero(messages))
    return scatter_gradients(sharded, messages)


def require_replicas(graph: Graph) -> None:
    """Check that ranks hold the same.

    Raises
    ------
    InEffectError
        Each rank has a share of the gradients, and so of the optimizer state.
    """
    scattered_rows = find_scattered_gradients(graph)
    if scattered_rows.any():
        raise InEffectError(
            "gradients are reduce-scattered here, the job is sharded", where=f"{int(scattered_rows.sum())} messages"
        )
    broadcasts = find_parameter_broadcasts(graph)
    if broadcasts.any():
        raise InEffectError(
            "ranks broadcast the parameters that they updated, the optimizer's state is sharded",
            where=f"{int(broadcasts.sum())} messages",
        )


def share_updates(
    graph: Graph, messages: NDArray[np.bool_], num_ranks: int | None, state_ratio: float | None, num_more: int = 0
) -> Graph:
    """Each worker updates its share only, and keeps its share of the optimizer state.

    So it does of ``num_more`` more copies that are as large as the gradients; ``messages`` [T] are their all-reduces.

    Raises
    ------
    NotApplicableError
        Nothing is updated, or the number of workers or the sizes are unknown.
    """
    size_bytes = message_bytes(graph, messages)
    count = world_size(graph, num_ranks)
    updates = _updates(graph)
    if not updates.any():
        raise NotApplicableError("no task updates parameters", where="phase UPDATE")
    per_worker = size_bytes.sum() / (graph.num_iterations * graph.num_ranks)
    shared = rescale(graph, updates, 1 / count, "share of the update")
    base = shard_base_bytes(graph, per_worker, count, state_ratio, num_more)
    return shared.note({"memory_base_bytes": base, "world_size": count})


def shard_base_bytes(
    graph: Graph, gradient_bytes: float, num_ranks: int, state_ratio: float | None, num_more: int = 0
) -> int:
    """What is always in use on a rank that keeps 1/n of the optimizer's state, and of further copies of the gradients.

    Raises
    ------
    InputError
        The state is given as a negative multiple of the gradients.
    """
    ratio = optimizer_state_ratio(graph) if state_ratio is None else state_ratio
    if ratio < 0:
        raise InputError(f"optimizer state cannot be {ratio} of the gradients", fix="give 0 or more")
    saved = round((ratio + num_more) * gradient_bytes * (1 - 1 / num_ranks))
    return max(0, graph.meta.memory_base_bytes - saved)


def num_buffers(graph: Graph) -> int:
    """Copies of the gradients that stay from step to step: the reducer's, which data-parallel adds."""
    return int(graph.meta.buckets is not None)


def scatter_gradients(graph: Graph, messages: NDArray[np.bool_]) -> Graph:
    """Every worker gets its share of the gradients only: a reduce-scatter in the place of each all-reduce.

    Parameters
    ----------
    graph : Graph
    messages : bool [M]
        The all-reduces among its first M tasks.
    """
    selected = np.append(messages, np.zeros(graph.num_tasks - len(messages), dtype=bool))
    priced = graph.set_duration(selected, price_parts(graph, "reduce_scatter", np.flatnonzero(selected)), PART)
    return priced.with_columns(op=priced.tasks.get("op", priced.tasks["name"]).assign(selected, "reduce_scatter"))


def _updates(graph: Graph) -> NDArray[np.bool_]:
    computes: NDArray[np.bool_] = graph.select(phase=Phase.UPDATE) & ~graph.select(kind=Kind.COMM)
    return computes


def _gather_parameters(graph: Graph, messages: NDArray[np.int64]) -> Graph:
    """Behind each iteration's last updates one all-gather per message."""
    tasks = graph.tasks
    iteration = tasks.get("iteration", np.zeros(graph.num_tasks, dtype=np.int64))
    rows = np.flatnonzero(_updates(graph))
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
        "duration_ns": price_parts(graph, "all_gather", messages),
        "message_bytes": tasks["message_bytes"][messages],
        "cost_source": PART,
        **{name: tasks[name][messages] for name in ("iteration", "rank") if name in tasks},
    }
    after = [last.get(int(iteration[row])) for row in messages]
    extended = graph.insert(columns, after=after)
    new = np.arange(graph.num_tasks, extended.num_tasks)
    # All-gathers of one iteration use the same link, one after the other.
    following = iteration[messages][1:] == iteration[messages][:-1]
    return extended.connect(new[:-1][following], new[1:][following], EdgeKind.ORDER)
