"""Prices of NCCL's collectives by the library's own model: each algorithm with each protocol, and the fastest of them.

In: an operation, bytes, a topology of (ranks per node, nodes), constants of a release. Out: ``NcclPrice``, in whole
nanoseconds. The library chooses by the same numbers. Not here: libraries without such tables (``collective``), what
else runs on the device meanwhile (``interference``).

The time of an algorithm a with a protocol p, k ranks on m nodes, S bytes:

    time      = latency + S / (bus · ratio)        ratio = k / steps of a ring, 1/2 of a tree
    ring      latency = base[a, p] + steps · hop[p]    steps = 2(k-1) all-reduce, k-1 reduce-scatter and all-gather,
                                                       k broadcast and reduce
    tree      latency = base[a, p] + 2 · ((k/m - 1) · inner hop[p] + ⌊log₂ m⌋ · network hop[p])
    bus       what all ports of a node carry together, less what the protocol spends on flags, at most its cap

Where all channels of a ring are equal the library leaves out what a broadcast's and a reduction's first chunk takes
around the ring; here it always counts.

References
----------
NVIDIA, NCCL 2.6.4, src/graph/tuning.cc and src/graph/topo.h: constants and formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel.errors import PriceError
from windtunnel.hardware import Link, Topology

__all__ = ["NCCL_V100", "NcclPrice", "NcclRelease", "bus_bytes_per_s", "nccl_p2p_ns", "nccl_price", "nccl_prices"]

PROTOCOLS = ("LL", "LL128", "Simple")
_GB, _US = 1e9, 1e3


@dataclass(frozen=True, slots=True)
class NcclRelease:
    """Constants that a release of the library chooses by.

    Attributes
    ----------
    name : str
    base_us : mapping of str to tuple of float
        By algorithm, for LL, LL128 and Simple: from the launch to the first byte.
    hop_us : mapping of (str, str) to tuple of float
        By algorithm and wire (``nvlink``, ``pcie``, ``network``), per step.
    ratios : mapping of str to tuple of float
        By algorithm, the ratio of the bus that a protocol leaves for data.
    ring_caps_gb_per_s : mapping of str to float
        By operation, the most that LL128 carries on rings.
    tree_caps_gb_per_s : tuple of float
        The most that trees carry on one or two nodes, and on more.
    tree_corrections : tuple of tuple of float
        By protocol, factors of a tree's bandwidth for messages of 64 bytes, 128 bytes, and so on; 1 beyond the table.
    planned_ratios : mapping of str to float
        By name of a link, the ratio of its rate that the library plans with.
    """

    name: str
    base_us: Mapping[str, tuple[float, float, float]]
    hop_us: Mapping[tuple[str, str], tuple[float, float, float]]
    ratios: Mapping[str, tuple[float, float, float]]
    ring_caps_gb_per_s: Mapping[str, float]
    tree_caps_gb_per_s: tuple[float, float]
    tree_corrections: tuple[tuple[float, ...], ...]
    planned_ratios: Mapping[str, float]

    def rate_of(self, link: Link) -> float:
        """The rate that the library plans with for a link."""
        return link.bandwidth_bytes_per_s * self.planned_ratios.get(link.name, 1.0)

    def tree_correction(self, protocol: int, size_bytes: float) -> float:
        """The factor of a tree's bandwidth."""
        index = max(int(size_bytes) >> 6, 1).bit_length() - 1
        table = self.tree_corrections[protocol]
        return table[index] if index < len(table) else 1.0

    def launch_ns(self, price: NcclPrice) -> float:
        """The part of a price's latency before its first byte, which a kernel that runs already does not pay."""
        return _US * self.base_us[price.algorithm][PROTOCOLS.index(price.protocol)]


