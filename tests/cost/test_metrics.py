import numpy as np
import pytest

from windtunnel.cost.metrics import errors_of


def test_errors_by_hand():
    measured = np.array([1.0, 2.0, 4.0, 10.0, 20.0])
    predicted = np.array([1.09, 1.82, 4.0, 22.0, 21.0])

    errors = errors_of(predicted, measured)

    assert errors.mape == pytest.approx((0.09 + 0.09 + 0 + 1.2 + 0.05) / 5)
    assert errors.signed_mean == pytest.approx((0.09 - 0.09 + 0 + 1.2 + 0.05) / 5)
    assert errors.within_5 == pytest.approx(0.4)
    assert errors.within_10 == pytest.approx(0.8)
    assert errors.within_20 == pytest.approx(0.8)
    assert errors.rmse_s == pytest.approx(np.sqrt((0.0081 + 0.0324 + 0 + 144 + 1) / 5))
    assert errors.geometric_mean_ratio == pytest.approx(np.prod(predicted / measured) ** (1 / 5))
