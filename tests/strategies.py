"""Random graphs for laws: strategies that shrink, and seeded graphs of any size. Every new feature extends them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from windtunnel.graph import Discipline, Graph, ResourceKind

NAMES = [
    "gemm",
    "relu",
    "<b>x</b>",
    "../up",
    "Robert'); DROP TABLE tasks;--",
    "",
    "\x00\x1b[31m",
    "ünï",
    "\ud800",
    "a,b\n",
]
DISCIPLINES = tuple(Discipline)


@st.composite
def graphs(
    draw,
    max_tasks: int = 12,
    *,
    disciplines: tuple[Discipline, ...] = DISCIPLINES,
    lags: bool = True,
    joins: bool = True,
    earliest: bool = True,
    placed: bool = True,
    flows: bool = True,
) -> Graph:
    """Small acyclic graphs with every feature that the replay knows; switch off what a law does not hold for."""
    num_tasks = draw(st.integers(1, max_tasks))
    num_resources = draw(st.integers(1, 3)) if placed else 0
    pairs = [(i, j) for j in range(num_tasks) for i in range(j)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=2 * num_tasks)) if pairs else []
    rename = draw(st.permutations(range(num_tasks)))
    num_edges = len(chosen)

    def column(element, count):
        return draw(st.lists(element, min_size=count, max_size=count))

    tasks = {
        "name": column(st.sampled_from(NAMES[:8]), num_tasks),
        "kind": column(st.integers(0, 6), num_tasks),
        "phase": column(st.integers(0, 4), num_tasks),
        "layer": column(st.sampled_from(["", "encoder.0", "encoder.1"]), num_tasks),
        "op": column(st.sampled_from(["gemm", "relu"]), num_tasks),
        "resource": column(st.integers(-1, num_resources - 1), num_tasks),
        "priority": column(st.integers(-1, 1), num_tasks),
        "duration_ns": column(st.integers(0, 9), num_tasks),
        "output_bytes": column(st.integers(0, 9), num_tasks),
        "workspace_bytes": column(st.integers(0, 9), num_tasks),
    }
    if earliest and draw(st.booleans()):
        tasks["earliest_ns"] = column(st.integers(0, 20), num_tasks)
    if joins and draw(st.booleans()):
        tasks["is_arrival_join"] = column(st.booleans(), num_tasks)
    edges = {
        "src": [rename[i] for i, _ in chosen],
        "dst": [rename[j] for _, j in chosen],
        "kind": column(st.integers(0, 5), num_edges),
    }
    if lags and draw(st.booleans()):
        edges["lag_ns"] = column(st.integers(0, 5), num_edges)
    if draw(st.booleans()):
        edges["from_start"] = column(st.booleans(), num_edges)
    resources = {
        "name": [f"r{i}" for i in range(num_resources)],
        "kind": column(st.integers(0, 5), num_resources),
        "discipline": column(st.sampled_from(disciplines), num_resources),
        "slots": column(st.integers(1, 3), num_resources),
    }
    if Discipline.SHARED in disciplines and num_resources and draw(st.booleans()):
        width = draw(st.integers(1, 3))
        curve = st.floats(0.5, 5.0, allow_nan=False)
        resources["slowdown"] = np.array([column(curve, width) for _ in range(num_resources)])
    routes = []
    if flows and num_resources and draw(st.booleans()):
        resources["kind"] = [int(ResourceKind.LINK)] * num_resources
        resources["rate"] = column(st.sampled_from([1e9, 3e8, 7.0]), num_resources)
        link = st.integers(0, num_resources - 1)
        routes = draw(st.lists(st.lists(link, min_size=1, unique=True), min_size=1, max_size=3))
        tasks["route"] = column(st.integers(-1, len(routes) - 1), num_tasks)
        tasks["message_bytes"] = column(st.integers(0, 20), num_tasks)
    return Graph.from_columns(tasks, edges, resources, {"source": "random", "routes": routes})


@st.composite
def fixed_graphs(draw, max_tasks: int = 12, **features) -> Graph:
    """Graphs of which every resource's order is an edge chain: what the static engine takes."""
    queues = (Discipline.FIFO, Discipline.PRIORITY)
    graph = draw(graphs(max_tasks, disciplines=queues, joins=False, flows=False, **features))
    return chained(graph)


