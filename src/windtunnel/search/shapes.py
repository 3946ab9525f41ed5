"""The shape of a placement, and the rings that it is priced as.

In: GPUs per machine, per rack. Out: a canonical shape, its text, its rings under one of three rules. Not here: what a
model loses to them (``speeds``).

A shape is a tuple of racks, each a tuple of GPUs per machine, largest first: ``((4, 4), (4, 4))``, as text ``4+4|4+4``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windtunnel.cost.collective import nested_rings_all_reduce_ns, ring_all_reduce_ns
from windtunnel.errors import InputError
from windtunnel.hardware import Link

__all__ = ["RULES", "Shape", "all_reduce_ns", "canonical", "parse_shape", "shape_text", "tier_of"]

Shape = tuple[tuple[int, ...], ...]
RULES = ("exact", "published", "flat")


def canonical(racks: Iterable[Iterable[int]]) -> Shape:
    """Sorted by size, within racks and across racks, so that shapes of equal price are equal.

    Examples
    --------
    >>> canonical([[1, 3], [4]])
    ((4,), (3, 1))
    """
    return tuple(sorted((tuple(sorted(rack, reverse=True)) for rack in racks), reverse=True))


def shape_text(shape: Shape) -> str:
    """As tables write it.

    Examples
    --------
    >>> shape_text(((4, 4), (4, 4)))
    '4+4|4+4'
    """
    return "|".join("+".join(map(str, rack)) for rack in shape)


def parse_shape(text: str) -> Shape:
    """Read ``4+4|4+4``.

    Raises
    ------
    InputError
        It is no such text.
    """
    racks = [rack.split("+") for rack in text.strip().split("|")]
    if not all(part.strip().isdecimal() and int(part) for rack in racks for part in rack):
        raise InputError(f"{text!r} is no shape", fix="write GPUs per machine with +, racks with |, as 4+4|4+4")
    return canonical([[int(part) for part in rack] for rack in racks])


def tier_of(shape: Shape) -> int:
    """What it spans: 0 one machine, 1 one rack, 2 several racks."""
    return 2 if len(shape) > 1 else int(len(shape[0]) > 1)


def all_reduce_ns(size_bytes: float, shape: Shape, links: Sequence[Link], rule: str = "exact") -> int:
    """Time of one hierarchical ring all-reduce over a placement.

    Parameters
    ----------
    size_bytes : float
    shape : Shape
    links : three of Link
        In a machine, a rack, between racks.
    rule : str
        ``exact``: a ring in each machine over its own GPUs, then in each rack a ring over machines that carries the
        largest share that a machine has left, then one over racks likewise. ``published``: what divides is balanced,
        what does not is one flat ring of its tier. ``flat``: anything uneven is one flat ring of the outermost tier.

    References
    ----------
    The published rule is that of the authors' simulator (aakash-sharma/cluster-sim), with its two flaws: machines are
    counted over all racks, and uneven splits that happen to divide are priced as balanced.

    Examples
    --------
    >>> inner, outer = Link("inner", 50e9), Link("outer", 1.25e9, latency_ns=5000)
    >>> all_reduce_ns(8_000_000, ((4, 4),), (inner, outer, outer))
    1850000
    """
    if rule == "exact":
        # Racks and machines work side by side, so the slowest of each tier counts.
        time_ns = max(ring_all_reduce_ns(size_bytes, count, links[0]) for rack in shape for count in rack)
        shares = [size_bytes / min(rack) for rack in shape]
        time_ns += max(
            ring_all_reduce_ns(share, len(rack), links[1]) for share, rack in zip(shares, shape, strict=True)
        )
        share = max(share / len(rack) for share, rack in zip(shares, shape, strict=True))
        return time_ns + ring_all_reduce_ns(share, len(shape), links[2])
    rings = _dimensions_by_tier(shape) if rule == "published" else _flat(shape)
    return nested_rings_all_reduce_ns(size_bytes, [(size, links[tier]) for size, tier in rings])


def _dimensions_by_tier(shape: Shape) -> list[tuple[int, int]]:
    """Dimensions as (size, tier), inner to outer."""
    num = sum(map(sum, shape))
    outer: list[tuple[int, int]] = []
    racks, machines = len(shape), sum(map(len, shape))
    if racks > 1:
        if num % racks:
            return [(num, 2)]
        outer.insert(0, (racks, 2))
        num //= racks
    if machines > 1:
        if num % machines or num == machines:
            return [(num, 1), *outer]
        outer.insert(0, (machines, 1))
        num //= machines
    return [(num, 0), *outer]


def _flat(shape: Shape) -> list[tuple[int, int]]:
    counts = {count for rack in shape for count in rack}
    if len(counts) > 1 or len(set(map(len, shape))) > 1:
        return [(sum(map(sum, shape)), tier_of(shape))]
    return [(counts.pop(), 0), (len(shape[0]), 1), (len(shape), 2)]
