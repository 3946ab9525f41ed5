"""Stalls from times, exactly, and the data's way."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.systems.stalls.features import Features, features_of, fit_stalls, fit_tiers
from windtunnel.systems.stalls.model import CAUSES, RUNS, Reading, Stalls, stalls_of

TIMES = {
    "alone": [100.0, 101.0, 99.0], "apart": [110.0, 111.0, 109.0], "together": [130.0, 131.0, 129.0],
    "network": [390.0, 391.0, 389.0], "cached": [132.0, 129.0, 130.0], "cold": [260.0, 258.0, 262.0],
    "everything": [520.0, 521.0, 519.0],
}  # fmt: skip


SENT = Features(4, 1, 1000)


def stalls(times, reading=None, features=SENT):
    found = {name: np.array(one) for name, one in times.items()}
    return Stalls("job", 2, 8, features, found, stalls_of(found), reading, {}, ())


def test_each_cause_is_the_difference_of_two_runs():
    found = {one.cause: one for one in stalls(TIMES).stalls}

    assert list(CAUSES) == list(found)
    assert (10, 20, 260) == tuple(found[name].per_iteration_ns.value for name in ("contention", "exchange", "network"))
    assert 129 == found["fetch"].per_iteration_ns.value
    assert found["network"].share == pytest.approx(260 / 390)
    assert not found["prep"].is_detected
    assert str(found["prep"]).startswith("not detected (<")


def test_the_one_that_takes_longest_is_to_be_mended_first():
    assert "network" == stalls(TIMES).bottleneck
    assert (
        "fetch" == stalls({name: TIMES[name] for name in ("alone", "apart", "together", "cached", "cold")}).bottleneck
    )
    assert "compute" == stalls(dict.fromkeys(RUNS, TIMES["alone"])).bottleneck


def test_stash_counts_contention_and_exchange_as_one():
    found = stalls(TIMES)

    assert 30 == found.interconnect().per_iteration_ns.value
    assert stalls({"alone": [1.0], "apart": [2.0]}).interconnect() is None


def test_the_sum_of_all_is_compared_with_a_run_that_has_all():
    assert (100 + 10 + 20 + 260 + 0 + 130) / 520 == pytest.approx(stalls(TIMES).sum_over_everything(), rel=0.01)
    assert stalls({name: TIMES[name] for name in ("alone", "apart")}).sum_over_everything() is None


def test_a_run_that_is_faster_with_a_cause_is_kept_at_nothing_and_said():
    (one,) = stalls_of({"alone": [10.0, 10.0], "apart": [9.0, 9.0]})

    assert (0, True, False) == (one.per_iteration_ns.value, one.is_clamped, one.is_detected)


@given(
    times=st.lists(st.floats(1.0, 1e9), min_size=2, max_size=8), lost=st.floats(0.0, 1e9),
    noise=st.integers(0, 2**31 - 1),
)  # fmt: skip
def test_a_disturbance_of_both_runs_of_a_turn_changes_nothing(times, lost, noise):
    slow = np.random.default_rng(noise).uniform(0, 1e9, len(times))
    base = np.array(times)
    plain = stalls_of({"alone": base, "apart": base + lost})
    disturbed = stalls_of({"alone": base + slow, "apart": base + lost + slow})

    assert plain[0].per_iteration_ns.value == pytest.approx(disturbed[0].per_iteration_ns.value, abs=1e-3, rel=1e-6)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"near": [1.0]}, "no run is called 'near'"),
        ({"alone": [1.0], "apart": [1.0, 2.0]}, "turn by turn"),
        ({"alone": []}, "turn by turn"),
        ({}, "turn by turn"),
        ({"alone": [0.0]}, "not above 0"),
        ({"alone": [math.nan]}, "not above 0"),
    ],
)
def test_times_that_cannot_be_are_refused(times, said):
    with pytest.raises(InputError, match=said):
        stalls_of(times)


def test_a_cache_is_as_large_as_reading_needs():
    reading = Reading(bytes_per_sample=1000.0, memory_bytes_per_s=1e9, disk_bytes_per_s=1e6, prep_per_core_per_s=600.0)

    assert 1000 == pytest.approx(reading.fetch_per_s(0.0))
    assert 1e6 == pytest.approx(reading.fetch_per_s(1.0))
    assert reading.useful_cache(500.0) == 0
    assert reading.useful_cache(2e6) is None
    assert 4 == reading.useful_cores(2000.0)
    for wanted in (1500.0, 10_000.0, 900_000.0):
        assert wanted == pytest.approx(reading.fetch_per_s(reading.useful_cache(wanted)))


@given(share=st.floats(0, 1), more=st.floats(0, 1))
def test_more_in_memory_is_never_slower(share, more):
    reading = Reading(3000.0, 5e9, 2e7, 1.0)

    assert reading.fetch_per_s(min(share + more, 1.0)) >= reading.fetch_per_s(share) * (1 - 1e-12)


def test_advice_says_what_would_keep_up():
    reading = Reading(1000.0, 1e9, 1e6, 600.0)
    fast = {name: [8_000_000.0] * 2 for name in ("alone", "apart", "together")}  # 2000 samples/s

    assert ["4 cores prepare as fast as is trained", "reading keeps up from 50% of the samples in memory on"] == stalls(
        fast, reading
    ).advice()
    assert stalls(fast).advice() == []


def test_buckets_are_those_of_ddp():
    import torch
    from torch.distributed import _compute_bucket_assignment_by_size

    sizes = [40, 3_000_000, 1000, 9_000_000, 900_000, 40, 120_000]
    tensors = [torch.empty(size // 4) for size in reversed(sizes)]
    buckets, _ = _compute_bucket_assignment_by_size(tensors, [2**20, 25 * 2**20])

    assert Features(7, len(buckets), sum(sizes)) == features_of(sizes)


@pytest.mark.parametrize("counts", ["tensors", "buckets"])
def test_what_a_collective_and_a_byte_take_is_found_again(counts):
    random = np.random.default_rng(0)
    models = [Features(int(a), int(b), int(c)) for a, b, c in random.integers(1, [200, 30, 10**8], (9, 3))]
    count = {"tensors": "num_tensors", "buckets": "num_buckets"}[counts]
    stalls_ns = [2e5 * getattr(one, count) + 0.5 * one.size_bytes + 1e6 for one in models]
    found = fit_stalls(models, stalls_ns)

    assert counts == found.counts
    assert (2e5, 0.5, 1e6) == pytest.approx((found.collective_ns, found.byte_ns, found.rest_ns), rel=1e-6)
    assert 2e9 == pytest.approx(found.bandwidth_bytes_per_s)
    assert max(found.left_out_errors) < 1e-6
    assert stalls_ns[0] == pytest.approx(found.stall_ns(models[0]))


def test_a_tier_is_fitted_where_four_jobs_stalled():
    """The network of these takes 1 ns a byte; none of them stalls within the machine."""
    found = []
    for size in (100, 200, 400, 800):
        times = {name: [10.0, 10.0] for name in ("alone", "apart", "together")} | {"network": [10.0 + size] * 2}
        found.append(stalls(times, features=Features(2, 1, size)))
    models = fit_tiers(found)

    assert ["network"] == list(models)
    assert 1.0 == pytest.approx(models["network"].byte_ns)
    assert {} == fit_tiers(found[:3])


def test_too_few_models_are_refused():
    with pytest.raises(InputError, match="3 models with 3 stalls"):
        fit_stalls([Features(1, 1, 1)] * 3, [1.0] * 3)
    with pytest.raises(InputError, match="above 0"):
        fit_stalls([Features(1, 1, 1)] * 4, [1.0, 1.0, 1.0, 0.0])
