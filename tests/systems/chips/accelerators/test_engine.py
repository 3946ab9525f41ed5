"""Products and vector operators on machines of every size."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.hardware.accelerators import DATAFLOWS
from windtunnel.hardware.templates import template_space
from windtunnel.systems.chips.accelerators import Gemms, Machines, product_cycles
from windtunnel.systems.chips.accelerators.systolic import cycles
from windtunnel.systems.chips.accelerators.traffic import traffic

SIZES = st.integers(1, 40)


def machine(**changes):
    numbers = {"rows": 8, "cols": 8, "count": 1, "num_lanes": 16, "buffer_bytes": 4096} | changes
    whole = {name: np.array([value]) for name, value in numbers.items() if name in {
        "rows", "cols", "count", "num_lanes", "buffer_bytes"}}  # fmt: skip
    others = {name: value for name, value in numbers.items() if name not in whole}
    rate = others.pop("bytes_per_cycle", 8.0)
    return Machines(**whole, bytes_per_cycle=np.array([rate]), **others)


def words_of(order, counts, sizes):
    """Timeloop's rule, operand by operand, for one order of loops (outermost first)."""
    total = 0
    for operand, dims in (("x", "mk"), ("w", "kn"), ("y", "mn")):
        relevant = [place for place, loop in enumerate(order) if loop in dims and counts[loop] > 1]
        last = max(relevant, default=-1)
        again = int(np.prod([counts[loop] for place, loop in enumerate(order) if place < last and loop not in dims]))
        size = int(np.prod([sizes[dim] for dim in dims]))
        total += size * (2 * again - 1 if operand == "y" else again)
    return total


def fewest_words(m, n, k, buffer_words):
    sizes = {"m": m, "n": n, "k": k}
    sides = {dim: sorted({min(2**power, size) for power in range(7)}) for dim, size in sizes.items()}
    found = [
        words_of(order, {dim: -(-sizes[dim] // tile[dim]) for dim in sizes}, sizes)
        for high in sides["m"]
        for wide in sides["n"]
        for deep in range(1, k + 1)
        for tile in [{"m": high, "n": wide, "k": deep}]
        if 2 * (high * deep + deep * wide + high * wide) <= buffer_words
        for order in permutations("mnk")
    ]
    return min(found)


@settings(max_examples=25)
@given(SIZES, SIZES, st.integers(1, 12), st.integers(6, 900))
def test_traffic_is_the_best_of_all_tiles_and_orders(m, n, k, buffer_words):
    assert fewest_words(m, n, k, buffer_words) == traffic(m, n, k, buffer_words).words


@given(SIZES, SIZES, SIZES, st.integers(6, 3000), st.integers(0, 3000))
def test_a_larger_buffer_never_moves_more(m, n, k, words, more):
    assert traffic(m, n, k, words + more).words <= traffic(m, n, k, words).words
    assert traffic(m, n, k, 10**9).words == m * k + k * n + m * n


@given(SIZES, SIZES, SIZES, st.integers(2, 300))
def test_own_buffers_never_move_less_than_one_that_all_share(m, n, k, words):
    assert traffic(m, n, k, 3 * words).words <= traffic(m, n, k, 0, [words] * 3).words


@given(SIZES, SIZES, SIZES, st.sampled_from(DATAFLOWS))
def test_one_array_with_an_endless_memory_is_the_closed_form(m, n, k, dataflow):
    one = machine(dataflow=dataflow)

    assert cycles(m, n, k, 8, 8, dataflow) == product_cycles(Gemms.of(m, n, k), one, "compute").item()


@given(SIZES, SIZES, SIZES, st.integers(1, 20), st.integers(1, 40), st.sampled_from(DATAFLOWS))
def test_more_arrays_wider_memory_and_overlap_never_slow_a_product(m, n, k, count, arrays, dataflow):
    work = Gemms.of(m, n, k, count)
    before = product_cycles(work, machine(count=arrays, dataflow=dataflow))

    assert product_cycles(work, machine(count=arrays + 1, dataflow=dataflow)) <= before
    assert product_cycles(work, machine(count=arrays, dataflow=dataflow, bytes_per_cycle=16.0)) <= before
    assert product_cycles(work, machine(count=arrays, dataflow=dataflow, is_overlapped=True)) <= before


@given(SIZES, SIZES, SIZES, st.integers(1, 5), st.integers(1, 40), st.sampled_from(DATAFLOWS))
def test_no_mode_is_quicker_than_the_peak(m, n, k, count, arrays, dataflow):
    work, one = Gemms.of(m, n, k, count), machine(count=arrays, dataflow=dataflow)
    peak, compute, tiled = (product_cycles(work, one, mode).item() for mode in ("peak", "compute", "tiled"))

    assert peak <= compute + 1
    assert compute <= tiled


def test_all_templates_are_priced_as_one_by_one():
    every = template_space().take(np.arange(0, 29_360, 1999))
    work = Gemms.of([4096, 512, 1], [4096, 64, 50257], [1024, 64, 768], [1, 16, 1])
    together = product_cycles(work, Machines.of(every))
    alone = [product_cycles(work, Machines.of(every.take(np.array([row])))) for row in range(len(every))]

    assert np.concatenate(alone, axis=1).tolist() == together.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "rows must be above zero, not 0"),
        ({"bytes_per_cycle": float("nan")}, "bytes_per_cycle must be above zero, not nan"),
        ({"dataflow": "rs"}, "no dataflow is called 'rs'"),
    ],
)
def test_a_machine_that_is_none_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        machine(**changes)


def test_a_buffer_under_one_tile_is_named():
    with pytest.raises(InputError, match="a buffer of 2 words is smaller than one tile"):
        product_cycles(Gemms.of(4, 4, 4), machine(buffer_bytes=4))


def test_an_unknown_mode_is_named():
    with pytest.raises(InputError, match="no mode is called 'best'"):
        product_cycles(Gemms.of(4, 4, 4), machine(), "best")
