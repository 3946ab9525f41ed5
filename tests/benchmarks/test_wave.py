"""Wave scaling by hand: two toy devices whose ratios are powers of two, and published limits of real ones."""

import math

import numpy as np
import pytest
from benchmarks.peers.wave import (
    Launches,
    carry_overhead,
    gamma,
    keep_efficiency,
    pool,
    resident_blocks,
    wave_scale,
    wave_size,
)
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cost.bounds import bounds_on
from windtunnel.errors import InputError, PriceError
from windtunnel.hardware import Device, device


def toy(name, *, bandwidth, clock, units, architecture="volta"):
    return Device(
        name,
        2**30,
        bandwidth_bytes_per_s=bandwidth,
        peak_flops_per_s={"fp32": 1e12},
        num_units=units,
        clock_hz=clock,
        architecture=architecture,
        lanes_per_unit=64,
        shared_bytes=96 * 2**10,
    )


ORIGIN = toy("origin", bandwidth=1e11, clock=1e9, units=10)
TARGET = toy("target", bandwidth=4e11, clock=2e9, units=80)  # ridge at 2.5 flops per byte
BIG = Launches(np.array([100_000]), np.array([256]))  # 8 blocks per unit: 80 and 640 at once
FEW = Launches(np.array([25]), np.array([256]))


@pytest.mark.parametrize(
    ("flops", "moved", "expected"),
    [
        (0, 100, 1.0),
        (100, 0, 0.0),
        (125, 100, 0.75),  # x = 1.25, R = 2.5: 1 - 1.25 / 5
        (250, 100, 0.5),
        (500, 100, 0.25),  # x = 5: 2.5 / 10
        (0, 0, 1.0),
    ],
)
def test_gamma_follows_the_roofline_of_the_target(flops, moved, expected):
    assert gamma([flops], [moved], TARGET).tolist() == [expected]


def test_a_kernel_that_moves_only_scales_by_bandwidth():
    scaled = wave_scale([800.0], ORIGIN, TARGET, flops=[0], bytes_moved=[1], launches=BIG)

    assert scaled.tolist() == [200.0]


def test_a_kernel_that_computes_only_scales_by_clock_and_units():
    """1/2 by the clock, 1/8 by the units."""
    scaled = wave_scale([800.0], ORIGIN, TARGET, flops=[1], bytes_moved=[0], launches=BIG)

    assert scaled.tolist() == [50.0]


def test_at_the_ridge_both_count_by_half():
    """Square roots of 1/4, 1/2 and 1/8."""
    scaled = wave_scale([800.0], ORIGIN, TARGET, flops=[250], bytes_moved=[100], launches=BIG)

    assert scaled.tolist() == pytest.approx([800 * math.sqrt(1 / 4 * 1 / 2 * 1 / 8)])
    assert wave_scale([800.0], ORIGIN, TARGET, flops=[250], bytes_moved=[100]).tolist() == scaled.tolist()


def test_a_kernel_that_fills_no_wave_scales_by_blocks_per_unit():
    """25 blocks on 10 units are 3 rounds, on 80 units one: (1/2 x 1/3) to the power 1 - gamma = 1/2."""
    scaled = wave_scale([900.0], ORIGIN, TARGET, flops=[250], bytes_moved=[100], launches=FEW)

    assert scaled.tolist() == pytest.approx([900 * math.sqrt(1 / 6)])


def test_a_kernel_that_fills_a_wave_on_one_device_scales_as_many():
    """100 blocks fill the origin's 80 but not the target's 640."""
    some = Launches(np.array([100]), np.array([256]))
    scaled = wave_scale([800.0], ORIGIN, TARGET, flops=[1], bytes_moved=[0], launches=some)

    assert scaled.tolist() == [50.0]


def test_the_papers_form_counts_whole_waves():
    """1,000 blocks: 13 waves of 80 and 2 of 640; the bandwidth of a block is 4 / 8 of before, to the power 1/2."""
    some = Launches(np.array([1000]), np.array([256]))
    scaled = wave_scale([1300.0], ORIGIN, TARGET, flops=[250], bytes_moved=[100], launches=some, form="paper")

    assert scaled.tolist() == pytest.approx([1300 * (2 / 13) * math.sqrt(640 / (4 * 80)) * math.sqrt(1 / 2)])


