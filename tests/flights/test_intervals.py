"""Intervals of predictions from past receipts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.flights.intervals import conformal_quantile, interval_of, minimum_receipts
from windtunnel.flights.ledger import Residual


def residuals(values, whatif="alpha", family="greek"):
    return [Residual(whatif, family, f"{whatif}{place}", float(value)) for place, value in enumerate(values)]


def test_the_truth_lies_inside_as_often_as_promised_whatever_the_errors_are_like():
    rng = np.random.default_rng(3)
    for draw in (rng.normal, rng.standard_cauchy, lambda size: rng.exponential(size=size)):
        hits = []
        for _ in range(1500):
            *past, future = np.clip(0.05 * draw(size=21), -300, 300)
            backing = interval_of("alpha", 1.5, residuals(past))
            hits.append(backing.low <= 1.5 * math.exp(-future) <= backing.high)

        # 20 receipts at 90 %: rank 19 of 21, so 19/21 = 0.905 exactly in expectation
        assert pytest.approx(19 / 21, abs=0.025) == np.mean(hits)


@given(st.floats(0.5, 0.99), st.data())
def test_below_the_minimum_count_no_receipt_backs_a_number(confidence, data):
    number = data.draw(st.integers(0, minimum_receipts(confidence) - 1))
    backing = interval_of("alpha", 2.0, residuals([0.1] * number), confidence=confidence)

    assert not backing.is_backed
    assert "2.00x (no receipt backs this number)" == str(backing)
    assert interval_of("alpha", 2.0, residuals([0.1] * minimum_receipts(confidence)), confidence=confidence).is_backed


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.floats(0.5, 0.99))
def test_the_conformal_quantile_leaves_enough_scores_below(scores, confidence):
    quantile = conformal_quantile(scores, confidence)

    below = sum(score <= quantile for score in scores)
    assert math.isinf(quantile) or below >= confidence * (len(scores) + 1) - 1e-6


def test_a_whatif_with_receipts_of_its_own_uses_no_others():
    own, others = residuals([0.01] * 9), residuals([1.0] * 90, whatif="beta")

    backing = interval_of("alpha", 1.0, own + others)

    assert ("what-if", 9) == (backing.scope, backing.num_receipts)
    assert pytest.approx((math.exp(-0.01), math.exp(0.01))) == (backing.low, backing.high)
    assert "1.00x (0.99-1.01, 90%, 9 receipts)" == str(backing)


def test_a_new_whatif_borrows_the_receipts_of_all_and_says_so():
    backing = interval_of("gamma", 1.2, residuals([0.1] * 20))

    assert ("all", 20) == (backing.scope, backing.num_receipts)
    assert str(backing).endswith("20 receipts of other what-ifs)")


def test_flying_one_model_a_hundred_times_is_one_receipt():
    again = [Residual("alpha", "greek", "same", 0.1)] * 100

    assert not interval_of("alpha", 1.2, again).is_backed


def test_the_subject_itself_can_be_left_out():
    past = residuals([0.1] * 9)

    assert interval_of("alpha", 1.2, past).is_backed
    assert not interval_of("alpha", 1.2, past, subject="alpha3").is_backed
