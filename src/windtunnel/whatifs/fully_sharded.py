"""Shard the parameters themselves (what-if family "sharded data parallelism").

In: a graph with gradient all-reduces, updates and layers. Out: what FullyShardedDataParallel does: each worker holds a
share of everything, parameters are gathered ahead of the passes that read them, gradients reduce-scattered. What one
all-reduce brings together is one unit. Not here: updates and gradients alone (``zero``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase
from windtunnel.graph.collectives import all_reduces, message_bytes
from windtunnel.graph.ranks import arrivals, meetings
from windtunnel.simulate.limits import of_phase, other_order
from windtunnel.whatifs.layer_gradients import (
    gradients_of,
    iterations_of,
    last_per_group,
    one_iteration,
    positions,
    works,
)
from windtunnel.whatifs.messages import PART, price_parts
from windtunnel.whatifs.zero import num_buffers, require_replicas, scatter_gradients, share_updates

__all__ = ["messages_by_layer", "zero_3"]

# T tasks, M messages
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class _Pass(NamedTuple):
    """One unit in one pass: its message, its first and its last tasks, one per resource."""

    message: int
    first: tuple[int, ...]
    last: tuple[int, ...]


class _Gather(NamedTuple):
    """Parameters of one unit, gathered for one pass: the unit's message, what it waits for, what waits for it."""

    message: int
    phase: Phase
    after: tuple[int, ...]
    before: tuple[int, ...]


@registry.whatif(
    "zero-3",
    source="Rajbhandari et al., ZeRO, SC 2020; Zhao et al., PyTorch FSDP, VLDB 2023",
    decides="what is sharded",
    limits=other_order("sharding divides updates and messages", without=of_phase(Phase.UPDATE)),
)
def zero_3(graph: Graph, num_ranks: int | None = None, state_ratio: float | None = None, prefetch: int = 1) -> Graph:
    """Shard parameters, gradients and optimizer state; parameters are gathered for the forward and the backward pass.

    A unit is what one all-reduce brought together. Its parameters are gathered when the unit ``prefetch + 1`` places
    before it has computed and is given up, so that as many units are whole at once; the last one of the forward pass
    stays for the backward pass. Each gathering takes about half of the all-reduce, as does the reduce-scatter that
    stands for it.

    Parameters
    ----------
    graph : Graph
    num_ranks : int, optional
        Workers, where the graph does not say.
    state_ratio : float, optional
        Bytes of optimizer state over bytes of gradients (Adam in fp32: 2); as captured by default.
    prefetch : int
        Units that are gathered while another one computes.

    Raises
    ------
    NotApplicableError
        Nothing is all-reduced or updated, the number of workers or the sizes are unknown, or no layer's gradients
        are in any message.
    """
    if prefetch < 0:
        raise InputError(f"{prefetch} units cannot be gathered ahead", fix="give 0 or more")
    require_replicas(graph)
    messages = all_reduces(graph)
    ranks = np.unique(graph.tasks["rank"]).tolist() if "rank" in graph.tasks else [0]
    per_rank = [_of_rank(graph, np.flatnonzero(messages), rank, prefetch) for rank in ranks]
    if not any(per_rank):
        raise NotApplicableError("no layer's gradients are in any message", where=f"{int(messages.sum())} all-reduces")
    sharded = share_updates(graph, messages, num_ranks, state_ratio, num_more=1 + num_buffers(graph))
    # At most prefetch + 1 units are whole at once, besides each worker's own share of everything.
    unit_bytes = message_bytes(graph, messages & one_iteration(graph, None))
    whole_bytes = int(np.sort(unit_bytes)[-(prefetch + 1) :].sum())
    sharded = sharded.note({"memory_base_bytes": sharded.meta.memory_base_bytes + whole_bytes})
    return _insert_gathers(sharded, messages, per_rank)


def _of_rank(graph: Graph, messages: Ints, rank: int, prefetch: int) -> list[_Gather]:
    """All gatherings of one rank, in the order in which their parameters are needed."""
    #      forward    gather 1 | gather 2, compute 1 | gather 3, compute 2, drop 1 | ...
    #      backward   the last unit is still whole | gather n-1, compute n | ...
    index = positions(graph)
    result: list[_Gather] = []
    updated: tuple[int, ...] = ()
    for iteration in iterations_of(graph):
        local = one_iteration(graph, iteration, rank)
        # The message that brings the gradients of each computing task's layer, -1 where none does, int64 [T].
        of_layer = messages_by_layer(graph, messages, iteration, rank)
        layers = graph.tasks.strings("layer")
        unit = np.array([of_layer.get(text, -1) for text in layers.values] or [-1], dtype=np.int64)
        unit_T = np.where(local & works(graph), unit[layers.codes], -1)
        forward = _passes(graph, unit_T, index, Phase.FORWARD)
        backward = _passes(graph, unit_T, index, Phase.BACKWARD)
        result += _schedule_gathers(index, forward, Phase.FORWARD, updated, prefetch)
        # what the forward pass ended with is whole when the backward pass begins
        still = {item.message for item in forward[-1:]}
        turned = [item for item in backward if item.message not in still]
        result += _schedule_gathers(index, turned, Phase.BACKWARD, forward[-1].last if forward else (), prefetch)
        rows = np.flatnonzero(local & graph.select(phase=Phase.UPDATE) & works(graph))
        updated = tuple(last_per_group(index, rows, graph.tasks["resource"][rows]).values())
    return sorted(result, key=lambda gather: index[list(gather.before)].min())


