import json
from typing import get_args

import numpy as np
import pytest

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.transforms import FeatureScale, LabelKind, LabelTransform, check_labels

stats = pytest.importorskip("scipy.stats")

SECONDS = np.exp(np.random.default_rng(1).normal(-9, 1.5, 700))


@pytest.mark.parametrize("kind", get_args(LabelKind))
def test_there_and_back(kind):
    transform = LabelTransform.fit(kind, SECONDS)

    seconds, num_clamped = transform.inverse(transform.forward(SECONDS))

    np.testing.assert_allclose(seconds, SECONDS, rtol=1e-9)
    assert num_clamped == 0


@pytest.mark.parametrize("kind", get_args(LabelKind))
def test_json_keeps_every_parameter(kind):
    transform = LabelTransform.fit(kind, SECONDS)

    assert LabelTransform.from_json(json.loads(json.dumps(transform.to_json()))) == transform


def test_box_cox_equals_scipy():
    transform = LabelTransform.fit("box-cox", SECONDS)
    bent, power = stats.boxcox(SECONDS)

    assert transform.power == pytest.approx(power, abs=1e-6)
    np.testing.assert_allclose(transform.forward(SECONDS) * transform.scale + transform.shift, bent, rtol=1e-6)


def test_yeo_johnson_equals_scipy():
    transform = LabelTransform.fit("yeo-johnson", SECONDS * 1e4)
    bent, power = stats.yeojohnson(SECONDS * 1e4)

    assert transform.power == pytest.approx(power, abs=1e-6)
    np.testing.assert_allclose(transform.forward(SECONDS * 1e4) * transform.scale + transform.shift, bent, rtol=1e-6)


@pytest.mark.parametrize("kind", ["box-cox", "yeo-johnson", "log", "std"])
def test_mean_zero_and_unit_variance(kind):
    values = LabelTransform.fit(kind, SECONDS).forward(SECONDS)

    assert values.mean() == pytest.approx(0, abs=1e-9)
    assert values.std() == pytest.approx(1)


def test_negative_power_explodes_and_is_counted():
    """Left of -1/lambda there is no inverse."""
    transform = LabelTransform("box-cox", power=-0.5)

    seconds, num_clamped = transform.inverse(np.array([0.0, 1.9, 2.0, 5.0, np.nan]))

    assert num_clamped == 3
    np.testing.assert_allclose(seconds, [1.0, 0.05**-2, 1e6, 1e6, 1e-6])


def test_quantiles_clamp_beyond_training_labels():
    transform = LabelTransform.fit("quantile-uniform", SECONDS)

    seconds, num_clamped = transform.inverse(np.array([-0.5, 0.5, 1.5]))

    assert num_clamped == 2
    assert SECONDS.min() <= seconds.min() and seconds.max() <= SECONDS.max() * (1 + 1e-12)  # noqa: PT018


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_labels_without_sense_are_named(wrong):
    with pytest.raises(InputError, match="sample 2") as caught:
        check_labels([1.0, 2.0, wrong], where="times.npz")
    assert caught.value.where == "times.npz"
    with pytest.raises(InputError, match="unknown label transform"):
        LabelTransform.fit("sqrt", SECONDS)


def test_feature_scale():
    rows = np.array([[0.0, 5.0, 1.0], [10.0, 5.0, 3.0]])

    scaled = FeatureScale.fit(rows)(rows)

    np.testing.assert_allclose(scaled, [[0, 0, 0], [1, 0, 1]], atol=1e-5)
