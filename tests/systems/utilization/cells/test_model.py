"""A device from ten samples: against the textbook posterior, and on published latencies."""

import numpy as np
import pytest
from benchmarks.nas_few_shot import flops_proxy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.systems.utilization.cells.latencies import cell_features, read_latencies
from windtunnel.systems.utilization.cells.model import FewShot, FewShotSettings, rank_correlation, tune
from windtunnel.workloads.cells import Cell

# 60 nets of four kinds of parts; a device is a price list of the parts
PARTS = np.random.default_rng(0).integers(0, 4, (60, 4)).astype(float)
PRICES = np.random.default_rng(1).uniform(0.5, 2.0, (4, 6))
SOURCES = 1.0 + PARTS @ PRICES


def test_the_posterior_is_that_of_the_textbook():
    """Rasmussen and Williams, Gaussian Processes, 2006, equations 2.23 and 2.24."""
    prior = FewShot.of(SOURCES, PARTS, FewShotSettings(noise=0.02))
    rows = np.array([3, 17, 44])
    covariance = prior.factor_NP @ prior.factor_NP.T
    latency = 5 * prior.mean_N[rows] * [1.1, 1.0, 0.9]
    mean, std = prior.transfer(rows, latency)
    middle = np.linalg.inv(covariance[np.ix_(rows, rows)] + 0.02 * np.eye(3))
    residual = latency / 5 - prior.mean_N[rows]
    expected = prior.mean_N + covariance[:, rows] @ middle @ residual
    variance = np.diag(covariance - covariance[:, rows] @ middle @ covariance[rows]) + 0.02

    np.testing.assert_allclose(5 * np.maximum(expected, 0.01), mean)
    np.testing.assert_allclose(25 * variance * (5 + residual @ middle @ residual) / 8, std**2)


def test_prices_that_add_up_are_found_again():
    prior = FewShot.of(SOURCES, PARTS, FewShotSettings(features=1.0, noise=1e-6))
    truth = 7 * (1.0 + PARTS @ np.array([3.0, 0.1, 1.0, 1.0]))
    rows = prior.choose(10)
    mean, _ = prior.transfer(rows, truth[rows])

    np.testing.assert_allclose(truth, mean, rtol=0.01)


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-3, 1e3), st.integers(0, 99))
def test_other_units_give_the_same_answer_in_those_units(factor, seed):
    prior = FewShot.of(SOURCES, PARTS)
    rows = prior.choose(5, num_candidates=30, seed=seed)
    latency = SOURCES[rows, 0] * np.linspace(0.8, 1.2, 5)
    mean, std = prior.transfer(rows, latency)
    other_mean, other_std = prior.transfer(rows, factor * latency)

    np.testing.assert_allclose(factor * mean, other_mean)
    np.testing.assert_allclose(factor * std, other_std)


def test_samples_are_distinct_and_the_first_matters_most():
    """Against trying every net: the first sample leaves the least variance in all."""
    prior = FewShot.of(SOURCES, PARTS)
    covariance, noise = prior.factor_NP @ prior.factor_NP.T, prior.settings.noise
    left = [np.trace(covariance) - (row @ row) / (row[at] + noise) for at, row in enumerate(covariance)]
    rows = prior.choose(12)

    assert int(np.argmin(left)) == rows[0]
    assert 12 == len(set(rows.tolist()))


def test_tuning_prefers_what_works_on_the_sources():
    wise, foolish = FewShotSettings(features=1.0, noise=1e-4), FewShotSettings(sources=1e-6, features=1e-6, noise=10)
    chosen = tune(SOURCES, PARTS, num_samples=6, grid=[foolish, wise])

    assert (wise.sources, wise.features, wise.noise) == (chosen.sources, chosen.features, chosen.noise)
    assert chosen.stretch > 0