NCCL_V100 = NcclRelease(
    name="nccl_v100",
    base_us={"tree": (4.4, 4.4, 0.0), "ring": (3.6, 3.6, 8.4)},
    hop_us={
        ("tree", "nvlink"): (0.5, 1.9, 28.0),
        ("tree", "pcie"): (1.0, 1.9, 28.0),
        ("tree", "network"): (5.0, 7.5, 50.0),
        ("ring", "nvlink"): (0.4, 2.5, 5.7),
        ("ring", "pcie"): (1.0, 2.5, 5.7),
        ("ring", "network"): (0.9, 2.5, 6.6),
    },
    # LL sends a flag with every 4 bytes, LL128 one with every 120; a tree's ranks also send up and down at once
    ratios={"tree": (0.9 / 3, 0.9 * 7 / 9, 0.9), "ring": (1 / 4, 120 / 128, 1.0)},
    ring_caps_gb_per_s={
        "broadcast": 113.0, "reduce": 72.0, "all_gather": 110.0, "reduce_scatter": 91.0, "all_reduce": 100.0
    },
    tree_caps_gb_per_s=(110.0, 80.0),
    tree_corrections=(
        (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .5, .5, .6, .7, .8, .9, .9, 1, 1, 1),
        (1, 1, 1, 1, 1, .9, .8, .8, .8, .8, .7, .7, .7, .6, .6, .7, .7, .8, .8, .9, .9, 1),
        (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .5, .5, .6, .6, .7, .8, .9),
    ),
    planned_ratios={"nvlink2": 21 / 25, "infiniband-edr": 12 / 12.5, "pcie3-x16": 12 / 15.75},
)  # fmt: skip
"""NCCL 2.6.4 on V100, which is what CoCoNet (ASPLOS 2022) was built on."""


@dataclass(frozen=True, slots=True)
class NcclPrice:
    """The time of one algorithm with one protocol.

    Attributes
    ----------
    algorithm, protocol : str
    latency_ns : int
        Before and between the bytes.
    duration_ns : int
        In all.
    """

    algorithm: str
    protocol: str
    latency_ns: int
    duration_ns: int

    @property
    def sending_ns(self) -> int:
        """What the bytes take."""
        return self.duration_ns - self.latency_ns

    def __str__(self) -> str:
        return f"{self.algorithm} {self.protocol}: {self.duration_ns} ns"


def _shape(topology: Topology) -> tuple[int, int]:
    if len(topology.sizes) > 2:
        raise PriceError(
            f"the model of NCCL has no place for {len(topology.sizes)} dimensions", where=str(topology),
            fix="give ranks per node and nodes",
        )  # fmt: skip
    return topology.sizes[0], topology.sizes[1] if len(topology.sizes) == 2 else 1


def _wire(link: Link) -> str:
    return "nvlink" if link.name.startswith("nvlink") else "pcie"


def bus_bytes_per_s(topology: Topology, release: NcclRelease = NCCL_V100) -> float:
    """What all channels carry together: a device's links within a node, all network ports of a node beyond it.

    Examples
    --------
    >>> wires = Link("nvlink2", 150e9), Link("infiniband-edr", 12.5e9)
    >>> round(bus_bytes_per_s(Topology((16, 8), wires, (1, 2))) / 1e9)  # two devices on each of eight ports
    96
    """
    per_node, num_nodes = _shape(topology)
    inner = release.rate_of(topology.links[0]) / topology.sharers[0]
    if num_nodes == 1:
        return inner
    outer = release.rate_of(topology.links[1]) * max(per_node / topology.sharers[1], 1)
    return outer if per_node == 1 else min(inner, outer)


def nccl_prices(
    op: str, size_bytes: float, topology: Topology, release: NcclRelease = NCCL_V100
) -> tuple[NcclPrice, ...]:
    """Every algorithm with every protocol that the library would consider.

    Parameters
    ----------
    op : str
        ``all_reduce``, ``reduce_scatter``, ``all_gather``, ``broadcast`` or ``reduce``; trees do all-reduces only.
    size_bytes : float
        Of the full tensor, of which a rank gives or gets a slice in a reduce-scatter or an all-gather.
    topology : Topology
        Ranks per node, and nodes where there are several. Latencies are those of the release, not of the links. LL128
        needs NVLink.
    release : NcclRelease

    Raises
    ------
    PriceError
        The library has no such collective, or the network has a third dimension.
    """
    if op not in release.ring_caps_gb_per_s:
        raise PriceError(f"NCCL has no collective {op!r}", fix=f"known: {', '.join(release.ring_caps_gb_per_s)}")
    per_node, num_nodes = _shape(topology)
    num_ranks = per_node * num_nodes
    if num_ranks == 1 or size_bytes <= 0:
        return (NcclPrice("ring", "Simple", 0, 0),)
    protocols = [name for name in PROTOCOLS if name != "LL128" or _wire(topology.links[0]) == "nvlink"]
    algorithms = ("tree", "ring") if op == "all_reduce" else ("ring",)
    return tuple(
        _price(op, float(size_bytes), topology, release, algorithm, protocol)
        for algorithm in algorithms
        for protocol in protocols
    )


