"""Selection by what tasks are."""

from __future__ import annotations

import pytest

from windtunnel.errors import InputError
from windtunnel.graph import Graph, GraphBuilder, Kind, Phase, ResourceKind


@pytest.fixture
def graph() -> Graph:
    builder = GraphBuilder()
    builder.task("gemm", duration_ns=1, kind=Kind.COMPUTE, layer="encoder.0", phase=Phase.FORWARD)
    builder.task("relu", duration_ns=1, kind=Kind.COMPUTE, layer="encoder.1", phase=Phase.BACKWARD)
    builder.task("all_reduce", duration_ns=1, kind=Kind.COMM, layer="decoder", phase=Phase.BACKWARD)
    return builder.build()


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"kind": Kind.COMM}, [2]),
        ({"kind": (Kind.COMM, Kind.COMPUTE), "phase": Phase.BACKWARD}, [1, 2]),
        ({"layer": "encoder.*"}, [0, 1]),
        ({"layer": "encoder"}, []),
        ({"name": "g.*|all_.*"}, [0, 2]),
        ({"where": [1]}, [1]),
        ({"where": lambda g: g.duration_ns > 1}, []),
        ({"rank": 0}, [0, 1, 2]),
        ({"rank": 1}, []),
        ({"op": "aten::mm"}, []),
    ],
)
def test_tasks_are_chosen_where_every_criterion_holds(graph, criteria, expected):
    assert expected == graph.select(**criteria).nonzero()[0].tolist()


def test_tasks_are_chosen_by_the_kind_of_what_they_run_on():
    builder = GraphBuilder()
    thread = builder.resource("main thread", ResourceKind.HOST_THREAD)
    stream = builder.resource("GPU 0 stream 7", ResourceKind.STREAM)
    for resource in (thread, stream, None, stream):
        builder.task("task", duration_ns=1, kind=Kind.COMPUTE, **({} if resource is None else {"resource": resource}))
    graph = builder.build()

    def rows(*kinds):
        return graph.select(resource_kind=kinds).nonzero()[0].tolist()

    assert [1, 3] == rows(ResourceKind.STREAM)
    assert [0, 1, 3] == rows(ResourceKind.STREAM, ResourceKind.HOST_THREAD)
    assert [] == rows(ResourceKind.LINK)
    assert [0] == graph.select(resource_kind=ResourceKind.HOST_THREAD).nonzero()[0].tolist()
    assert [1] == graph.select(resource_kind=ResourceKind.STREAM, where=[0, 1]).nonzero()[0].tolist()


def test_a_broken_pattern_is_an_input_error(graph):
    with pytest.raises(InputError, match="no regular expression"):
        graph.select(name="(")


def test_a_row_that_is_not_there_is_an_input_error(graph):
    with pytest.raises(InputError, match="row 3 is not there"):
        graph.select(where=[3])
