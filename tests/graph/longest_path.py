"""Start times without contention, the slow and obvious way."""

from __future__ import annotations

import numpy as np

from windtunnel.graph import Graph, lags, starts


def start_times(graph: Graph) -> np.ndarray:
    """Earliest start of every task if nothing ever waits for a resource."""
    start = np.zeros(graph.num_tasks, dtype=np.int64)
    lag_ns, from_start = lags(graph.edges), starts(graph.edges)
    indptr, rows = graph.predecessors_csr()
    for task in graph.topological_order():
        for row in rows[indptr[task] : indptr[task + 1]]:
            source = graph.edges["src"][row]
            base = start[source] + (0 if from_start[row] else graph.duration_ns[source])
            start[task] = max(start[task], base + lag_ns[row])
    return start
