"""Keep less on the device between forward and backward (what-if family "activation memory").

In: a graph with data edges and sizes of results. Out: results that leave after the forward pass and come back
before the backward pass: over the host link (vDNN) or encoded in place (Gist). The edges and the memory columns
both change, so the memory curve follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase, ResourceKind
from windtunnel.simulate.limits import no_faster
from windtunnel.whatifs.insert_tasks import insert_ahead, insert_behind, memory_bandwidth, traffic_ns
from windtunnel.whatifs.layer_gradients import link_of, positions
from windtunnel.whatifs.saved_activations import Activation, activations_of, release

__all__ = ["gist", "vdnn"]

Ints = NDArray[np.int64]
_MIB = 2**20


@registry.whatif(
    "vdnn",
    source="Rhu et al., vDNN, MICRO 2016; Daydream, ATC 2020",
    limits=no_faster("copies to the host and back add work", max_added_bytes=0),
)
def vdnn(
    graph: Graph,
    link: str = "pcie4-x16",
    bandwidth_bytes_per_s: float | None = None,
    latency_ns: int | None = None,
    ahead: int = 1,
    minimum_bytes: int = _MIB,
) -> Graph:
    """Offload each result to the host after its layer's forward pass and prefetch it before its backward pass.

    Both run on copy streams of their own. A prefetch begins with the backward pass of the layer ``ahead`` layers above;
    the topmost layers are not offloaded, as they come back at once.

    Parameters
    ----------
    graph : Graph
    link : str
        Between device and host, of the catalog.
    bandwidth_bytes_per_s, latency_ns : optional
        Replace those of the link.
    ahead : int
        How many layers early a prefetch begins.
    minimum_bytes : int
        Smaller results stay.

    Raises
    ------
    NotApplicableError
        The graph computes on the host, or keeps no results worth the way.
    """
    if ahead < 1:
        raise InputError(f"a prefetch cannot begin {ahead} layers early", fix="give 1 or more")
    if not np.isin(graph.resources["kind"], (ResourceKind.STREAM, ResourceKind.DEVICE)).any():
        raise NotApplicableError("the work runs in the host's own memory: there is nowhere to offload to")
    wire = link_of(link, bandwidth_bytes_per_s, latency_ns)
    known = activations_of(graph, minimum_bytes)
    # A prefetch begins when the backward pass starts the layer ``ahead`` above: early enough to be there, late
    # enough to save memory.
    triggers = _triggers(graph, known, ahead)
    moved = [activation for activation in known if activation.row in triggers]
    if not moved:
        raise NotApplicableError(f"fewer than {ahead + 1} layers keep results for the backward pass")
    sizes = np.array([activation.size_bytes for activation in moved], dtype=np.int64)
    duration_ns = np.array([wire.transfer_ns(size) for size in sizes.tolist()])
    return _add_offload_and_prefetch(
        release(graph, moved), moved, [triggers[item.row] for item in moved], duration_ns, sizes
    )


def _triggers(graph: Graph, activations: Sequence[Activation], ahead: int) -> dict[int, int]:
    """By row of a result the first backward task of the layer ``ahead`` above its own, of its iteration and rank."""
    index = positions(graph)
    columns = [graph.tasks[name] for name in ("iteration", "rank") if name in graph.tasks]
    steps: dict[tuple[int, ...], list[Activation]] = {}
    for activation in activations:
        steps.setdefault(tuple(int(column[activation.row]) for column in columns), []).append(activation)
    result: dict[int, int] = {}
    for step in steps.values():
        first: dict[str, int] = {}
        for activation in step:
            reader = activation.readers[0]
            known = first.get(activation.layer, reader)
            first[activation.layer] = min(known, reader, key=lambda row: int(index[row]))
        # As the backward pass reaches them: with branches, that is not the reversed forward order.
        # Layers whose results one task reads first count as one: it cannot start the prefetch that it waits for.
        starts = sorted(set(first.values()), key=lambda row: int(index[row]))
        trigger = dict(zip(starts[ahead:], starts, strict=False))
        result |= {item.row: trigger[first[item.layer]] for item in step if first[item.layer] in trigger}
    return result


def _add_offload_and_prefetch(
    graph: Graph, moved: Sequence[Activation], triggers: Sequence[int], duration_ns: Ints, sizes: Ints
) -> Graph:
    """Add offload and prefetch of every result."""
    graph, out = graph.add_resource("offload stream", ResourceKind.STREAM)
    graph, back = graph.add_resource("prefetch stream", ResourceKind.STREAM)
    count, rows = len(moved), [activation.row for activation in moved]
    none = np.zeros(count, dtype=np.int64)
    columns = {
        "name": [f"{verb} {activation.layer}" for verb in ("offload", "prefetch") for activation in moved],
        "op": np.repeat(["memcpy DtoH", "memcpy HtoD"], count),
        "kind": int(Kind.COPY),
        "phase": np.repeat([int(Phase.FORWARD), int(Phase.BACKWARD)], count),
        "resource": np.repeat([out, back], count),
        "duration_ns": np.tile(duration_ns, 2),
        "bytes_read": np.tile(sizes, 2),
        "output_bytes": np.concatenate([none, sizes]),
        "cost_source": "link model",
        **{name: np.tile(graph.tasks[name][rows], 2) for name in ("iteration", "rank") if name in graph.tasks},
    }
    #      forward: result --> offload (own stream)          backward of the layer above starts --> prefetch --> readers
    offload = graph.num_tasks + np.arange(count)
    waits: list[int | None] = [*rows, *[None] * count]
    readers: list[tuple[int, ...] | None] = [*[None] * count, *(activation.readers for activation in moved)]
    extended = graph.insert(columns, after=waits, before=readers)
    extended = extended.connect(offload, offload + count, EdgeKind.CONTROL)
    return extended.connect(list(triggers), offload + count, EdgeKind.CONTROL, from_start=True)


@registry.whatif(
    "gist",
    source="Jain et al., Gist, ISCA 2018; Daydream, ATC 2020",
    limits=no_faster("encoding and decoding add work"),
)
def gist(
    graph: Graph,
    relu_ratio: float = 1 / 32,
    other_ratio: float = 0.5,
    bandwidth_bytes_per_s: float | None = None,
    minimum_bytes: int = _MIB,
) -> Graph:
    """Encode each kept result right after it is made and decode it right before its first backward reader.

    Results of rectifiers need one bit each for their own backward pass (binarize); others are kept in half precision
    (delayed precision reduction). Encoding and decoding each read one form and write the other.

    Parameters
    ----------
    graph : Graph
    relu_ratio, other_ratio : float
        Encoded bytes over bytes.
    bandwidth_bytes_per_s : float, optional
        Of memory; by default what the graph's own memory-bound tasks reach.
    minimum_bytes : int
        Smaller results stay as they are.

    Raises
    ------
    NotApplicableError
        No result is kept for the backward pass, or no bandwidth is known.
    """
    if not (0 <= relu_ratio <= 1 and 0 <= other_ratio <= 1):
        raise InputError("an encoded result cannot be larger than the result", fix="give ratios from 0 to 1")
    kept = activations_of(graph, minimum_bytes)
    bandwidth = memory_bandwidth(graph, bandwidth_bytes_per_s)
    sizes = np.array([activation.size_bytes for activation in kept], dtype=np.int64)
    pattern = r"(?i).*relu.*|.*threshold.*|.*clamp_min.*"
    relu = graph.select(op=pattern) | graph.select(name=pattern)
    ratio = np.where(relu[[activation.row for activation in kept]], relu_ratio, other_ratio)
    encoded = np.rint(ratio * sizes).astype(np.int64)
    return _add_encode_and_decode(release(graph, kept), kept, sizes, encoded, traffic_ns(sizes + encoded, bandwidth))


def _add_encode_and_decode(
    graph: Graph, kept: Sequence[Activation], sizes: Ints, encoded: Ints, duration_ns: Ints
) -> Graph:
    rows = np.array([activation.row for activation in kept], dtype=np.int64)
    common = {"kind": int(Kind.COMPUTE), "cost_source": "memory bandwidth"}
    encode = {**common, "name": "encode", "op": "encode", "duration_ns": duration_ns, "output_bytes": encoded}
    encode |= {"bytes_read": sizes, "bytes_written": encoded}
    extended, encoders = insert_behind(graph, rows, encode)
    readers = np.array([activation.readers[0] for activation in kept], dtype=np.int64)
    # Results that are read by the same task first are decoded together.
    unique, member = np.unique(readers, return_inverse=True)
    decode = {
        name: _sum_by_member(member, values) for name, values in (("duration_ns", duration_ns), ("output_bytes", sizes))
    }
    decode |= {"bytes_read": _sum_by_member(member, encoded), "bytes_written": decode["output_bytes"]}
    extended, decoders = insert_ahead(extended, unique, {**common, "name": "decode", "op": "decode", **decode})
    extended = extended.connect(encoders, decoders[member])
    pairs = [(decoders[index], reader) for index, item in zip(member, kept, strict=True) for reader in item.readers]
    src, dst = np.array(pairs, dtype=np.int64).T
    return extended.connect(src, dst)


def _sum_by_member(member: Ints, values: Ints) -> Ints:
    total = np.zeros(int(member.max()) + 1, dtype=np.int64)
    np.add.at(total, member, values)
    return total
