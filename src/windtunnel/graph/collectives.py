"""The collectives that a graph has.

In: a graph. Out: masks and numbers that what-ifs about communication start from, with reasons where there is nothing.
Not here: how long a message takes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph.graph import Graph
from windtunnel.graph.kernel_classes import collective_of
from windtunnel.graph.schema import EdgeKind, Kind, Phase

__all__ = ["all_reduces", "find_scattered_gradients", "message_bytes", "world_size"]

Mask = NDArray[np.bool_]


def all_reduces(graph: Graph) -> Mask:
    """The gradient all-reduces, bool [T].

    What a layer's backward pass goes on computing with is no gradient of a weight: tensor parallelism reduces
    activations so. That is seen where the graph says who reads a message.

    Raises
    ------
    NotApplicableError
        There are none.
    """
    communicates = graph.select(kind=Kind.COMM)
    result = communicates & _is_named(graph, "all_reduce")
    if "phase" in graph.tasks:
        result &= ~graph.select(phase=(Phase.DATA, Phase.FORWARD)) & ~_read_by_layers(graph)
    if not result.any():
        raise _without_all_reduces(graph, communicates)
    return result


def find_scattered_gradients(graph: Graph) -> Mask:
    """Mask the messages that leave each rank its shard of the gradients, bool [T]; any of them: the job is sharded."""
    result: Mask = graph.select(kind=Kind.COMM) & _is_named(graph, "reduce_scatter")
    if "phase" in graph.tasks:
        result &= ~graph.select(phase=(Phase.DATA, Phase.FORWARD)) & ~_read_by_layers(graph)
    return result


def _is_named(graph: Graph, collective: str) -> Mask:
    """Whose operator or name is that of a collective, bool [T]."""
    result = np.zeros(graph.num_tasks, dtype=bool)
    for column in ("op", "name"):
        if column in graph.tasks:
            strings = graph.tasks.strings(column)
            result |= strings.where(
                {text: collective_of(text, is_collective=True) == collective for text in strings.values}
            )
    return result


def _without_all_reduces(graph: Graph, communicates: Mask) -> NotApplicableError:
    where = f"{int(communicates.sum())} communication tasks"
    if (communicates & _is_named(graph, "reduce_scatter")).any():
        fix = "capture or trace the job with other shards or ranks: windtunnel capture --dry-run --ranks N"
        return NotApplicableError("gradients are reduce-scattered here, the job is sharded", where=where, fix=fix)
    fix = "capture a distributed job, or put data-parallel first: data-parallel:num_ranks=8+..."
    return NotApplicableError("no gradients are all-reduced here", where=where, fix=fix)


def _read_by_layers(graph: Graph) -> Mask:
    """Whose results the backward pass of a layer computes with, bool [T]; buckets of gradients are read by none."""
    result = np.zeros(graph.num_tasks, dtype=bool)
    if "layer" in graph.tasks:
        reads = graph.select(kind=Kind.COMPUTE, phase=Phase.BACKWARD, layer=".+")
        is_data = (graph.edges["kind"] == EdgeKind.DATA) & reads[graph.edges["dst"]]
        result[graph.edges["src"][is_data]] = True
    return result


def world_size(graph: Graph, given: int | None) -> int:
    """How many workers take part: as given, as noted, else as many as the graph holds.

    Raises
    ------
    NotApplicableError
        It is nowhere said.
    """
    traced = graph.meta.distributed.get("world_size", 1)
    known = given or graph.meta.world_size or max(graph.num_ranks, int(traced))
    if known == 1 and given is None:
        raise NotApplicableError("how many ranks take part is not recorded", fix="pass num_ranks=")
    if int(known) < 2:
        raise InputError(f"{known} ranks do not communicate", fix="give 2 or more")
    return int(known)


def message_bytes(graph: Graph, mask: Mask) -> NDArray[np.int64]:
    """Payload of the masked tasks.

    Raises
    ------
    NotApplicableError
        It is not recorded.
    """
    column = graph.tasks.get("message_bytes")
    if column is None or not (column[mask] > 0).any():
        raise NotApplicableError("the sizes of the messages are not recorded", where="column message_bytes")
    sizes: NDArray[np.int64] = column[mask]
    return sizes
