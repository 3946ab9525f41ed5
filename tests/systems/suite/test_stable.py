"""The stable phase of a series of step times: warm-up, spikes, trend, and when to stop."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.systems.suite.stable import (
    GROUP,
    block_length,
    is_known,
    mser5,
    run_until_stable,
    sample_until_stable,
    spikes,
    stable_phase,
    trend,
)


def _noise(num_samples: int, *, seed: int, correlation: float = 0.0, deviation: float = 0.02) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(num_samples)
    for at in range(1, num_samples):
        values[at] = correlation * values[at - 1] + np.sqrt(1 - correlation**2) * values[at]
    return deviation * values


def _standard_error(samples: list[int], cut: int) -> float:
    """The formula as it is written, of the groups after the cut."""
    groups = [float(np.mean(samples[at : at + GROUP])) for at in range(0, len(samples) // GROUP * GROUP, GROUP)]
    kept = groups[cut // GROUP :]
    return sum((one - np.mean(kept)) ** 2 for one in kept) / len(kept) ** 2


@given(st.lists(st.integers(1, 50), min_size=2 * GROUP, max_size=80))
def test_mser5_is_the_published_formula(samples):
    cuts = [GROUP * groups for groups in range(len(samples) // GROUP // 2 + 1)]
    found = mser5(samples)

    assert found in cuts
    assert _standard_error(samples, found) == pytest.approx(
        min(_standard_error(samples, cut) for cut in cuts), abs=1e-9
    )


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=60))
def test_a_phase_always_lies_within_its_samples(samples):
    phase = stable_phase(samples)

    assert min(samples) <= phase.min_ns <= phase.median_ns.value <= phase.max_ns <= max(samples)
    assert phase.median_ns.low <= phase.median_ns.value <= phase.median_ns.high
    assert 0 <= phase.cut < len(samples)
    assert phase.min_ns <= phase.mean_ns * (1 + 1e-9)
    assert phase.mean_ns <= phase.max_ns * (1 + 1e-9)


@given(st.lists(st.floats(1, 1e6), min_size=12, max_size=60), st.integers(-3, 3))
def test_another_unit_of_time_changes_nothing(samples, power):
    """Powers of two scale floats exactly."""
    factor = 2.0**power
    plain, scaled = stable_phase(samples), stable_phase([factor * one for one in samples])

    assert (plain.cut, plain.num_spikes, plain.is_unstable) == (scaled.cut, scaled.num_spikes, scaled.is_unstable)
    assert scaled.median_ns.value == factor * plain.median_ns.value


def test_warmup_and_spikes_leave_the_mean_alone():
    for seed in range(10):
        series = 100 * (1 + _noise(300, seed=seed, correlation=0.3))
        series[:20] *= 1 + 3 * np.exp(-np.arange(20) / 5)
        series[[77, 150, 233]] *= 4
        phase = stable_phase(series)

        assert phase.mean_ns == pytest.approx(100, rel=0.01)
        assert phase.num_spikes == 3
        assert 5 <= phase.cut <= 150
        assert not phase.is_unstable


def test_a_drifting_series_is_unstable_and_a_stationary_one_seldom():
    drifting = [stable_phase(100 * (1 + _noise(300, seed=seed) + np.linspace(0, 0.2, 300))) for seed in range(20)]
    stationary = [stable_phase(100 * (1 + _noise(300, seed=seed, correlation=0.6))) for seed in range(40)]

    assert all(phase.is_unstable for phase in drifting)
    assert sum(phase.is_unstable for phase in stationary) <= 1


def test_a_significant_but_tiny_trend_is_told_and_tolerated():
    phase = stable_phase(1e6 + np.arange(400.0))

    assert phase.trend.is_significant
    assert phase.trend.change_ratio == pytest.approx((400 - phase.cut) / 1e6, rel=0.05)
    assert not phase.is_unstable


def test_correlated_samples_are_tested_in_batches():
    correlated = trend(100 + _noise(2000, seed=1, correlation=0.97, deviation=5))

    assert correlated.batch_length > trend(100 + _noise(2000, seed=1, deviation=5)).batch_length
    assert not correlated.is_significant


def test_the_interval_of_correlated_samples_is_wider():
    independent = stable_phase(100 * (1 + _noise(600, seed=3)))
    correlated = stable_phase(100 * (1 + _noise(600, seed=3, correlation=0.9)))

    assert correlated.width_ratio > 1.5 * independent.width_ratio


def test_a_first_step_that_compiles_is_a_spike_or_warmup():
    assert spikes([500.0, 10, 11, 10, 9, 10, 11, 10, 10, 10, 11, 9])[0]


def test_nothing_measured_is_an_error():
    with pytest.raises(InputError, match="no step"):
        stable_phase([])


def test_sampling_stops_when_the_median_is_known_or_the_steps_end(monkeypatch):
    clock = itertools.count(0, 1_000_000)
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(clock))
    seen: list[int] = []

    durations_ns, phase = run_until_stable(lambda: None, budget_s=60, min_steps=30, after_step=seen.append)
    limited, _ = run_until_stable(lambda: None, budget_s=60, min_steps=30, max_steps=7)

    assert seen == durations_ns.tolist() == [1_000_000] * 36  # known at two looks in a row
    assert phase.width_ratio == 0
    assert len(limited) == 7


def test_a_spent_budget_still_leaves_three_steps():
    durations_ns, phase = run_until_stable(lambda: None, budget_s=0.0)

    assert len(durations_ns) == phase.num_samples == 3


def test_a_slow_warmup_is_not_taken_for_the_level():
    settling = 100 * (1 + _noise(2000, seed=11, deviation=0.02) + 0.1 * np.exp(-np.arange(2000) / 40))
    soon = stable_phase(settling[:40])

    taken, phase = sample_until_stable(settling)

    assert soon.mean_ns > 103
    assert not is_known(settling[:40], soon, 0.05)
    assert phase.mean_ns == pytest.approx(100, rel=0.01)
    assert taken.tolist() == settling[: len(taken)].tolist()


def test_no_more_durations_are_taken_than_needed():
    source = iter([100.0] * 500)

    taken, _ = sample_until_stable(source, min_steps=20)

    assert len(taken) == 24
    assert len(list(source)) == 500 - 24


def test_blocks_are_as_long_as_neighbors_have_in_common():
    assert block_length(_noise(60, seed=5)) <= 3
    assert block_length(_noise(400, seed=5, correlation=0.9)) >= 20
