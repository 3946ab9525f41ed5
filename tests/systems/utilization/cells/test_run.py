"""Searches of the space of cells with winners that really run."""

import math

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("optuna", reason="needs the extra search")

from windtunnel.cost.peak import Peak
from windtunnel.measure.database import ProfileDatabase
from windtunnel.systems.utilization import study as uses
from windtunnel.systems.utilization.cells import run as flights
from windtunnel.systems.utilization.cells.run import SEARCHES, cell_prices, fly_searches

PEAK = Peak(1e11, 0.0, (512,) * 3, "avx512f", "float32", 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(flights, "measure_peak", lambda *_, **__: PEAK)
    monkeypatch.setattr(flights, "_NUM_FITTED", 2)
    monkeypatch.setattr(flights, "_MAX_FLOWN", 3)


@pytest.mark.slow
def test_winners_are_measured_beside_their_prediction():
    prices = cell_prices(image_size=8, rounds=1)
    study = fly_searches(prices, num_trials=24, rounds=1)

    assert set(prices.parts.kernels()) <= set(prices.table)
    assert list(SEARCHES) == [front.name for front in study.fronts]
    assert math.isclose(1.0, max(front.area_ratio for front in study.fronts))
    for front in study.fronts:
        assert 1 <= len(front.flown) <= 3
        assert all(one in front.search.front and took > 0 for one, took in front.flown)


@pytest.mark.slow
def test_the_constant_of_the_framework_is_fitted_once(monkeypatch):
    database = ProfileDatabase(":memory:")
    monkeypatch.setattr(uses, "cell_prices", lambda **_: cell_prices(image_size=8, rounds=1))
    first = uses.framework_overhead(1, database=database)
    monkeypatch.setattr(uses, "cell_prices", None)

    assert first == uses.framework_overhead(1, database=database)
    assert 3 == first.num_nets
