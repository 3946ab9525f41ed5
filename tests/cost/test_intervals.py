"""An interval holds the truth as often as it says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cost.bounds import bounds
from windtunnel.cost.intervals import ConformalIntervals, draw_durations
from windtunnel.cost.pricer import exact_prices
from windtunnel.errors import InputError
from windtunnel.graph import GraphBuilder, Kind


def priced(number, efficiency=0.5):
    return exact_prices(bounds(np.full(number, 1e9), 0, flops_per_s=1e12, bytes_per_s=1e9), efficiency)


def skewed(rng, count, scale=0.3):
    """Errors of a model that is too hopeful, with a long tail."""
    return rng.exponential(scale, count) + rng.normal(0.1, 0.02, count)


def covered(found, classes, ratios, scales=1.0):
    offered = found.around(priced(len(ratios)), classes, scales)
    measured = priced(len(ratios)).duration_ns * np.exp(ratios)
    return (offered.duration_low_ns <= measured) & (measured <= offered.duration_high_ns)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
def test_coverage_is_nominal_for_any_shape_of_error(level):
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(200):
        found = ConformalIntervals.fit(["a"] * 120, skewed(rng, 120), level=level)
        shares.append(covered(found, ["a"] * 200, skewed(rng, 200)).mean())

    assert level - 0.01 <= np.mean(shares) <= level + 0.03


def test_every_class_has_its_own_coverage():
    rng = np.random.default_rng(2)
    scale = {"steady": 0.01, "wild": 2.0}
    inside = {name: [] for name in scale}
    for _ in range(100):
        ratios = np.concatenate([skewed(rng, 100, one) for one in scale.values()])
        found = ConformalIntervals.fit(["steady"] * 100 + ["wild"] * 100, ratios)
        for name, one in scale.items():
            inside[name].append(covered(found, [name] * 100, skewed(rng, 100, one)).mean())

    assert all(0.88 <= np.mean(shares) <= 0.94 for shares in inside.values())


def test_intervals_grow_with_what_the_model_says_of_itself():
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(100):
        scales = rng.uniform(0.1, 3, 300)
        ratios = scales * rng.standard_normal(300)
        found = ConformalIntervals.fit(["a"] * 200, ratios[:200], scales=scales[:200])
        shares.append(covered(found, ["a"] * 100, ratios[200:], scales[200:]).mean())

    assert 0.88 <= np.mean(shares) <= 0.93


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=60), st.floats(0.5, 0.95))
def test_the_interval_leaves_out_no_more_than_it_says_of_its_own_samples(ratios, level):
    found = ConformalIntervals.fit(["a"] * len(ratios), ratios, level=level)
    if np.isnan(found.pooled[0]):
        assert len(ratios) < 2 / (1 - level)
        return
    low, high = found.pooled

    assert np.mean([low <= one <= high for one in ratios]) >= level - 1e-9


def test_a_class_with_few_samples_uses_all_and_too_few_say_nothing():
    found = ConformalIntervals.fit(["a"] * 50 + ["b"] * 3, np.linspace(-1, 1, 53))

    assert ["a"] == list(found.by_class)
    assert np.isfinite(found.around(priced(1), ["b"]).efficiency_low).all()
    assert np.isnan(ConformalIntervals.fit(["a"] * 5, np.zeros(5)).around(priced(1), ["a"]).efficiency_low).all()


def test_intervals_are_kept_as_json():
    for found in (ConformalIntervals.fit(["a"] * 50, np.linspace(-1, 1, 50)), ConformalIntervals.fit(["a"], [0.0])):
        again = ConformalIntervals.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
        assert repr(found) == repr(again)
    with pytest.raises(InputError, match="no intervals"):
        ConformalIntervals.from_dict({"level": 0.9})


def test_impossible_samples_are_named():
    with pytest.raises(InputError, match="zero, negative or not a number"):
        ConformalIntervals.fit(["a", "a"], [0.0, np.inf])
    with pytest.raises(InputError, match="level"):
        ConformalIntervals.fit(["a"], [0.0], level=1.5)


def test_errors_of_one_operator_go_together():
    builder = GraphBuilder()
    for number, op in enumerate(("conv", "conv", "relu", "python")):
        builder.task(f"t{number}", op=op, kind=Kind.COMPUTE, duration_ns=1000)
    graph = builder.build().with_columns(duration_std_ns=[100, 100, 100, 0])
    drawn = draw_durations(graph, 400, seed=1)

    assert (drawn[:, 0] == drawn[:, 1]).all()
    assert (drawn[:, 0] != drawn[:, 2]).any()
    assert (drawn[:, 3] == 1000).all()
    assert 80 < drawn[:, 0].std() < 120
