"""A plan beside simple rules: the best of all that fit is the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rustworkx", reason="needs the extra plan")

from tests.search.problems import chain, random_problem
from windtunnel.search.placement import baselines
from windtunnel.search.placement.latency import greedy
from windtunnel.search.placement.throughput import exact
from windtunnel.systems.placement.compare import compare


@pytest.mark.parametrize("combine", ["sum", "duplex"])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_that_fits_is_the_plan_by_its_own_objective(seed, combine):
    problem = replace(random_problem(np.random.default_rng(seed), 7), types=chain(cpus=1).types)
    given = exact(problem, combine=combine)
    found = compare(given, combine=combine)
    others = [one for one in found.others if one.loads.is_allowed]

    assert found.plan.value_ns == pytest.approx(found.plan.loads.max_load_ns(combine))
    assert all(one.value_ns == pytest.approx(one.loads.max_load_ns(combine)) for one in others)
    assert found.plan.value_ns <= min(one.value_ns for one in [given, *others]) * (1 + 1e-9)
    assert found.plan.bound_ns <= found.plan.value_ns


def test_a_plan_that_no_rule_beats_stays_as_it_is():
    plan = exact(chain(accelerators=6))

    assert compare(plan).plan is plan


def test_a_rule_that_beats_a_plan_takes_its_place_and_the_plan_stands_beside_it():
    plan = baselines.single(chain())
    found = compare(plan)

    assert found.plan.value_ns <= exact(chain()).value_ns < plan.value_ns
    assert any(one is plan for one in found.others)
    assert f"{100 * (1 - found.plan.value_ns / plan.value_ns):.0f} % below what single gives" in found.plan.note


def test_latency_has_rules_of_its_own():
    plan = greedy(chain(cpus=1, memory=3.0, size=[1.0] * 6))
    found = compare(plan, objective="latency")

    assert {"greedy", "max-load split"} == {one.solver for one in [found.plan, *found.others]} | set(found.refused)
    assert found.plan.value_ns <= plan.value_ns
