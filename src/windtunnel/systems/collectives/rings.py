"""Instruction sequences of collectives around a ring of ranks.

In: where chunks lie. Out: hops: what a rank sends, then what it receives, step by step. Hops of several collectives can
be interleaved, in the same way on all ranks. Not here: when collectives run.

Legend: k ranks; chunk c starts its trip on rank c + 1 and ends reduced on rank c, all modulo k. Rank r sends chunks
r - 1, r - 2, ..., and reduces its own chunk r last; gathering goes on from there.

References
----------
Jangda et al., ASPLOS 2022, section 4.2; Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 2009.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from windtunnel.systems.collectives.plan import Copy, Instruction, Receive, ReceiveReduce, Send, View

__all__ = ["Hop", "RingPlace", "broadcast", "flatten_hops", "gather_hops", "merge_hops", "reduce_hops", "to_root"]

Chunks = Callable[[int], View]


@dataclass(frozen=True, slots=True)
class RingPlace:
    """A rank's place in the ring of its group.

    Attributes
    ----------
    rank, num_ranks : int
    start : int
        The group's first rank, counted over all groups.
    """

    rank: int
    num_ranks: int
    start: int = 0

    @property
    def next(self) -> int:
        """The rank that it sends to."""
        return self.start + (self.rank + 1) % self.num_ranks

    @property
    def previous(self) -> int:
        """The rank that it receives from."""
        return self.start + (self.rank - 1) % self.num_ranks


@dataclass(slots=True)
class Hop:
    """What a rank does in one step of a ring: first it sends."""

    sends: list[Instruction] = field(default_factory=list)
    rest: list[Instruction] = field(default_factory=list)


def reduce_hops(
    place: RingPlace,
    own: Chunks,
    result: View,
    work: Sequence[View],
    tag: int,
    reduction: str = "sum",
    ready: Callable[[int], list[Instruction]] = lambda _chunk: [],
) -> list[Hop]:
    """Reduce-scatter.

    Parameters
    ----------
    place : RingPlace
    own : callable
        The rank's part of a chunk; not changed.
    result : View
        For the rank's own chunk.
    work : two views
        Of the size of the largest chunk, for partial sums.
    tag : int
    reduction : str
    ready : callable
        What to wait for before a chunk of the rank is read.
    """
    size = place.num_ranks
    if size == 1:
        return [Hop(rest=[*ready(0), Copy(own(0), result)])]
    hops = []
    for step in range(size - 1):
        sent, received = (place.rank - 1 - step) % size, (place.rank - 2 - step) % size
        hop = Hop()
        if own(sent).size:
            source = own(sent) if step == 0 else work[(step - 1) % 2].part(0, own(sent).size)
            hop.sends += [*(ready(sent) if step == 0 else []), Send(place.next, tag, source)]
        if own(received).size:
            target = result if step == size - 2 else work[step % 2].part(0, own(received).size)
            hop.rest += [*ready(received), ReceiveReduce(place.previous, tag, own(received), target, reduction)]
        hops.append(hop)
    return hops


def gather_hops(place: RingPlace, part: Chunks, tag: int) -> list[Hop]:
    """All-gather; the rank's own chunk is in its part already."""
    hops = []
    for step in range(place.num_ranks - 1):
        sent, received = part((place.rank - step) % place.num_ranks), part((place.rank - 1 - step) % place.num_ranks)
        hops.append(
            Hop(
                [Send(place.next, tag, sent)] if sent.size else [],
                [Receive(place.previous, tag, received)] if received.size else [],
            )
        )
    return hops


def to_root(place: RingPlace, part: Chunks, root: int, tag: int) -> list[Instruction]:
    """Bring the reduced chunks of all ranks to one."""
    if place.rank != root:
        own = part(place.rank)
        return [Send(place.start + root, tag, own)] if own.size else []
    peers = [rank for rank in range(place.num_ranks) if rank != root and part(rank).size]
    return [Receive(place.start + rank, tag, part(rank)) for rank in peers]


def broadcast(place: RingPlace, source: View, target: View, root: int, tag: int) -> list[Instruction]:
    """Pass the root's value on from rank to rank."""
    if not target.size:
        return []
    is_last = (place.rank + 1) % place.num_ranks == root
    first: Instruction = Copy(source, target) if place.rank == root else Receive(place.previous, tag, target)
    return [first] if is_last else [first, Send(place.next, tag, target)]


def merge_hops(*streams: Iterable[Hop]) -> list[Instruction]:
    """Instructions of streams that take turns: each passes on what it has received before the next one waits."""
    rows = itertools.zip_longest(*(_steps(list(hops)) for hops in streams), fillvalue=())
    return [item for row in rows for step in row for item in step]


def _steps(hops: Sequence[Hop]) -> list[Sequence[Instruction]]:
    """What is received in each hop, and then sent in the next one."""
    before, after = [Hop(), *hops], [*hops, Hop()]
    return [[*first.rest, *second.sends] for first, second in zip(before, after, strict=True)]


def flatten_hops(hops: Iterable[Hop]) -> list[Instruction]:
    """Instructions of hops, in order."""
    return merge_hops(hops)
