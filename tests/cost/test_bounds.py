"""The physical bound: what no device beats, and what it is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cost.bounds import KERNEL_FLOOR_NS, Binding, bounds, bounds_on
from windtunnel.cost.host import Ceilings
from windtunnel.cost.peak import Bandwidth, Peak
from windtunnel.errors import InputError, PriceError
from windtunnel.hardware import Device

CHIP = Device("toy", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e12, "bf16": 4e12}, num_units=10)
CACHED = Device(
    "cached",
    2**30,
    bandwidth_bytes_per_s=1e9,
    peak_flops_per_s={"fp32": 1e12},
    num_units=10,
    l2_bytes=1000,
    cache_bandwidth_bytes_per_s=4e9,
    launch_overhead_ns=2000,
    kind="cpu",
)
works = st.floats(0, 1e15)
tiles = st.integers(0, 10**6)
overheads = st.floats(0, 1e6)
paddings = st.floats(1, 16)


def of(flops=0.0, moved=0.0, **others):
    return bounds([flops], [moved], **({"flops_per_s": 1e12, "bytes_per_s": 1e9, "num_units": 132} | others))


@given(works, works, overheads, tiles, paddings)
def test_a_bound_is_at_least_each_part_and_at_most_their_sum(flops, moved, overhead, num_tiles, padding):
    one = of(flops, moved, overhead_ns=overhead, num_tiles=num_tiles, padding_ratio=padding)
    parts = one.compute_ns[0], one.memory_ns[0], one.overhead_ns[0]

    assert max(parts) <= one.bound_ns[0] <= sum(parts) * (1 + 1e-12)


@given(works, works, st.floats(1, 10), overheads, tiles)
def test_more_work_never_takes_less(flops, moved, factor, overhead, num_tiles):
    others = {"overhead_ns": overhead, "num_tiles": num_tiles, "cache_bytes": 4e7, "cache_bytes_per_s": 4e9}
    less, more = of(flops, moved, **others), of(factor * flops, factor * moved, **others)

    assert less.bound_ns[0] <= more.bound_ns[0] * (1 + 1e-12)


@given(works, works, st.integers(1, 10**6), paddings)
def test_quantized_work_never_takes_less_than_work_that_fills_the_device(flops, moved, num_tiles, padding):
    assert of(flops, moved).bound_ns[0] <= of(flops, moved, num_tiles=num_tiles, padding_ratio=padding).bound_ns[0]


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_one_full_wave_without_overhead_is_the_plain_roofline(flops, moved):
    one = bounds_on(CHIP, [flops], [moved], num_tiles=10)

    assert max(flops / 1e3, moved, KERNEL_FLOOR_NS) == pytest.approx(one.bound_ns[0])


@given(works, st.floats(0, 1e9), st.floats(1, 100))
def test_a_cache_never_costs_time(moved, cache_bytes, faster):
    with_cache = of(moved=moved, cache_bytes=cache_bytes, cache_bytes_per_s=1e9 * faster)

    assert with_cache.bound_ns[0] <= of(moved=moved).bound_ns[0] * (1 + 1e-12)


def test_times_go_up_in_steps_of_waves():
    took = bounds(1e9 * np.array([1, 10, 11, 20]), 0, flops_per_s=1e12, bytes_per_s=1e9, num_tiles=[1, 10, 11, 20],
                  num_units=10)  # fmt: skip

    assert [10e6, 10e6, 20e6, 20e6] == pytest.approx(took.bound_ns)


def test_what_binds_is_named():
    rows = bounds(
        [1e12, 1e3, 1e3, 1.1e10, 1e10],
        [1e3, 1e9, 1e3, 1.2e7, 1e3],
        flops_per_s=1e12,
        bytes_per_s=1e9,
        overhead_ns=[0, 0, 5000, 0, 0],
        num_tiles=[0, 0, 0, 11, 1],
        num_units=10,
    )

    assert ["compute", "memory", "overhead", "wave", "wave"] == rows.binding_names().tolist()
    assert Binding.WAVE == rows.binding[3]


def test_rows_of_different_devices_stand_side_by_side():
    both = bounds([1e9, 1e9], [0, 0], flops_per_s=[1e12, 2e12], bytes_per_s=[1e9, 1e9])

    assert [1e6, 5e5] == both.bound_ns.tolist()


def test_a_kernel_is_never_shorter_than_the_floor():
    rows = bounds_on(CHIP, [0.0, 1e5, 1e9], [1.0, 0.0, 0.0])

    assert [2000, 2000, 1e6] == rows.bound_ns.tolist()
    assert ["overhead", "overhead", "compute"] == rows.binding_names().tolist()
    assert 9000 == bounds_on(replace(CHIP, launch_overhead_ns=9000), [0.0], [1.0]).bound_ns[0]
    assert 2000 == bounds_on(CHIP, [0.0], [1.0], overhead_ns=0.0).bound_ns[0]


def test_limits_that_few_sheets_state_do_not_bound_a_device():
    """The L2 rate of one GPU alone made an older GPU of the catalog the quicker one."""
    cached = replace(CACHED, kind="gpu", launch_overhead_ns=None)

    assert bounds_on(replace(cached, cache_bandwidth_bytes_per_s=None), [0.0], [3000.0]).bound_ns == 3000
    assert bounds_on(cached, [0.0], [3000.0]).bound_ns == 3000


def test_a_measured_host_brings_its_own_overhead_and_cache():
    one = bounds_on(CACHED, [0.0], [3000.0])

    assert 250 + 2000 == one.memory_ns[0]
    assert 2000 + 2250 == one.bound_ns[0]
    assert 3000 == bounds_on(CACHED, [0.0], [3000.0], overhead_ns=0, is_cached=False).bound_ns[0]


def test_types_may_differ_by_row():
    assert [1e6, 2.5e5] == bounds_on(CHIP, [1e9, 1e9], [0, 0], dtype=["fp32", "bf16"]).bound_ns.tolist()
    with pytest.raises(InputError, match="no peak rate"):
        bounds_on(CHIP, [1e9], [0], dtype="fp8")


def test_measured_ceilings_bound_a_host():
    peaks = {"float32": Peak(1e11, 0.0, (512, 512, 512), "avx2", "float32", 2)}
    host = Ceilings(peaks, (Bandwidth(1e11, 0.0, 1000, 2), Bandwidth(1e10, 0.0, 100_000, 2)), 2)
    one = bounds_on(host, [1e6, 0, 0], [0, 1000, 100_000], num_tiles=[3, 0, 0])

    assert [1e4 * 4 / 3, 10, 10_000] == pytest.approx(one.bound_ns)
    with pytest.raises(PriceError, match="no peak was measured"):
        bounds_on(host, [1e6], [0], dtype="bf16")


def test_efficiency_and_duration_are_inverse():
    one = of(1e9, 1e3)

    assert 0.5 == one.efficiency([2 * one.bound_ns[0]])[0]
    assert 2 * one.bound_ns[0] == one.duration_ns(0.5)[0]
    assert np.isnan(one.efficiency([0.0])[0])
