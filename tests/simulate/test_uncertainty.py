"""Durations that vary: who is critical how often, intervals, virtual speed-up curves."""

import numpy as np
import pytest

from windtunnel.errors import InputError
from windtunnel.graph import GraphBuilder
from windtunnel.simulate import draw_durations, prediction_interval


def two_workers():
    builder = GraphBuilder()
    first = builder.task("worker 0", duration_ns=100, layer="a")
    second = builder.task("worker 1", duration_ns=110, layer="b")
    last = builder.task("all-reduce", duration_ns=10, layer="c")
    builder.edge(first, last)
    builder.edge(second, last)
    return builder.build()


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


@pytest.mark.parametrize("level", [0, 1, 1.5])
def test_an_impossible_level_is_refused(level):
    with pytest.raises(InputError, match="not between 0 and 1"):
        prediction_interval(two_workers(), level=level)
