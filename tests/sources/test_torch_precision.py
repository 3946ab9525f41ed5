"""How well the time of a step is known from iterations that vary."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from windtunnel.sources.torch.overhead import precision


def durations(count, spread, seed=0):
    return (1e6 * np.random.default_rng(seed).normal(1, spread, count)).astype(np.int64)


def test_the_error_is_that_of_medians_of_half_as_many():
    """The median of n normal values has the standard deviation 1.2533 / sqrt(n) of theirs."""
    found = precision(durations(1000, 0.2))

    assert 1.2533 * 0.2 / 500**0.5 == pytest.approx(found["standard_error_ratio"], rel=0.15)
    assert "note" not in found


@pytest.mark.parametrize("spread", [0.1, 0.4])
def test_as_many_iterations_as_are_wanted_bring_the_error_down(spread):
    wanted = precision(durations(200, spread))["iterations_wanted"]

    assert 0.02 == pytest.approx(precision(durations(wanted, spread, seed=1))["standard_error_ratio"], rel=0.4)


def test_what_is_known_badly_is_told_with_what_to_do():
    found, wild = precision(durations(40, 0.3)), precision(durations(20, 0.4))

    assert found["standard_error_ratio"] > 0.03
    assert "iterations vary: after 40 of them the step's time is known to ±" in found["note"]
    assert f"--iterations {found['iterations_wanted']} would make that ±2.0 %" in found["note"]
    assert wild["iterations_wanted"] > 20 * 20
    assert "capture again on a quiet machine" in wild["note"]


def test_two_kinds_of_iterations_are_known_badly_though_most_are_alike():
    assert precision([10, 20, 10, 10, 20, 10, 20, 10, 10, 20])["standard_error_ratio"] > 0.1


def test_equal_iterations_are_known_at_once_and_few_say_nothing():
    assert {"standard_error_ratio": 0.0, "iterations_wanted": 0} == precision([5] * 6)
    assert {} == precision([1, 9, 1, 9, 1])
    assert {} == precision([])
