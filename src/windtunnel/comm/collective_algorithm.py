"""Another algorithm for the collectives of a job (what-if family "collective algorithm", room comm).

In: a graph with collectives, of one rank that stands for all or of all ranks. Out: each of them as its messages over
the links of the network, or as one task with its closed form. Not here: the algorithms (``algorithms``).
"""

from __future__ import annotations

import math

import numpy as np

from windtunnel import registry
from windtunnel.comm.algorithms import ALGORITHMS, schedule_of
from windtunnel.comm.expansion import SOURCE, Transport, expand
from windtunnel.comm.instances import Instances, collectives_of
from windtunnel.cost.collective import closed_form_ns
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph, Kind
from windtunnel.hardware import Link, Topology, link, topology
from windtunnel.simulate.limits import of_kind, other_order

__all__ = ["collective_algorithm"]

_DECIDES = "collective algorithm"
_MAX_TASKS = 20_000_000
_TREE_PARTS = 16


@registry.whatif(
    "collective-algorithm",
    source="dPRO, MLSys 2022; Cho et al., BlueConnect, MLSys 2019; Sanders et al., two-tree algorithms, 2009",
    decides=_DECIDES,
    limits=other_order("the workers' own work stays", without=of_kind(Kind.COMM)),
)
def collective_algorithm(
    graph: Graph,
    algorithm: str = "tree",
    sizes: str = "auto",
    links: str = "auto",
    sharers: str = "",
    num_ranks: int | None = None,
    num_parts: int = 0,
    sum_bytes_per_s: float | None = None,
    expanded: bool = True,
) -> Graph:
    """Carry collectives by another algorithm, message by message.

    Parameters
    ----------
    graph : Graph
    algorithm : str
        ``ring``, ``tree``, ``halving-doubling``, ``hierarchical``, ``pairwise`` or ``parameter-server``. What it cannot
        do stays as it is.
    sizes : str
        Members per dimension of the network, innermost first, as ``8x4``; ``auto`` is one dimension, or for
        ``hierarchical`` two as equal as they divide.
    links : str
        One link of the catalog per dimension, as ``nvlink4/infiniband-ndr``; ``auto`` is the one in use.
    sharers : str
        Ranks per port of each dimension, as ``1x8`` where the eight of a host have one NIC.
    num_ranks : int, optional
        Workers, where the graph does not say.
    num_parts : int
        Parts that a message is cut into, each sent separately; 0: 16 for trees, 1 for all else.
    sum_bytes_per_s : float, optional
        How fast what arrives is added up; as the slowest link says by default.
    expanded : bool
        False keeps each collective one task, with its closed form as duration.

    Raises
    ------
    NotApplicableError
        There is no such collective, sizes of messages are unknown, or no link is recorded.
    InputError
        The algorithm is not known, the sizes are not those of the workers, or the messages are too many.
    """
    if algorithm not in ALGORITHMS:
        raise InputError(f"no algorithm is called {algorithm!r}", fix=f"known: {', '.join(ALGORITHMS)}")
    operations = ALGORITHMS[algorithm][0]
    if num_parts < 0:
        raise InputError(f"a message cannot be cut into {num_parts} parts", fix="give 1 or more, or 0 to choose")
    groups = list(collectives_of(graph, operations, num_ranks))
    network = _network(graph, groups, algorithm, sizes, links, sharers)
    sums = sum_bytes_per_s or network.slowest.sum_bytes_per_s
    transport = Transport(network, num_parts or (_TREE_PARTS if algorithm == "tree" else 1), sums)
    for group in groups:
        graph = (_expand_collectives if expanded else _price_collectives)(graph, group, algorithm, transport)
    return graph.note({"world_size": network.num_members, "link": network.slowest.json()})


def _network(graph: Graph, groups: list[Instances], algorithm: str, sizes: str, links: str, sharers: str) -> Topology:
    count = max((int(group.ranks.max()) + 1 for group in groups), default=0)
    if count < 2:
        raise NotApplicableError("every collective here has one member", fix="load the traces of all ranks")
    wires = (_link_in_use(graph),) if links == "auto" else tuple(link(name) for name in links.split("/"))
    text = sizes if sizes != "auto" else _even(count) if algorithm == "hierarchical" else f"{count}"
    result = topology(text, wires, sharers)
    if result.num_members != count:
        raise InputError(f"{text} are {result.num_members} workers, not {count}", where="collective-algorithm sizes")
    return result


def _link_in_use(graph: Graph) -> Link:
    if graph.meta.link is None:
        raise NotApplicableError("the links of the network are not recorded", fix="pass links=nvlink4")
    return Link(**graph.meta.link)


def _even(count: int) -> str:
    inner = next(size for size in range(math.isqrt(count), 0, -1) if count % size == 0)
    return f"{count // inner}x{inner}" if inner > 1 else f"{count}"


def _within(network: Topology, members: int, algorithm: str) -> Topology:
    """The network of one group: all of it, or as many members of one dimension."""
    if members == network.num_members:
        return network
    if algorithm == "hierarchical":
        raise NotApplicableError(
            f"a group of {members} of {network.num_members} ranks has no dimensions of its own", fix="algorithm=ring"
        )
    return Topology((members,), (network.slowest,))


def _expand_collectives(graph: Graph, instances: Instances, algorithm: str, transport: Transport) -> Graph:
    schedule = schedule_of(algorithm, instances.op, _within(transport.topology, instances.num_members, algorithm).sizes)
    count = 2 * len(instances) * transport.num_parts * len(schedule)
    if count > _MAX_TASKS:
        raise InputError(
            f"{len(instances)} collectives of {instances.num_members} ranks are {count:,} messages",
            fix="use expanded=false, larger buckets, or fewer num_parts",
        )
    return expand(graph, instances, schedule, transport)


def _price_collectives(graph: Graph, instances: Instances, algorithm: str, transport: Transport) -> Graph:
    network = _within(transport.topology, instances.num_members, algorithm)
    price = [closed_form_ns(instances.op, algorithm, size, network) for size in instances.size_bytes.tolist()]
    duration = graph.duration_ns.copy()
    duration[instances.rows] = np.array(price, dtype=np.int64)[:, None]
    mask = np.isin(np.arange(graph.num_tasks), instances.rows)
    return graph.set_duration(mask, duration[mask], SOURCE)
