"""Cuts that people and chance make."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rustworkx", reason="needs the extra plan")

from benchmarks.peers import placement_rules

from tests.search.problems import chain, random_problem
from windtunnel.search.placement import baselines
from windtunnel.search.placement import search as placing
from windtunnel.search.placement.throughput import Plan


def test_an_even_cut_has_as_many_layers_everywhere():
    plan = baselines.even(chain(8, accelerators=4))

    assert [2, 2, 2, 2] == np.bincount(plan.device).tolist()
    assert plan.value_ns >= placing.place(chain(8, accelerators=4)).value_ns


@pytest.mark.parametrize("seed", range(10))
def test_a_random_cut_uses_every_device_and_keeps_the_order(seed):
    one = chain(9, accelerators=3)
    plan = baselines.random_cut(one, seed)

    assert 3 == len(plan.kind)
    assert (plan.device[one.src] <= plan.device[one.dst]).all()
    assert plan.value_ns >= placing.place(one).value_ns
    assert (plan.device == baselines.random_cut(one, seed).device).all()


@pytest.mark.parametrize("seed", range(12))
def test_what_local_search_finds_no_single_move_improves(seed):
    one = random_problem(np.random.default_rng(seed), 7)
    found = placement_rules.local_search(one, num_restarts=1, seed=seed)
    _, color = np.unique(one.color, return_inverse=True)
    num_devices = one.types[found.kind[0]].count
    moved = []
    for which in range(color.max() + 1):
        for device in range(num_devices):
            tried = np.where(color == which, device, found.device)
            moved.append(baselines.plan_of_devices(one, tried, np.full(num_devices, found.kind[0]), "moved").value_ns)

    assert min(moved) >= found.value_ns - 1e-4


@pytest.mark.parametrize(("solver", "words"), [
    ("dp", "plan whose stages follow one another"),
    ("dpl depth-first", "plan whose stages follow one another"),
    ("ilp, contiguous", "plan whose stages of one type follow one another"),
    ("ilp, 3 pieces", "split with 3 pieces per accelerator"),
    ("ilp, any", "assignment"),
])  # fmt: skip
def test_an_answer_says_which_plans_its_bound_is_about(solver, words):
    one = chain(2, accelerators=1)

    assert words == Plan.of(one, np.zeros(2, int), np.zeros(1, int), solver, 0.0).searched
