"""How times are taken, and when they are kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost.tensor_programs.examples import SMALL
from windtunnel.cost.programs.batch import Bench, Measured, Member
from windtunnel.cost.programs.build import parse_target
from windtunnel.cost.programs.measure import (
    BUDGET_S,
    MAX_PASSES,
    MAX_REPEATS,
    MIN_PASSES,
    MIN_REPEATS,
    Canary,
    Timing,
    looks_at,
    undisturbed_s,
)


class Clock:
    """A program that always takes the same time, and what was asked of it."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.asked = seconds, []

    def __call__(self, number: int, repeat: int) -> list[float]:
        self.asked.append((number, repeat))
        return [self.seconds] * repeat


@pytest.mark.parametrize(
    ("seconds", "number", "repeat"),
    [(2e-3, 1, 5), (4e-4, 1, 25), (1e-5, 20, MAX_REPEATS), (0.1, 1, MIN_REPEATS)],
)
def test_runs_fill_the_budget_or_fifty_repeats(seconds, number, repeat):
    clock = Clock(seconds)
    looks = looks_at(clock, BUDGET_S)

    assert [(1, 1), (number, repeat)] == clock.asked
    assert looks == (seconds,) * repeat
    assert undisturbed_s(looks) == seconds


def test_the_two_lowest_passes_are_the_label_and_must_agree():
    timing = Timing((9.0, 1.2, 1.0, 7.0))

    assert (1.1, 0.1) == pytest.approx((timing.mean_s, timing.std_s))
    assert not timing.is_steady()
    assert timing.is_steady(0.1)
    assert not Timing((1.0,)).is_steady(1e9)


@given(st.floats(1e-5, 1e-2), st.integers(0, 2**31))
def test_bursts_of_others_do_not_move_the_label(true_s, seed):
    """Three quarters of the time others run, in bursts longer than a look: passes go on until two agree."""
    random = np.random.default_rng(seed)
    passes: list[float] = []
    while len(passes) < 40 and not Timing(tuple(passes)).is_steady():
        slow = 1.0 + random.uniform(0.2, 1.0) * np.repeat(random.random(5) < 0.75, 10)
        passes.append(undisturbed_s((true_s * slow * random.uniform(1.0, 1.01, 50)).tolist()))

    # all looks of two passes may lie in equal bursts, but hardly ever
    assert Timing(tuple(passes)).mean_s >= true_s


def test_a_canary_off_its_usual_time_gives_the_batch_up():
    canary = Canary(0.05, history=[{"a": 1.0}] * 10)

    assert canary.is_usual({"a": 1.04})
    assert not canary.is_usual({"a": 1.06})
    assert not canary.is_usual({"a": 0.9})
    assert 13 == len(canary.history)


def test_each_target_has_a_canary_of_its_own():
    assert not Canary(history=[{"a": 1.0, "b": 1.0}] * 9).is_usual({"a": 1.0, "b": 1.5})


class Stub(Bench):
    """A bench whose clock is given: the factor by which each pass of each program is disturbed."""

    def __init__(self, disturb, num_members=4):
        targets = (parse_target("sse4.2-1"), parse_target("sse4.2-2"))
        usual = [{target.name: 1e-3 for target in targets}] * 100
        super().__init__(SMALL, targets, Canary(0.05, history=usual))
        self.disturb, self.asked = disturb, Counter()
        self.found = Measured(programs=[(Member(key, 0, key), None) for key in range(num_members)])

    def _time(self, found, worker, key, target):
        self.asked[key, target.name] += 1
        return [1e-3 * self.disturb(key, target.name, self.asked[key, target.name])]

    def timed(self):
        for worker in self._workers:
            worker.ask = lambda *_: None
        return self._time_all(self.found, 0)


def test_a_quiet_machine_needs_three_passes():
    bench = Stub(lambda *_: 1.0)
    passes = bench.timed()

    assert set(bench.asked.values()) == {MIN_PASSES}
    assert all(Timing(tuple(values)).mean_s == 1e-3 for values in passes.values())


def test_what_was_disturbed_is_timed_until_two_passes_agree():
    bench = Stub(lambda key, name, turn: 1.5 + 0.2 * turn if (key, name) == (1, "sse4.2-2") and turn < 6 else 1.0)
    passes = {(key, target.name): Timing(tuple(values)) for (key, target), values in bench.timed().items()}

    assert passes[1, "sse4.2-2"].mean_s == 1e-3
    assert bench.asked[1, "sse4.2-2"] == 7
    assert bench.asked[0, "sse4.2-1"] == MIN_PASSES


def test_what_is_never_undisturbed_is_left_out():
    bench = Stub(lambda key, name, turn: 1.0 + 0.2 * turn if key == 2 else 1.0)
    passes = bench.timed()

    assert bench.asked[2, "sse4.2-1"] == MAX_PASSES
    bench._judge(bench.found, passes)
    assert [member.key for member, _ in bench.found.programs] == [0, 1, 3]
    assert bench.found.dropped == {"never steady": 1}
