"""How times are taken, and when they are kept."""

from __future__ import annotations

import pytest

from tests.cost.tensor_programs.examples import SMALL
from windtunnel.cost.programs.batch import MAX_ATTEMPTS, NUM_PASSES, STRETCH, Bench, Measured, Member
from windtunnel.cost.programs.build import parse_target
from windtunnel.cost.programs.measure import BUDGET_S, MAX_REPEATS, MIN_REPEATS, Canary, Timing, time_program


class Clock:
    """A program that always takes the same time, and what was asked of it."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.asked = seconds, []

    def __call__(self, number: int, repeat: int) -> list[float]:
        self.asked.append((number, repeat))
        return [self.seconds] * repeat


@pytest.mark.parametrize(
    ("seconds", "number", "repeat"),
    [(2e-3, 1, 10), (4e-4, 1, 50), (1e-5, 20, MAX_REPEATS), (0.1, 1, MIN_REPEATS)],
)
def test_runs_fill_the_budget_or_fifty_repeats(seconds, number, repeat):
    clock = Clock(seconds)
    timing = time_program(clock, BUDGET_S)

    assert [(1, 1), (number, repeat)] == clock.asked
    assert seconds == pytest.approx(timing.mean_s)
    assert timing.is_steady()


def test_spread_over_mean_decides_what_is_kept():
    timing = Timing((1.0, 1.2))

    assert 0.1 == pytest.approx(timing.std_s)
    assert not timing.is_steady()
    assert timing.is_steady(0.1)


def test_a_canary_that_moves_within_a_batch_or_from_its_usual_time_gives_the_batch_up():
    canary = Canary(0.05, history=[{"a": 1.0}] * 10)

    assert canary.is_quiet({"a": 1.0}, {"a": 1.04})
    assert not canary.is_quiet({"a": 1.0}, {"a": 1.06})
    assert not canary.is_quiet({"a": 1.2}, {"a": 1.2})
    assert 16 == len(canary.history)


def test_each_target_has_a_canary_of_its_own():
    assert not Canary().is_quiet({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.5})


class Stub(Bench):
    """A bench whose clock and canary are given."""

    def __init__(self, looks, num_members):
        targets = (parse_target("sse4.2-1"), parse_target("sse4.2-2"))
        super().__init__(SMALL, targets, Canary(0.05, history=[{"a": 1.0}] * 100))
        self.looks, self.asked = iter(looks), []
        self.found = Measured(programs=[(Member(key, 0, key), None) for key in range(num_members)])

    def _look(self):
        return {"a": next(self.looks)}

    def _time(self, found, member, target, budget_s):
        self.asked.append((member.key, target.name))
        return (1e-5 * (1 + member.key),) * 3


def test_a_stretch_in_which_the_canary_moved_is_timed_again():
    num_pairs = 2 * 20
    quiet = Stub([1.0] * 100, 20)
    moved = Stub([1.0, 1.2, 1.2, *[1.0] * 100], 20)

    expected, found = quiet._time_all(quiet.found, 1), moved._time_all(moved.found, 1)
    assert expected == found
    assert len(quiet.asked) == NUM_PASSES * num_pairs
    assert len(moved.asked) == NUM_PASSES * num_pairs + num_pairs + STRETCH
    assert all(abs(one["a"] - 1) <= 0.05 for one in moved.found.canary)


def test_a_machine_that_is_never_quiet_is_given_up():
    noisy = Stub([1.0, 1.2] * 1000, 4)
    assert noisy._time_all(noisy.found, 1) is None
    assert len(noisy.asked) == 8 * (MAX_ATTEMPTS + 1)
