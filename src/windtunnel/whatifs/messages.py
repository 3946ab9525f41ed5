"""What messages without a time would take: collectives over links that are named.

In: a graph with messages that were never sent, or of which a trace states the size alone, and a ``Fabric``. Out: the
same graph with durations. Each group is one ring over the links between its members (``hardware.fabric``). Messages
that were measured keep their time, unless a user names other links. Not here: the formulas (``cost.collective``),
expansion into sends and receives, contention with computation.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.collective import message_ns
from windtunnel.errors import PriceError
from windtunnel.graph import Graph, Kind
from windtunnel.hardware import Fabric, Link
from windtunnel.whatifs.placing import select_unpriced

__all__ = ["has_messages", "price_messages", "select_sized_messages", "select_untimed_messages"]


def has_messages(graph: Graph) -> bool:
    """Whether some of its messages have no time: they were never sent, or a trace states their size alone."""
    return bool(_unsent(graph).any())


def _unsent(graph: Graph) -> NDArray[np.bool_]:
    unsent: NDArray[np.bool_] = (select_unpriced(graph) & graph.select(kind=Kind.COMM)) | select_untimed_messages(graph)
    return unsent


def select_untimed_messages(graph: Graph) -> NDArray[np.bool_]:
    """Messages of a known size that take no time at all, bool [T]: no message does, so their time is not known."""
    result: NDArray[np.bool_] = select_sized_messages(graph) & (graph.duration_ns == 0)
    return result


def select_sized_messages(graph: Graph) -> NDArray[np.bool_]:
    """Messages of a known size, bool [T]."""
    if "message_bytes" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    result: NDArray[np.bool_] = graph.select(kind=Kind.COMM) & (graph.tasks["message_bytes"] > 0)
    return result


def price_messages(graph: Graph, fabric: Fabric) -> Graph:
    """Set the durations of messages that have no time, and of measured ones if the fabric replaces their links.

    Raises
    ------
    PriceError
        An operation has no price, or nothing says how many ranks take part; says which.
    """
    unsent = _unsent(graph) | (select_sized_messages(graph) & fabric.replaces_measured)
    rows = np.flatnonzero(unsent)
    ops = graph.tasks.strings("op").take(rows).to_numpy().tolist()
    sizes = graph.tasks["message_bytes"][rows].tolist()
    groups, peers = (_column(graph, name, rows, absent=-1) for name in ("group", "peer"))
    ranks = _column(graph, "rank", rows, absent=0)

    @cache
    def ring(members: tuple[int, ...]) -> Link:
        return fabric.between(members)

    durations = []
    for op, group, size, peer, rank in zip(ops, groups, sizes, peers, ranks, strict=True):
        members = _members(graph, fabric, op, group) if peer < 0 else tuple(sorted((rank, peer)))
        durations.append(message_ns(op, size, len(members), ring(members)))
    return graph.set_duration(unsent, durations, cost_source="ring model")


def _column(graph: Graph, name: str, rows: NDArray[np.int64], *, absent: int) -> list[int]:
    return graph.tasks[name][rows].tolist() if name in graph.tasks else [absent] * len(rows)


def _members(graph: Graph, fabric: Fabric, op: str, group: int) -> tuple[int, ...]:
    """Ranks of a message; all of the job where its group is not known."""
    known = graph.meta.groups[group].ranks if group >= 0 else ()
    if known:
        return known
    if op in ("p2p", "send", "recv"):
        return (0, 1)
    num_ranks = int(graph.meta.distributed.get("world_size", 0)) or (graph.num_ranks if graph.num_ranks > 1 else 0)
    if not (num_ranks or fabric.num_ranks):
        raise PriceError(
            f"nothing says how many ranks take part in {op}", where="messages without a process group",
            fix="name as many devices as the job has ranks, as in --on 8xh100",
        )  # fmt: skip
    return tuple(range(num_ranks or fabric.num_ranks))
