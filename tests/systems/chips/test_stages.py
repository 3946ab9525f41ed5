"""The programme over stages against every plan there is."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.systems.chips.brute import exhaustive, random_job, random_network
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.systems.chips.answer import Options
from windtunnel.systems.chips.stages import Job, Stages


def assert_best(net, job, forward, backward):
    expected = exhaustive(net, job, forward, backward)
    try:
        stages = Stages.of(net, job)
    except InfeasibleError:
        assert math.isinf(expected)
        return
    plan = stages.best(forward, backward)
    if plan is None:
        assert math.isinf(expected)
        return
    assert expected == pytest.approx(plan.batch_s, rel=1e-12)
    assert sorted(layer for one in plan.stages for layer in one.layers) == list(range(len(net.names)))
    assert plan.num_devices <= job.num_devices
    assert max(one.memory_bytes for one in plan.stages) <= job.memory_bytes
    cuts, degrees = [one.layers for one in plan.stages], [one.degree for one in plan.stages]
    same = stages.price_plan(cuts, degrees, plan.num_pipelines, forward, backward)
    assert plan.batch_s == pytest.approx(same.batch_s, rel=1e-12)
    assert stages.best(forward, backward, upper_s=plan.batch_s) is None
    assert plan.batch_s == stages.best(forward, backward, upper_s=plan.batch_s * 1.01).batch_s


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_no_plan_of_a_chain_is_better(seed, num):
    net, forward, backward = random_network(seed, num)

    assert_best(net, random_job(seed), forward, backward)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_no_plan_of_layers_that_branch_is_better(seed, num):
    net, forward, backward = random_network(seed, num, is_chain=False)

    assert_best(net, random_job(seed), forward, backward)


def test_what_does_not_fit_names_the_layer_and_by_how_much():
    net, _, _ = random_network(1, 3)

    with pytest.raises(InfeasibleError, match=r"layer layer\d needs .* B more than there is"):
        Stages.of(net, Job(num_devices=2, memory_bytes=1.0))


def test_a_plan_of_somebody_else_is_checked():
    net, forward, backward = random_network(3, 3)
    stages = Stages.of(net, Job(num_devices=2, num_microbatches=4))

    with pytest.raises(InputError, match="takes 3 devices"):
        stages.price_plan([[0], [1], [2]], [1, 1, 1], 1, forward, backward)
    with pytest.raises(InputError, match="not split over 3"):
        stages.price_plan([[0, 1, 2]], [3], 1, forward, backward)
    with pytest.raises(InputError, match="no cut of the layers"):
        stages.price_plan([[1], [0, 2]], [1, 1], 1, forward, backward)


@pytest.mark.parametrize("wrong", [{"num_devices": 0}, {"memory_bytes": math.nan}, {"bandwidth_bytes_per_s": -1.0}])
def test_a_job_with_impossible_numbers_is_refused(wrong):
    with pytest.raises(InputError, match="cannot be"):
        Job(**wrong)


@pytest.mark.parametrize("name", ["bandwidth_bytes_per_s", "memory_bandwidth_bytes_per_s", "clock_hz", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_numbers_that_cannot_be_are_named(name, value):
    with pytest.raises(InputError, match=f"{name} cannot be"):
        Options(**{name: value})
