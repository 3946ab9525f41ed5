"""How the threads of a program wait where the machine is busy."""

from __future__ import annotations

import os

import pytest

from windtunnel.cli.console import choose_wait_policy


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
