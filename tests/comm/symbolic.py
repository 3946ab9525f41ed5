"""What every rank holds when a collective has been replayed: the slow, obvious check of algorithms.

A send takes what its rank holds when it begins, a receive leaves it at its end, in the order of the replayed clock. A
cell's content is a number with one byte per rank, which counts how often that rank's contribution is in it.
"""

from __future__ import annotations

import numpy as np

from windtunnel.graph import Graph, Kind
from windtunnel.simulate import replay


def own(rank: int) -> int:
    """The contribution of one rank."""
    return 1 << (8 * rank)


def whole(num_ranks: int) -> int:
    """Every rank's contribution, once."""
    return sum(own(rank) for rank in range(num_ranks))


def replayed_moves(graph: Graph) -> list[tuple[int, int, int, int, int, int]]:
    """(send's start, receive's end, source, destination, tag, bytes) of every message, matched by tag."""
    timeline = replay(graph)
    ops = graph.tasks.strings("op").to_numpy()
    is_comm = graph.select(kind=Kind.COMM)
    send, recv = (np.flatnonzero(is_comm & (ops == op)) for op in ("send", "recv"))
    tag, rank, peer = (graph.tasks[name] for name in ("tag", "rank", "peer"))
    send, recv = send[np.argsort(tag[send], kind="stable")], recv[np.argsort(tag[recv], kind="stable")]
    assert tag[send].tolist() == tag[recv].tolist()
    assert rank[send].tolist() == peer[recv].tolist()
    assert peer[send].tolist() == rank[recv].tolist()
    assert graph.tasks["message_bytes"][send].tolist() == graph.tasks["message_bytes"][recv].tolist()
    rows = zip(
        timeline.start_ns[send], timeline.finish_ns[recv], rank[send], rank[recv], tag[send],
        graph.tasks["message_bytes"][send], strict=True,
    )  # fmt: skip
    return [tuple(int(value) for value in row) for row in rows]


def contents(moves, cells_of, begin):
    """Play messages in the order of time.

    Parameters
    ----------
    moves : as ``replayed_moves`` gives them
    cells_of : function of a tag
        (part, cells that are read, cells that are written, whether they are added).
    begin : dict of (rank, part, cell) to content
    """
    held, carried = dict(begin), {}
    events = [(end, 0, number) for number, (_, end, *_) in enumerate(moves)]
    events += [(start, 1, number) for number, (start, *_) in enumerate(moves)]
    for _, what, number in sorted(events):
        _, _, src, dst, tag, _ = moves[number]
        part, read, written, adds = cells_of(tag)
        if what == 1:
            carried[number] = [held.get((src, part, cell), 0) for cell in read]
            continue
        for cell, value in zip(written, carried[number], strict=True):
            place = (dst, part, cell)
            held[place] = (held.get(place, 0) if adds else 0) + value
    return held
