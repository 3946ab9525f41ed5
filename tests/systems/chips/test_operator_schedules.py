"""Operators of a layer on the cores of a chip: every solver against trying all schedules."""

import numpy as np
import pytest
from benchmarks.peers.operator_cp_sat import constraint_schedules
from benchmarks.peers.operator_ilp import integer_schedule
from benchmarks.peers.operator_schedules import Cores, list_schedule, replayed
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.systems.chips.brute import least_cycles, random_operations
from windtunnel.errors import GraphError, InputError
from windtunnel.systems.chips.lists import list_cycles
from windtunnel.systems.chips.operations import (
    FUSED,
    TENSOR,
    VECTOR,
    Operations,
)


def assert_valid(operations, single, spread, cores, schedule):
    """By the definition, operator by operator."""
    kinds = operations.kind_N.tolist()
    end = schedule.start_N + np.where(schedule.is_spread_N, spread, single)
    assert schedule.cycles == end.max(initial=0)
    assert not schedule.unplaced.size
    for a in range(len(operations)):
        assert schedule.core_N[a] < cores.of(kinds[a])
        for b in range(len(operations)):
            overlap = a != b and schedule.start_N[a] < end[b] and schedule.start_N[b] < end[a]
            if operations.is_before[a, b]:
                assert end[a] <= schedule.start_N[b]
            elif overlap:
                assert not schedule.is_spread_N[a]
                assert not schedule.is_spread_N[b]
                share = kinds[a] == kinds[b] or FUSED in (kinds[a], kinds[b])
                assert not share or schedule.core_N[a] != schedule.core_N[b]


@given(st.integers(0, 10_000))
def test_a_list_schedule_is_one_and_no_schedule_is_below_the_bound(seed):
    operations, single, spread, cores = random_operations(seed, most=6)
    schedule = list_schedule(operations, single, spread, cores)
    best = least_cycles(operations, single, spread, cores)

    assert_valid(operations, single, spread, cores, schedule)
    assert schedule.bound_cycles <= best <= schedule.cycles


@settings(max_examples=30)
@example(136)  # a pair, whose tensor core alone was part of the programme
@given(st.integers(0, 10_000))
def test_the_integer_programme_finds_the_shortest_schedule(seed):
    operations, single, spread, cores = random_operations(seed, most=5)
    schedule = integer_schedule(operations, single, spread, cores, gap=0.0)

    assert_valid(operations, single, spread, cores, schedule)
    assert least_cycles(operations, single, spread, cores) == schedule.cycles


def test_the_constraint_solver_finds_the_shortest_schedules():
    tasks = [random_operations(seed, most=5) for seed in range(60)]
    schedules = constraint_schedules(tasks, gap=0.0)

    for task, schedule in zip(tasks, schedules, strict=True):
        assert_valid(*task, schedule)
        assert schedule.is_optimal
        assert least_cycles(*task) == schedule.cycles


def test_all_chips_at_once_are_scheduled_as_each_alone():
    operations, single, spread, cores = random_operations(4)
    factors = np.arange(1, 9)
    cores_P2 = np.tile([cores.num_tensor, cores.num_vector], (8, 1))
    cycles_P, bound_P = list_cycles(operations, single * factors[:, None], spread * factors[:, None], cores_P2)

    for factor, cycles, bound in zip(factors, cycles_P, bound_P, strict=True):
        alone = list_schedule(operations, single * factor, spread * factor, cores)
        assert (alone.cycles, alone.bound_cycles) == (cycles, bound)


def test_a_chain_takes_the_lesser_of_both_for_each():
    operations = Operations.of([TENSOR, VECTOR, FUSED], [(0, 1), (1, 2)])
    schedule = list_schedule(operations, np.array([8, 9, 7]), np.array([4, 10, 5]), Cores(2, 2))

    assert (18, True) == (schedule.cycles, schedule.is_optimal)
    assert [True, False, True] == schedule.is_spread_N.tolist()


def test_two_that_gain_little_from_all_cores_run_side_by_side():
    operations = Operations.of([TENSOR, TENSOR], [])
    schedule = list_schedule(operations, np.array([10, 10]), np.array([9, 9]), Cores(2, 1))

    assert 10 == schedule.cycles
    assert {0, 1} == set(schedule.core_N.tolist())


def test_a_layer_falls_into_parts_that_follow_each_other():
    operations = Operations.of([TENSOR] * 6, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5)])

    assert [0, 1, 1, 2, 3, 3] == operations.segment.tolist()


def test_a_pair_of_cores_is_one_number():
    operations = Operations.of([FUSED, TENSOR, VECTOR], [])
    none_spread = np.zeros(3, np.bool_)
    schedule = replayed(operations, np.array([5, 5, 5]), np.array([9, 9, 9]), Cores(2, 1), [0, 1, 2], none_spread)

    assert [0, 1, -1] == schedule.core_N.tolist()
    assert [2] == schedule.unplaced.tolist()


def constraint_schedule(*task, **options):
    return constraint_schedules([task], **options)[0]


@pytest.mark.parametrize("wrong", [[1, -1], [1, 2, 3], [0.5, 1.0]])
@pytest.mark.parametrize("solver", [list_schedule, integer_schedule, constraint_schedule])
def test_cycles_that_are_none_are_refused(solver, wrong):
    operations = Operations.of([TENSOR, VECTOR], [(0, 1)])

    with pytest.raises(InputError, match="one for each of 2 operators"):
        solver(operations, np.array([1, 1]), np.array(wrong), Cores(1, 1))


def test_an_operator_waits_only_for_earlier_ones():
    with pytest.raises(GraphError, match="1 -> 0"):
        Operations.of([TENSOR, VECTOR], [(1, 0)])
