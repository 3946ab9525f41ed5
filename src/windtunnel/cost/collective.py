"""Prices of messages and collectives by latency and bandwidth.

In: bytes, ranks and an explicit link. Out: whole nanoseconds. Not here: contention with computation (``interference``),
waiting for the slowest rank (edges of the graph do that).

Legend: S bytes, n ranks, B bytes per second and direction, α latency of one message, Γ bytes per second that a rank
adds up (at once, where a link does not say it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windtunnel.errors import InputError
from windtunnel.hardware import Link, Topology

__all__ = [
    "COLLECTIVES",
    "IDEAL_BYTES_PER_S",
    "all_gather_ns",
    "all_to_all_ns",
    "broadcast_ns",
    "collective_ns",
    "hierarchical_all_reduce_ns",
    "p2p_ns",
    "reduce_ns",
    "reduce_scatter_ns",
    "ring_all_reduce_ns",
    "tree_all_reduce_ns",
]

IDEAL_BYTES_PER_S = 1e30
"""Of a link that is to take no time, so that what others take can be told apart."""


def _checked(size_bytes: float, num_ranks: int) -> None:
    if num_ranks < 1 or size_bytes < 0:
        raise InputError(
            f"a collective of {size_bytes} bytes among {num_ranks} ranks has no price",
            fix="give at least one rank and no negative size",
        )


def _steps_ns(num_messages: int, size_bytes: float, link: Link) -> int:
    sent_ns = num_messages * link.latency_ns + round(1e9 * size_bytes / link.bandwidth_bytes_per_s)
    is_sent = size_bytes > 0 and num_messages > 0 and link.bandwidth_bytes_per_s < IDEAL_BYTES_PER_S
    return max(sent_ns, 1) if is_sent else sent_ns  # on a real link no message takes no time


def _sums_ns(size_bytes: float, link: Link) -> int:
    return 0 if link.sum_bytes_per_s is None else round(1e9 * size_bytes / link.sum_bytes_per_s)


def p2p_ns(size_bytes: float, link: Link) -> int:
    """One message: α + S/B."""
    _checked(size_bytes, 2)
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
    _checked(size_bytes, num_ranks)
    steps = 2 * (num_ranks - 1)
    return _steps_ns(steps, steps / num_ranks * size_bytes, link) + _sums_ns(steps / num_ranks * size_bytes / 2, link)


def tree_all_reduce_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """All-reduce on two pipelined binary trees: 2 · S/B + 2 · ⌈log₂ n⌉ · α + S/Γ; n/2 · S/B of two or three ranks.

    References
    ----------
    Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, Parallel Computing 2009.
    """
    _checked(size_bytes, num_ranks)
    if num_ranks == 1:
        return 0
    sent_ns = _steps_ns(2 * (num_ranks - 1).bit_length(), min(2, num_ranks / 2) * size_bytes, link)
    return sent_ns + _sums_ns(size_bytes, link)


def reduce_scatter_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """Reduce-scatter of S bytes on a ring: (n-1)/n · S/B + (n-1) · α + (n-1)/n · S/Γ."""
    sent_ns = all_gather_ns(size_bytes, num_ranks, link)
    return sent_ns + _sums_ns((num_ranks - 1) / num_ranks * size_bytes, link)


def all_gather_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """All-gather on a ring, S bytes in the end on every rank: (n-1)/n · S/B + (n-1) · α."""
    _checked(size_bytes, num_ranks)
    steps = num_ranks - 1
    return _steps_ns(steps, steps / num_ranks * size_bytes, link)


def all_to_all_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """All-to-all, S bytes out of each rank over one port: (n-1)/n · S/B + (n-1) · α."""
    return all_gather_ns(size_bytes, num_ranks, link)


def broadcast_ns(size_bytes: float, num_ranks: int, link: Link) -> int:
    """Pipelined broadcast along a binary tree: S/B + ⌈log₂ n⌉ · α."""
    _checked(size_bytes, num_ranks)
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
    _checked(size_bytes, topology.num_members)
    total_ns, part_bytes = 0, float(size_bytes)
    for size, link in zip(topology.sizes, topology.links, strict=True):
        total_ns += reduce_scatter_ns(part_bytes, size, link) + all_gather_ns(part_bytes, size, link)
        part_bytes /= size
    return total_ns


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
