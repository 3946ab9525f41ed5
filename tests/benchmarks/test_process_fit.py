"""Scales of a Gaussian process are those under which its timings are likeliest."""

import numpy as np
import pytest

pytest.importorskip("scipy")

from benchmarks.gpu.process_fit import fit_process, unlikelihood


def test_slopes_are_those_of_the_likelihood():
    random = np.random.default_rng(0)
    values, labels = random.normal(size=(25, 3)), random.normal(size=25)
    logs = np.array([-0.5, -1.0, -0.2, 0.1, -0.7])
    value, slopes = unlikelihood(logs, values, labels)
    for index in range(len(logs)):
        step = np.eye(len(logs))[index] * 1e-5
        found = (unlikelihood(logs + step, values, labels)[0] - unlikelihood(logs - step, values, labels)[0]) / 2e-5
        assert slopes[index] == pytest.approx(found, rel=1e-4, abs=1e-5), (index, value)


def test_a_feature_that_matters_falls_faster_than_one_that_does_not():
    features = np.random.default_rng(1).normal(size=(200, 4))
    features[:, 3] = 7.0
    labels = np.sin(2 * features[:, 0])
    process = fit_process(features, labels, np.ones(200))
    assert process.scales[0] > 2 * process.scales[1]
    assert process.scales[3] == 0
    others = np.random.default_rng(2).normal(size=(100, 4))
    others[:, 3] = 7.0
    assert np.median(np.abs(process.predict(others) - np.sin(2 * others[:, 0]))) < 0.1


def test_a_timing_that_is_trusted_more_counts_more():
    features = np.zeros((3, 1))
    features[2] = 1.0
    labels = np.array([0.0, 1.0, 3.0])
    first, second = (fit_process(features, labels, np.array(trust)) for trust in ([10, 1, 1], [1, 10, 1]))
    assert first.predict(features)[0] < second.predict(features)[0]
