"""How times are taken beside a canary, and which of them count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.systems.tensor_programs.run.examples import SMALL
from windtunnel.systems.tensor_programs.run.batch import Bench, Measured, Member
from windtunnel.systems.tensor_programs.run.build import parse_target
from windtunnel.systems.tensor_programs.run.measure import (
    ENOUGH,
    MAX_LOOKS,
    MAX_PASSES,
    MAX_SPENT_S,
    MIN_LOOKS,
    MIN_QUIET,
    PATIENCE_S,
    Canary,
    Look,
    Timing,
    densest,
    looks_at,
    select_undisturbed_s,
)


class Machine:
    """A program and a canary that take their time, longer by a factor while others run."""

    def __init__(self, program_s, canary_s=2e-4, disturbed=lambda _: 1.0):
        self.program_s, self.canary_s, self.disturbed = program_s, canary_s, disturbed
        self.now_s, self.asked, self.num_runs = 0.0, [], 0

    def run(self, seconds):
        taken_s = seconds * self.disturbed(self.now_s)
        self.now_s += taken_s
        return taken_s

    def evaluate(self, number, repeat):
        self.asked.append((number, repeat))
        self.run(self.program_s)
        return [sum(self.run(self.program_s) for _ in range(number)) / number for _ in range(repeat)]

    def once(self):
        self.num_runs += 1
        return self.run(self.program_s)

    def canary(self):
        return self.run(self.canary_s)

    def looks(self, band_s=None):
        return looks_at(self.evaluate, self.once, self.canary, band_s)

    @property
    def band_s(self):
        return 0.95 * self.canary_s, 1.05 * self.canary_s


@pytest.mark.parametrize(
    ("seconds", "number", "num_looks"),
    [(2e-3, 1, 4), (4e-4, 1, 10), (1e-5, 20, 24), (3e-7, 667, 24), (0.1, 1, MIN_LOOKS)],
)
def test_a_pass_fills_its_budget_and_short_programs_run_several_times_in_a_look(seconds, number, num_looks):
    machine = Machine(seconds)
    looks = machine.looks()

    assert len(looks) == num_looks <= MAX_LOOKS
    assert [look.program_s for look in looks] == pytest.approx([seconds] * num_looks)
    assert set(machine.asked) == ({(number, 1)} if seconds < 1e-3 else set())


@given(st.floats(2e-5, 4e-3), st.integers(0, 2**31))
def test_bursts_of_others_do_not_move_the_label(true_s, seed):
    """Others run three quarters of the time, in bursts of 15 ms: only looks between two quiet canaries count."""
    random = np.random.default_rng(seed)
    slow = np.where(random.random(4000) < 0.75, random.uniform(1.15, 2.0, 4000), 1.0)
    machine = Machine(true_s, disturbed=lambda now_s: slow[int(now_s / 0.015) % len(slow)])

    looks = []
    while len(select_undisturbed_s(looks, machine.band_s)) < MIN_QUIET:
        looks += machine.looks()
    timing = Timing(tuple(select_undisturbed_s(looks, machine.band_s)))
    assert timing.mean_s == pytest.approx(true_s)


def test_a_program_waits_while_others_run():
    """Others run in the first 30 ms of every 40: the looks of a pass come after them, nine and no more."""
    machine = Machine(1e-4, disturbed=lambda now_s: 1.5 if now_s % 0.04 < 0.03 else 1.0)
    looks = machine.looks(machine.band_s)

    assert select_undisturbed_s(looks, machine.band_s) == pytest.approx([1e-4] * ENOUGH)
    assert len(looks) == ENOUGH
    assert machine.now_s > 0.03


def test_a_pass_ends_where_others_always_run():
    machine = Machine(2e-3, disturbed=lambda now_s: 1.5)

    assert machine.looks(machine.band_s) == ()
    assert PATIENCE_S < machine.now_s < PATIENCE_S + 0.01


def test_looks_count_where_the_canary_took_its_usual_time_before_and_after():
    looks = [Look(1.0, (1.0, 1.0)), Look(2.0, (1.0, 1.06)), Look(1.1, (0.95, 1.05)), Look(0.8, (0.9, 1.0))]
    assert select_undisturbed_s(looks, (0.95, 1.05)) == [1.0, 1.1]


def test_a_program_waits_while_the_clock_is_raised():
    machine = Machine(1e-4, disturbed=lambda now_s: 0.9 if now_s < 0.02 else 1.0)

    assert select_undisturbed_s(machine.looks(machine.band_s), machine.band_s) == pytest.approx([1e-4] * ENOUGH)


def test_a_label_needs_looks_enough_that_agree():
    assert Timing((1.0, 1.01, 1.02)).is_steady()
    assert not Timing((1.0, 1.0)).is_steady(1e9)
    assert not Timing((1.0, 1.2, 1.4)).is_steady()
    assert Timing((1.0, 1.2, 1.4)).is_steady(0.2)
    assert Timing((9.0, 1.0, 1.0, 1.0, 1.0)).std_s == 0.0


def test_the_canary_knows_its_usual_time_by_threads():
    canary = Canary(0.05)
    canary.learn({"1": [0.8] * 5 + [1.0] * 40 + np.linspace(1.1, 2.0, 90).tolist(), "2": [0.5] * 10})
    canary.learn({"1": [1.2] * 50})  # others only ever add
    canary.learn({"1": [0.97] * 50})  # the clock moves within the band
    assert canary.usual_s == {"1": 1.0, "2": 0.5}
    assert canary.band_s("1") == pytest.approx((0.95, 1.05))

    canary.learn({"1": [0.9] * 50})  # what was taken for usual was disturbed
    assert canary.usual_s["1"] == 0.9


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=60))
def test_no_window_holds_more_than_the_densest(values):
    middle = densest(values)
    held = max(sum(low <= one <= low * 1.02 for one in values) for low in values)
    least = min(low for low in values if sum(low <= one <= low * 1.02 for one in values) == held)
    assert least <= middle <= least * 1.02


def test_what_was_judged_by_a_disturbed_canary_is_outdated():
    canary = Canary(0.05, {"1": 1.0})

    assert not canary.is_outdated({"1": 1.04})
    assert canary.is_outdated({"1": 1.1})
    assert not canary.is_outdated({"2": 9.0})


class Stub(Bench):
    """A bench whose looks are given: by which factors program and canary are disturbed in a pass."""

    def __init__(self, disturb, num_members=4):
        targets = (parse_target("sse4.2-1"), parse_target("sse4.2-2"))
        super().__init__(SMALL, targets, Canary(0.05, {"1": 1e-3, "2": 1e-3}))
        self.disturb, self.asked = disturb, Counter()
        self.found = Measured(programs=[(Member(key, 0, key), None) for key in range(num_members)])

    def _time(self, found, worker, key, target):
        self.asked[key, target.name] += 1
        program, canary = self.disturb(key, target.name, self.asked[key, target.name])
        return [Look(2e-3 * program, (1e-3 * canary, 1e-3 * canary))] * MIN_QUIET

    def timed(self):
        return self._time_all(self.found, 0)


def test_a_quiet_machine_needs_one_pass():
    bench = Stub(lambda *_: (1.0, 1.0))
    looks = bench.timed()

    assert set(bench.asked.values()) == {1}
    assert all(bench._timing(pair, values).mean_s == 2e-3 for pair, values in looks.items())


def test_what_was_disturbed_is_timed_until_looks_enough_are_not():
    bench = Stub(lambda key, name, turn: (1.5, 1.3) if (key, name) == (1, "sse4.2-2") and turn < 6 else (1.0, 1.0))
    timings = {(pair[0], pair[1].name): bench._timing(pair, values) for pair, values in bench.timed().items()}

    assert timings[1, "sse4.2-2"].mean_s == 2e-3
    assert bench.asked[1, "sse4.2-2"] == 6
    assert bench.asked[0, "sse4.2-1"] == 1


def test_what_is_never_undisturbed_is_left_out():
    bench = Stub(lambda key, name, turn: (1.5, 1.3) if key == 2 else (1.0, 1.0))
    looks = bench.timed()

    assert bench.asked[2, "sse4.2-1"] == MAX_PASSES
    bench._judge(bench.found, looks)
    assert [member.key for member, _ in bench.found.programs] == [0, 1, 3]
    assert bench.found.dropped == {"never steady": 1}


def test_a_long_program_is_given_up_after_its_share_of_time():
    bench = Stub(lambda key, name, turn: (40.0, 1.3) if key == 2 else (1.0, 1.0))
    bench.timed()

    assert bench.asked[2, "sse4.2-1"] == int(np.ceil(MAX_SPENT_S / (MIN_QUIET * 0.08)))


def test_a_machine_that_is_never_quiet_gives_the_batch_up():
    bench = Stub(lambda key, name, turn: (1.5, 1.3))
    members = [member for member, _ in bench.found.programs]
    bench._build_part = lambda at, asked: ([] if at else [(one, None) for one in members], Counter())
    bench._forget = lambda *_: None

    assert bench.measure(members, seed=0) is None


def test_the_canary_is_one_kernel_for_good():
    pytest.importorskip("tvm")
    from windtunnel.systems.tensor_programs.run.schedules import Scheduled
    from windtunnel.systems.tensor_programs.run.worker import CANARY, CANARY_STEPS

    scheduled = Scheduled.of(CANARY)
    assert all(scheduled.try_step(primitive, block, *arguments) for primitive, block, *arguments in CANARY_STEPS)
    assert CANARY.name == "matmul m=128 n=128 k=128"
    assert len(CANARY_STEPS) == 8
