"""Laws of the edit primitives, on random graphs."""

from __future__ import annotations

import itertools
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.graph.longest_path import start_times
from tests.graph.random_graphs import graph_and_mask, graphs
from windtunnel.errors import GraphError, InputError
from windtunnel.graph import (
    Discipline,
    EdgeKind,
    Edit,
    Graph,
    GraphBuilder,
    Kind,
    Phase,
    ResourceKind,
    Strings,
    apply_edits,
    lags,
)


def chain(*durations: int, lag_ns: int = 0) -> Graph:
    """Tasks in program order on one thread."""
    builder = GraphBuilder()
    cpu = builder.resource("cpu", ResourceKind.HOST_THREAD)
    rows = [builder.task(f"t{i}", resource=cpu, duration_ns=d) for i, d in enumerate(durations)]
    for src, dst in itertools.pairwise(rows):
        builder.edge(src, dst, kind=EdgeKind.ORDER, lag_ns=lag_ns)
    return builder.build()


@given(graph_and_mask())
def test_removing_tasks_starts_the_others_as_if_the_removed_took_no_time(sample):
    graph, mask = sample
    # the lag behind a removed task that nothing precedes goes with it
    rootless = mask.copy()
    for task in graph.topological_order():
        rows = graph.edges["dst"] == task
        rootless[task] &= bool(rootless[graph.edges["src"][rows]].all())
    weightless = graph.scale(mask, 0).set_lag(rootless[graph.edges["src"]], 0)
    expected = start_times(weightless)[~mask]

    assert expected.tolist() == start_times(graph.remove(mask)).tolist()


@given(graph_and_mask())
def test_removing_tasks_keeps_every_other_dependency(sample):
    graph, mask = sample
    number = np.cumsum(~mask) - 1
    kept = ~(mask[graph.edges["src"]] | mask[graph.edges["dst"]])
    expected = {
        (int(number[s]), int(number[d]), int(k), int(w), bool(f))
        for s, d, k, w, f in zip(
            *(graph.edges[c][kept] for c in ("src", "dst", "kind", "lag_ns", "from_start")), strict=True
        )
    }
    after = graph.remove(mask).edges
    found = set(zip(*(after[c].tolist() for c in ("src", "dst", "kind", "lag_ns", "from_start")), strict=True))

    assert expected <= found


def test_memory_that_a_removed_task_read_is_not_held_for_what_ran_behind_it():
    """It passes on only to those that read what the removed task made of it."""
    graph = chain(10, 10, 10, 10).connect([0, 1], [1, 3], EdgeKind.DATA).with_columns(output_bytes=[100, 50, 0, 0])
    edges = graph.remove([1]).edges
    found = sorted(zip(edges["src"].tolist(), edges["dst"].tolist(), edges["kind"].tolist(), strict=True))

    assert [(0, 1, EdgeKind.CONTROL), (0, 2, EdgeKind.DATA), (1, 2, EdgeKind.ORDER)] == found


def test_memory_of_what_only_ran_before_a_removed_task_is_not_held_for_its_readers():
    graph = chain(10, 10, 10).connect([1], [2], EdgeKind.DATA)

    assert [EdgeKind.CONTROL] == graph.remove([1]).edges["kind"].tolist()


@given(graph_and_mask(), st.integers(0, 7))
def test_scaling_by_a_whole_factor_is_exact(sample, factor):
    graph, mask = sample
    expected = np.where(mask, graph.duration_ns * factor, graph.duration_ns)

    assert expected.tolist() == graph.scale(mask, factor).duration_ns.tolist()


@given(graph_and_mask(), st.integers(1, 5), st.booleans())
def test_splitting_conserves_time_and_work_exactly(sample, parts, in_chain):
    graph, mask = sample
    after = graph.split(mask, parts, chain=in_chain).validate()

    assert graph.num_tasks + (parts - 1) * mask.sum() == after.num_tasks
    assert int(graph.duration_ns.sum()) == int(after.duration_ns.sum())
    assert int(graph.tasks["flops"].sum()) == int(after.tasks["flops"].sum())


@given(graph_and_mask(), st.integers(1, 5))
def test_splitting_in_a_chain_moves_no_other_task(sample, parts):
    graph, mask = sample
    after = graph.split(mask, parts)

    assert start_times(graph)[~mask].tolist() == start_times(after)[: graph.num_tasks][~mask].tolist()


