"""Random small graphs with every kind of edge, for laws about edits."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from windtunnel.graph import Graph

_NAMES = ["gemm", "relu", "<b>x</b>", "../up", "Robert'); DROP", "", "\x00\x1b[31m", "ünï"]


@st.composite
def graphs(draw, max_tasks: int = 12) -> Graph:
    """Acyclic graphs of up to ``max_tasks`` tasks on up to three resources."""
    num_tasks = draw(st.integers(1, max_tasks))
    num_resources = draw(st.integers(1, 3))
    pairs = [(i, j) for j in range(num_tasks) for i in range(j)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    rename = draw(st.permutations(range(num_tasks)))
    num_edges = len(chosen)

    def ints(low: int, high: int, count: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    return Graph.from_columns(
        tasks={
            "name": draw(st.lists(st.sampled_from(_NAMES), min_size=num_tasks, max_size=num_tasks)),
            "kind": ints(0, 6, num_tasks),
            "phase": ints(0, 4, num_tasks),
            "resource": ints(-1, num_resources - 1, num_tasks),
            "duration_ns": ints(0, 1000, num_tasks),
            "flops": ints(0, 1000, num_tasks),
        },
        edges={
            "src": [rename[i] for i, _ in chosen],
            "dst": [rename[j] for _, j in chosen],
            "kind": ints(0, 5, num_edges),
            "lag_ns": ints(0, 50, num_edges),
            "from_start": np.array(draw(st.lists(st.booleans(), min_size=num_edges, max_size=num_edges)), dtype=bool),
        },
        resources={
            "name": [f"r{i}" for i in range(num_resources)],
            "kind": ints(0, 5, num_resources),
            "discipline": [0] * num_resources,
            "slots": [1] * num_resources,
        },
        meta={"source": "random"},
    )


@st.composite
def graph_and_mask(draw, max_tasks: int = 12) -> tuple[Graph, np.ndarray]:
    """Draw a graph and some of its tasks."""
    graph = draw(graphs(max_tasks))
    mask = draw(st.lists(st.booleans(), min_size=graph.num_tasks, max_size=graph.num_tasks))
    return graph, np.array(mask, dtype=bool)
