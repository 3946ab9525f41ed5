"""Prices of messages and collectives by latency and bandwidth: the one place with their formulas.

In: bytes, ranks and an explicit link. Out: whole nanoseconds; of planners that price bytes alone, the ratio of bytes
that a ring sends. Not here: contention with computation (``interference``), waiting for the slowest rank (edges of the
graph do that), what a published planner prices by a rule of its own (``SYNC_RATIOS`` says which).

Legend: S bytes, n ranks, B bytes per second and direction, α latency of one message, Γ bytes per second that a rank
adds up (at once, where a link does not say it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError, PriceError
from windtunnel.hardware import Link, Topology

__all__ = [
    "COLLECTIVES",
    "IDEAL_BYTES_PER_S",
    "SYNC_RATIOS",
    "all_gather_ns",
    "all_to_all_ns",
    "broadcast_ns",
    "closed_form_ns",
    "collective_ns",
    "halving_doubling_ns",
    "hierarchical_all_reduce_ns",
    "message_ns",
    "nested_rings_all_reduce_ns",
    "p2p_ns",
    "reduce_ns",
    "reduce_scatter_ns",
    "ring_all_reduce_ns",
    "ring_ratio",
    "tree_all_reduce_ns",
]

IDEAL_BYTES_PER_S = 1e30
"""Bandwidth of a link that takes no time, used to isolate the time of the other links."""

SYNC_RATIOS = {"ring": 1.0, "pipedream": 2.0}
"""How often the bytes of a ring all-reduce go over a link, by rule of the planner.

PipeDream's (SOSP 2019), which Piper and PHAZE took over, counts sending and receiving one after the other."""

Floats = NDArray[np.float64]
_LIKE = {"gather": "all_gather", "scatter": "all_gather", "send": "p2p", "recv": "p2p", "barrier": "all_reduce"}


def _check_arguments(size_bytes: float, num_ranks: int) -> None:
    if num_ranks < 1 or size_bytes < 0:
        raise InputError(
            f"a collective of {size_bytes} bytes among {num_ranks} ranks has no price",
            fix="give at least one rank and no negative size",
        )


def _steps_ns(num_messages: int, size_bytes: float, link: Link) -> int:
    # The model of Hockney: each message costs a latency, all bytes together the bandwidth.
    sent_ns = num_messages * link.latency_ns + round(1e9 * size_bytes / link.bandwidth_bytes_per_s)
    is_sent = size_bytes > 0 and num_messages > 0 and link.bandwidth_bytes_per_s < IDEAL_BYTES_PER_S
    return max(sent_ns, 1) if is_sent else sent_ns  # on a real link no message takes no time


def _sums_ns(size_bytes: float, link: Link) -> int:
    return 0 if link.sum_bytes_per_s is None else round(1e9 * size_bytes / link.sum_bytes_per_s)


@overload
def ring_ratio(num_ranks: float, num_passes: int = 2) -> float: ...
@overload
def ring_ratio(num_ranks: NDArray[Any], num_passes: int = 2) -> Floats: ...
def ring_ratio(num_ranks: float | NDArray[Any], num_passes: int = 2) -> float | Floats:
    """Bytes that a rank sends around a ring, per byte of the message: (n-1)/n in each pass.

    Parameters
    ----------
    num_ranks : float or array
    num_passes : int
        2 for an all-reduce; 1 for a reduce-scatter, an all-gather, an all-to-all, or what of evenly spread data lies
        with others.

    Examples
    --------
    >>> ring_ratio(4), ring_ratio(4, num_passes=1)
    (1.5, 0.75)
    """
    return num_passes * (num_ranks - 1) / num_ranks


def p2p_ns(size_bytes: float, link: Link) -> int:
    """One message: α + S/B."""
    _check_arguments(size_bytes, 2)
    return _steps_ns(1, size_bytes, link)


def ring_all_reduce_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """All-reduce on a ring: 2(n-1)/n · S/B + 2(n-1) · α + (n-1)/n · S/Γ.

    References
    ----------
    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009.

    Examples
    --------
    >>> ring_all_reduce_ns(4_000_000, 4, Link("wire", 1e9, latency_ns=1000))
    6006000
    """
    _check_arguments(size_bytes, num_ranks)
    sent_bytes = ring_ratio(num_ranks) * size_bytes
    return _steps_ns(2 * (num_ranks - 1), sent_bytes, link) + _sums_ns(sent_bytes / 2, link)


def tree_all_reduce_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """All-reduce on two pipelined binary trees: 2 · S/B + 2 · ⌈log₂ n⌉ · α + S/Γ; n/2 · S/B of two or three ranks.

    References
    ----------
    Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, Parallel Computing 2009.
    """
    _check_arguments(size_bytes, num_ranks)
    if num_ranks == 1:
        return 0
    sent_ns = _steps_ns(2 * (num_ranks - 1).bit_length(), min(2, num_ranks / 2) * size_bytes, link)
    return sent_ns + _sums_ns(size_bytes, link)


def reduce_scatter_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """Reduce-scatter of S bytes on a ring: (n-1)/n · S/B + (n-1) · α + (n-1)/n · S/Γ."""
    sent_ns = all_gather_ns(size_bytes, num_ranks, link)
    return sent_ns + _sums_ns(ring_ratio(num_ranks, 1) * size_bytes, link)


