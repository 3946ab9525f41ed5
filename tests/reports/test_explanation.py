"""Plain words about a graph: every number can be checked by hand."""

import json

import numpy as np
import pytest
from hypothesis import given, strategies

from tests.cli.graphs import hostile_graph, step_graph
from tests.strategies import graphs
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase
from windtunnel.reports import explain
from windtunnel.reports.bystanders import without_bystanders
from windtunnel.reports.explanation import integer_percentages
from windtunnel.reports.sections import where_time_goes
from windtunnel.simulate import replay
from windtunnel.whatifs import whatif


@given(graphs())
def test_shares_by_phase_and_kind_sum_to_the_whole(graph):
    explanation = explain(graph)
    whole = 1.0 if explanation.replayed_ns else 0.0  # threads that take no part are left out

    assert pytest.approx(whole) == sum(share.ratio for share in explanation.phases)
    assert pytest.approx(whole) == sum(share.ratio for share in explanation.kinds)
    assert pytest.approx(explanation.replayed_ns) == sum(share.duration_ns for share in explanation.phases)


@given(strategies.lists(strategies.floats(0, 1e6), min_size=1, max_size=12).filter(lambda values: sum(values) > 0))
def test_printed_percentages_sum_to_100(values):
    ratios = [value / sum(values) for value in values]

    assert 100 == sum(integer_percentages(ratios))


@given(graphs())
def test_every_explanation_is_json_without_nan(graph):
    document = json.loads(explain(graph).json())

    assert graph.num_tasks == document["num_tasks"]


def test_the_longest_task_of_the_critical_path_comes_first():
    longest = explain(step_graph()).longest

    assert ["encoder forward", "encoder backward", "adam", "launch"] == [task.name for task in longest]
    assert [4_000, 0, 6_000, 0] == [task.wait_ns for task in longest]


def test_a_graph_of_several_iterations_is_explained_per_iteration():
    once, thrice = explain(step_graph()), explain(step_graph().concat(3))

    assert 3 == thrice.num_iterations
    assert once.ops[0].duration_ns == thrice.ops[0].duration_ns


def test_an_empty_graph_is_explained_kindly():
    explanation = explain(GraphBuilder().build())

    assert "0 ns per iteration (as replayed)" == str(explanation).splitlines()[0]
    assert "critical path: 0 of 0 tasks" in str(explanation)


def test_edits_are_told_because_an_edited_graph_was_not_measured():
    graph = step_graph()

    assert "this graph was edited: scale" in str(explain(graph.scale(graph.all_tasks, 0.5)))


def test_hostile_names_make_no_long_lines():
    assert 300 > max(map(len, str(explain(hostile_graph())).splitlines()))


def test_the_table_has_one_row_per_part():
    table = explain(step_graph()).table()

    assert ["by", "label", "duration_ns", "ratio", "num_tasks"] == table.column_names
    assert {"phase", "kind", "layer", "op"} == set(table.column("by").to_pylist())


def test_a_graph_without_phases_layers_or_measurement_is_explained_by_what_it_has():
    builder = GraphBuilder()
    builder.task("only", duration_ns=1_000)
    bare: Graph = builder.build()

    assert "other 100 %" in str(explain(bare))


def test_a_thread_that_only_looks_on_does_not_decide_where_the_time_goes():
    builder = GraphBuilder()
    work, watch = builder.resource("worker"), builder.resource("watchdog")
    builder.task("train", duration_ns=90_000, resource=work, phase=Phase.FORWARD)
    polls = [builder.task("poll", duration_ns=10, kind=Kind.HOST, resource=watch, phase=Phase.OTHER) for _ in range(2)]
    builder.edge(*polls, kind=EdgeKind.ORDER, lag_ns=100_000)
    graph = builder.build()
    explanation = explain(graph)

    assert 90_000 == explanation.replayed_ns == whatif(graph, ["faster-cpu:factor=2"])[0].baseline_ns
    assert "forward 100 %" in str(explanation)
    assert "left out, as nothing here waits for it: watchdog" in str(explanation)


@given(graphs())
def test_leaving_out_bystanders_never_changes_when_the_rest_runs(graph):
    timeline = replay(graph)
    rest, left_out = without_bystanders(graph, timeline)
    names = np.append(graph.resources.strings("name").to_numpy(), "no resource")
    kept = ~np.isin(names[graph.tasks["resource"]], left_out)

    assert timeline.start_ns[kept].tolist() == rest.start_ns.tolist()


def test_the_picture_is_returned_with_units_and_the_parts_as_labels(tmp_path):
    pytest.importorskip("matplotlib")
    figure = explain(step_graph()).plot()
    figure.savefig(tmp_path / "shares.png")
    axes = figure.axes[0]

    assert "time of one iteration, ms" == axes.get_xlabel()
    assert ["forward 60 %", "backward 20 %", "update 10 %", "idle 10 %"] == axes.get_legend_handles_labels()[1]
    assert pytest.approx((0.0, 0.1)) == axes.get_xlim()


def test_a_heap_that_shrinks_in_every_iteration_is_told():
    """Else the measured time would be below what the user's own script shows, for no visible reason."""
    builder = GraphBuilder()
    builder.task("gemm", duration_ns=10_000_000)
    times = {"iteration_ns": {"median": 10e6, "low": 9e6, "high": 11e6}}
    shrinking = builder.build({**times, "allocator": {"iteration_before_ns": {"median": 13e6}}})
    steady = builder.build({**times, "allocator": {"iteration_before_ns": {"median": 10.1e6}}})

    assert "the script as it is took 13.0 ms" in str(explain(shrinking))
    assert "as it is" not in str(explain(steady))


def test_it_says_on_whose_word_the_time_rests():
    builder = GraphBuilder()
    cpu = builder.resource("cpu")
    first = builder.task("mm", duration_ns=750, resource=cpu, cost_source="measured")
    second = builder.task("add", duration_ns=200, resource=cpu, cost_source="roofline")
    builder.edge(first, second)
    builder.edge(second, builder.task("wait", duration_ns=50, resource=cpu, cost_source=""))
    explanation = explain(builder.build())

    assert [(share.label, share.ratio) for share in explanation.sources] == [("measured", 0.75), ("roofline", 0.2)]
    assert explanation.parts("source")[0][0] == "measured"
    assert "On whose word" in where_time_goes(explanation).body


@pytest.mark.parametrize(("share", "which"), [(0.5, "the commonest, 50 %"), (0.2, "one of them, 20 %")])
def test_a_form_is_called_the_commonest_only_where_it_is(share, which):
    """Of a job that is not run any form is taken down."""
    others = [{"inputs": [[8, 4]], "count": count, "median_ns": None} for count in (3, 1)]
    shapes = {"inputs": [[9, 4]], "share": share, "is_mixed": False, "others": others}
    text = str(explain(step_graph().with_meta(shapes=shapes)))

    assert f"iterations have 3 forms; this is {which}: 9x4" in text
