"""What a prediction says of its own error is what the public measurements show."""

from __future__ import annotations

import pytest
from benchmarks.predict_accuracy import model_ratios, operator_ratios

from tests.shared_data import shared_path
from windtunnel.cost.operators.tile import errors_of_ratio
from windtunnel.cost.roofline import BOUND_ERROR


def test_the_stated_error_of_bounds_is_the_measured_one():
    shared_path("cost/neusight/test_ops.csv.gz")
    _, ratios = operator_ratios()

    assert BOUND_ERROR["operators"] == pytest.approx(errors_of_ratio(ratios)["mape"], abs=0.001)
    assert BOUND_ERROR["models"] == pytest.approx(errors_of_ratio(model_ratios())["mape"], abs=0.001)


def test_hardly_a_published_kernel_beats_its_bound():
    shared_path("cost/neusight/test_ops.csv.gz")
    _, ratios = operator_ratios()

    assert (ratios > 1).mean() < 0.001