@given(graph_and_mask())
def test_fusing_conserves_time_or_names_the_cycle(sample):
    graph, mask = sample
    try:
        after = graph.fuse(mask, by=()).validate()
    except GraphError as error:
        assume("cycle" not in str(error))
        raise

    assert int(graph.duration_ns.sum()) == int(after.duration_ns.sum())
    assert graph.num_tasks - max(0, int(mask.sum()) - 1) == after.num_tasks


@given(graph_and_mask())
def test_every_edit_can_be_undone_and_done_again_from_its_record(sample):
    graph, mask = sample
    edited = graph.scale(mask, 2).remove(mask).prioritize(graph.all_tasks[: graph.num_tasks - mask.sum()], 3)
    again = apply_edits(graph, [type(e).from_json(e.json()) for e in edited.edits])

    assert edited.equals(again)
    assert graph is edited.undo().undo().undo()


def test_new_resources_and_columns_are_part_of_the_record():
    graph = chain(5, 7)
    edited, link = graph.add_resource("link", ResourceKind.LINK, discipline=Discipline.PRIORITY)
    edited = edited.with_columns(output_bytes=[1, 2]).move([1], link).note({"world_size": 2})
    again = apply_edits(graph, [type(e).from_json(e.json()) for e in edited.edits])

    assert edited.equals(again)
    assert 2 == again.meta.world_size
    assert graph is edited.undo().undo().undo().undo()


def test_repeating_in_time_leaves_the_order_on_a_priority_resource_to_the_replay():
    builder = GraphBuilder()
    link = builder.resource("link", ResourceKind.LINK, discipline=Discipline.PRIORITY)
    builder.task("a", resource=link, duration_ns=3)
    builder.task("b", resource=link, duration_ns=4)

    assert 0 == builder.build().concat(3).num_edges


@given(graphs(), st.integers(1, 4))
def test_replicas_are_copies_that_do_not_touch(graph, num_ranks):
    after = graph.replicate(num_ranks).validate()

    assert np.tile(start_times(graph), num_ranks).tolist() == start_times(after).tolist()
    assert num_ranks * graph.num_resources == after.num_resources


@given(graphs(), st.integers(1, 4))
def test_repeating_in_time_keeps_the_first_copy_and_stays_acyclic(graph, num_iterations):
    after = graph.concat(num_iterations).validate()

    assert start_times(graph).tolist() == start_times(after)[: graph.num_tasks].tolist()
    assert num_iterations * graph.num_iterations == after.num_iterations


def test_removing_the_middle_of_a_chain_keeps_its_gaps_once():
    graph = chain(5, 7, 9, lag_ns=3)

    assert [0, 11] == start_times(graph.remove([1])).tolist()
    assert [0, 8] == start_times(graph.remove([1], keep_gaps=False)).tolist()


def test_moving_a_task_closes_the_chain_that_it_leaves():
    graph, stream = chain(5, 7, 9, lag_ns=1).add_resource("stream", ResourceKind.STREAM)
    after = graph.move(graph.select(name="t1"), stream)

    assert [(0, 2, 2)] == list(
        zip(after.edges["src"].tolist(), after.edges["dst"].tolist(), lags(after.edges).tolist(), strict=True)
    )
    assert [0, stream, 0] == after.tasks["resource"].tolist()


def test_inserting_into_program_order_delays_what_follows():
    graph = chain(5, 7)
    after = graph.insert({"name": ["cast"], "duration_ns": [2], "resource": [0]}, after=[0], splice=True)

    assert [0, 7, 5] == start_times(after).tolist()


def test_inserting_a_task_gives_the_columns_that_it_leaves_out_their_defaults():
    graph = chain(5, 7).with_columns(phase=[Phase.FORWARD, Phase.BACKWARD], layer=["a", "b"])
    after = graph.insert({"name": ["x"], "duration_ns": [1], "kind": [Kind.COMM]}, after=[[0, 1]])

    assert Phase.OTHER == after.tasks["phase"][2]
    assert "" == after.tasks.strings("layer").decode(2)
    assert 12 == start_times(after)[2]


def test_fusing_around_a_task_that_stays_outside_is_refused():
    with pytest.raises(GraphError, match="cycle of 2 tasks"):
        chain(1, 2, 3).fuse([0, 2])


