"""What is to be placed: nodes with their times on every type of device, and what they send.

In: columns. Out: a checked ``Problem``, and the load that any assignment puts on every device, by the definition: each
output is paid once on the device that makes it, if it leaves, and once on every accelerator that it enters; what lies
in host memory is free for a CPU. Not here: file formats (``systems.placement.formats``), solvers.

Source: Tarnawski et al., NeurIPS 2020, section 3.
"""

# N nodes, E edges, T device types, D devices

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.errors import GraphError, InfeasibleError, InputError
from windtunnel.search.minmax import Combine
from windtunnel.search.work import DeviceType

__all__ = ["EVERY_DEVICE", "Loads", "Problem"]

EVERY_DEVICE = "devices"
Floats = NDArray[np.float64]
_SAME_COST = 1e-6
_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to place, and the devices there are.

    Parameters
    ----------
    names : tuple of str
        Of the nodes, as errors and results call them.
    types : tuple of DeviceType
    time_ns : float64 [N, T]
        On a device of each type.
    size_bytes : float64 [N]
        What a node keeps in the memory of its accelerator.
    is_barred : bool [N, T]
        Where a node cannot run.
    is_backward : bool [N]
    color : int64 [N]
        Nodes of one color lie on one device: a backward node with its forward node, users of one weight.
    src, dst : int64 [E]
    cost_ns : float64 [N]
        To move a node's output between an accelerator and host memory; 0 where it has no reader.
    weight_bytes : float64 [N], optional
        What replicas of a stage synchronize; all of ``size_bytes`` unless given.
    link_scale : float64 [T, T], optional
        Factor on ``cost_ns`` of a transfer from a device of one type to one of another; 1 unless given. An output
        that leaves for several types is paid once, over the slowest link.

    Raises
    ------
    InputError, GraphError
        A number is negative or not finite, an edge leads nowhere or from backward to forward, or there is a cycle:
        named.
    """

    names: tuple[str, ...]
    types: tuple[DeviceType, ...]
    time_ns: Floats
    size_bytes: Floats
    is_barred: NDArray[np.bool_]
    is_backward: NDArray[np.bool_]
    color: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    cost_ns: Floats
    weight_bytes: Floats | None = None
    link_scale: Floats | None = None

    def __post_init__(self) -> None:
        if not self.num_nodes:
            raise InputError("there are no nodes to place", where="nodes")
        if not any(type_.count for type_ in self.types):
            raise InputError("there are no devices", where=EVERY_DEVICE, fix="one accelerator or CPU at least")
        self._check_numbers()
        self._check_edges()

    def _check_numbers(self) -> None:
        columns = {"time": self.time_ns, "size": self.size_bytes, "cost": self.cost_ns}
        if self.weight_bytes is not None:
            columns["weight"] = self.weight_bytes
        if self.link_scale is not None:
            _check_links(self.link_scale, len(self.types))
        for name, values in columns.items():
            wrong = np.argwhere(~(np.isfinite(values) & (values >= 0)))
            if len(wrong):
                node = int(wrong[0][0])
                raise InputError(
                    f"a {name} of {values[tuple(wrong[0])]} is negative or no number", where=f"node {self.names[node]}"
                )
        stuck = np.flatnonzero(self.is_barred[:, [type_.count > 0 for type_ in self.types]].all(axis=1))
        if stuck.size:
            raise InfeasibleError(
                f"{stuck.size} nodes run on none of the devices",
                where=", ".join(self.names[node] for node in stuck[:5].tolist()),
                fix="add a device of a type that they run on, such as a CPU",
            )

    def _check_edges(self) -> None:
        for end, values in (("source", self.src), ("target", self.dst)):
            missing = np.flatnonzero((values < 0) | (values >= self.num_nodes))
            if missing.size:
                raise GraphError(f"edge {missing[0]} has no {end}", where=f"node {values[missing[0]]}")
        loops = np.flatnonzero(self.src == self.dst)
        if loops.size:
            raise GraphError("a node reads its own output", where=f"node {self.names[self.src[loops[0]]]}")
        back = np.flatnonzero(self.is_backward[self.src] & ~self.is_backward[self.dst])
        if back.size:
            ends = (self.names[side[back[0]]] for side in (self.src, self.dst))
            raise GraphError("an edge leads from a backward to a forward node", where=" -> ".join(ends))
        if len(self.order) < self.num_nodes:
            inside = sorted(set(range(self.num_nodes)) - set(self.order.tolist()))
            raise GraphError(
                "the graph has a cycle", where=", ".join(self.names[node] for node in inside[:6]), fix="cut one edge"
            )

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.names)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Nodes after all their predecessors, as far as that goes."""
        waiting = np.bincount(np.unique(np.stack([self.src, self.dst]), axis=1)[1], minlength=self.num_nodes)
        ready = np.flatnonzero(waiting == 0).tolist()
        result = []
        while ready:
            node = ready.pop()
            result.append(node)
            for other in self.graph.successor_indices(node):
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
        return np.array(result, np.int64)

    @cached_property
    def before(self) -> list[list[int]]:
        """Nodes that each reads from, each once."""
        result: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for src, dst in sorted(set(zip(self.src.tolist(), self.dst.tolist(), strict=True))):
            result[dst].append(src)
        return result

    @cached_property
    def graph(self) -> Any:
        """The edges as a ``rustworkx.PyDiGraph``."""
        result: Any = require("rustworkx", extra="plan").PyDiGraph(multigraph=False)
        result.add_nodes_from(range(self.num_nodes))
        result.add_edges_from_no_data(list(zip(self.src.tolist(), self.dst.tolist(), strict=True)))
        return result

    def link(self, sender_kind: NDArray[np.int64], reader_kind: NDArray[np.int64]) -> Floats:
        """Factors on transfers between devices of some types, one per pair."""
        # One link for all pairs is the usual case.
        if self.link_scale is None:
            return np.ones(len(sender_kind))
        result: Floats = self.link_scale[sender_kind, reader_kind]
        return result

    def loads(self, device: Sequence[int] | NDArray[Any], kind: Sequence[int] | NDArray[Any]) -> Loads:
        """What an assignment puts on every device.

        Parameters
        ----------
        device : int [N]
            Row of ``kind``.
        kind : int [D]
            Row of ``types`` of each device.

        Raises
        ------
        InputError
            A node is on no device.
        """
        device_N, kind_D = np.asarray(device, np.int64), np.asarray(kind, np.int64)
        if device_N.shape != (self.num_nodes,) or ((device_N < 0) | (device_N >= len(kind_D))).any():
            raise InputError("every node needs a device", where=f"{len(device_N)} of {self.num_nodes} nodes")
        return _loads(self, device_N, kind_D)


