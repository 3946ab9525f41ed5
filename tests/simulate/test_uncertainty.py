"""Durations that vary: who is critical how often, intervals, virtual speed-up curves."""

import numpy as np
import pytest
from hypothesis import given

from tests.strategies import graphs
from windtunnel.errors import InputError
from windtunnel.graph import GraphBuilder
from windtunnel.simulate import criticality, draw_durations, prediction_interval, replay, speedup_curves


def two_workers():
    builder = GraphBuilder()
    first = builder.task("worker 0", duration_ns=100, layer="a")
    second = builder.task("worker 1", duration_ns=110, layer="b")
    last = builder.task("all-reduce", duration_ns=10, layer="c")
    builder.edge(first, last)
    builder.edge(second, last)
    return builder.build()


def test_criticality_counts_the_iterations_in_which_a_task_is_critical():
    samples = np.array([[120, 100, 100, 100], [110, 110, 110, 110], [10, 10, 10, 10]])
    graph = two_workers().with_columns(samples_ns=samples)

    assert [0.25, 0.75, 1.0] == criticality(graph).tolist()


def test_samples_of_one_iteration_are_played_together():
    """Two workers that are slow in the same iterations must not be averaged apart."""
    samples = np.array([[100, 200], [100, 200], [10, 10]])
    interval = prediction_interval(two_workers().with_columns(samples_ns=samples))

    assert [110, 210] == interval.makespans_ns.tolist()


def test_without_samples_the_interval_is_the_point():
    interval = prediction_interval(two_workers())

    assert (120, 120, 120) == (interval.low_ns, interval.median_ns, interval.high_ns)


def test_a_spread_gives_draws_that_depend_on_the_seed_alone():
    graph = two_workers().with_columns(duration_std_ns=np.array([10, 10, 200]))
    drawn = draw_durations(graph, 100, seed=7)

    assert drawn.tolist() == draw_durations(graph, 100, seed=7).tolist()
    assert (drawn >= 0).all()
    assert prediction_interval(graph, seed=7).low_ns < prediction_interval(graph, seed=7).high_ns


@given(graphs(max_tasks=8))
def test_a_speedup_curve_equals_real_edits(graph):
    table = speedup_curves(graph, "op", factors=(1.0, 0.5, 0.0)).to_pylist()

    for row in table:
        edited = graph.scale(graph.select(op=row["label"]), row["factor"])
        assert replay(edited).makespan_ns == row["makespan_ns"]


def test_a_layer_off_the_critical_path_buys_nothing():
    table = speedup_curves(two_workers(), "layer", factors=(1.0, 0.0)).to_pylist()
    makespans = {(row["label"], row["factor"]): row["makespan_ns"] for row in table}

    assert 120 == makespans["a", 0.0]
    assert 110 == makespans["b", 0.0]
    assert 110 == makespans["c", 0.0]


@pytest.mark.parametrize("level", [0, 1, 1.5])
def test_an_impossible_level_is_refused(level):
    with pytest.raises(InputError, match="not between 0 and 1"):
        prediction_interval(two_workers(), level=level)


def test_a_negative_factor_is_refused():
    with pytest.raises(InputError, match="0 or more"):
        speedup_curves(two_workers(), factors=(-1.0,))