def _price(
    op: str, size_bytes: float, topology: Topology, release: NcclRelease, algorithm: str, protocol: str
) -> NcclPrice:
    per_node, num_nodes = _shape(topology)
    num_ranks, index = per_node * num_nodes, PROTOCOLS.index(protocol)
    inner_wire = _wire(topology.links[0])
    bus, base_us = bus_bytes_per_s(topology, release), release.base_us[algorithm][index]
    if algorithm == "tree":
        ratios, cap = release.ratios["tree"], release.tree_caps_gb_per_s[num_nodes > 2] * _GB
        bus = min(bus * ratios[2], cap) * ratios[index] / ratios[2]  # the cap is that of whole trees
        rate = bus / 2 * release.tree_correction(index, size_bytes)
        inner_us, outer_us = (release.hop_us["tree", wire][index] for wire in (inner_wire, "network"))
        latency_us = base_us + 2 * ((per_node - 1) * inner_us + (num_nodes.bit_length() - 1) * outer_us)
    else:
        bus *= release.ratios["ring"][index]
        bus = min(bus, release.ring_caps_gb_per_s[op] * _GB) if protocol == "LL128" else bus
        # a hop of Simple passes on chunks, which the table of trees counts and that of rings does not
        hops = "tree" if op in ("broadcast", "reduce") and protocol == "Simple" else "ring"
        hop_us = release.hop_us[hops, inner_wire if num_nodes == 1 else "network"][index]
        # all of a broadcast and of a reduction goes around the ring, chunk after chunk
        steps = {"all_reduce": 2 * (num_ranks - 1), "broadcast": num_ranks, "reduce": num_ranks}.get(op, num_ranks - 1)
        rate = bus * num_ranks / steps
        latency_us = base_us + steps * hop_us
    latency_ns = round(latency_us * _US)
    return NcclPrice(algorithm, protocol, latency_ns, round(latency_us * _US + 1e9 * size_bytes / rate))


def nccl_price(
    op: str,
    size_bytes: float,
    topology: Topology,
    release: NcclRelease = NCCL_V100,
    *,
    algorithm: str = "",
    protocol: str = "",
) -> NcclPrice:
    """The price that the library chooses: the least, among those of an algorithm or a protocol where one is named.

    Examples
    --------
    >>> wires = Link("nvlink2", 150e9), Link("infiniband-edr", 12.5e9)
    >>> str(nccl_price("all_reduce", 2**30, Topology((16, 8), wires, (1, 2))))
    'ring Simple: 23879659 ns'

    Raises
    ------
    PriceError
        The library does not do that.
    """
    able = [
        price
        for price in nccl_prices(op, size_bytes, topology, release)
        if algorithm in ("", price.algorithm) and protocol in ("", price.protocol)
    ]
    if not able:
        raise PriceError(f"no {algorithm or 'algorithm'} does {op} by {protocol or 'any protocol'}", where=release.name)
    return min(able, key=lambda price: price.duration_ns)


def nccl_p2p_ns(size_bytes: float, topology: Topology, release: NcclRelease = NCCL_V100) -> int:
    """A message of each rank of a node to its counterpart on another node, all at once; within a node on its own link.

    One step of a ring by Simple; the ranks share the node's network ports.
    """
    per_node, num_nodes = _shape(topology)
    wire = _wire(topology.links[0]) if num_nodes == 1 else "network"
    latency_us = release.base_us["ring"][2] + release.hop_us["ring", wire][2]
    inner = release.rate_of(topology.links[0]) / topology.sharers[0]
    outer = release.rate_of(topology.links[-1]) / min(topology.sharers[-1], per_node)
    return round(latency_us * _US + 1e9 * size_bytes / (inner if num_nodes == 1 else outer))
