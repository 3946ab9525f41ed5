"""What messages without a time would take: collectives over links that are named.

In: a graph with messages that were never sent, or of which a trace states the size alone, and a ``Fabric``. Out: the
same graph with durations. Each group is one ring over the links between its members (``hardware.fabric``). Messages
that were measured keep their time, unless a user names other links. Not here: the formulas (``cost.collective``),
expansion into sends and receives, contention with computation.

Reduce-scatters and all-gathers in the place of all-reduces are priced here, too: by NCCL's model (``cost.nccl``).
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.collective import message_ns
from windtunnel.cost.nccl import nccl_price
from windtunnel.errors import PriceError
from windtunnel.graph import Graph, Kind
from windtunnel.graph.collectives import world_size
from windtunnel.hardware import Fabric, Link, fabric_of
from windtunnel.whatifs.insert_tasks import chip_of
from windtunnel.whatifs.placing import select_unpriced

__all__ = [
    "PART",
    "has_messages",
    "price_messages",
    "price_parts",
    "select_sized_messages",
    "select_untimed_messages",
]

PART = "part of an all-reduce"


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


def price_parts(graph: Graph, op: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a reduce-scatter, or an all-gather, takes in the place of each of these all-reduces, in ns.

    An all-reduce keeps its own time; which ratio of it a part takes is what NCCL's model says for machines with the
    devices in use: NCCL may all-reduce on trees, which cannot do the parts. Half of it, as around any ring, where the
    machines are not known.
    """
    chip, duration = chip_of(graph), graph.duration_ns[rows]
    fabric = None
    if chip is not None and "message_bytes" in graph.tasks:
        with suppress(PriceError):
            fabric = fabric_of(chip)
    if fabric is None:
        return np.asarray((duration + 1) // 2, np.int64)
    groups = _column(graph, "group", rows, absent=-1)
    known = [graph.meta.groups[group].ranks if group >= 0 else () for group in groups]
    everyone = tuple(range(world_size(graph, None)))

    @cache
    def ratio(size: int, members: tuple[int, ...]) -> float:
        network = fabric.network(members)
        whole = nccl_price("all_reduce", size, network).duration_ns
        return nccl_price(op, size, network).duration_ns / whole if whole else 0.5

    sizes = graph.tasks["message_bytes"][rows].tolist()
    ratios = [ratio(size, members or everyone) for size, members in zip(sizes, known, strict=True)]
    return np.asarray(np.rint(duration * np.array(ratios)), np.int64)


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
