"""The network of a job: equal hosts, a link within each and one between them.

In: two links, or the name of a machine or device that has them. Out: the link that some ranks communicate over. Not
here: prices (``cost.collective``), networks of more dimensions (``parts.Topology``), rates that change while a job runs
(``systems.uneven.fleet.Wire``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.errors import PriceError
from windtunnel.hardware.catalog import link, machines
from windtunnel.hardware.parts import Device, Link, Topology
from windtunnel.hardware.systems import Machine

__all__ = ["Fabric", "fabric_of"]

# NCCL plans with 20.6 GB/s for a link of the H100 that carries 25 (graph/topo.h), 20.0 for those before it
_NVLINK_RATIOS = {"nvlink4": 20.6 / 25, "nvlink3": 20.0 / 25, "nvlink2": 20.0 / 25}


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

    @classmethod
    def of_rates(cls, inner_bytes_per_s: float, outer_bytes_per_s: float, devices_per_host: int) -> Fabric:
        """Links of which only the rates are known, without latency."""
        return cls(Link("within a host", inner_bytes_per_s), Link("between hosts", outer_bytes_per_s), devices_per_host)

    def among(self, num_devices: int) -> Link:
        """The link that limits this number of neighbors: the inner one below a full host, as planners round up."""
        return self.inner if num_devices < self.devices_per_host else self.outer

    def between(self, ranks: Sequence[int]) -> Link:
        """The ring through these ranks as one link: its narrowest part, its latency per step on average.

        Within a host it goes over the devices' own link, between hosts over as many networks at once as each host has
        of the ranks.
        """
        per_host = self._count_per_host(ranks)
        ratio = _NVLINK_RATIOS.get(self.inner.name, 1.0)
        inner_rate = ratio * self.inner.bandwidth_bytes_per_s
        if len(per_host) < 2:
            return Link(self.inner.name, inner_rate, self.inner.latency_ns)
        in_parallel = min(per_host.values())
        outer_rate = in_parallel * self.outer.bandwidth_bytes_per_s
        if in_parallel == 1:
            return Link(self.outer.name, outer_rate, self.outer.latency_ns)
        hops, size = len(per_host), len(ranks)
        latency_ns = round((hops * self.outer.latency_ns + (size - hops) * self.inner.latency_ns) / size)
        return Link(f"{self.inner.name}, {self.outer.name}", min(inner_rate, outer_rate), latency_ns)

    def network(self, ranks: Sequence[int]) -> Topology:
        """The dimensions of a network among these ranks: those of a host, where all hosts have as many as the first.

        Examples
        --------
        >>> fabric = Fabric.of_rates(450e9, 50e9, devices_per_host=8)
        >>> fabric.network(range(32)).sizes, fabric.network(range(0, 32, 8)).sizes
        ((8, 4), (1, 4))
        """
        per_host = self._count_per_host(ranks)
        if len(per_host) < 2:
            return Topology((len(ranks),), (self.inner,))
        return Topology((max(per_host.values()), len(per_host)), (self.inner, self.outer))

    def _count_per_host(self, ranks: Sequence[int]) -> Counter[int]:
        return Counter(rank // self.devices_per_host for rank in ranks)


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
    inner_link = link(inner) if inner else machine.device_link if machine else None
    outer_link = link(outer) if outer else machine.network_link if machine else None
    if inner_link is None or outer_link is None:
        raise PriceError(
            f"nothing says what links {getattr(on, 'name', on)} has",
            where="messages between ranks",
            fix="name them: --link pcie4-x16 --network ethernet-100g",
        )
    num_ranks = len(on.devices) if isinstance(on, Machine) else 0
    return Fabric(inner_link, outer_link, devices_per_host or (len(machine.devices) if machine else 8), num_ranks)


def _machine_with(device: Device) -> Machine | None:
    return next((machine for machine in machines().values() if machine.devices[0].name == device.name), None)
