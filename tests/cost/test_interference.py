"""Users of one core and of one memory: measured, smoothed, flown."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cost.interference import Interference, fit_slowdown, measure_interference, share_resource
from windtunnel.errors import InputError
from windtunnel.graph import GraphBuilder, Kind
from windtunnel.simulate import replay


@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=12))
def test_a_curve_never_falls_and_is_never_below_one(ratios):
    curve = fit_slowdown(ratios)

    assert len(ratios) == len(curve)
    assert 1.0 == curve[0]
    assert all(first <= second for first, second in itertools.pairwise(curve))


@given(st.lists(st.floats(1, 50), min_size=1, max_size=12))
def test_what_rises_already_is_left_as_measured(ratios):
    rising = sorted(ratios)
    rising[0] = 1.0

    assert rising == pytest.approx(fit_slowdown(rising))


def two_tasks():
    builder = GraphBuilder()
    for name in ("a", "b"):
        builder.task(name, kind=Kind.COMPUTE, duration_ns=1000, resource=builder.resource(name))
    return builder.build()


def test_tasks_that_share_take_as_long_as_the_curve_says():
    graph = two_tasks()
    together = share_resource(graph, Interference("memory", (1.0, 1.5), (1.0, 1.5)), graph.all_tasks).validate()

    assert 1000 == replay(graph).makespan_ns
    assert 1500 == replay(together).makespan_ns


def test_two_shared_things_live_in_one_graph():
    graph = two_tasks()
    first = share_resource(graph, Interference("core", (1.0, 2.0), ()), np.array([True, False]))
    both = share_resource(first, Interference("memory", (1.0, 1.5), ()), np.array([False, True])).validate()

    assert [[1, 1], [1, 1], [1, 2], [1, 1.5]] == both.resources["slowdown"].tolist()
    with pytest.raises(InputError, match="curves of 2 and of 3 users"):
        share_resource(both, Interference("disk", (1.0, 2.0, 3.0), ()), graph.all_tasks)


def test_unknown_things_are_refused():
    with pytest.raises(InputError, match="nothing shared is called 'disk'"):
        measure_interference("disk")
    with pytest.raises(InputError, match="-1 users"):
        measure_interference("core", -1)


@pytest.mark.slow
def test_processes_on_one_core_really_slow_each_other(tmp_path):
    pytest.importorskip("torch", reason="the library fingerprint names torch")
    from windtunnel.measure.database import ProfileDatabase

    database = ProfileDatabase(tmp_path / "p.db")
    found = measure_interference("core", 2, database=database, rounds=1)

    assert (1.0, 2) == (found.slowdown[0], len(found.slowdown))
    assert found == measure_interference("core", 2, database=database)
    assert 2 == len(database)
