"""Medians, intervals, warm-up and drift, against values known exactly."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.measure.stats import (
    Estimate,
    estimate_median,
    estimate_speedup,
    has_trend,
    is_above_zero,
    medians_of_resamples,
    warmup_length,
)

durations = st.floats(min_value=1e3, max_value=1e12)
rounds = st.lists(st.tuples(durations, durations), min_size=1, max_size=40)


@settings(max_examples=25)
@given(st.lists(durations, min_size=1, max_size=60))
def test_the_median_lies_inside_its_interval(samples):
    estimate = estimate_median(samples)

    assert float(np.median(samples)) == estimate.value
    assert min(samples) <= estimate.low <= estimate.value <= estimate.high <= max(samples)


@given(durations, st.integers(1, 50))
def test_samples_that_agree_leave_no_doubt(duration, num_samples):
    assert Estimate(duration, duration, duration) == estimate_median([duration] * num_samples)


@settings(max_examples=25)
@given(rounds, st.floats(min_value=0.01, max_value=100))
def test_a_machine_that_slows_both_turns_of_a_round_changes_no_speedup(pairs, slowdown):
    baseline, changed = np.array(pairs).T
    slowed = np.where(np.arange(len(pairs)) % 2, slowdown, 1.0)

    calm, disturbed = estimate_speedup(baseline, changed), estimate_speedup(baseline * slowed, changed * slowed)

    assert calm.value == pytest.approx(disturbed.value)
    assert (calm.low, calm.high) == pytest.approx((disturbed.low, disturbed.high))


@settings(max_examples=25)
@given(rounds)
def test_exchanging_the_two_programs_inverts_the_speedup(pairs):
    baseline, changed = np.array(pairs).T

    assert 1 / estimate_speedup(baseline, changed).value == pytest.approx(estimate_speedup(changed, baseline).value)


def test_the_bootstrap_of_three_samples_has_the_median_distribution_of_the_27_draws():
    medians = medians_of_resamples(np.array([1.0, 2.0, 3.0]), num_resamples=200_000)

    # of 27 draws the median is 1 in 7, 2 in 13 and 3 in 7
    assert [7 / 27, 13 / 27, 7 / 27] == pytest.approx([(medians == value).mean() for value in (1, 2, 3)], abs=0.005)


def test_the_interval_of_a_median_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    estimates = [estimate_median(rng.lognormal(0, 0.1, 31)) for _ in range(300)]

    assert 0.83 <= np.mean([estimate.low <= 1 <= estimate.high for estimate in estimates]) <= 0.97


def test_an_estimate_of_zero_is_known_to_no_precision():
    assert math.inf == Estimate(0.0, -1.0, 1.0).half_width_ratio


@given(st.integers(0, 8), st.integers(16, 40))
def test_slow_first_samples_are_warmup_and_no_others(num_slow, num_steady):
    samples = [*[1000] * num_slow, *(100 + np.arange(num_steady) % 3)]

    assert num_slow == warmup_length(samples)


@given(st.lists(durations, max_size=50))
def test_at_most_half_of_the_samples_are_warmup(samples):
    assert 0 <= warmup_length(samples) <= len(samples) // 2


@pytest.mark.parametrize(
    ("samples", "expected"), [(range(12), True), (range(12, 0, -1), True), ([3] * 12, False), ([1, 2, 3], False)]
)
def test_a_steady_rise_or_fall_is_a_trend(samples, expected):
    assert expected == has_trend(list(samples))


def test_noise_alone_is_seldom_a_trend():
    rng = np.random.default_rng(7)

    assert 0.03 >= np.mean([has_trend(rng.normal(size=30)) for _ in range(400)])


@pytest.mark.parametrize("num", [2, 3, 4, 5, 6, 7, 12, 31])
@pytest.mark.parametrize("confidence", [0.9, 0.99, 0.998])
def test_a_mean_is_above_zero_where_scipys_test_says_so(num, confidence):
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(num)
    for _ in range(60):
        found = rng.normal(rng.uniform(-0.5, 4), 1, num)
        expected = stats.ttest_1samp(found, 0, alternative="greater").pvalue < 1 - confidence
        assert expected == is_above_zero(found, confidence=confidence)


def test_one_difference_says_nothing_and_equal_ones_say_all():
    assert not is_above_zero([3.0], confidence=0.9)
    assert is_above_zero([3.0, 3.0], confidence=0.999)
    assert not is_above_zero([0.0, 0.0], confidence=0.9)
