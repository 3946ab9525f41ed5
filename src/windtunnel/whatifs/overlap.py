"""Compute on while messages are under way (what-if family "overlap of communication").

In: a graph whose messages say who reads what they bring. Out: the same work, where only these readers wait for them.
"""

from __future__ import annotations

import numpy as np

from windtunnel import registry
from windtunnel.errors import NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind
from windtunnel.simulate.limits import other_order

__all__ = ["overlap"]


@registry.whatif(
    "overlap",
    source="Korthikanti et al., Reducing activation recomputation in large transformer models, MLSys 2023",
    limits=other_order("all work stays"),
)
def overlap(graph: Graph) -> Graph:
    """Wait for a message where its result is read, not where the program asks for it.

    Streams and threads keep their order, so a message hides behind what stands between its begin and its first reader,
    such as the gradient of a weight. What a message reads stays untouched until it is done. A message of which no
    reader is known keeps its waits, as do messages that wait for others. Nothing bounds the memory that waits freed.

    Raises
    ------
    NotApplicableError
        Only the readers of a message wait for it already, or its readers are unknown.
    """
    edges, is_sent = graph.edges, graph.select(kind=Kind.COMM)
    is_data = (edges["kind"] == EdgeKind.DATA) & is_sent[edges["src"]]
    is_read = np.zeros(graph.num_tasks, dtype=bool)
    is_read[edges["src"][is_data]] = True
    # A wait is kept where the same two tasks also pass data: such an edge is the reader's own.
    pair = edges["src"].astype(np.int64) * graph.num_tasks + edges["dst"]
    waits = (edges["kind"] == EdgeKind.SYNC) & is_read[edges["src"]] & ~is_sent[edges["dst"]]
    waits &= ~np.isin(pair, pair[is_data])
    if not waits.any():
        raise NotApplicableError(
            "only its readers wait for a message already" if is_read.any() else "nothing says who reads a message",
            where="edges SYNC and DATA of kind COMM",
            fix="trace the script with windtunnel capture --dry-run, which notes who reads what",
        )
    return graph.disconnect(waits)
