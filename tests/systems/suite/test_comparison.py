"""Comparing runs of the suite, and programs that run in turns."""

import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import FlightError, InputError
from windtunnel.systems.suite import interleaved
from windtunnel.systems.suite.comparison import compare, compare_rounds, geometric_mean, permutation_p
from windtunnel.systems.suite.interleaved import Side, compare_interleaved_runs, side_of
from windtunnel.systems.suite.results import Cell, Result, SuiteRun


def _result(name: str, level_ns: float, *, seed: int = 0, threads: int = 1, **fields: object) -> Result:
    noise = 1 + 0.02 * np.random.default_rng(seed).standard_normal(120)
    durations_ns = [int(level_ns * value) for value in noise]
    cell = Cell(name, num_threads=threads)
    return Result(cell=cell, batch_size=8, durations_ns=durations_ns, units=[8.0] * 120, **fields)


def _run(tmp_path, *results: Result, machine: str = "here") -> SuiteRun:
    return SuiteRun(tmp_path, {"machine_id": machine, "cpu_name": f"processor {machine}"}, list(results))


def test_a_faster_run_is_seen_and_its_interval_holds_the_truth(tmp_path):
    before = _run(tmp_path, _result("mlp", 1.12e6), _result("lstm", 1e6, seed=1))
    after = _run(tmp_path, _result("mlp", 1e6, seed=2), _result("lstm", 1e6, seed=3))
    found = compare(before, after)
    rows = {row.label.split()[0]: row for row in found.rows}

    assert rows["mlp"].speedup.low <= 1.12 <= rows["mlp"].speedup.high
    assert rows["mlp"].verdict == "faster"
    assert rows["lstm"].verdict == "no difference"
    assert rows["mlp"].text.startswith("1.1")
    assert found.overall.speedup.value == pytest.approx(math.sqrt(1.12), rel=0.01)


def test_comparing_the_other_way_round_turns_the_ratio_over(tmp_path):
    first, second = _run(tmp_path, _result("mlp", 1.3e6)), _run(tmp_path, _result("mlp", 1e6, seed=5))
    forth, back = compare(first, second).overall, compare(second, first).overall

    assert forth.speedup.value == pytest.approx(1 / back.speedup.value)
    assert (forth.verdict, back.verdict) == ("faster", "slower")


def test_equal_runs_seldom_differ(tmp_path):
    """At 95 % about one in twenty does."""
    verdicts = [
        compare(
            _run(tmp_path, _result("mlp", 1e6, seed=2 * seed)), _run(tmp_path, _result("mlp", 1e6, seed=2 * seed + 1))
        )
        .rows[0]
        .verdict
        for seed in range(16)
    ]

    assert verdicts.count("no difference") >= 12


def test_what_only_one_run_has_and_what_makes_them_unlike_is_said(tmp_path):
    first = _run(tmp_path, _result("mlp", 1e6), _result("gan", 1e6), machine="one")
    second = _run(tmp_path, _result("mlp", 1e6, is_unstable=True, waited_ratio=0.5), _result("cnn", 1e6), machine="two")
    found = compare(first, second)

    assert (found.only_first, found.only_second) == (("gan b8 t1",), ("cnn b8 t1",))
    assert any("different machines" in note for note in found.notes)
    assert any("drifting" in note for note in found.notes)
    assert any("50%" in note for note in found.notes)


def test_machines_with_other_threads_are_matched_by_their_work(tmp_path):
    found = compare(_run(tmp_path, _result("mlp", 2e6)), _run(tmp_path, _result("mlp", 1e6, threads=8)))

    assert found.rows[0].speedup.value == pytest.approx(2, rel=0.05)
    assert any("8" in note for note in found.notes)


def test_runs_without_a_common_workload_cannot_be_compared(tmp_path):
    failed = msgspec.structs.replace(_result("mlp", 1e6), status="failed")
    with pytest.raises(InputError, match="in common"):
        compare(_run(tmp_path, _result("mlp", 1e6)), _run(tmp_path, failed))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=20))