def test_without_counters_only_bandwidth_counts_and_small_kernels_stay():
    both = Launches(np.array([100_000, 25]), np.array([256, 256]))

    assert wave_scale([800.0, 800.0], ORIGIN, TARGET, launches=both, form="bandwidth").tolist() == [200.0, 800.0]
    assert wave_scale([800.0], ORIGIN, TARGET, form="bandwidth").tolist() == [200.0]


@given(
    st.floats(1, 1e9),
    st.floats(0, 1e12),
    st.floats(1, 1e12),
    st.integers(1, 10**6),
    st.sampled_from(["waves", "paper", "bandwidth"]),
)
def test_a_device_scales_to_itself_unchanged(took, flops, moved, blocks, form):
    launched = Launches(np.array([blocks]), np.array([128]))
    scaled = wave_scale([took], TARGET, TARGET, flops=[flops], bytes_moved=[moved], launches=launched, form=form)

    np.testing.assert_allclose(scaled, [took])


@pytest.mark.parametrize(
    ("name", "launches", "expected"),
    [
        ("v100-sxm2-32g", Launches(np.array([1]), np.array([256])), 8),  # 2048 threads
        ("t4", Launches(np.array([1]), np.array([256])), 4),  # 1024 threads
        ("v100-sxm2-32g", Launches(np.array([1]), np.array([32])), 32),  # slots
        ("t4", Launches(np.array([1]), np.array([32])), 16),
        ("v100-sxm2-32g", Launches(np.array([1]), np.array([256]), 128), 2),  # 65,536 registers of 32,768
        ("v100-sxm2-32g", Launches(np.array([1]), np.array([128]), 0, 40 * 2**10), 2),  # 96 KiB of 40
        ("rtx3090", Launches(np.array([1]), np.array([1000])), 1),  # 32 warps of 48
    ],
)
def test_the_tightest_limit_of_a_unit_counts(name, launches, expected):
    """Limits of the compute capabilities 7.0, 7.5 and 8.6, from the CUDA programming guide."""
    assert resident_blocks(device(name), launches).tolist() == [expected]
    assert wave_size(device(name), launches).tolist() == [expected * device(name).num_units]


def test_what_no_unit_holds_is_refused():
    with pytest.raises(PriceError, match="no unit of"):
        resident_blocks(TARGET, Launches(np.array([1]), np.array([1024]), 255))
    other = toy("other", bandwidth=1e11, clock=1e9, units=1, architecture="cdna")
    with pytest.raises(PriceError, match="what a unit of other holds"):
        resident_blocks(other, BIG)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "guess"}, "no form of wave scaling"),
        ({}, "flops and bytes"),
        ({"flops": [1], "bytes_moved": [1], "form": "paper"}, "needs launches"),
    ],
)
def test_what_is_missing_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        wave_scale([1.0], ORIGIN, TARGET, **arguments)


def test_a_device_without_a_clock_is_refused():
    mute = Device("mute", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e9})

    with pytest.raises(InputError, match="clock of mute"):
        wave_scale([1.0], ORIGIN, mute, flops=[1], bytes_moved=[1])


def test_keeping_the_efficiency_keeps_the_share_of_the_bound():
    """10 us of bound on the origin took 20 us; 2.5 us on the target then take 5."""
    on_origin, on_target = (bounds_on(one, [0.0], [1e6], overhead_ns=0.0) for one in (ORIGIN, TARGET))

    assert keep_efficiency([20_000.0], on_origin, on_target).tolist() == [5_000.0]


def test_pooled_predictions_lie_between_and_say_how_far_apart_they_are():
    mean, spread = pool([[100.0, 30.0, np.nan], [400.0, np.nan, np.nan]])

    assert mean[:2].tolist() == pytest.approx([200.0, 30.0])
    assert spread[0] == pytest.approx(math.log(4) / math.sqrt(2))
    assert np.isnan(spread[1:]).all()
    assert np.isnan(mean[2])


def test_what_kernels_do_not_explain_is_carried_over():
    assert carry_overhead([100.0, 50.0], [80.0, 60.0], [40.0, 30.0]).tolist() == [60.0, 30.0]
