"""Placements flown as pipelines of real processes."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("rustworkx", reason="needs the extra plan")

from benchmarks.peers.placement_rules import single

from windtunnel.errors import FlightError, InputError, NotApplicableError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, ResourceKind
from windtunnel.search.placement.baselines import even
from windtunnel.search.placement.search import place
from windtunnel.simulate import replay
from windtunnel.systems.pipelines.flight import fly_pipelines
from windtunnel.systems.pipelines.generate import generate
from windtunnel.systems.pipelines.training import model
from windtunnel.systems.pipelines.training import run as pipelines
from windtunnel.systems.pipelines.training.model import (
    HostConditions,
    on_cores,
    predict_duration_ns,
    stage_of_modules,
    step_ns,
    whole_ns,
)
from windtunnel.systems.pipelines.training.rank import Item, Span
from windtunnel.systems.pipelines.training.run import job_of
from windtunnel.systems.pipelines.training.search import improve

PARAMETERS = {"batch_size": 64, "width": 128, "depth": 3}


@pytest.fixture(scope="module")
def job():
    return job_of("mlp", PARAMETERS, 2, 4)


def test_a_workload_becomes_layers_that_can_be_cut(job):
    problem = job.layers.problem

    assert 2 == problem.types[0].count
    assert {"0", "2", "4", "6"} <= set(job.layers.node_of)
    stage_of = stage_of_modules(job, even(problem))
    assert {0, 1} == set(stage_of.values())
    assert sorted(stage_of.values()) == [stage_of[name] for name in job.layers.node_of]
    assert stage_of["CrossEntropyLoss"] == stage_of["6"]  # the loss is where the model's output is
    assert job.conditions.slowdown[0] == 1.0
    assert len(job.conditions.slowdown) == 2
    assert job.conditions.overhead_ns >= 0
    assert job.message_bytes[0] < job.message_bytes[1]


def test_a_prediction_follows_the_plan_and_the_host_conditions(job):
    problem, quick = job.layers.problem, HostConditions(1e12, 0.0, (1.0, 1.0))
    best = place(problem)
    bare_ns = problem.time_ns.sum() - job.layers.update_ns.sum() / 4

    for schedule in ("1f1b", "gpipe"):
        found_ns = predict_duration_ns(job, best, quick, schedule)
        assert 4 * bare_ns / 2 <= found_ns <= 4 * bare_ns + job.layers.update_ns.sum()
        slow = replace(quick, slowdown=(1.0, 2.0))
        assert found_ns < predict_duration_ns(job, best, slow, schedule) <= 2 * found_ns
        assert predict_duration_ns(job, best, replace(quick, latency_ns=1e6), schedule) > found_ns + 2e6
        narrow = replace(
            quick, bandwidth_bytes_per_s=problem.cost_ns.max() * job.conditions.bandwidth_bytes_per_s / 1e6
        )
        assert predict_duration_ns(job, best, narrow, schedule) > found_ns + 2e6  # the largest message takes a ms
        assert predict_duration_ns(job, best, replace(quick, overhead_ns=1e6), schedule) >= found_ns + 4e6
    with pytest.raises(NotApplicableError, match="one device only"):
        predict_duration_ns(job, single(problem), quick, "1f1b")


@given(
    loads=st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=4), min_size=1, max_size=3),
    slowdown=st.lists(st.floats(1.0, 3.0), min_size=2, max_size=2).map(sorted),
)
@settings(deadline=None, max_examples=40)
def test_a_pass_is_slowed_only_while_other_cores_are_busy(loads, slowdown):
    """Beside a walk from event to event; ranks have their cores, and do their passes one after the other."""
    builder = GraphBuilder()
    for rank, passes in enumerate(loads):
        thread = builder.resource(f"rank {rank}", ResourceKind.HOST_THREAD)
        tasks = [
            builder.task("pass", kind=Kind.COMPUTE, resource=thread, duration_ns=1_000_000 * one, rank=rank)
            for one in passes
        ]
        for before, after in pairwise(tasks):
            builder.edge(before, after, kind=EdgeKind.CONTROL)
    curve = (1.0, *slowdown)[: max(len(loads), 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "usable_cores", lambda: [0, 1, 2])
        found = replay(on_cores(builder.build(), HostConditions(1e12, 0.0, curve), len(loads)))

    left = {rank: float(sum(passes)) for rank, passes in enumerate(loads)}
    now = 0.0
    while left:
        slow, least = curve[len(left) - 1], min(left.values())
        now += least * slow
        left = {rank: work - least for rank, work in left.items() if work > least}
    assert math.isclose(found.makespan_ns / 1e6, now, rel_tol=0.01)


def test_a_process_alone_varies_as_one_of_many_does(job):
    """Else the pipeline alone would be slowed by what disturbs this host now and then."""
    calm, shaken = (HostConditions(1e12, 0.0, (1.0, 1.0), spread, spread) for spread in ((1.0,), (1.0, 1.0, 2.5)))
    plan = even(job.layers.problem)
    alone, together = (
        [taken(conditions) for conditions in (calm, shaken)]
        for taken in (lambda one: whole_ns(job, one), lambda one: predict_duration_ns(job, plan, one, "1f1b"))
    )

    # the spread's mean is 1.5; of a job with few long operators few draws decide
    assert 1.15 < alone[1] / alone[0] < 2.0
    assert 1.15 < together[1] / together[0] < 2.5


def test_a_pipeline_that_is_never_emptied_is_quicker_than_one_that_is(job):
    """It comes near to its busiest stage; recomputing costs the forward pass once more."""
    problem = job.layers.problem
    plan, quick = place(problem), HostConditions(1e15, 0.0, (1.0, 1.0))

    def step(name, **more):
        return step_ns(job, plan, quick, lambda number: generate(name, 2, 4, num_batches=number), **more)

    bare = problem.time_ns - job.layers.update_ns / 4
    loads = [4 * bare[plan.device == at].sum() + job.layers.update_ns[plan.device == at].sum() for at in (0, 1)]
    assert 0.999 * max(loads) <= step("2bw") < step("1f1b")
    assert step("2bw", recomputes=True) > 1.1 * step("2bw")


def test_replicas_beside_each_other_share_what_they_stand_on(job, monkeypatch):
    """On cores of their own they take what one takes and the exchange of gradients; on the same cores twice as long."""
    problem = job.layers.problem
    plan, fast = place(problem), HostConditions(1e15, 0.0, (1.0, 1.0, 1.0, 1.0))

    def taken(conditions, **more):
        return predict_duration_ns(job, plan, conditions, "1f1b", **more)

    monkeypatch.setattr(model, "usable_cores", lambda: [0, 1, 2, 3])
    assert taken(fast) == pytest.approx(taken(fast, num_replicas=2), abs=10)
    narrow = replace(fast, bandwidth_bytes_per_s=1e6)
    assert taken(narrow, num_replicas=2) >= taken(narrow) + problem.weight_bytes.sum() / 2 / 1e6 * 1e9
    monkeypatch.setattr(model, "usable_cores", lambda: [0, 1])
    crowded = replace(fast, slowdown=(1.0, 1.0, 2.0, 2.0))
    assert taken(crowded, num_replicas=2) > 1.5 * taken(crowded)


def test_a_plan_settles_on_the_cores_that_stages_share(job):
    start = even(job.layers.problem)
    found = improve(job, start)

    assert predict_duration_ns(job, found, job.conditions, "1f1b") <= predict_duration_ns(
        job, start, job.conditions, "1f1b"
    )
    assert len(found.kind) == len(start.kind)


def test_splits_are_flown_beside_one_process(job):
    plans = [place(job.layers.problem), even(job.layers.problem)]
    receipts = fly_pipelines(job, plans, rounds=3, schedule="gpipe")

    assert ["dp", "even"] == [one.parameters["solver"].split(" ")[0] for one in receipts]
    for one in receipts:
        assert 3 == one.num_rounds
        assert 0 < one.measured < np.inf
        assert 0 < one.predicted < 4  # two processes are not four times as quick as one
        assert one.baseline.value > 0
        assert ("mlp", "pipeline") == (one.target, one.whatif)


def test_what_cannot_be_flown(job):
    with pytest.raises(NotApplicableError, match="more than one model and a loss"):
        job_of("moe-lm", {"size": "tiny"}, 2, 4)
    with pytest.raises(InputError, match="5 microbatches of a batch of 64"):
        job_of("mlp", PARAMETERS, 2, 5)
    with pytest.raises(InputError, match="4 microbatches for 1 stages"):
        job_of("mlp", PARAMETERS, 1, 4)
    with pytest.raises(InputError, match="the plan has 2 stages, the schedule 4"):
        predict_duration_ns(job, even(job.layers.problem), job.conditions, generate("zbv", 2, 4))
    with pytest.raises(NotApplicableError, match="one device only"):
        fly_pipelines(job, [single(job.layers.problem)])
    with pytest.raises(InputError, match="different numbers of stages"):
        fly_pipelines(job, [single(job.layers.problem), even(job.layers.problem)])


def test_a_process_that_fails_says_so(job):
    broken = replace(job, parameters=PARAMETERS | {"depth": 1})  # has no layers of these names on the second stage
    with pytest.raises(FlightError, match=r"the pipeline did not answer: .*Error") as caught:
        fly_pipelines(broken, [even(job.layers.problem)], rounds=1)
    assert "rank 0" in caught.value.log_tail


def test_times_of_a_round_are_from_the_first_begin_to_the_last_end():
    def spans(rank):
        at = 1000 + 10 * rank
        items = [(Item("step"), 50), (Item("split", 0), 100), (Item("message", 8), 80), (Item("beside", 2), 40),
                 (Item("idle", 8), 70)]  # fmt: skip
        return [Span(turn, item, at, at + length, length // 2 + rank) for turn in (0, 1) for item, length in items]

    flown = pipelines._sort_spans([spans(0), spans(1)])
    assert ([50], {0: [110]}, {8: [90 / 2 / 4]}, {2: [[40.0, 40.0]]}, [[35.0, 36.0]]) == (
        flown.step_ns, flown.split_ns, flown.message_ns, flown.beside_ns, flown.idle_ns,
    )  # fmt: skip


def test_the_ground_is_a_line_a_curve_and_a_spread():
    flown = pipelines._Flown(
        message_ns={0: [100.0, 100.0], 1000: [600.0, 600.0]},
        beside_ns={1: [[10.0], [20.0]], 2: [[15.0, 25.0], [40.0, 40.0]]},
        idle_ns=[[2000.0, 3200.0], [2200.0, 3000.0]],
    )
    conditions = flown.conditions(generate("1f1b", 2, 4))

    assert (2e9, 100.0, (1.0, 2.0)) == (conditions.bandwidth_bytes_per_s, conditions.latency_ns, conditions.slowdown)
    assert np.allclose(conditions.spread, np.array([15, 25, 40, 40]) / 32.5)
    assert math.isclose((5200 / 4 - 2 * 100) / 2, conditions.overhead_ns)  # two messages per microbatch are not its own


def test_parts_of_a_backward_pass_are_those_of_stages_that_have_inputs():
    """Forward 10, backward 40 of which the first stage has a quarter; inputs take 18, weights 24 and the first's 10."""
    flown = pipelines._Flown(
        message_ns={0: [1.0], 1000: [2.0]}, beside_ns={1: [[1.0]]}, idle_ns=[[0.0]],
        parts_ns={0: [10.0], 1: [50.0], 2: [28.0], 3: [62.0]}, copy_ns={4000: [2000.0]},
    )  # fmt: skip
    conditions = flown.conditions(generate("zb-h1", 2, 4), 0.25)

    assert ((18 / 30, 24 / 30), 2e9) == (conditions.part_ratios, conditions.copy_bytes_per_s)


