"""Forests over kernels whose times follow a known law, so that what they learn can be checked."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sklearn", reason="needs the extra learn")

from windtunnel.cost.ceilings import Ceilings
from windtunnel.cost.peak import Bandwidth, Peak
from windtunnel.errors import InputError, PriceError
from windtunnel.systems.tensor_programs.runtimes.layer_kernels import LayerKernel
from windtunnel.systems.tensor_programs.runtimes.model import (
    PRESETS,
    KernelSample,
    fit_forests,
    jitter,
    sample_adaptively,
)

PEAK = Peak(1e11, 0.0, (512,) * 3, "avx512f", "float32", 1)
CEILINGS = Ceilings({"float32": PEAK}, (Bandwidth(1e10, 0.0, 2**20, 1), Bandwidth(1e10, 0.0, 2**30, 1)), 1)
QUICK = replace(PRESETS["efficiency"], num_trees=30)
PAPER = replace(PRESETS["paper"], num_trees=30)


def law(kernels):
    """Nanoseconds: 80 % of the peak, half of it where channels do not fill vectors; poolings are slow; 2 us each."""
    return np.array([
        2e3 + one.flops / (80 if one.kind != "conv" or one.out_channels % 16 == 0 else 40)
        for one in kernels
    ])  # fmt: skip


def some_kernels(number, seed=0, largest=128):
    rng = np.random.default_rng(seed)
    convs = [
        LayerKernel("conv", int(rng.choice([7, 14, 28, 56])), 8 * int(rng.integers(1, largest // 8)),
                    8 * int(rng.integers(1, largest // 8)), int(rng.choice([1, 3])))
        for _ in range(number)
    ]  # fmt: skip
    pools = [
        LayerKernel("maxpool", int(rng.choice([14, 28])), width, width, 3, 2) for width in range(8, 8 + number // 4)
    ]
    return convs + pools


def measured(number, seed=0, **how):
    kernels = some_kernels(number, seed, **how)
    return KernelSample(tuple(kernels), law(kernels))


def error(forests, sample):
    return float(np.abs(forests.duration_ns(sample.kernels) / sample.duration_ns - 1).mean())


def test_forests_learn_the_law_and_the_sum_is_the_net():
    forests, unseen = fit_forests(measured(300), CEILINGS, QUICK), measured(60, seed=1)

    assert error(forests, unseen) < 0.15
    assert math.isclose(forests.net_ns(unseen.kernels), forests.duration_ns(unseen.kernels).sum())
    assert forests.net_ns([]) == 0


@pytest.mark.slow
def test_efficiencies_carry_to_larger_kernels_and_times_do_not():
    """Trees cannot say more than they saw; the bound can."""
    small, large = measured(300), measured(60, seed=1, largest=512)
    rows = [row for row, one in enumerate(large.kernels) if one.flops > max(seen.flops for seen in small.kernels)]
    beyond = KernelSample(tuple(large.kernels[row] for row in rows), large.duration_ns[rows])
    by_efficiency, by_time = (fit_forests(small, CEILINGS, one) for one in (QUICK, PAPER))

    assert len(rows) > 5
    assert error(by_efficiency, beyond) < 0.3 < error(by_time, beyond)


def test_prices_have_intervals_that_hold_most_of_the_truth():
    sample, unseen = measured(300), measured(100, seed=1)
    prices = fit_forests(sample, CEILINGS, QUICK).prices(unseen.kernels)
    inside = (prices.duration_low_ns <= unseen.duration_ns) & (unseen.duration_ns <= prices.duration_high_ns)

    assert inside.mean() > 0.75
    assert (prices.efficiency > 0).all()
    np.testing.assert_allclose(prices.duration_ns, prices.bounds.bound_ns / prices.efficiency)


def test_the_published_settings():
    assert ("latency", 320, 70, 6) == tuple(
        getattr(PRESETS["paper"], name) for name in ("target", "num_trees", "max_depth", "features_per_split")
    )


def test_kinds_without_a_forest_are_named():
    forests = fit_forests(measured(40), CEILINGS, QUICK)

    with pytest.raises(PriceError, match="1 of 2 kernels have no forest") as caught:
        forests.net_ns([LayerKernel("conv", 8, 8, 8), LayerKernel("fc", 1, 8, 8)])
    assert "fc" in caught.value.where


def test_what_cannot_be_learned_from_is_refused():
    sample = measured(40)

    with pytest.raises(InputError, match=r"a time of 0\.0 ns"):
        fit_forests(replace(sample, duration_ns=sample.duration_ns * 0), CEILINGS)
    with pytest.raises(InputError, match="needs 5 kernels"):
        fit_forests(KernelSample(sample.kernels[:3], sample.duration_ns[:3]), CEILINGS)
    with pytest.raises(InputError, match="unknown target"):
        fit_forests(sample, CEILINGS, replace(QUICK, target="energy"))


# --- adaptive sampling ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_is_measured_around_what_was_wrong():
    asked = []

    def measure(kernels):
        asked.append(list(kernels))
        return law(kernels)

    forests, sample, errors = sample_adaptively(
        some_kernels(100),
        measure,
        CEILINGS,
        settings=QUICK,
        num_first=60,
        num_rounds=2,
        num_around=5,
        most_per_round=40,
    )

    assert len(errors) == len(asked) <= 3
    assert len(sample) == sum(map(len, asked))
    assert all(len(row) <= 40 for row in asked[1:])
    assert errors[-1] <= errors[0]
    assert {"conv", "maxpool"} == set(forests.forests)


def test_nothing_more_is_measured_once_nothing_is_wrong():
    """Every time is its bound: the first forest knows all."""
    asked = []

    def measure(kernels):
        asked.append(len(kernels))
        return np.array([max(one.flops / 100, one.bytes_moved / 10) for one in kernels])

    _, _, errors = sample_adaptively(some_kernels(40), measure, CEILINGS, settings=QUICK, num_first=40)

    assert 1 == len(asked) == len(errors)
    assert errors[0] < 1e-6


def test_an_empty_prior_is_refused():
    with pytest.raises(InputError, match="prior is empty"):
        sample_adaptively([], law, CEILINGS)


@given(
    st.integers(1, 600), st.integers(1, 600), st.sampled_from(["conv", "dwconv", "maxpool", "fc"]), st.integers(0, 99)
)
def test_jittered_channels_stay_near_and_tied(inputs, outputs, layer, seed):
    if layer not in ("conv", "fc"):
        outputs = inputs
    groups = inputs if layer == "dwconv" else 1
    kernel = LayerKernel(layer, 14, inputs, outputs, kernel=3, groups=groups)
    made = jitter(kernel, np.random.default_rng(seed))

    assert (made.kind, made.size, made.kernel) == (kernel.kind, kernel.size, kernel.kernel)
    assert made.in_channels % math.gcd(inputs, 16) == 0
    for before, after in ((inputs, made.in_channels), (outputs, made.out_channels)):
        assert 0.5 * before - 16 <= after <= 1.2 * before + 16
    if layer in ("dwconv", "maxpool"):
        assert made.in_channels == made.out_channels
    assert made.groups == (made.in_channels if layer == "dwconv" else 1)
