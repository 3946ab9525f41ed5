"""Answers that physics does not allow are mistakes of ours, and are not shown as predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, sampled_from

from tests.strategies import graphs
from tests.whatifs.steps import Layer, cpu_step, gpu_step
from windtunnel import registry
from windtunnel.errors import InEffectError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.simulate import replay
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.simulate.limits import (
    Baseline,
    Limits,
    all_work,
    find_limit_violation,
    find_peak_violation,
    less_work,
    no_faster,
    of_kind,
    of_phase,
    other_order,
    up_to,
)
from windtunnel.whatifs import whatif
from windtunnel.whatifs.answer import Status

LAYERS = [Layer("a", output_bytes=1000), Layer("b", output_bytes=1000)]  # 100 + 200 + 30 ns each


@pytest.fixture
def registered(monkeypatch):
    """Register a what-if for one test."""

    def register(function, limits=None):
        plugins = {**registry.all("whatif")}
        plugin = registry.Plugin("on-trial", "whatif", function, "a test", limits=limits)
        monkeypatch.setitem(registry._plugins, "whatif", {**plugins, "on-trial": plugin})

    return register


def halved_updates(graph: Graph) -> Graph:
    """Updates take half."""
    return graph.scale(graph.select(phase=Phase.UPDATE), 0.5)


@settings(max_examples=100, deadline=None)
@given(graph=graphs(), kind=sampled_from([Kind.COMPUTE, Kind.COMM, Kind.HOST]), factor=floats(1.0, 50.0))
def test_tasks_that_run_faster_stay_within_the_limit_of_less_work(graph, kind, factor):
    baseline = Baseline(replay(graph), {})
    if not baseline.iteration_ns or baseline.timeline.engine != "static":
        return
    limits = less_work(of_kind(kind), "a test", factor=factor)(baseline)

    after = replay(graph.scale(graph.select(kind=kind), 1 / factor), like=baseline.timeline)
    after_ns = iteration_ns(after, graph.num_iterations)

    assert find_limit_violation(limits, baseline, baseline.iteration_ns / after_ns if after_ns else 1.0) == ""


def test_a_thread_that_only_watches_does_not_limit_another_order():
    """Once nothing waits for it, it takes no part in the iteration."""
    builder = GraphBuilder()
    main, watcher = (builder.resource(name, ResourceKind.HOST_THREAD) for name in ("main", "watcher"))
    watch = builder.task("watch", kind=Kind.HOST, phase=Phase.OTHER, resource=watcher, duration_ns=3_000)
    work = builder.task("work", kind=Kind.COMPUTE, phase=Phase.FORWARD, resource=main, duration_ns=1_000)
    builder.edge(watch, work, kind=EdgeKind.DATA)
    baseline = Baseline(replay(builder.build()), {})

    assert find_limit_violation(other_order("a test")(baseline), baseline, 4.0) == ""


@settings(max_examples=100, deadline=None)
@given(graph=graphs())
def test_no_order_of_tasks_is_faster_than_the_busiest_resource(graph):
    baseline = Baseline(replay(graph), {})
    if not baseline.iteration_ns:
        return
    limits = other_order("a test")(baseline)
    edges = graph.edges

    after = replay(graph.disconnect(edges["src"] >= 0) if len(edges["src"]) else graph)
    after_ns = iteration_ns(after, graph.num_iterations)

    assert find_limit_violation(limits, baseline, baseline.iteration_ns / after_ns if after_ns else 1.0) == ""


def test_where_tasks_meet_nothing_is_busy():
    builder = GraphBuilder()
    thread = builder.resource("cpu")
    rows = [builder.task(name, duration_ns=length, resource=thread) for name, length in (("a", 5), ("meet", 9))]
    graph = builder.build().set_columns({"is_arrival_join": np.array([row == rows[1] for row in rows])})

    assert 5.0 == Baseline(replay(graph), {}).busiest_ns() == Baseline(replay(graph), {}).iteration_ns


def test_no_more_is_saved_than_the_work_on_the_critical_path():
    baseline = Baseline(replay(cpu_step(LAYERS)), {})

    assert 660.0 == baseline.iteration_ns
    assert pytest.approx(660 / 600) == less_work(of_phase(Phase.UPDATE), "updates")(baseline).max_speedup
    assert pytest.approx(660 / 630) == less_work(of_phase(Phase.UPDATE), "updates", factor=2)(baseline).max_speedup
    assert math.inf == less_work(all_work, "everything")(baseline).max_speedup


def test_gaps_go_with_the_work_that_they_stand_around():
    baseline = Baseline(replay(cpu_step(LAYERS, gap_ns=10)), {})

    # two updates, one gap between them, one before
    assert pytest.approx(710 / (710 - 80)) == less_work(of_phase(Phase.UPDATE), "updates")(baseline).max_speedup


def test_the_busiest_stream_bounds_what_another_order_can_do():
    baseline = Baseline(replay(gpu_step(LAYERS)), {})

    assert 660.0 == baseline.busiest_ns()
    assert 60.0 == baseline.busiest_ns(of_kind(Kind.COMPUTE)(baseline))


def test_iterations_count_once():
    once, twice = (Baseline(replay(graph), {}) for graph in (cpu_step(LAYERS), cpu_step(LAYERS).concat(2)))

    for of in (less_work(of_phase(Phase.UPDATE), "updates"), other_order("order")):
        assert pytest.approx(of(once).max_speedup) == of(twice).max_speedup


def test_limits_say_what_is_broken_and_why():
    baseline = Baseline(replay(cpu_step(LAYERS)), {})
    limits = Limits("recomputation adds work", max_speedup=1.0, min_speedup=0.5)

    assert find_limit_violation(limits, baseline, 1.0) == ""
    assert "1.2x is predicted where 1x is the most: recomputation adds work" == find_limit_violation(
        limits, baseline, 1.2
    )
    assert "0.3x is predicted where 0.5x is the least" in find_limit_violation(limits, baseline, 0.3)
    assert "not a number" in find_limit_violation(limits, baseline, math.nan)


def test_a_peak_has_limits_on_both_sides():
    limits = Limits("it keeps gradients", max_saved_bytes=0, max_added_bytes=2**20)

    assert find_peak_violation(limits, 10 * 2**20, 10 * 2**20) == ""
    assert "5.00 MiB less memory are predicted where 0 B is the most" in find_peak_violation(limits, 10 << 20, 5 << 20)
    assert "5.00 MiB more memory" in find_peak_violation(limits, 10 << 20, 15 << 20)


def test_an_answer_that_breaks_its_limit_is_a_mistake_of_ours_and_no_prediction(registered):
    registered(halved_updates, no_faster("updates stay"))

    (answer,) = whatif(cpu_step(LAYERS), "on-trial")

    assert answer.status is Status.IMPLAUSIBLE
    assert not answer.is_applicable
    assert "windtunnel made a mistake" in answer.reason
    assert "updates stay" in answer.reason
    assert "report" in answer.advice
    assert answer.to_dict()["speedup"] is None
    assert answer.to_dict()["status"] == "implausible"


def test_an_answer_within_its_limit_is_a_prediction(registered):
    registered(halved_updates, less_work(of_phase(Phase.UPDATE), "updates", factor=2))

    (answer,) = whatif(cpu_step(LAYERS), "on-trial")

    assert answer.status is Status.PREDICTED
    assert pytest.approx(660 / 630) == answer.speedup
    assert pytest.approx(660 / 630) == answer.limits.max_speedup


def test_each_step_of_a_combination_is_checked_against_what_it_changes(registered):
    registered(halved_updates, no_faster("updates stay"))

    (answer,) = whatif(cpu_step(LAYERS), "faster-cpu:factor=4+on-trial")

    assert answer.status is Status.IMPLAUSIBLE
    assert "on-trial: " in answer.reason


def test_a_combination_may_gain_more_than_each_of_its_steps(registered):
    registered(halved_updates, less_work(of_phase(Phase.UPDATE), "updates", factor=2))

    (answer,) = whatif(cpu_step(LAYERS), "faster-cpu:factor=4+on-trial")

    assert answer.status is Status.PREDICTED
    assert answer.speedup > 4


def test_a_peak_outside_of_its_limit_is_not_shown(registered):
    def freed(graph: Graph) -> Graph:
        return graph.with_columns(output_bytes=graph.tasks["output_bytes"] * 0)

    registered(freed, up_to(2.0, "outputs stay", max_saved_bytes=0))

    (answer,) = whatif(cpu_step(LAYERS), "on-trial")

    assert answer.is_applicable
    assert answer.baseline_peak_bytes
    assert answer.peak_bytes is None
    assert "outputs stay" in answer.peak_violation


def test_what_is_in_effect_already_is_said_with_the_request_that_undoes_it(registered):
    def already(graph: Graph) -> Graph:
        raise InEffectError("it is on", reverse="faster-cpu:factor=0.5")

    registered(already, all_work)

    (answer,) = whatif(cpu_step(LAYERS), "on-trial")

    assert answer.status is Status.IN_EFFECT
    assert not answer.is_applicable
    assert answer.reverse == "faster-cpu:factor=0.5"
    assert str(answer) == "on-trial  already in effect: it is on"
    assert answer.to_dict()["reverse"] == "faster-cpu:factor=0.5"
    assert "faster-cpu:factor=0.5" in answer.advice
