import numpy as np
import pytest

from windtunnel.systems.tensor_programs.model.ranks import pairwise_rank_accuracy, ranked_errors, top_k_ratio

MEASURED = np.array([1.0, 2.0, 4.0, 10.0, 20.0])
PREDICTED = np.array([1.09, 1.82, 4.0, 22.0, 21.0])
TASK = np.array([0, 0, 0, 1, 1])


def test_by_hand():
    errors = ranked_errors(PREDICTED, MEASURED, TASK)

    assert errors.mape == pytest.approx((0.09 + 0.09 + 0 + 1.2 + 0.05) / 5)
    assert errors.signed_mean == pytest.approx((0.09 - 0.09 + 0 + 1.2 + 0.05) / 5)
    assert errors.within_5 == pytest.approx(0.4)
    assert errors.within_10 == pytest.approx(0.8)
    assert errors.within_20 == pytest.approx(0.8)
    assert errors.rmse_s == pytest.approx(np.sqrt((0.0081 + 0.0324 + 0 + 144 + 1) / 5))
    assert errors.geometric_mean_ratio == pytest.approx(np.prod(PREDICTED / MEASURED) ** (1 / 5))


def test_ranks_by_task():
    assert pairwise_rank_accuracy(PREDICTED, MEASURED, TASK) == pytest.approx((1 + 0) / 2)
    assert pairwise_rank_accuracy(np.ones(5), MEASURED, TASK) == pytest.approx(0.5)


def test_top_k():
    assert top_k_ratio(PREDICTED, MEASURED, TASK, 1) == pytest.approx((1 + 10) / (1 + 20))
    assert top_k_ratio(PREDICTED, MEASURED, TASK, 2) == pytest.approx(1)
    weight = np.array([3.0, 1.0])
    assert top_k_ratio(PREDICTED, MEASURED, TASK, 1, weight) == pytest.approx((3 + 10) / (3 + 20))
