"""What every rank holds when a collective has been replayed: the slow, obvious check of algorithms.

A send takes what its rank holds when it begins, a receive leaves it at its end, in the order of the replayed clock. A
cell's content is a number with one byte per rank, which counts how often that rank's contribution is in it.
"""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.graph import EdgeKind, Graph, Kind
from windtunnel.simulate import replay


def own(rank: int) -> int:
    """The contribution of one rank."""
    return 1 << (8 * rank)


def whole(num_ranks: int) -> int:
    """Every rank's contribution, once."""
    return sum(own(rank) for rank in range(num_ranks))


class Move(NamedTuple):
    """One message as it was replayed: when the send began and the receive ended, and the rows of both."""

    start_ns: int
    end_ns: int
    src: int
    dst: int
    tag: int
    send: int
    recv: int


def replayed_moves(graph: Graph) -> list[Move]:
    """Every message; a receive hangs on the start of its send, and both say the same of it."""
    timeline, edges = replay(graph), graph.edges
    pairs = edges["from_start"] & (edges["kind"] == EdgeKind.MESSAGE)
    send, recv = edges["src"][pairs], edges["dst"][pairs]
    tag, rank, peer = (graph.tasks[name] for name in ("tag", "rank", "peer"))
    assert graph.select(kind=Kind.COMM).sum() == len(set(send.tolist())) + len(set(recv.tolist()))
    for name in ("tag", "message_bytes"):
        assert graph.tasks[name][send].tolist() == graph.tasks[name][recv].tolist()
    assert rank[send].tolist() == peer[recv].tolist()
    assert peer[send].tolist() == rank[recv].tolist()
    columns = (timeline.start_ns[send], timeline.finish_ns[recv], rank[send], rank[recv], tag[send], send, recv)
    return [Move(*(int(value) for value in row)) for row in zip(*columns, strict=True)]


def contents(moves, cells_of, begin):
    """Play messages in the order of time.

    Parameters
    ----------
    moves : list of Move
    cells_of : function of a move
        (part, cells that are read, cells that are written, whether they are added).
    begin : dict of (rank, part, cell) to content
    """
    held, carried = dict(begin), {}
    events = [(move.end_ns, 0, number) for number, move in enumerate(moves)]
    events += [(move.start_ns, 1, number) for number, move in enumerate(moves)]
    for _, what, number in sorted(events):
        move = moves[number]
        part, read, written, adds = cells_of(move)
        if what == 1:
            carried[number] = [held.get((move.src, part, cell), 0) for cell in read]
            continue
        for cell, value in zip(written, carried[number], strict=True):
            place = (move.dst, part, cell)
            held[place] = (held.get(place, 0) if adds else 0) + value
    return held
