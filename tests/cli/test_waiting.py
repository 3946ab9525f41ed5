"""How the threads of a program wait where the machine is busy."""

from __future__ import annotations

import os

import pytest

from tests.cli.command import windtunnel
from tests.cli.graphs import step_graph
from windtunnel.cli.console import choose_wait_policy
from windtunnel.graph import save


@pytest.fixture
def busy(monkeypatch):
    """A machine on which a thread runs half of the time."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr("windtunnel.measure.disturbance.free_share", lambda: 0.5)


@pytest.mark.parametrize(
    ("given", "share", "expected"),
    [(None, 0.5, "passive"), (None, 0.99, None), ("active", 0.5, "active")],
)
def test_threads_sleep_only_on_a_busy_machine_and_never_against_the_user(monkeypatch, given, share, expected):
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr("windtunnel.measure.disturbance.free_share", lambda: share)

    choose_wait_policy()

    assert expected == os.environ.get("OMP_WAIT_POLICY")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("whatif", "faster-cpu"), "passive"),
        (("whatif", "faster-cpu", "--prices", "paper"), None),
        (("explain", "--html", "train.html"), "passive"),
        (("explain", "--html", "train.html", "--no-whatifs"), None),
    ],
)
def test_every_verb_that_runs_operators_again_lets_their_threads_sleep(
    busy, monkeypatch, tmp_path, arguments, expected
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    stored = save(
        step_graph().note({"program": {"calls": [{"mark": "backward"}], "parameters": {}}}), tmp_path / "train.wt"
    )
    verb, *options = arguments
    outcome = windtunnel(verb, stored, *options)

    assert 0 == outcome.code, outcome.stderr
    assert expected == os.environ.get("OMP_WAIT_POLICY")
