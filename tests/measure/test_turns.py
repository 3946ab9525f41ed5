"""Two lanes take turns: what is measured, when it is enough, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import FlightError
from windtunnel.measure.deadline import OutOfTimeError
from windtunnel.measure.turns import StopRule, Turn, measure


class Scripted:
    """A lane on a clock of its own: its iterations take what ``duration_ns`` says of the number of the turn."""

    def __init__(self, name, duration_ns, journal, *, num_iterations=10**9, unit=1, losses=(1.0,)):
        self.name, self.duration_ns, self.journal = name, duration_ns, journal
        self.left, self.iterations_per_sample, self.losses = num_iterations, unit, losses

    def turn(self, num_iterations):
        if self.left <= 0:
            return None
        self.journal.append((self.name, num_iterations))
        self.left -= num_iterations
        return Turn([self.duration_ns(len(self.journal))] * num_iterations, self.losses)

    def log_tail(self):
        return f"last words of {self.name}"


def lanes(baseline, changed, **more):
    journal = []
    return Scripted("A", baseline, journal, **more), Scripted("B", changed, journal, **more), journal


RULE = StopRule(rounds=12, turn_ns=1000, warmup=2)


@given(st.integers(10, 10**6), st.integers(10, 10**6))
def test_steady_programs_give_exactly_their_ratio(baseline_ns, changed_ns):
    first, second, _ = lanes(lambda _: baseline_ns, lambda _: changed_ns)
    flown = measure(first, second, RULE)

    assert baseline_ns / changed_ns == pytest.approx(flown.speedup.value)
    assert (baseline_ns, changed_ns) == (flown.baseline.value, flown.changed.value)
    assert RULE.min_rounds == flown.num_rounds


def test_who_begins_alternates_from_round_to_round():
    first, second, journal = lanes(lambda _: 100, lambda _: 100)
    measure(first, second, RULE)

    assert "ABBAABBA" == "".join(name for name, _ in journal[2:10])


def test_a_machine_that_slows_down_steadily_favors_neither():
    first, second, _ = lanes(lambda moment: 1000 + 10 * moment, lambda moment: 500 + 5 * moment)
    flown = measure(first, second, StopRule(rounds=30, precision=0, turn_ns=1000))

    assert pytest.approx(2.0, rel=0.002) == flown.speedup.value


def test_rounds_in_which_a_program_still_warms_up_do_not_count():
    """Two turns of warm-up, then two rounds of two turns in which the baseline is nine times as slow."""
    first, second, _ = lanes(lambda moment: 900 if moment <= 6 else 100, lambda _: 100)
    flown = measure(first, second, StopRule(rounds=12, min_rounds=12, turn_ns=1000, warmup=2))

    assert [100.0] * 10 == list(flown.baseline_R)
    assert [100.0] * 10 == list(flown.changed_R)


def test_a_turn_lasts_as_long_as_asked():
    first, second, journal = lanes(lambda _: 100, lambda _: 250)
    measure(first, second, RULE)

    assert {("A", 10), ("B", 4)} == set(journal[2:])


def test_several_iterations_that_are_one_of_the_changed_program_are_summed():
    first, second, journal = lanes(lambda _: 100, lambda _: 100)
    second.iterations_per_sample = 4
    flown = measure(first, second, RULE)

    assert 400 == flown.changed.value
    assert {12} == {count for name, count in journal[2:] if name == "B"}


def test_noise_is_flown_for_longer_than_calm():
    calm = measure(*lanes(lambda _: 100, lambda _: 50)[:2], StopRule(rounds=40, turn_ns=100))
    noisy = measure(*lanes(lambda moment: 100 + 37 * moment % 50, lambda _: 50)[:2], StopRule(rounds=40, turn_ns=100))

    assert calm.num_rounds < noisy.num_rounds


def test_a_program_that_ends_early_counts_as_far_as_it_got():
    first, second, _ = lanes(lambda moment: 100 + moment % 7, lambda _: 100, num_iterations=60)
    flown = measure(first, second, StopRule(rounds=50, precision=0, turn_ns=1000))

    assert 6 == flown.num_rounds


def test_a_program_that_ends_too_early_is_refused_with_its_log():
    first, second, _ = lanes(lambda _: 100, lambda _: 100, num_iterations=12)

    with pytest.raises(FlightError, match="ended after 1 rounds") as refusal:
        measure(first, second, StopRule(rounds=50, turn_ns=1000))
    assert "last words of" in refusal.value.log_tail


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_change_that_does_not_train_is_refused(loss):
    first, second, _ = lanes(lambda _: 100, lambda _: 50)
    second.losses = (loss,)

    with pytest.raises(FlightError, match=r"loss is (nan|inf) where the baseline's is a number"):
        measure(first, second, RULE)


def test_progress_is_told_round_by_round():
    told = []
    measure(*lanes(lambda _: 100, lambda _: 100)[:2], RULE, lambda *news: told.append(news))

    assert [("flying", done, 12) for done in range(1, 8)] == told


class Clock:
    """Seconds that pass only where a lane says so."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Slow(Scripted):
    """A lane each of whose iterations takes seconds, and that is cut off at a deadline."""

    def __init__(self, clock, iteration_s, deadline_s=math.inf):
        super().__init__("slow", lambda moment: 100 + moment % 7, [])
        self.clock, self.iteration_s, self.deadline_s = clock, iteration_s, deadline_s

    def turn(self, num_iterations):
        if self.clock.now_s + num_iterations * self.iteration_s > self.deadline_s:
            self.clock.now_s = self.deadline_s
            raise OutOfTimeError("not done in time")
        self.clock.now_s += num_iterations * self.iteration_s
        return super().turn(num_iterations)


def test_turns_that_take_too_long_become_shorter_so_that_the_fewest_rounds_fit():
    clock = Clock()
    rule = StopRule(rounds=40, precision=0, turn_ns=2000, warmup=1, time_limit_s=70)
    flown = measure(Slow(clock, 1), Slow(clock, 1), rule, clock=clock)

    assert 4 == flown.num_rounds  # one of 40 s, then of 10 s
    assert clock.now_s < 80


def test_a_flight_that_is_cut_off_counts_as_far_as_it_got():
    clock = Clock()
    rule = StopRule(rounds=40, precision=0, turn_ns=100, warmup=1, time_limit_s=1000)
    lanes = [Slow(clock, 10, deadline_s=95) for _ in range(2)]
    flown = measure(*lanes, rule, deadline_s=95, clock=clock)

    assert 3 == flown.num_rounds  # 20 s of warm-up, 20 s a round


def test_a_flight_without_rounds_enough_at_its_deadline_says_what_to_do():
    clock = Clock()
    lanes = [Slow(clock, 40, deadline_s=120) for _ in range(2)]
    with pytest.raises(OutOfTimeError, match="only 0 of the 3 rounds") as refusal:
        measure(*lanes, StopRule(turn_ns=100, warmup=1, time_limit_s=60), deadline_s=120, clock=clock)

    assert "--time-limit" in refusal.value.fix


def test_programs_have_time_to_start_however_short_the_flight():
    assert 120 == StopRule(time_limit_s=1).give_up_s
    assert 400 == StopRule(time_limit_s=200).give_up_s