def messages_by_layer(graph: Graph, messages: Ints, iteration: int, rank: int) -> dict[str, int]:
    """The row of the message that brings the gradients of each layer of a rank, -1 where none does."""
    local, index = one_iteration(graph, iteration, rank), positions(graph)
    sent = messages[local[messages]]
    feeds = _feeds(graph, sent[np.argsort(index[sent], kind="stable")], local)
    return {item.layer: int(feeds[item.ready]) for item in gradients_of(graph, iteration, rank)}


def _passes(graph: Graph, unit_T: Ints, order_T: Ints, phase: Phase) -> list[_Pass]:
    """The units of one iteration in the order in which a pass meets them."""
    rows = np.flatnonzero((unit_T >= 0) & graph.select(phase=phase))
    key = unit_T[rows] * (graph.num_resources + 1) + graph.tasks["resource"][rows] + 1
    ends: list[dict[int, list[int]]] = []
    for is_first in (True, False):
        result: dict[int, list[int]] = {}
        for group, row in last_per_group(order_T, rows, key, first=is_first).items():
            result.setdefault(group // (graph.num_resources + 1), []).append(row)
        ends.append(result)
    passes = [_Pass(message, tuple(first), tuple(ends[1][message])) for message, first in ends[0].items()]
    return sorted(passes, key=lambda entry: order_T[list(entry.first)].min())


def _schedule_gathers(
    order_T: Ints, passes: Sequence[_Pass], phase: Phase, begin: tuple[int, ...], prefetch: int
) -> Iterator[_Gather]:
    """Gather for each pass once an earlier one gave up its place; a task that comes later is not waited for."""
    for index, step_pass in enumerate(passes):
        freed = passes[index - prefetch - 1].last if index > prefetch else begin
        needed = order_T[list(step_pass.first)].min()
        yield _Gather(step_pass.message, phase, tuple(row for row in freed if order_T[row] < needed), step_pass.first)


def _feeds(graph: Graph, messages: Ints, on_rank: Mask) -> Ints:
    """The first of these messages, in their order, that waits for each task of a rank, -1 for none, int64 [T]."""
    indptr, rows = graph.predecessors_csr()
    src = graph.edges["src"]
    result = np.full(graph.num_tasks, -1, dtype=np.int64)
    for message, entry in zip(messages.tolist(), arrivals(graph, messages).tolist(), strict=True):
        result[message] = message
        front = [entry]
        while front:
            row = front.pop()
            before = [src[edge] for edge in rows[indptr[row] : indptr[row + 1]]]
            new = [item for item in before if result[item] < 0 and on_rank[item]]
            result[new] = message
            front += new
    return result


def _insert_gathers(graph: Graph, messages: Mask, per_rank: Sequence[Sequence[_Gather]]) -> Graph:
    """Scatter gradients; gather where their messages are sent, one behind the other, and let those of ranks meet."""
    tasks = graph.tasks
    gathers = [gather for gathers in per_rank for gather in gathers]
    message = np.array([gather.message for gather in gathers], dtype=np.int64)
    columns = {
        "name": "all-gather parameters",
        "op": "all_gather",
        "kind": int(Kind.COMM),
        "phase": [int(gather.phase) for gather in gathers],
        "resource": tasks["resource"][message],
        "duration_ns": price_parts(graph, "all_gather", message),
        "message_bytes": tasks["message_bytes"][message],
        "cost_source": PART,
        **{name: tasks[name][message] for name in ("iteration", "rank", "group") if name in tasks},
    }
    scattered = scatter_gradients(graph, messages)
    extended = scattered.insert(columns, [gather.after for gather in gathers], [gather.before for gather in gathers])
    new = np.arange(graph.num_tasks, extended.num_tasks)
    owner = np.repeat(np.arange(len(per_rank)), [len(item) for item in per_rank])
    # gathers of all ranks lie in one array: none follows the last one of another rank
    following = owner[1:] == owner[:-1]
    extended = extended.connect(new[:-1][following], new[1:][following], EdgeKind.ORDER)
    met = meetings(graph)
    hub_of = dict(zip(met.member.tolist(), met.hub.tolist(), strict=True))
    keys = [(hub_of[gather.message], gather.phase) if gather.message in hub_of else None for gather in gathers]
    number = {key: index for index, key in enumerate(dict.fromkeys(key for key in keys if key is not None))}
    members = [(row, number[key]) for row, key in zip(new.tolist(), keys, strict=True) if key is not None]
    return extended.meet([row for row, _ in members], [index for _, index in members]) if members else extended