def all_gather_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """All-gather on a ring, S bytes in the end on every rank: (n-1)/n · S/B + (n-1) · α."""
    _check_arguments(size_bytes, num_ranks)
    return _steps_ns(num_ranks - 1, ring_ratio(num_ranks, 1) * size_bytes, link)


def all_to_all_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """All-to-all, S bytes out of each rank over one port: (n-1)/n · S/B + (n-1) · α."""
    return all_gather_ns(size_bytes, num_ranks, link)


def broadcast_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """Pipelined broadcast along a binary tree: S/B + ⌈log₂ n⌉ · α."""
    _check_arguments(size_bytes, num_ranks)
    if num_ranks == 1:
        return 0
    return _steps_ns((num_ranks - 1).bit_length(), size_bytes, link)


def reduce_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """Pipelined reduction along a binary tree: S/B + ⌈log₂ n⌉ · α + S/Γ."""
    return broadcast_ns(size_bytes, num_ranks, link) + (_sums_ns(size_bytes, link) if num_ranks > 1 else 0)


def hierarchical_all_reduce_ns(size_bytes: float, topology: Topology) -> int:
    """Reduce-scatter dimension by dimension, then all-gather in reverse, one after the other.

    References
    ----------
    Cho et al., BlueConnect: Decomposing all-reduce for deep learning on heterogeneous network hierarchy, MLSys 2019.
    """
    _check_arguments(size_bytes, topology.num_members)
    #      reduce-scatter in dimension 0, 1, 2, then all-gather in 2, 1, 0: each dimension sees its part twice,
    #      and the part shrinks by the size of each dimension that is behind it
    total_ns, part_bytes = 0, float(size_bytes)
    for size, link in zip(topology.sizes, topology.links, strict=True):
        total_ns += reduce_scatter_ns(part_bytes, size, link) + all_gather_ns(part_bytes, size, link)
        part_bytes /= size
    return total_ns


def nested_rings_all_reduce_ns(size_bytes: float, rings: Iterable[tuple[int, Link]]) -> int:
    """One ring all-reduce after the other, innermost first, each over the part that a rank of the one before holds.

    Parameters
    ----------
    size_bytes : float
    rings : iterable of (int, Link)
        Ranks and link of each.

    Examples
    --------
    >>> inner, outer = Link("inner", 50e9), Link("outer", 1.25e9, latency_ns=5000)
    >>> nested_rings_all_reduce_ns(8_000_000, [(4, inner), (2, outer)])
    1850000
    """
    total_ns, part_bytes = 0, float(size_bytes)
    for num_ranks, link in rings:
        total_ns += ring_all_reduce_ns(part_bytes, num_ranks, link)
        part_bytes /= num_ranks
    return total_ns


def halving_doubling_ns(op: str, size_bytes: float, num_ranks: int, link: Link) -> int:
    """Per direction (p-1)/p · S/B + log₂ p · α among p ranks, a power of two; 2 (S/B + α) where others join them."""
    # Ranks beyond the power of two first give their data to a partner and get the result back at the end.
    steps = num_ranks.bit_length() - 1
    power = 1 << steps
    scattered = reduce_scatter_ns(size_bytes, power, link) - (power - 1 - steps) * link.latency_ns
    joined = 2 * link.transfer_ns(round(size_bytes)) if power < num_ranks else 0
    return scattered * (2 if op == "all_reduce" else 1) + joined


COLLECTIVES: Mapping[str, Callable[[float, int, Link], int]] = {
    "all_reduce": ring_all_reduce_ns,
    "reduce_scatter": reduce_scatter_ns,
    "all_gather": all_gather_ns,
    "all_to_all": all_to_all_ns,
    "broadcast": broadcast_ns,
    "reduce": reduce_ns,
    "p2p": lambda size_bytes, _num_ranks, link: p2p_ns(size_bytes, link),
}


def collective_ns(op: str, size_bytes: float, num_ranks: int, link: Link) -> int:
    """Price a collective by its name.

    Raises
    ------
    InputError
        The name is not known; says which are.
    """
    if op not in COLLECTIVES:
        raise InputError(f"no collective is called {op!r}", fix=f"known: {', '.join(COLLECTIVES)}")
    return COLLECTIVES[op](size_bytes, num_ranks, link)


def message_ns(op: str, size_bytes: float, num_ranks: int, link: Link) -> int:
    """Price what a program sends, by the operation that it named; an all-reduce takes the quicker of ring and tree.

    Raises
    ------
    PriceError
        The name is not known; says which are.

    Examples
    --------
    >>> message_ns("send", 1_000_000, 2, Link("wire", 1e9, latency_ns=1000))
    1001000
    """
    name = _LIKE.get(op, op)
    if name not in COLLECTIVES:
        raise PriceError(f"no collective is called {op!r}", where="messages", fix=f"known: {', '.join(COLLECTIVES)}")
    ring_ns = collective_ns(name, size_bytes, num_ranks, link)
    return min(ring_ns, tree_all_reduce_ns(size_bytes, num_ranks, link)) if name == "all_reduce" else ring_ns


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
        return halving_doubling_ns(op, size_bytes, num, wire)
    if algorithm == "tree":
        by_tree = tree_all_reduce_ns if op == "all_reduce" else broadcast_ns
        return by_tree(size_bytes, num, wire)
    if algorithm in ("ring", "pairwise"):
        return collective_ns(op, size_bytes, num, wire)
    raise InputError(f"{algorithm} has no closed form", fix="expand it: expanded=true")
