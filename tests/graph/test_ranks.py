"""Copies, joins and meetings of ranks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.longest_path import start_times
from tests.graph.random_graphs import graphs
from windtunnel.errors import GraphError, InputError
from windtunnel.graph import Discipline, EdgeKind, Graph, GraphBuilder, Kind, ResourceKind, Table
from windtunnel.graph.ranks import arrivals, join, meetings
from windtunnel.simulate import replay


def step(*durations: int) -> Graph:
    """A thread, a stream and a NIC; each task waits for the one before."""
    builder = GraphBuilder()
    rows = [builder.resource("cpu", ResourceKind.HOST_THREAD), builder.resource("gpu"), builder.resource("nic")]
    tasks = [builder.task(f"t{i}", resource=rows[i % 3], duration_ns=one) for i, one in enumerate(durations)]
    for src, dst in itertools.pairwise(tasks):
        builder.edge(src, dst, kind=EdgeKind.ORDER)
    return builder.build()


@given(graphs(), st.integers(1, 3), st.integers(1, 3))
def test_copies_of_copies_are_as_many_ranks_as_their_product(graph, inner, outer):
    twice = graph.replicate(inner).replicate(outer).validate()
    once = graph.replicate(inner * outer)
    width = graph.num_ranks if not graph.num_tasks else int(graph.tasks.get("rank", np.zeros(1, int)).max()) + 1

    assert twice.equals(once)
    if graph.num_tasks:
        assert inner * outer * width == int(twice.tasks["rank"].max()) + 1


@given(graphs(), st.integers(1, 4))
def test_copies_keep_every_dependency_and_touch_no_other(graph, count):
    many = graph.replicate(count)
    assert start_times(many).tolist() == start_times(graph).tolist() * count
    assert (many.edges["src"] // max(graph.num_tasks, 1) == many.edges["dst"] // max(graph.num_tasks, 1)).all()


def test_a_nic_that_a_host_shares_is_not_copied():
    three = step(5, 7, 9).replicate(3, shared=[2])
    names = three.resources.strings("name").to_numpy().tolist()

    assert ["rank 0 cpu", "rank 0 gpu", "nic", "rank 1 cpu", "rank 1 gpu", "rank 2 cpu", "rank 2 gpu"] == names
    assert [0, 1, 2, 3, 4, 2, 5, 6, 2] == three.tasks["resource"].tolist()
    assert 5 + 7 + 3 * 9 == replay(three).makespan_ns


def test_ranks_of_ranks_are_named_once():
    names = step(1).replicate(2).replicate(2).resources.strings("name").to_numpy().tolist()
    assert ["rank 0 cpu", "rank 1 cpu", "rank 2 cpu", "rank 3 cpu"] == names[::3]


@given(st.lists(graphs(), min_size=1, max_size=4))
def test_joined_graphs_lie_side_by_side_as_they_were(parts):
    whole = Graph(*join(parts)).validate()
    assert start_times(whole).tolist() == [start for part in parts for start in start_times(part).tolist()]
    assert sum(part.num_resources for part in parts) == whole.num_resources


def met_slowly(graph: Graph, meetings: list[list[int]]) -> list[int]:
    """When each task begins if members of a meeting begin together: by iteration until nothing moves."""
    start = [0] * graph.num_tasks
    lags = graph.edges.get("lag_ns", np.zeros(graph.num_edges, int))
    flags = graph.edges.get("from_start", np.zeros(graph.num_edges, bool))
    edges = list(
        zip(*(column.tolist() for column in (graph.edges["src"], graph.edges["dst"], lags, flags)), strict=True)
    )
    for _ in range(graph.num_tasks + 1):
        for src, dst, lag, is_from_start in edges:
            begin = start[src] + (0 if is_from_start else int(graph.duration_ns[src]))
            start[dst] = max(start[dst], begin + lag)
        for members in meetings:
            together = max(start[one] for one in members)
            for one in members:
                start[one] = together
    return start


@given(graphs(), st.integers(2, 4), st.data())
def test_members_begin_when_the_last_of_them_can(graph, count, data):
    """Equal ranks with different lengths: a chosen task of each meets those of the others."""
    many = graph.replicate(count)
    factors = data.draw(st.lists(st.integers(0, 5), min_size=many.num_tasks, max_size=many.num_tasks))
    many = many.set_duration(many.all_tasks, np.array(factors, dtype=np.int64) * 10)
    chosen = data.draw(st.lists(st.integers(0, max(graph.num_tasks - 1, 0)), unique=True, max_size=3))
    chosen = [one for one in chosen if one < graph.num_tasks]
    meetings = [[one + graph.num_tasks * rank for rank in range(count)] for one in chosen]
    rows = [one for members in meetings for one in members]
    met = many.meet(rows, np.repeat(np.arange(len(meetings)), count)).validate()

    assert met_slowly(many, meetings) == start_times(met)[: many.num_tasks].tolist()
    assert many.duration_ns.sum() == met.duration_ns.sum()


def test_a_meeting_lasts_as_long_as_it_is_given():
    two = step(5, 7, 9).replicate(2).set_duration([0], 50)
    met = two.meet([1, 4], [0, 0], [100])

    assert 50 + 100 + 9 == replay(met).makespan_ns
    assert ["arrival at t1"] * 2 + ["t1"] == met.tasks.strings("name").to_numpy()[6:].tolist()
    assert [Kind.SYNC, Kind.SYNC, Kind.VIRTUAL] == met.tasks["kind"][6:].tolist()


@pytest.mark.parametrize(("members", "meetings"), [([0, 0], [0, 0]), ([0, 1], [0, 2]), ([0, 1], [0])])
def test_meetings_that_mean_nothing_are_refused(members, meetings):
    with pytest.raises(InputError, match="meetings"):
        step(1, 2, 3).meet(members, meetings)


def test_no_meeting_changes_nothing():
    graph = step(1, 2)
    assert graph.equals(graph.meet([], []))
    assert Discipline.FIFO == graph.resources["discipline"][0]
    assert isinstance(graph.tasks, Table)


@given(graphs(), st.data())
def test_meetings_are_read_as_they_were_made(graph, data):
    members = data.draw(st.lists(st.integers(0, graph.num_tasks - 1), min_size=1, max_size=4, unique=True))
    of_member = data.draw(st.lists(st.integers(0, 1), min_size=len(members), max_size=len(members)))
    number = np.unique(of_member, return_inverse=True)[1]
    first = graph.num_tasks
    try:
        found = meetings(graph.meet(members, number).validate())
    except GraphError:
        return  # some wait for each other already
    order = np.argsort(found.arrival)
    order = order[found.arrival[order] >= first]  # a random graph may look as if some met before

    assert found.arrival[order].tolist() == list(range(first, first + len(members)))
    assert found.member[order].tolist() == members
    assert found.hub[order].tolist() == (first + len(members) + number).tolist()
    assert arrivals(graph.meet(members, number), members).tolist() == list(range(first, first + len(members)))