def chained(graph: Graph) -> Graph:
    """Join each resource's tasks in topological order by ORDER edges."""
    resource = graph.tasks["resource"]
    order = graph.topological_order()
    src: list[int] = []
    dst: list[int] = []
    for r in range(graph.num_resources):
        row = [int(task) for task in order if resource[task] == r]
        src += row[:-1]
        dst += row[1:]
    return graph.connect(src, dst, kind=1) if src else graph


def random_graph(seed: int, num_tasks: int = 0) -> Graph:
    """A graph with all features from a seed: sizes, ties, lags, joins, disciplines and curves all vary with it."""
    rng = np.random.default_rng(seed)
    num_tasks = num_tasks or int(rng.integers(1, 80))
    num_resources = int(rng.integers(1, 6))
    num_edges = int(rng.integers(0, 3 * num_tasks)) if num_tasks > 1 else 0
    low = rng.integers(0, max(num_tasks - 1, 1), num_edges)
    reach = int(rng.choice([3, 10, num_tasks]))
    high = np.minimum(low + rng.integers(1, reach + 1, num_edges), num_tasks - 1)
    rename = rng.permutation(num_tasks)
    scale = int(rng.choice([2, 10, 1_000_000, 10**13]))  # few distinct durations make ties, large ones test the bits

    def some(chance, values, neutral):
        return np.where(rng.random(len(values)) < chance * rng.integers(0, 2), values, neutral)

    tasks = {
        "name": [f"task {i}" for i in range(num_tasks)],
        "kind": rng.integers(0, 7, num_tasks),
        "phase": rng.integers(0, 5, num_tasks),
        "resource": rng.integers(-1 if rng.random() < 0.5 else 0, num_resources, num_tasks),
        "priority": rng.integers(-2, 3, num_tasks),
        "duration_ns": some(0.9, rng.integers(0, scale, num_tasks), 0),
        "output_bytes": rng.integers(0, 1000, num_tasks),
        "earliest_ns": some(0.3, rng.integers(0, 3 * scale, num_tasks), 0),
        "is_arrival_join": some(0.2, np.ones(num_tasks), 0).astype(bool),
    }
    edges = {
        "src": rename[low],
        "dst": rename[high],
        "kind": rng.integers(0, 6, num_edges),
        "lag_ns": some(0.5, rng.integers(0, scale, num_edges), 0),
        "from_start": some(0.3, np.ones(num_edges), 0).astype(bool),
    }
    resources = {
        "name": [f"resource {r}" for r in range(num_resources)],
        "kind": rng.integers(0, 6, num_resources),
        "discipline": rng.choice([0, 0, 1, 2], num_resources),
        "slots": rng.choice([1, 1, 2, 4], num_resources),
    }
    if rng.random() < 0.5:
        resources["slowdown"] = np.cumsum(rng.random((num_resources, int(rng.integers(1, 5)))), axis=1) + 0.6
    routes = []
    if rng.random() < 0.3:
        resources["kind"] = np.full(num_resources, int(ResourceKind.LINK))
        resources["rate"] = rng.choice([1e9, 2.5e8, 3.3e10 / 7], num_resources)
        lengths = rng.integers(1, num_resources + 1, 4)
        routes = [rng.permutation(num_resources)[:length].tolist() for length in lengths]
        tasks["route"] = rng.integers(-1, len(routes), num_tasks)
        tasks["message_bytes"] = rng.integers(0, max(scale, 2), num_tasks)
    meta = {"source": f"random graph {seed}", "routes": routes}
    graph = Graph.from_columns(tasks, edges, resources, meta)
    return graph if rng.random() < 0.7 else chained(graph)