def test_the_geometric_mean_of_inverses_is_the_inverse(ratios):
    assert geometric_mean([1 / ratio for ratio in ratios]) == pytest.approx(1 / geometric_mean(ratios))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=10))
def test_the_permutation_test_does_not_care_for_the_sign(differences):
    p_value = permutation_p(differences)

    assert 0 < p_value <= 1
    assert p_value == permutation_p([-one for one in differences])


def test_the_permutation_test_by_hand():
    """Of the 16 changes of sign, only all and none sum to as much."""
    assert permutation_p([1.0, 2.0, 3.0, 4.0]) == 2 / 16
    assert permutation_p([1.0, -1.0]) == 1.0


def test_paired_rounds_do_not_see_a_machine_that_slows_down():
    slowing = np.linspace(1, 3, 9)
    row = compare_rounds("mlp", "samples", 1.5e6 * slowing, 1e6 * slowing)

    assert row.speedup.value == pytest.approx(1.5)
    assert row.verdict == "faster"
    assert row.p_value == pytest.approx(2 / 512)


def test_few_rounds_prove_nothing():
    """Of four changes of sign two are as extreme: p is a half."""
    row = compare_rounds("mlp", "samples", [1.5e6, 1.5e6], [1e6, 1e6])

    assert (row.p_value, row.verdict) == (0.5, "no difference")


def test_commands_take_turns_in_alternating_order(monkeypatch):
    ran: list[str] = []

    def duration(side: Side) -> tuple[float, str]:
        ran.append(side.text)
        return (2e9 if side.text == "slow" else 1e9), "runs"

    monkeypatch.setattr(interleaved, "_duration_of", duration)
    found = compare_interleaved_runs(Side("slow", command=("a",)), Side("fast", command=("b",)), rounds=3)

    assert ran == ["slow", "fast", "fast", "slow", "slow", "fast", "fast", "slow"]
    assert found.rows[0].speedup.value == pytest.approx(2)


def test_real_commands_are_run(tmp_path):
    with side_of(f"{sys.executable} -c pass") as first, side_of(f"{sys.executable} -c 'import this'") as second:
        found = compare_interleaved_runs(first, second, rounds=2)

    assert found.rows[0].unit == "runs"
    assert found.rows[0].first > 0


def test_a_command_that_fails_is_an_error_with_its_words():
    with side_of(f"{sys.executable} -c 'raise SystemExit(\"sad\")'") as side, pytest.raises(FlightError) as caught:
        compare_interleaved_runs(side, side, rounds=2)

    assert "sad" in caught.value.log_tail


def test_a_side_must_be_something(tmp_path):
    with pytest.raises(InputError, match="no checkout"), side_of(str(tmp_path)):
        pass
    with pytest.raises(InputError, match="neither"), side_of("no-such-program at all"):
        pass


def test_sides_of_two_kinds_and_checkouts_without_workloads_are_refused(tmp_path):
    command, checkout = Side("x", command=("x",)), Side("y", checkout=tmp_path)
    with pytest.raises(InputError, match="cannot be compared"):
        compare_interleaved_runs(command, checkout)
    with pytest.raises(InputError, match="running workloads"):
        compare_interleaved_runs(checkout, checkout)
    with pytest.raises(InputError, match="noise"):
        compare_interleaved_runs(command, command, rounds=1)


def test_a_revision_is_checked_out_beside_and_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *who, *arguments], check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    (tmp_path / "windtunnel").mkdir()
    (tmp_path / "windtunnel/__init__.py").write_text("")
    git("add", ".")
    git("commit", "-qm", "first")

    with side_of("HEAD") as side:
        assert (side.checkout / "windtunnel/__init__.py").exists()

    assert not side.checkout.exists()
    assert len(git("worktree", "list").splitlines()) == 1
