"""Latency of a split: by hand, against trying everything, and against published values."""

import itertools
import math
import re

import numpy as np
import pytest
from benchmarks.placement_data import assignment_of

pytest.importorskip("rustworkx", reason="needs the extra plan")

from tests.search.problems import problem
from tests.shared_data import shared_path
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.search.placement.latency import descend, greedy, latency_of, longest_path_ns, on_cpus
from windtunnel.search.placement.latency_ilp import integer_latency
from windtunnel.search.placement.search import place
from windtunnel.systems.placement.formats import read_problem

ON_ACCELERATOR, ON_CPU = 0, 1


def diamond(**changes):
    """0 feeds 1 and 2, which feed 3; transfers of 2."""
    given = {"accelerators": 2, "cpus": 1, "memory": 10.0, "size": [1.0] * 4} | changes
    return problem([(1, 10), (4, 12), (3, 5), (1, 10)], [(0, 1), (0, 2), (1, 3), (2, 3)], [2.0] * 4, **given)


def test_one_piece_waits_for_all_inputs_and_sends_at_its_end():
    one = diamond()
    found = latency_of(one, np.array([1, 0, 1, 1]), np.array([ON_ACCELERATOR, ON_CPU]))

    # 0 on the CPU until 10; then 1 on the accelerator: in 2, 4, out 2; 2 on the CPU until 15; 3 behind both
    assert [10.0, 18.0, 15.0, 28.0] == found.done_ns.tolist()
    assert (10.0, 18.0) == (found.start_ns[0], found.finish_ns[0])
    assert 28.0 == found.total_ns


def test_a_set_that_is_left_and_entered_again_is_two_pieces_in_order():
    one = diamond()
    found = latency_of(one, np.array([0, 1, 0, 0]), np.array([ON_ACCELERATOR, ON_CPU]))

    assert [0, -1, 0, 1] == found.piece.tolist()
    assert [0.0, 20.0] == found.start_ns.tolist()  # 0 and 2: 1 + 3, each sent once; then 1 on the CPU until 20
    assert 8.0 == found.finish_ns[0]


def test_pieces_that_wait_for_each_other_are_refused():
    crossed = problem([(1, 1)] * 5, [(1, 2), (3, 4)], [1.0] * 5, accelerators=3)
    with pytest.raises(InputError, match="wait for each other") as refusal:
        latency_of(crossed, np.array([2, 0, 1, 1, 0]), np.array([ON_ACCELERATOR] * 3))
    assert {"1", "2"} == set(re.findall(r"\d", str(refusal.value.where)))  # the first of each piece, not 0


def test_single_moves_lower_the_latency_until_none_does():
    one = diamond(accelerators=2)
    begun = on_cpus(one)
    found = descend(begun)

    assert found.value_ns < begun.value_ns
    assert "on CPUs, then single moves" == found.solver
    assert latency_of(one, found.device, found.kind).total_ns == found.value_ns
    assert descend(found) is found


def test_latency_is_of_inference():
    with pytest.raises(NotApplicableError, match="backward"):
        latency_of(diamond(backward=[3]), np.zeros(4, int), np.array([ON_CPU]))


def by_trying(one):
    """Every assignment that the evaluator accepts with one piece per accelerator."""
    kinds = np.repeat([0, 1], [one.types[0].count, 1])
    best = math.inf
    for choice in itertools.product(range(len(kinds)), repeat=one.num_nodes):
        device = np.array(choice)
        if not one.loads(device, kinds).is_allowed:
            continue
        try:
            found = latency_of(one, device, kinds)
        except InputError:
            continue
        if len(set(found.device_P.tolist())) == len(found.device_P):
            best = min(best, found.total_ns)
    return best


@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
@pytest.mark.parametrize("seed", range(4))
def test_solvers_find_what_trying_everything_finds(seed, solver):
    pytest.importorskip("highspy" if solver == "highs" else "ortools", reason="needs the extra plan")
    rng = np.random.default_rng(seed)
    edges = [(a, b) for a, b in itertools.combinations(range(5), 2) if rng.random() < 0.5]
    one = problem(
        np.round(rng.uniform(1, 10, (5, 2)) * [1, 4], 1), edges, np.round(rng.uniform(0, 3, 5), 1),
        size=rng.integers(1, 4, 5), memory=6.0, accelerators=2, cpus=1,
    )  # fmt: skip
    plan = integer_latency(one, greedy(one), solver=solver, gap=1e-6, time_limit_s=30.0)

    assert math.isclose(by_trying(one), plan.value_ns, rel_tol=1e-6)
    assert plan.bound_ns >= longest_path_ns(one).max() - 1e-6
    assert plan.gap < 1e-5


def test_the_published_split_of_an_expert():
    one = read_problem(shared_path("placement/dnn_partitioning/latency/layer_bert24_inference.json"))
    device, kind = assignment_of(shared_path("placement/dnn_partitioning/experts/bert24_inference_expert.json"), one)
    found = latency_of(one, device, kind)

    assert math.isclose(111.93725, found.total_ns / 1e6, rel_tol=1e-9)
    assert 6 == len(found.device_P)
    assert math.isclose(92.406, longest_path_ns(one).max() / 1e6, rel_tol=1e-9)


@pytest.mark.slow
def test_bert_is_solved_to_the_published_value():
    pytest.importorskip("ortools", reason="needs the extra plan")
    one = read_problem(shared_path("placement/dnn_partitioning/latency/layer_bert24_inference.json"))
    plan = place(one, objective="latency", solver="cp-sat", time_limit_s=120)

    assert math.isclose(100.2185, plan.value_ns / 1e6, rel_tol=1e-6)
    assert plan.gap < 0.1
