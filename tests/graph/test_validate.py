"""Every broken rule is named with its row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from tests.graph.random_graphs import graphs
from windtunnel.errors import GraphError
from windtunnel.graph import Graph, GraphBuilder, ResourceKind

TASKS = {"name": ["load", "gemm"], "kind": [0, 1], "resource": [0, 0], "duration_ns": [5, 7]}
EDGES = {"src": [0], "dst": [1], "kind": [0]}
RESOURCES = {"name": ["cpu"], "kind": [0], "discipline": [0], "slots": [1]}


@given(graphs())
def test_a_graph_that_keeps_the_rules_is_its_own_validation(graph):
    assert graph is graph.validate()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"tasks": {"duration_ns": [5, -7]}}, r"-7 is below 0(.|\n)*tasks row 1 \(1 'gemm'\)"),
        ({"tasks": {"duration_ns": [5, float("nan")]}}, r"'duration_ns' cannot hold nan(.|\n)*row 1"),
        ({"tasks": {"duration_ns": [5, 7.5]}}, r"cannot hold 7.5"),
        ({"tasks": {"duration_ns": [5, 1e30]}}, r"cannot hold 1e\+30"),
        ({"tasks": {"duration_ns": ["a", "b"]}}, r"must hold numbers"),
        ({"tasks": {"kind": [0, 99]}}, r"99 is no Kind(.|\n)*row 1"),
        ({"tasks": {"kind": [0]}}, r"differ in length"),
        ({"tasks": {"resource": [0, 3]}}, r"resource 3 does not exist, there are 1"),
        ({"edges": {"dst": [9]}}, r"dangling dst: task 9 does not exist, there are 2(.|\n)*edges row 0"),
        ({"edges": {"src": [-1]}}, r"-1 is below 0"),
        ({"edges": {"lag_ns": [-4]}}, r"'lag_ns': -4 is below 0"),
        ({"resources": {"slots": [0]}}, r"'slots': 0 is below 1"),
        ({"resources": {"discipline": [7]}}, r"7 is no Discipline"),
        ({"resources": {"rate": [0.0], "discipline": [2]}}, r"positive rate"),
        ({"edges": {"src": [1], "dst": [1]}}, r"cycle of 1 task\n(.|\n)*gemm"),
    ],
)
def test_a_broken_rule_is_named(tables, message):
    given = {"tasks": TASKS, "edges": EDGES, "resources": RESOURCES}
    merged = {title: {**columns, **tables.get(title, {})} for title, columns in given.items()}

    with pytest.raises(GraphError, match=message):
        Graph.from_columns(**merged)


def test_the_shortest_of_several_cycles_is_named():
    builder = GraphBuilder()
    rows = [builder.task(f"t{i}", duration_ns=1) for i in range(8)]
    for src, dst in [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 4), (3, 4), (5, 6), (6, 7)]:
        builder.edge(rows[src], rows[dst])

    with pytest.raises(GraphError, match=r"cycle of 2 tasks(.|\n)*t4(.|\n)*t5"):
        builder.build()


def test_an_empty_graph_is_a_graph():
    graph = GraphBuilder().build()

    assert (0, 0, 0) == (graph.num_tasks, graph.num_edges, graph.num_resources)


def test_an_unknown_column_in_the_builder_offers_the_known_ones():
    builder = GraphBuilder()
    builder.task("a", duration_ns=1, durration=3)

    with pytest.raises(GraphError, match="no column 'durration'"):
        builder.build()


def test_a_graph_cannot_be_changed_in_place():
    builder = GraphBuilder()
    builder.task("a", resource=builder.resource("cpu", ResourceKind.POOL, slots=2), duration_ns=1)
    graph = builder.build()

    with pytest.raises(ValueError, match="read-only"):
        graph.duration_ns[0] = 2
    assert np.array([1]) == graph.duration_ns
