"""All-reduce along the dimensions of the network (what-if family "collective algorithm").

In: a graph with all-reduces. Out: each of them as reduce-scatters, one per dimension, and all-gathers in reverse;
dimensions are resources of their own, so that buckets follow each other through them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.collective import reduce_scatter_ns
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, ResourceKind
from windtunnel.graph.collectives import all_reduces, message_bytes, world_size
from windtunnel.hardware import Link, Topology, link, topology
from windtunnel.simulate.limits import of_kind, other_order
from windtunnel.whatifs.layer_gradients import link_in_use

__all__ = ["blueconnect"]

DECIDES = "collective algorithm"


@registry.whatif(
    "blueconnect",
    source="Cho et al., BlueConnect, MLSys 2019; Daydream, ATC 2020",
    decides=DECIDES,
    limits=other_order("the workers' own work stays", without=of_kind(Kind.COMM)),
)
def blueconnect(graph: Graph, sizes: str = "auto", links: str = "auto", num_ranks: int | None = None) -> Graph:
    """Decompose every all-reduce over the dimensions of the network.

    Parameters
    ----------
    graph : Graph
    sizes : str
        Members per dimension, innermost first, as ``8x4``; ``auto`` splits the workers as evenly as they divide.
    links : str
        One link of the catalog per dimension, as ``nvlink4/infiniband-ndr``; ``auto`` keeps the one in use
        everywhere.
    num_ranks : int, optional
        Workers, where the graph does not say.

    Raises
    ------
    NotApplicableError
        Nothing is all-reduced, sizes of messages are unknown, or the workers have only one dimension.
    """
    chosen = all_reduces(graph)
    size_bytes = message_bytes(graph, chosen)
    topology = _topology(graph, sizes, links, world_size(graph, num_ranks))
    count = len(topology.sizes)
    stages = [*range(count), *reversed(range(count))]
    pieces = graph.split(chosen, parts=2 * count)
    rows = _rows_of_pieces(graph, chosen, 2 * count)
    # the pieces of one all-reduce follow each other; the all-reduces no longer do
    pieces = pieces.connect(rows[:-1].ravel(), rows[1:].ravel(), EdgeKind.DATA)
    for dimension, wire in enumerate(topology.links):
        pieces, row = pieces.add_resource(f"dimension {dimension}, {wire.name}", ResourceKind.LINK)
        mine = rows[[stage for stage, where in enumerate(stages) if where == dimension]].ravel()
        pieces = pieces.move(_mask(pieces, mine), row)
    return _priced(pieces, rows, size_bytes, stages, topology)


def _topology(graph: Graph, sizes: str, links: str, num_ranks: int) -> Topology:
    network = topology(_even(num_ranks) if sizes == "auto" else sizes, _links(graph, links))
    if network.num_members != num_ranks:
        raise InputError(f"{sizes} are {network.num_members} workers, not {num_ranks}", where="blueconnect sizes")
    if len(network.sizes) < 2:
        raise NotApplicableError(
            f"{num_ranks} workers make a ring of one dimension only", fix="give sizes=, for example sizes=2x2"
        )
    return network


def _even(num_ranks: int) -> str:
    inner = next(size for size in range(math.isqrt(num_ranks), 0, -1) if num_ranks % size == 0)
    return f"{num_ranks // inner}x{inner}" if inner > 1 else f"{num_ranks}"


def _links(graph: Graph, links: str) -> tuple[Link, ...]:
    if links != "auto":
        return tuple(link(name) for name in links.split("/"))
    used = link_in_use(graph)
    if used is None:
        raise NotApplicableError("the links of the network are not recorded", fix="pass links=nvlink4/infiniband-ndr")
    return (used,)


def _rows_of_pieces(graph: Graph, chosen: NDArray[np.bool_], parts: int) -> NDArray[np.int64]:
    """Rows that ``split`` gives the parts, [parts, tasks]: the first keeps its row, the others come last."""
    first = np.flatnonzero(chosen)
    added = graph.num_tasks + np.arange((parts - 1) * len(first))
    return np.concatenate([first, added]).reshape(parts, len(first))


def _mask(graph: Graph, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(graph.num_tasks, dtype=bool)
    mask[rows] = True
    return mask


def _priced(
    graph: Graph, rows: NDArray[np.int64], size_bytes: NDArray[np.int64], stages: list[int], topology: Topology
) -> Graph:
    """Set name, bytes and duration of every stage; what reaches a dimension was scattered over those before it."""
    duration, sizes = graph.duration_ns.copy(), graph.tasks["message_bytes"].copy()
    names = graph.tasks.strings("name")
    ops = graph.tasks.get("op", names)
    for stage, dimension in enumerate(stages):
        op = "reduce_scatter" if stage < len(topology.sizes) else "all_gather"
        part = size_bytes / math.prod(topology.sizes[:dimension])
        sizes[rows[stage]] = np.rint(part).astype(np.int64)
        members, wire = topology.sizes[dimension], topology.links[dimension]
        duration[rows[stage]] = [reduce_scatter_ns(each, members, wire) for each in part.tolist()]
        names, ops = names.assign(rows[stage], f"{op} dimension {dimension}"), ops.assign(rows[stage], op)
    chosen = _mask(graph, rows.ravel())
    priced = graph.set_duration(chosen, duration[chosen], cost_source="ring model")
    return priced.with_columns(message_bytes=sizes, name=names, op=ops)
