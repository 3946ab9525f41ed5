"""Peaks are measured, kept and found again; no duration is asserted, only what arithmetic guarantees."""

import math

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from windtunnel.cost import peak as peaks
from windtunnel.cost.peak import Bandwidth, measure_bandwidth, measure_peak
from windtunnel.errors import InputError
from windtunnel.measure.database import ProfileDatabase


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(peaks, "_SIDES", (32, 64))
    monkeypatch.setattr(peaks, "_BUDGET_S", 0.001)


@pytest.mark.parametrize("dtype", peaks.DTYPES)
def test_every_type_has_a_peak(dtype):
    peak = measure_peak(dtype)

    assert peak.flops_per_s > 0
    assert (dtype, 1) == (peak.dtype, peak.num_threads)
    assert peak.shape in {(32, 32, 32), (64, 64, 64), (8 * 14**2, 256 * 9, 256)}


def test_the_peak_is_the_best_of_its_shapes_and_comes_back_from_the_database():
    database = ProfileDatabase(":memory:")
    first = measure_peak("fp32", 1, database=database)
    sizes = {"peak::gemm": lambda text: [int(one) for one in text.split("x")],
             "peak::convolution": lambda text: [int(one) for one in text.strip("()").split(", ")]}  # fmt: skip
    rates = [2e9 * math.prod(sizes[one.operator](one.signature.partition(" ")[2])) / one.new_ns for one in database]

    assert 3 == len(rates)
    assert math.isclose(max(rates), first.flops_per_s)
    assert first == measure_peak("float32", 1, database=database)


def test_threads_and_types_have_peaks_of_their_own():
    database = ProfileDatabase(":memory:")
    measure_peak("fp32", 1, database=database)
    measure_peak("fp32", 2, database=database)
    measure_peak("bf16", 1, database=database)

    assert 9 == len(database)


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    measure_peak("fp32", before + 1)

    assert before == torch.get_num_threads()


def test_what_is_slow_is_measured_in_one_size_only(monkeypatch):
    monkeypatch.setattr(peaks, "_SLOW_NS", 1)
    database = ProfileDatabase(":memory:")
    found = measure_peak("bfloat16", database=database)

    assert 1 == len(list(database))
    assert (32, 32, 32) == found.shape
    monkeypatch.setattr(peaks, "_measure", lambda *_: pytest.fail("it is known"))
    assert found == measure_peak("bfloat16", database=database)


def test_bandwidth_is_that_of_the_better_of_a_triad_and_of_scaling_in_place():
    database = ProfileDatabase(":memory:")
    found = measure_bandwidth(1, 12 * 4096, database=database)
    kept = {one.operator: one for one in database}
    triad = Bandwidth(12e9 * 4096 / kept["peak::triad"].new_ns, kept["peak::triad"].spread_ratio, 12 * 4096, 1)
    scaling = Bandwidth(24e9 * 4096 / kept["peak::scaling"].new_ns, kept["peak::scaling"].spread_ratio, 12 * 4096, 1)

    assert found == max(triad, scaling, key=lambda one: one.bytes_per_s)
    assert found == measure_bandwidth(1, 12 * 4096, database=database)


def test_without_a_size_the_arrays_exceed_the_caches_or_the_limit():
    assert 64 * 2**20 <= peaks._beyond_caches() <= 768 * 2**20


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: measure_peak("complex64"), "no peak for the type"),
        (lambda: measure_peak("fp32", 0), "compute nothing"),
        (lambda: measure_bandwidth(0), "compute nothing"),
        (lambda: measure_bandwidth(1, 4), "do not fit"),
    ],
)
def test_nonsense_is_refused(call, text):
    with pytest.raises(InputError, match=text):
        call()
