"""What messages without a time would take: collectives over links that are named.

In: a graph with messages that were never sent, or of which a trace states the size alone, and a ``Fabric``. Out: the
same graph with durations. Each group is one ring over the links between its members: within a host over the devices'
own link, between hosts over as many networks at once as the group has members on a host. Messages that were measured
keep their time, unless a user names other links. Not here: the formulas (``cost.collective``), expansion into sends
and receives, contention with computation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.collective import message_ns
from windtunnel.errors import PriceError
from windtunnel.graph import Graph, Kind
from windtunnel.hardware import Device, Link, Machine, machines
from windtunnel.hardware import link as catalog_link
from windtunnel.whatifs.placing import never_run

__all__ = ["Fabric", "fabric_of", "has_messages", "price_messages", "sized_messages", "untimed_messages"]

# NCCL plans with 20.6 GB/s for a link of the H100 that carries 25 (graph/topo.h), 20.0 for those before it
_NVLINK_SHARE = {"nvlink4": 20.6 / 25, "nvlink3": 20.0 / 25, "nvlink2": 20.0 / 25}


@dataclass(frozen=True, slots=True)
class Fabric:
    """Equal hosts: the link of a device to the others of its host, and of each device to other hosts.

    Parameters
    ----------
    inner, outer : Link
    devices_per_host : int
    num_ranks : int
        Of the job, for messages whose graph does not say which ranks take part; 0: not known.
    replaces_measured : bool
        Whether these links also carry the messages whose time was measured over others.
    """

    inner: Link
    outer: Link
    devices_per_host: int = 8
    num_ranks: int = 0
    replaces_measured: bool = False

    def between(self, ranks: Sequence[int]) -> Link:
        """The ring through these ranks as one link: its narrowest part, its latency per step on average."""
        per_host = Counter(rank // self.devices_per_host for rank in ranks)
        share = _NVLINK_SHARE.get(self.inner.name, 1.0)
        inner_rate = share * self.inner.bandwidth_bytes_per_s
        if len(per_host) < 2:
            return Link(self.inner.name, inner_rate, self.inner.latency_ns)
        abreast = min(per_host.values())
        outer_rate = abreast * self.outer.bandwidth_bytes_per_s
        if abreast == 1:
            return Link(self.outer.name, outer_rate, self.outer.latency_ns)
        hops, size = len(per_host), len(ranks)
        latency_ns = round((hops * self.outer.latency_ns + (size - hops) * self.inner.latency_ns) / size)
        return Link(f"{self.inner.name}, {self.outer.name}", min(inner_rate, outer_rate), latency_ns)


def fabric_of(on: Machine | Device, inner: str = "", outer: str = "", devices_per_host: int = 0) -> Fabric:
    """Links by name, else those of the machine, else of the catalog's first machine with this device.

    Raises
    ------
    PriceError
        No machine of the catalog has the device, and a link is not named.
    InputError
        No link has a name.
    """
    machine = on if isinstance(on, Machine) else _machine_with(on)
    inner_link = catalog_link(inner) if inner else machine.device_link if machine else None
    outer_link = catalog_link(outer) if outer else machine.network_link if machine else None
    if inner_link is None or outer_link is None:
        raise PriceError(
            f"nothing says what links {getattr(on, 'name', on)} has",
            where="messages between ranks",
            fix="name them: --link pcie4-x16 --network ethernet-100g",
        )
    num_ranks = len(on.devices) if isinstance(on, Machine) else 0
    return Fabric(inner_link, outer_link, devices_per_host or (len(machine.devices) if machine else 8), num_ranks)


def _machine_with(device: Device) -> Machine | None:
    return next((one for one in machines().values() if one.devices[0].name == device.name), None)


def has_messages(graph: Graph) -> bool:
    """Whether some of its messages have no time: they were never sent, or a trace states their size alone."""
    return bool(_unsent(graph).any())


def _unsent(graph: Graph) -> NDArray[np.bool_]:
    unsent: NDArray[np.bool_] = (never_run(graph) & graph.select(kind=Kind.COMM)) | untimed_messages(graph)
    return unsent


def untimed_messages(graph: Graph) -> NDArray[np.bool_]:
    """Messages of a known size that take no time at all, bool [T]: no message does, so their time is not known."""
    found: NDArray[np.bool_] = sized_messages(graph) & (graph.duration_ns == 0)
    return found


def sized_messages(graph: Graph) -> NDArray[np.bool_]:
    """Messages of a known size, bool [T]."""
    if "message_bytes" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    found: NDArray[np.bool_] = graph.select(kind=Kind.COMM) & (graph.tasks["message_bytes"] > 0)
    return found


def price_messages(graph: Graph, fabric: Fabric) -> Graph:
    """Set the durations of messages that have no time, and of measured ones if the fabric replaces their links.

    Raises
    ------
    PriceError
        An operation has no price, or nothing says how many ranks take part; says which.
    """
    unsent = _unsent(graph) | (sized_messages(graph) & fabric.replaces_measured)
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