def test_ranks_of_equal_values_are_shared():
    """By hand: ranks 1.5, 1.5, 3 against 1, 2, 3 correlate with 1.5 / sqrt(1.5 * 2)."""
    assert rank_correlation([5, 5, 9], [1, 2, 3]) == pytest.approx(1.5 / np.sqrt(3.0))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (SOURCES[:, :1], "two or more source devices"),
        (np.where(SOURCES == SOURCES[3, 2], 0.0, SOURCES), "not above zero"),
    ],
)
def test_sources_that_teach_nothing_are_refused(sources, message):
    with pytest.raises(InputError, match=message):
        FewShot.of(sources, PARTS)


@pytest.mark.parametrize(
    ("rows", "latency"), [([1, 2], [1.0]), ([], []), ([1, 2], [1.0, 0.0]), ([1, 2], [1.0, float("nan")])]
)
def test_samples_that_cannot_be_are_refused(rows, latency):
    with pytest.raises(InputError, match=r"above zero|belong together"):
        FewShot.of(SOURCES, PARTS).transfer(rows, latency)


def test_too_many_samples_or_too_few_sources_are_refused():
    with pytest.raises(InputError, match="61 samples"):
        FewShot.of(SOURCES, PARTS).choose(61)
    with pytest.raises(InputError, match="needs three"):
        tune(SOURCES[:, :2], PARTS)


# --- published latencies ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    return read_latencies(shared_path("cost/nasbench201_latency/latency_ms.csv.gz"))


PUBLISHED = {"1080ti_1": 0.791, "titanx_256": 0.681, "pixel3": 0.841, "samsung_a50": 0.972, "silver_4210r": 0.982}


def test_the_proxy_ranks_as_published(table):
    flops = flops_proxy(table.cells)

    assert {name: round(rank_correlation(flops, table.on(name)), 3) for name in PUBLISHED} == PUBLISHED
    assert set(range(15_625)) == {cell.index for cell in table.cells}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["1080ti_256", "gold_6240", "pixel3"])
def test_ten_samples_rank_a_new_device_better_than_flops(table, device):
    prior = FewShot.of(table.without([device]), cell_features(table.cells))
    truth, rows = table.on(device), prior.choose(10)
    mean, std = prior.transfer(rows, truth[rows])

    assert rank_correlation(mean, truth) > max(0.88, rank_correlation(flops_proxy(table.cells), truth))
    assert (std > 0).all()


def test_features_tell_written_from_live_operations():
    """The second cell has a convolution that nothing reads: it differs from the first only as written."""
    plain = Cell(("none", "none", "none", "skip_connect", "none", "none"))
    dead = Cell(("nor_conv_3x3", "none", "none", "skip_connect", "none", "none"))
    features = cell_features([plain, dead])
    differs = features[0] != features[1]

    assert (2, 57) == features.shape
    assert differs[:4].any()  # counts as written
    assert not differs[4:8].any()  # counts of live edges
    assert differs[8:32].any()
    assert not differs[32:].any()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("model,ms\na,1\n", "cells.csv"),
        ("index,arch,gpu\n0,|none~0|,1.0\n", "line 2"),
        (f"index,arch,gpu\n0,{Cell.of_index(0).name},fast\n", "line 2"),
        (f"index,arch,gpu\n0,{Cell.of_index(0).name},1.0\n1,{Cell.of_index(1).name}\n", "line 3"),
    ],
)
def test_a_table_that_cannot_be_read_says_where(tmp_path, text, where):
    path = tmp_path / "cells.csv"
    path.write_text(text)

    with pytest.raises(InputError) as caught:
        read_latencies(path)
    assert where in caught.value.where


def test_a_missing_or_broken_file_is_named(tmp_path):
    broken = tmp_path / "cells.csv.gz"
    broken.write_bytes(b"no gzip")

    for path in (broken, tmp_path / "absent.csv"):
        with pytest.raises(InputError, match=r"cannot read the file|no table of latencies"):
            read_latencies(path)


def test_an_unknown_device_is_named(table):
    with pytest.raises(InputError, match="titanz"):
        table.on("titanz")
