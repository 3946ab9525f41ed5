"""``windtunnel calibrate``: really measures, for a moment."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import windtunnel
from tests.cost.test_calibration import captured_here
from tests.whatifs.test_forecast import step
from windtunnel.graph import save

pytest.importorskip("torch", reason="needs the extra torch")


@pytest.mark.slow
def test_a_short_calibration_measures_limits_samples_and_neighbors(tmp_path, monkeypatch):
    from windtunnel.cost import calibration, interference, peak
    from windtunnel.measure.database import ProfileDatabase

    monkeypatch.setattr(peak, "_BUDGET_S", 0.01)
    monkeypatch.setattr(peak, "_SIDES", (64,))
    monkeypatch.setattr(calibration, "_ROUND_S", 0.0)
    monkeypatch.setattr(interference, "_RUN_S", 0.05)
    monkeypatch.setattr(interference, "_ROUNDS", 1)
    graph, database = save(captured_here(step()), tmp_path / "train.wt"), tmp_path / "profile.db"
    outcome = windtunnel(
        "calibrate", "--time-limit", "1ms", "--threads", "1", "--database", database, "--learn", graph, "--json"
    )
    found = json.loads(outcome.stdout)

    assert 0 == outcome.code
    assert "windtunnel.calibration/1" == found["schema"]
    assert all(one["peak_flops_per_s"]["fp32"] > 0 for one in found["limits"])
    assert 1 == found["limits"][0]["num_threads"]
    assert 3 == found["num_learned"]
    assert {"core", "memory"} == set(found["slowdown"])
    assert len(ProfileDatabase(database)) > 20
    assert "next: windtunnel predict" in outcome.stderr


def test_a_budget_of_nothing_is_refused():
    outcome = windtunnel("calibrate", "--time-limit", "0s")

    assert 2 == outcome.code
    assert "nothing can be measured" in outcome.stderr
