"""Latencies carried to a new device: by logarithms, and never worse than by one common factor."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from tests.shared_data import shared_path
from windtunnel.systems.utilization.cells.transfer import FACTOR, METHODS, Transfer

RNG = np.random.default_rng(3)
WORK = np.exp(RNG.uniform(-4, 4, (200, 2)))  # of two kinds, over orders of magnitude
RATES = np.exp(RNG.uniform(-1, 1, (2, 5)))
SOURCES_MS = WORK @ RATES
NOTHING = np.zeros((200, 0))


def found(truth_ms, num_samples=20, sources=SOURCES_MS):
    learned = Transfer.of(sources, np.zeros((len(sources), 0)), num_samples=num_samples)
    rows = learned.choose(num_samples, num_candidates=1500)
    return learned.predict(rows, truth_ms[rows])


def mean_error(predicted, truth):
    return float(np.abs(predicted / truth - 1).mean())


def test_a_device_that_is_a_mixture_of_known_ones_is_found_over_orders_of_magnitude():
    truth = WORK @ np.array([2.0, 0.7])
    one = found(truth)

    assert mean_error(one.mean_ms, truth) < 0.1
    assert one.method in METHODS
    assert set(METHODS) == set(one.errors)
    assert one.errors[one.method] <= one.errors[FACTOR]


def test_a_device_that_is_only_slower_needs_no_more_than_a_factor():
    truth = 3 * np.exp(np.log(SOURCES_MS).mean(axis=1)) * np.exp(0.1 * RNG.standard_normal(200))
    one = found(truth)

    assert mean_error(one.mean_ms, truth) < 0.12
    assert 0.8 < ((one.low_ms <= truth) & (truth <= one.high_ms)).mean()


def test_an_artefact_among_the_measured_nets_does_not_spoil_all_others():
    truth = 2 * SOURCES_MS[:, 0]
    learned = Transfer.of(SOURCES_MS, NOTHING, num_samples=12)
    rows = learned.choose(12)
    measured = truth[rows].copy()
    measured[3] /= 1000

    assert np.median(np.abs(learned.predict(rows, measured).mean_ms / truth - 1)) < 0.5


def test_with_one_or_two_measured_nets_there_is_one_factor():
    for rows in ([5], [5, 90]):
        one = Transfer.of(SOURCES_MS, NOTHING, num_samples=2).predict(rows, 2 * SOURCES_MS[rows, 1])

        assert (FACTOR, {}) == (one.method, one.errors)
        assert np.isfinite(one.mean_ms).all()


def vision_models():
    """Milliseconds per image of the models that all published sheets have, on four GPUs and a CPU."""
    sheets = (
        *("amp-nchw-pt240-cu124-rtx3090", "amp-nchw-pt240-cu124-rtx4090", "amp-nchw-pt291-cu130-pro6000maxq"),
        *("amp-nhwc-pt240-cu124-rtx3090", "fp32-nchw-pt240-cpu-i9_10940x-dynamo"),
    )
    tables = []
    for name in sheets:
        with shared_path(f"cost/timm_benchmarks/benchmark-infer-{name}.csv").open() as lines:
            rows = [row for row in csv.DictReader(lines) if float(row["infer_samples_per_sec"] or 0) > 0]
        tables.append(
            {(row["model"], row["infer_img_size"]): 1e3 / float(row["infer_samples_per_sec"]) for row in rows}
        )
    keys = sorted(set.intersection(*map(set, tables)))
    return np.array([[one[key] for one in tables] for key in keys])


@pytest.mark.parametrize("device", range(5))
def test_forty_published_vision_models_tell_of_all_others_and_no_factor_does_it_better(device):
    table = vision_models()
    sources, truth = np.delete(table, device, axis=1), table[:, device]
    one = found(truth, 40, sources)
    logs = np.log(sources).mean(axis=1)
    learned = Transfer.of(sources, np.zeros((len(sources), 0)), num_samples=40)
    rows = learned.choose(40, num_candidates=1500)
    factor = np.exp(logs + (np.log(truth) - logs)[rows].mean())

    assert mean_error(one.mean_ms, truth) <= mean_error(factor, truth)
    assert mean_error(one.mean_ms, truth) < (0.12 if device < 4 else 0.4)  # the last is a CPU, all others are GPUs