def test_a_fused_task_outputs_what_is_read_outside_its_group_and_frees_nothing_else():
    """Of t0 and t1, only t1 is read outside; t2 is read by no task; t3 reads t1 and is not fused."""
    graph = chain(1, 2, 3, 4).connect([0, 0, 1, 1], [1, 2, 2, 3], EdgeKind.DATA)
    graph = graph.with_columns(output_bytes=[100, 50, 7, 1], freed_bytes=[0, 30, 100, 50])
    after = graph.fuse([0, 1, 2]).validate()

    assert [57, 1] == after.tasks["output_bytes"].tolist()
    assert [30, 50] == after.tasks["freed_bytes"].tolist()


def test_results_between_two_groups_are_outputs_and_no_task_frees_less_than_nothing():
    graph = chain(1, 1, 1, 1).connect([0, 1, 2], [1, 2, 3], EdgeKind.DATA).with_columns(rank=[0, 0, 1, 1])
    graph = graph.with_columns(output_bytes=[100, 50, 20, 5], freed_bytes=[0, 60, 70, 5])
    after = graph.fuse(graph.all_tasks).validate()

    assert [50, 5] == after.tasks["output_bytes"].tolist()
    assert [0, 55] == after.tasks["freed_bytes"].tolist()


def test_connecting_backwards_names_the_cycle():
    with pytest.raises(GraphError, match=r"cycle of 3 tasks(.|\n)*'t0'"):
        chain(1, 2, 3).connect(2, 0)


@pytest.mark.parametrize("factor", [-1, float("nan"), float("inf")])
def test_a_negative_or_infinite_factor_is_refused(factor):
    with pytest.raises(InputError, match="factor"):
        chain(1).scale([0], factor)


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(InputError, match="mask of 2 rows does not fit 3"):
        chain(1, 2, 3).scale(np.array([True, False]), 2)


def test_setting_a_duration_says_who_priced_it():
    after = chain(4, 5).set_duration([1], 50, cost_source="measured:partial")

    assert [4, 50] == after.duration_ns.tolist()
    assert ["", "measured:partial"] == after.tasks.strings("cost_source").to_numpy().tolist()


def test_samples_follow_the_duration():
    graph = chain(4, 0).with_columns(samples_ns=np.array([[4, 8], [0, 0]]))
    after = graph.set_duration([0, 1], [2, 7])

    assert [[2, 4], [7, 7]] == after.tasks["samples_ns"].tolist()


def test_a_hundred_edits_of_ten_tasks_keep_no_graph_between():
    num_tasks = 100_000
    graph = Graph.from_columns(
        tasks={
            "name": Strings.repeat("task", num_tasks),
            "kind": np.ones(num_tasks, dtype=np.int8),
            "resource": np.zeros(num_tasks, dtype=np.int32),
            "duration_ns": np.arange(num_tasks),
        },
        edges={"src": [0], "dst": [1], "kind": [1]},
        resources={"name": ["cpu"], "kind": [0], "discipline": [0], "slots": [1]},
    )
    tracemalloc.start()
    edited = graph
    for first in range(0, 1_000, 10):
        edited = edited.set_duration(np.arange(first, first + 10), 7)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert 100 == len(edited.edits)
    assert kept_bytes < 4 * 8 * num_tasks  # the edited columns themselves, and not a hundred of them


@given(graph_and_mask(), st.integers(1, 4))
def test_undo_of_any_edit_is_the_graph_before_it(sample, count):
    graph, mask = sample
    steps = [graph]
    for number in range(count):
        now = steps[-1]
        steps.append(now.scale(mask, number + 2) if number % 2 else now.note({"world_size": number}))
    undone = steps[-1]
    for before in reversed(steps[:-1]):
        undone = undone.undo()
        assert before.equals(undone)
        assert before.meta == undone.meta


@given(graph_and_mask())
def test_many_edits_are_recorded_as_one_that_is_stored_and_done_again(sample):
    graph, mask = sample
    base = graph.note({"world_size": 2})
    edited = base.scale(mask, 2).prioritize(mask, 3).as_one_edit(base, "double", {"factor": 2})
    again = apply_edits(graph, [Edit.from_json(json.loads(json.dumps(one.json()))) for one in edited.edits])

    assert ["note", "double"] == [one.name for one in edited.edits]
    assert "double(factor=2)" == str(edited.edits[-1])
    assert edited.equals(again)
    assert [one.json() for one in edited.edits] == [one.json() for one in again.edits]
    assert base.equals(edited.undo())


def test_an_edit_of_another_graph_is_not_recorded_as_one_of_this():
    with pytest.raises(GraphError, match="did not edit the graph that it was given"):
        chain(5, 7).scale([0], 2).as_one_edit(chain(5, 7), "double")