@dataclass(frozen=True, eq=False)
class Loads:
    """Loads of devices by cause.

    Parameters
    ----------
    kind_D : int64 [D]
    compute_ns, sent_ns, received_ns : float64 [2, D]
        Of forward and of backward nodes; a transfer counts where its sender does.
    memory_bytes : float64 [D]
    is_allowed : bool
        Memory suffices everywhere, no node is where it cannot run, and every color lies on one device.
    """

    kind_D: NDArray[np.int64]
    compute_ns: Floats
    sent_ns: Floats
    received_ns: Floats
    memory_bytes: Floats
    is_allowed: bool

    def total_ns(self, combine: Combine = "sum") -> Floats:
        """Load of each device [D]."""
        compute, sent, received = (item.sum(axis=0) for item in (self.compute_ns, self.sent_ns, self.received_ns))
        comm = np.maximum(sent, received) if "duplex" in combine else sent + received
        total: Floats = np.maximum(compute, comm) if combine.startswith("overlap") else compute + comm
        return total

    def max_load_ns(self, combine: Combine = "sum") -> float:
        """Load of the busiest device: time per sample of a full pipeline (1F1B)."""
        return float(self.total_ns(combine).max(initial=0.0))

    def flush_load_ns(self) -> float:
        """The busiest forward plus the busiest backward device: a pipeline that is flushed (GPipe)."""
        forward, backward = self.compute_ns + self.sent_ns + self.received_ns
        return float(forward.max(initial=0.0) + backward.max(initial=0.0))


def _loads(problem: Problem, device_N: NDArray[np.int64], kind_D: NDArray[np.int64]) -> Loads:
    num_devices = len(kind_D)
    phase_N = problem.is_backward.astype(np.int64)
    kind_N = kind_D[device_N]
    compute, sent, received = (np.zeros((2, num_devices)) for _ in range(3))
    np.add.at(compute, (phase_N, device_N), problem.time_ns[np.arange(problem.num_nodes), kind_N])
    scale_D = np.array([problem.types[kind].comm_scale for kind in kind_D.tolist()])
    # Pairs (node, reading device), each once: a device receives a tensor once, however many nodes read it.
    leaving = np.unique(
        np.stack([problem.src, device_N[problem.dst]])[:, device_N[problem.src] != device_N[problem.dst]], axis=1
    )
    nodes, readers = leaving
    link = problem.link(kind_N[nodes], kind_D[readers])
    np.add.at(received, (phase_N[nodes], readers), scale_D[readers] * link * problem.cost_ns[nodes])
    # The sender sends once, as long as its slowest reader takes.
    slowest_N = np.zeros(problem.num_nodes)
    np.maximum.at(slowest_N, nodes, link)
    senders = np.unique(nodes)
    spent = scale_D[device_N[senders]] * slowest_N[senders] * problem.cost_ns[senders]
    np.add.at(sent, (phase_N[senders], device_N[senders]), spent)
    memory: Any = np.bincount(device_N, problem.size_bytes, num_devices)
    limits = np.array([problem.types[kind].memory_bytes for kind in kind_D.tolist()])
    is_split = any(
        len(set(device_N[problem.color == color].tolist())) > 1 for color in np.unique(problem.color).tolist()
    )
    is_barred = problem.is_barred[np.arange(problem.num_nodes), kind_N].any()
    is_allowed = not is_split and not is_barred and bool((memory <= limits * (1 + _SLACK)).all())
    return Loads(kind_D, compute, sent, received, memory, is_allowed)


def _check_links(link_scale: Floats, num_types: int) -> None:
    if link_scale.shape != (num_types, num_types):
        raise InputError(f"links of shape {link_scale.shape} for {num_types} types of devices", where="links")
    wrong = np.argwhere(~(np.isfinite(link_scale) & (link_scale >= 0)))
    if len(wrong):
        raise InputError(f"a link of {link_scale[tuple(wrong[0])]}", where=f"links, types {wrong[0].tolist()}")


def cost_of_nodes(names: Sequence[str], src: NDArray[np.int64], cost_E: Floats, unit: str) -> Floats:
    """One cost per source, of edges that each state it.

    Raises
    ------
    InputError
        Edges out of one node state different costs: names the node and both.
    """
    result = np.full(len(names), math.nan)
    for node, cost in zip(src.tolist(), cost_E.tolist(), strict=True):
        if not math.isnan(result[node]) and abs(result[node] - cost) > _SAME_COST:
            raise InputError(
                f"edges out of one node cost {result[node]:g} and {cost:g} {unit}",
                where=f"node {names[node]}",
                fix="the cost is that of moving the node's output: state it once",
            )
        result[node] = cost if math.isnan(result[node]) else result[node]
    costs: Floats = np.nan_to_num(result)
    return costs
