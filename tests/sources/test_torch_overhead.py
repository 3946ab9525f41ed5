"""The profiler's cost is taken out where it lies, and what is left is told."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from tests.sources.test_torch_points import points_of
from windtunnel.sources.torch.overhead import _positive_mean, central, correct, select_validation_iterations
from windtunnel.sources.torch.timeline_points import stretches

COST_ENTER, COST_LEAVE = 300, 100
TRUE = np.array([50_000, 2_000, 700_000, 3_000, 40_000, 80_000, 30_000])


@pytest.fixture
def template():
    return points_of(("step", 0, 900), ("a", 100, 500), ("b", 200, 300), ("c", 600, 700))


def corrected_by(template, slices, bare, parts=None):
    return correct(template, slices, bare, calibrated_ns=400.0, parts=parts)


def profiled(template, iterations, seed=0):
    is_enter = np.array([token[0] == "+" for token in template.tokens])
    cost = COST_ENTER * is_enter[1:] + COST_LEAVE * ~is_enter[:-1]
    noise = np.random.default_rng(seed).integers(0, 200, (iterations, len(TRUE)))
    return TRUE + cost + noise


def test_the_corrected_sum_is_the_bare_step(template):
    bare = np.full(20, TRUE.sum())

    corrected, done = corrected_by(template, profiled(template, 20), bare)

    assert TRUE.sum() == pytest.approx(corrected[central(corrected.sum(axis=1))].sum(axis=1).mean(), rel=1e-4)
    assert 1.0 == pytest.approx(done.residual_ratio, abs=0.01)


def test_a_leaf_operator_keeps_its_measured_time(template):
    corrected, _ = corrected_by(template, profiled(template, 20), np.full(20, TRUE.sum()))

    assert 700_100 == pytest.approx(np.median(corrected[:, 2]), rel=0.002)


def test_without_bare_iterations_the_calibrated_cost_is_taken(template):
    corrected, done = corrected_by(template, profiled(template, 5), np.zeros(0, dtype=np.int64))

    assert 400.0 == done.enter_ns + done.leave_ns
    assert 1.0 == done.residual_ratio
    assert (corrected >= 0).all()


def test_a_slice_is_never_negative(template):
    tiny = np.full((4, len(TRUE)), 10)

    corrected, _ = corrected_by(template, tiny, np.zeros(0, dtype=np.int64))

    assert (corrected >= 0).all()


def test_an_event_costs_something_even_where_bare_steps_were_slower(template):
    slow_bare = np.array([TRUE.sum() + 40_000 + 10 * row for row in range(6)])

    _, done = corrected_by(template, profiled(template, 6), slow_bare)

    assert done.observed_ns < 0 < min(done.enter_ns, done.leave_ns)


@pytest.mark.parametrize(("mean", "expected"), [(0.0, 0.79788), (1.0, 1.28760), (-8.5, 0.1161), (9.0, 9.0)])
def test_the_mean_of_what_is_positive(mean, expected):
    assert expected == pytest.approx(_positive_mean(mean, 1.0), rel=0.02)


def test_each_stretch_has_its_own_residual(template):
    slow = profiled(template, 20)
    slow[:, 4:] = slow[:, 4:] * 1.2  # what follows the seam is distorted
    light = [(int(row.sum()), (("backward", int(row[:4].sum())),)) for row in slow]
    seam = int(TRUE[:4].sum())
    bare = [(int(TRUE.sum()), (("backward", seam),))] * 20

    corrected, done = corrected_by(
        template, slow.astype(np.int64), np.full(20, TRUE.sum()), stretches(slow.astype(np.int64), light, bare)
    )

    assert done.residual_ratios["0 begin"] > done.residual_ratios["1 backward"]
    assert 700_000 == pytest.approx(np.median(corrected[:, 2]), rel=0.01)
    assert TRUE[4:].sum() == pytest.approx(np.median(corrected[:, 4:].sum(axis=1)), rel=0.03)


def test_iterations_of_other_forms_have_no_common_stretches():
    slices = np.ones((3, 4), dtype=np.int64)

    assert stretches(slices, [(4, ())] * 3, [(4, ())] * 3) is None
    assert stretches(slices, [(4, (("backward", 2),))] * 3, [(4, (("update", 2),))] * 3) is None


def test_the_middle_half_leaves_out_both_tails():
    assert [2, 3, 4, 5] == sorted(central(np.array([0.0, 1, 2, 3, 4, 5, 6, 7])).tolist())
    assert [0] == central(np.array([3.0])).tolist()


def test_what_is_held_out_comes_first_and_second_in_turn():
    assert [False, True, True, False, False, True, True, False] == select_validation_iterations(8).tolist()


def test_the_cost_of_events_is_that_of_iterations_in_turn_and_the_sum_that_of_iterations_in_a_row(template):
    in_turn, in_a_row = np.full(20, TRUE.sum()), np.full(60, TRUE.sum() // 2)

    corrected, done = correct(template, profiled(template, 20), in_turn, calibrated_ns=400.0, aim_ns=in_a_row)
    _, without = corrected_by(template, profiled(template, 20), in_turn)

    assert done.enter_ns == without.enter_ns
    assert 0.5 == pytest.approx(done.residual_ratio, abs=0.01)
    assert TRUE.sum() / 2 == pytest.approx(np.median(corrected.sum(axis=1)), rel=1e-3)
