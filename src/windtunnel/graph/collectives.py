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

__all__ = ["all_reduces", "find_parameter_broadcasts", "find_scattered_gradients", "message_bytes", "world_size"]

Mask = NDArray[np.bool_]
_RESCALING = frozenset({"_to_copy", "to", "copy_", "div_", "mul_"})
_MAX_RESCALES = 3  # of one message, one after the other
_ALL_PARAMETERS = 0.9  # of the bytes of their gradients; a loss or a norm may be reduced, too


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


def find_parameter_broadcasts(graph: Graph) -> Mask:
    """Mask the broadcasts of what each rank updated, bool [T]; any of them: the optimizer's state is sharded.

    They are as large as the gradients together; replicas broadcast nothing but buffers.
    """
    communicates = graph.select(kind=Kind.COMM)
    result = communicates & _is_named(graph, "broadcast")
    sizes = graph.tasks.get("message_bytes", np.zeros(graph.num_tasks, dtype=np.int64))
    reduced_bytes = sizes[communicates & _is_named(graph, "all_reduce")].sum()
    return result & bool(sizes[result].sum() >= _ALL_PARAMETERS * reduced_bytes > 0)


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
    """Whose results the backward pass of a layer computes with, bool [T]; buckets of gradients are read by none.

    Gradients may be cast and scaled in a layer's hook, as FSDP does; then what comes of that is not read any more.
    """
    result = np.zeros(graph.num_tasks, dtype=bool)
    if "layer" not in graph.tasks:
        return result
    source, target = graph.edges["src"], graph.edges["dst"]
    reads = graph.select(kind=Kind.COMPUTE, phase=Phase.BACKWARD, layer=".+")
    rescales = reads & _rescales(graph)
    is_data = (graph.edges["kind"] == EdgeKind.DATA) & reads[target]
    for _ in range(_MAX_RESCALES + 1):  # from its last reader back to the message
        is_read = is_data & (~rescales | result)[target]
        result[source[is_read]] = True
    return result


def _rescales(graph: Graph) -> Mask:
    """Mask operators that only cast or scale, bool [T]."""
    if "op" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    strings = graph.tasks.strings("op")
    return strings.where({text: text.rpartition("::")[2].partition(".")[0] in _RESCALING for text in strings.values})


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
