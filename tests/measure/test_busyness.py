"""How much of the cores is left."""

from __future__ import annotations

from windtunnel.hardware import machine
from windtunnel.measure.disturbance import free_share


def test_a_share_is_of_the_whole_time():
    assert 0 < free_share(0.02) <= 1


def test_every_core_is_tried(monkeypatch):
    """The least lucky thread counts."""
    shares = iter([0.5, 1.0] * machine().num_cores)
    monkeypatch.setattr("windtunnel.measure.disturbance._run_until", lambda *_: next(shares))

    assert 0.5 == free_share(0.0)
