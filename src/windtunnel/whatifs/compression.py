"""Send fewer bytes of gradient (what-if family "gradient compression").

In: a graph with gradient all-reduces. Out: a task that compresses behind the last gradient of each, a shorter
message, and a task that restores it before the update. What is not sent stays behind in buffers, which the memory
shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.collective import ring_all_reduce_ns
from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase, ResourceKind
from windtunnel.graph.collectives import all_reduces, message_bytes, world_size
from windtunnel.graph.parameters import parameter_shapes
from windtunnel.simulate.limits import of_kind, other_order
from windtunnel.whatifs.ddp_reducer import OWN_WORK, reducing_needs, split_by_bytes, way_between, work_ahead
from windtunnel.whatifs.insert_tasks import computes_on_host, memory_bandwidth, traffic_ns
from windtunnel.whatifs.layer_gradients import link_in_use
from windtunnel.whatifs.measured import Unpriced

__all__ = ["dgc", "fp16_gradients", "powersgd", "top_k"]

Ints = NDArray[np.int64]


_LIMITS = other_order("no more than messages are saved", without=of_kind(Kind.COMM))


@registry.whatif(
    "fp16-gradients",
    source="PyTorch DDP communication hooks, fp16_compress_hook",
    decides="what gradients are sent as",
    limits=_LIMITS,
)
def fp16_gradients(graph: Graph, bandwidth_bytes_per_s: float | None = None) -> Graph:
    """Send gradients in half precision: half the bytes, one cast on each side."""
    return _compress_messages(graph, 0.5, 1.5, 1.5, 0.5, bandwidth_bytes_per_s)


@registry.whatif(
    "top-k",
    source="Aji and Heafield, Sparse communication for distributed gradient descent, EMNLP 2017",
    decides="what gradients are sent as",
    limits=_LIMITS,
)
def top_k(graph: Graph, density_ratio: float = 0.01, bandwidth_bytes_per_s: float | None = None) -> Graph:
    """Send the largest gradients with their indices; the rest waits in a residual of full size.

    Compressing reads the gradient and the residual, selects and writes the residual: four passes.
    """
    return _compress_messages(graph, 2 * density_ratio, 4.0, 1.0, 1.0, bandwidth_bytes_per_s)


@registry.whatif(
    "dgc",
    source="Lin et al., Deep gradient compression, ICLR 2018; Daydream, ATC 2020",
    decides="what gradients are sent as",
    limits=_LIMITS,
)
def dgc(
    graph: Graph,
    density_ratio: float = 0.001,
    bandwidth_bytes_per_s: float | None = None,
    sends_indices: bool = True,
) -> Graph:
    """Send a thousandth of the gradients, with momentum correction and a sampled threshold.

    Compressing updates momentum and velocity, takes the threshold and masks both: seven passes; both are kept.
    ``sends_indices=no`` counts the values only, a ratio of 1/1000, as the paper does; the default sends indices, too.
    """
    sent = 2 * density_ratio if sends_indices else density_ratio
    return _compress_messages(graph, sent, 7.0, 1.0, 2.0, bandwidth_bytes_per_s)


@registry.whatif(
    "powersgd",
    source="Vogels et al., PowerSGD, NeurIPS 2019",
    decides="what gradients are sent as",
    limits=_LIMITS,
)
def powersgd(
    graph: Graph,
    rank: int = 2,
    matrix_rows: int = 1024,
    bandwidth_bytes_per_s: float | None = None,
) -> Graph | Unpriced:
    """Send two thin factors of each gradient matrix instead of it; the error is fed back.

    A matrix of m rows and n columns becomes ``rank * (m + n)`` numbers; where the capture does not know the shapes
    they are taken as squares of ``matrix_rows``.

    Parameters
    ----------
    graph : Graph
    rank, matrix_rows : int
    bandwidth_bytes_per_s : float, optional
        Of memory. Compressing then reads gradient and error, multiplies twice and writes the error: five passes;
        restoring multiplies once.

    Measured: PyTorch's hook runs once between real processes of this host, on the parameters' own shapes: many small
    operators, which no bandwidth tells. It is not, where the memory's bandwidth is given or devices compute.
    """
    if not 1 <= rank <= matrix_rows:
        raise InputError(f"rank {rank} does not fit matrices of {matrix_rows} rows")
    ratio = _factor_ratio(parameter_shapes(graph) or [(matrix_rows, matrix_rows)], rank)
    published = partial(_compress_messages, graph, ratio, 5.0, 1.0, 1.0, bandwidth_bytes_per_s)
    if bandwidth_bytes_per_s is not None or not computes_on_host(graph):
        return published()
    messages = np.flatnonzero(all_reduces(graph))
    needs = reducing_needs(graph, messages, sender="powersgd", options={"rank": rank})
    if not needs:
        return published()

    def finish(*total_ns: int) -> Graph:
        # Take out what the hook's own flight holds: the reducer's work, and messages over this host's memory.
        inside = graph.select(op=OWN_WORK)
        if "cost_source" in graph.tasks:
            sources = graph.tasks.strings("cost_source")
            inside |= all_reduces(graph) & sources.where({text: text == "measured:partial" for text in sources.values})
        return _compress_at_measured_price(
            graph.set_duration(inside, np.zeros(int(inside.sum()), dtype=np.int64), cost_source="measured:partial"),
            ratio,
            split_by_bytes(graph, messages, total_ns),
        )

    return Unpriced(needs, finish, published, way_between(graph, world_size(graph, None)))


def _factor_ratio(shapes: Sequence[tuple[int, ...]], rank: int) -> float:
    """Elements of the factors over those of the gradients; what factors would not halve is sent as it is."""
    whole = sent = 0
    for shape in shapes:
        size = math.prod(shape)
        # A matrix of a rows and b columns becomes two factors of rank * a and rank * b elements.
        factors = rank * (shape[0] + size // max(shape[0], 1)) if shape else size
        whole += size
        sent += factors if 2 * factors <= size else size
    return sent / max(whole, 1)


def _compress_messages(
    graph: Graph,
    ratio: float,
    compress_passes: float,
    restore_passes: float,
    kept_ratio: float,
    bandwidth_bytes_per_s: float | None,
) -> Graph:
    """Compress before, restore after, messages of ``ratio`` of the bytes; ``kept_ratio`` of them stay as buffers."""
    if not 0 < ratio <= 1:
        raise InputError(f"compression to {ratio:g} of the bytes is none", fix="keep a ratio above 0 and at most 1")
    messages = np.flatnonzero(all_reduces(graph))
    size_bytes = message_bytes(graph, _mask(graph, messages))
    bandwidth = memory_bandwidth(graph, bandwidth_bytes_per_s)
    compressed = _shorter(graph, messages, ratio, size_bytes)
    compress_ns = traffic_ns(compress_passes * size_bytes, bandwidth)
    compressed = work_ahead(compressed, messages, compress_ns, "compress", "memory bandwidth")
    compressed = _after(compressed, messages, traffic_ns(restore_passes * size_bytes, bandwidth))
    return _keeping(compressed, kept_ratio, size_bytes)


def _keeping(graph: Graph, kept_ratio: float, size_bytes: Ints) -> Graph:
    """Note that so much of all gradients stays in buffers."""
    per_iteration = size_bytes.sum() / (graph.num_iterations * graph.num_ranks)
    base_bytes = graph.meta.memory_base_bytes
    return graph.note({"memory_base_bytes": base_bytes + round(kept_ratio * per_iteration)})


def _compress_at_measured_price(graph: Graph, ratio: float, compress_ns: Ints) -> Graph:
    """As ``_compress_messages``, at a price that holds restoring, too; vectors and both factors go by themselves."""
    messages = np.flatnonzero(all_reduces(graph))
    size_bytes = message_bytes(graph, _mask(graph, messages))
    compressed = _shorter(graph, messages, ratio, size_bytes, num_messages=3)
    compressed = work_ahead(compressed, messages, compress_ns, "compress", "measured:partial")
    return _keeping(compressed, 1.0, size_bytes)


def _mask(graph: Graph, rows: Ints) -> NDArray[np.bool_]:
    mask = np.zeros(graph.num_tasks, dtype=bool)
    mask[rows] = True
    return mask


def _shorter(graph: Graph, messages: Ints, ratio: float, size_bytes: Ints, num_messages: int = 1) -> Graph:
    """Scale what depends on the bytes; each message has its latency, where the link is known."""
    mask = _mask(graph, messages)
    wire, duration = link_in_use(graph), graph.duration_ns[messages]
    # Only the part of a message that depends on its bytes shrinks.
    empty_ns = ring_all_reduce_ns(0, graph.meta.world_size or 1, wire) if wire is not None else 0
    latency = np.minimum(duration, empty_ns)
    requested = num_messages * latency + np.rint(ratio * (duration - latency)).astype(np.int64)
    sizes = graph.tasks["message_bytes"].copy()
    sizes[messages] = np.maximum(np.rint(ratio * size_bytes).astype(np.int64), 1)
    return graph.set_duration(mask, requested, cost_source="compressed").with_columns(message_bytes=sizes)


def _after(graph: Graph, messages: Ints, duration_ns: Ints) -> Graph:
    """Restore each message on a resource of its rank's own, before whatever waits for it."""
    # A stream of its own: restoring runs concurrently with the backward pass, as a communication hook does.
    extended, rows = graph, {}
    ranks = graph.tasks["rank"][messages] if "rank" in graph.tasks else np.zeros(len(messages), np.int32)
    for rank in np.unique(ranks).tolist():
        named = f"rank {rank} restore gradients" if graph.num_ranks > 1 else "restore gradients"
        extended, rows[rank] = extended.add_resource(named, ResourceKind.STREAM)
    edges = graph.edges
    inner = _mask(graph, messages)
    waits: list[list[int]] = [[] for _ in messages]
    number = {int(message): index for index, message in enumerate(messages)}
    # ORDER edges are the link's own sequence: the next message need not wait until this one is restored
    leaving = np.flatnonzero(inner[edges["src"]] & ~inner[edges["dst"]] & (edges["kind"] != EdgeKind.ORDER))
    for edge in leaving.tolist():
        waits[number[int(edges["src"][edge])]].append(int(edges["dst"][edge]))
    columns = {
        "name": "restore",
        "op": "restore",
        "kind": int(Kind.COMPUTE),
        "phase": int(Phase.BACKWARD),
        "resource": [rows[rank] for rank in ranks.tolist()],
        "duration_ns": duration_ns,
        "cost_source": "memory bandwidth",
    }
    for name in ("iteration", "rank"):
        if name in graph.tasks:
            columns[name] = graph.tasks[name][messages]
    return extended.insert(columns, after=[[int(message)] for message in messages], before=waits)
