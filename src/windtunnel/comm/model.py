"""What a collective takes as one task: its closed form.

In: an operation, an algorithm, bytes, a network. Out: whole nanoseconds. The formulas of cost, and those of the
algorithms that cost has no formula for. Not here: contention; the expansion shows that.

Legend: S bytes, n ranks, B bytes per second and direction, α latency of one message.
"""

from __future__ import annotations

from windtunnel.cost.collective import (
    broadcast_ns,
    collective_ns,
    hierarchical_all_reduce_ns,
    reduce_scatter_ns,
    tree_all_reduce_ns,
)
from windtunnel.errors import InputError
from windtunnel.hardware import Topology

__all__ = ["closed_form_ns"]


def closed_form_ns(op: str, algorithm: str, size_bytes: float, topology: Topology) -> int:
    """Price a collective without expanding it.

    Rings and pairs are priced as long as they are not cut into parts, trees as if they were cut into very many.

    Parameters
    ----------
    op, algorithm : str
        As :func:`windtunnel.comm.algorithms.schedule_of` takes them.
    size_bytes : float
    topology : Topology
        ``hierarchical`` uses each dimension, all others the slowest link.

    Raises
    ------
    InputError
        There is no formula: arrivals at a parameter server have no fixed order.
    """
    num, wire = topology.num_members, topology.slowest
    if num == 1:
        return 0
    if algorithm == "hierarchical":
        whole = hierarchical_all_reduce_ns(size_bytes, topology)
        return whole if op == "all_reduce" else whole // 2
    if algorithm == "halving-doubling":
        return _halving_doubling_ns(op, size_bytes, topology)
    if algorithm == "tree":
        by_tree = tree_all_reduce_ns if op == "all_reduce" else broadcast_ns
        return by_tree(size_bytes, num, wire)
    if algorithm in ("ring", "pairwise"):
        return collective_ns(op, size_bytes, num, wire)
    raise InputError(f"{algorithm} has no closed form", fix="expand it: expanded=true")


def _halving_doubling_ns(op: str, size_bytes: float, topology: Topology) -> int:
    """Per direction (p-1)/p · S/B + log₂ p · α among p ranks, a power of two; 2 (S/B + α) where others join them."""
    num, wire = topology.num_members, topology.slowest
    steps = num.bit_length() - 1
    power = 1 << steps
    scattered = reduce_scatter_ns(size_bytes, power, wire) - (power - 1 - steps) * wire.latency_ns
    joined = 2 * wire.transfer_ns(round(size_bytes)) if power < num else 0
    return scattered * (2 if op == "all_reduce" else 1) + joined