def test_predictions_know_parts_and_copies_of_weights(job):
    two, quick = even(job.layers.problem), HostConditions(1e12, 0.0, (1.0, 1.0))
    split, going_on = generate("zb-h1", 2, 4), generate("2bw", 2, 4, num_batches=8)

    assert predict_duration_ns(job, two, quick, split) <= predict_duration_ns(job, two, quick, "1f1b")
    assert predict_duration_ns(job, two, quick, split) < predict_duration_ns(
        job, two, replace(quick, part_ratios=(1.0, 1.0)), split
    )
    slow = replace(quick, copy_bytes_per_s=1e6)
    assert predict_duration_ns(job, two, quick, going_on) < predict_duration_ns(job, two, slow, going_on)
    assert predict_duration_ns(job, two, quick, split) == predict_duration_ns(job, two, slow, split)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_batches"), [("zbv", 1), ("2bw", 3)])
def test_a_job_of_chunks_or_versions_is_flown_beside_its_prediction(name, num_batches):
    table = generate(name, 2, 4, num_batches=num_batches)
    job = job_of("mlp", PARAMETERS, table.num_stages, 4, table=table)
    (run,) = pipelines.run_pipelines(job, [even(job.layers.problem)], schedule=table, rounds=2)

    assert len(job.conditions.slowdown) == 2
    assert (job.conditions.copy_bytes_per_s < math.inf) == (name == "2bw")
    assert run.predicted_ns > 0
    assert run.changed.value > 0
