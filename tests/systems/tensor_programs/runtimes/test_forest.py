"""Forests as arrays against scikit-learn's own prediction."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs the extra learn")

from windtunnel.systems.tensor_programs.runtimes.forest import Forest


def rows(number, seed):
    rng = np.random.default_rng(seed)
    features = np.round(rng.lognormal(0, 3, (number, 5)), 1)  # ties, and numbers that float32 cannot hold
    return features, features[:, 0] * np.sign(features[:, 1] - 1) + rng.normal(size=number)


@pytest.mark.parametrize("depth", [1, 4, 70])
def test_the_same_trees_say_the_same_as_arrays(depth):
    from sklearn import ensemble

    settings = {"n_estimators": 40, "max_depth": depth, "random_state": 0}
    known, unknown = rows(200, 0), rows(500, 1)[0]
    forest, unseen = Forest.grow(*known, **settings)
    theirs = ensemble.RandomForestRegressor(oob_score=True, **settings).fit(*known)

    np.testing.assert_allclose(forest.predict(unknown), theirs.predict(unknown), rtol=1e-12)
    np.testing.assert_array_equal(unseen, theirs.oob_prediction_)
    assert 40 == len(forest.root)


def test_a_forest_of_stumps_without_a_split_says_the_mean():
    forest, _ = Forest.grow(np.ones((30, 2)), np.full(30, 7.0), n_estimators=40, random_state=0)

    np.testing.assert_array_equal(forest.predict(np.zeros((4, 2))), np.full(4, 7.0))
    assert 0 == len(forest.predict(np.zeros((0, 2))))
