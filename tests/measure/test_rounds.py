"""Rounds, and the quiet estimate of what they took."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.measure.turns import elapsed_ns, quiet, quiet_rows, rounds, spread_of_quiet, spread_ratio


def test_the_fewest_rounds_are_run_whatever_the_budget_and_never_more_than_the_most():
    assert [0, 1, 2] == list(rounds(3, 9, budget_s=0.0))
    assert list(range(9)) == list(rounds(3, 9, budget_s=1e9))


def test_rounds_that_warm_up_are_negative():
    assert [-2, -1, 0, 1, 2] == list(rounds(3, 3, budget_s=0.0, warmup=2))


def test_a_spent_budget_ends_the_rounds():
    ran = [time.sleep(0.02) for _ in rounds(2, 1000, budget_s=0.1)]
    assert 4 <= len(ran) <= 7


def test_progress_tells_how_many_rounds_there_will_be():
    told = []
    for _ in rounds(2, 5, 1e9, warmup=1, progress=lambda *said: told.append(said), what="kernels"):
        pass
    assert [("kernels", done, 5) for done in range(1, 6)] == told


def test_a_call_takes_at_least_as_long_as_it_sleeps():
    assert elapsed_ns(lambda: time.sleep(0.01)) >= 10_000_000


@given(st.lists(st.floats(1.0, 1e9), min_size=1, max_size=30), st.floats(1.0, 1e9))
def test_a_disturbed_half_of_the_rounds_does_not_move_the_quiet_estimate(times, delay):
    disturbed = [*times, *(max(times) + delay for _ in times[: len(times) // 2])]
    assert min(times) <= quiet(times) <= quiet(disturbed) <= max(times)


def test_nothing_measured_has_no_estimate_and_nothing_spread_no_spread():
    assert math.isnan(quiet([]))
    assert 0.0 == spread_ratio([0.0, 0.0])
    assert pytest.approx(1.0) == spread_ratio([1.0, 1.0, 2.0, 3.0, 3.0])
    assert [1.25, 2.5] == quiet_rows(np.array([[1.0, 2.0], [2.0, 4.0]])).tolist()


def test_the_spread_of_quiet_estimates_is_that_of_a_factor():
    """Which program others slowed decides only the sign: a ratio of ten is as far off as one of a tenth."""
    rng = np.random.default_rng(1)
    steady = np.full((12, 1), 1e6)
    slowed = np.where(rng.random((12, 1)) < 0.7, 1e7, 1e6)

    assert spread_of_quiet(steady, slowed) == pytest.approx(spread_of_quiet(slowed, steady))
    assert 0 < spread_of_quiet(steady, slowed) <= np.log(10) * (1 + 1e-9)
