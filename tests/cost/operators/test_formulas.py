"""Formulas count what kernels do: lists of tensors, depthwise convolutions, tables, windows and losses."""

from __future__ import annotations

import json

import numpy as np
import pytest

from windtunnel.cost.operators.facts import facts_of
from windtunnel.cost.operators.formulas import has_formula_alone, is_depthwise, parts_of
from windtunnel.cost.operators.learned import LearnedPricer
from windtunnel.cost.operators.learned_model import read_shipped_model
from windtunnel.cost.pricing import floor_of
from windtunnel.cost.work import Work
from windtunnel.hardware import device

CHIP = device("h200-sxm5-141g")


def work(name, shapes, arguments, *, moved, dtype="fp32", strides=""):
    texts = (name, json.dumps(shapes), "", strides, json.dumps(arguments), dtype)
    columns = [np.array([text], dtype=object) for text in texts]
    return Work(*columns, np.zeros(1), np.array([float(moved)]), np.ones(1, dtype=np.int64))


def price_ns(item):
    return LearnedPricer().price(item, CHIP).duration_ns[0]


def lists(name, num_lists, passes, *, count=101, size=1_330_000):
    shapes = [[[size]] * count] * num_lists
    return work(f"aten::{name}", shapes, [], moved=passes * 4 * count * size)


def test_an_optimizers_lists_take_what_their_bytes_take():
    """Recorded on an H200: 134 million parameters took 300 us with two passes over the memory, 420 with three."""
    two, three = lists("_foreach_mul_", 1, 2), lists("_foreach_addcmul_", 3, 3)
    assert has_formula_alone(facts_of(two)).all()
    assert price_ns(two) == pytest.approx(300e3, rel=0.1)
    assert price_ns(three) == pytest.approx(420e3, rel=0.1)


def test_a_few_small_tensors_are_as_long_as_their_largest_chunk():
    short, long = (lists("_foreach_mul_", 1, 2, count=3, size=size) for size in (100, 60_000))
    assert 1_300 < price_ns(short) < 2_000 < price_ns(long) < 12_000


def depthwise(*, is_backward, channels=192, side=28, window=7, groups=None, dtype="tf32"):
    images, weight = [32, channels, side, side], [channels, 1, window, window]
    rest = [[1, 1], [window // 2] * 2, [1, 1], False, [0, 0], groups or channels]
    if groups:
        weight[1] = channels // groups
    if is_backward:
        shapes, arguments = [images, images, weight], [None] * 4 + rest + [[True, True, False]]
        return work("aten::convolution_backward", shapes, arguments, moved=1e8, dtype=dtype)
    return work("aten::convolution", [images, weight], [None, None, None, *rest], moved=1e8, dtype=dtype)


def test_a_depthwise_gradient_is_far_slower_than_its_bytes():
    """Recorded on an H100: 18 of them took 20 ms of a step of ConvNeXt, where all bytes take less than 2."""
    backward, forward = depthwise(is_backward=True), depthwise(is_backward=False)
    facts = facts_of(backward)
    assert is_depthwise(facts).all()
    (part,) = parts_of(facts, CHIP)
    assert price_ns(backward) == pytest.approx(part.terms[0] @ read_shipped_model().rates[part.name])
    assert price_ns(backward) > 500_000
    assert price_ns(backward) > 5 * price_ns(forward)
    assert price_ns(depthwise(is_backward=True, dtype="bf16")) < price_ns(backward)
    assert not is_depthwise(facts_of(depthwise(is_backward=True, groups=2))).any()


def test_a_loss_reads_one_score_of_each_row():
    scores = [4096, 50_304]
    loss = work("aten::nll_loss_forward", [scores, [4096], [], [], []], [None] * 5, moved=4 * 4096 * 50_304 + 40_000)
    assert floor_of(loss, CHIP).bound_ns[0] < 5_000
    assert price_ns(loss) < 40_000  # recorded on an H200: 18 us


def test_a_transposed_convolution_is_priced_as_the_one_that_it_transposes():
    small, large, weight = [32, 128, 16, 16], [32, 64, 32, 32], [128, 64, 4, 4]
    options = [[2, 2], [1, 1], [1, 1]]
    rows = [
        work("aten::convolution", [images, weight], [None] * 3 + [*options, turned, [0, 0], 1], moved=1e7, dtype="tf32")
        for images, turned in ((small, True), (large, False))
    ]
    transposed, plain = (facts_of(row).values for row in rows)
    assert np.array_equal(transposed, plain)
    assert price_ns(rows[0]) == price_ns(rows[1])

    arguments = [None] * 4 + [*options, True, [0, 0], 1, [True, True, False]]
    shapes = [large, small, weight]  # the gradient of the results, the inputs
    backward = work("aten::convolution_backward", shapes, arguments, moved=1e7, dtype="tf32")
    assert LearnedPricer().covers(backward, CHIP).all()
    assert 1.2 * price_ns(rows[0]) < price_ns(backward) < 4 * price_ns(rows[0])


def part_of(item):
    (part,) = parts_of(facts_of(item), CHIP)
    return part.name


def test_rows_of_a_table_on_16_bytes_are_read_by_blocks_and_others_by_elements():
    """Recorded on an H200: 140,951 rows of 32 took 87 us, 80,410 rows of 177 took 39."""
    even, uneven = (
        work("aten::embedding", [[6161, width], [count]], [None, None], moved=4 * count * width, dtype="bf16")
        for count, width in ((140_951, 32), (80_410, 177))
    )
    assert [part_of(item) for item in (even, uneven)] == ["table/read by blocks", "table/read by elements"]
    assert price_ns(even) == pytest.approx(87e3, rel=0.15)
    assert price_ns(uneven) == pytest.approx(38.5e3, rel=0.15)


def test_the_gradient_of_a_table_sorts_many_rows_and_adds_few():
    """Recorded on an H200: 133 rows took 6 us, 47,081 took 398."""
    few, many = (
        work("aten::embedding_dense_backward", [[count, width], [count]], [None, None, 130, -1, False], moved=1e8)
        for count, width in ((108, 1760), (47_081, 4160))
    )
    assert [part_of(item) for item in (few, many)] == ["table/few gradients", "table/sorted gradients"]
    assert price_ns(few) < 12_000
    assert price_ns(many) == pytest.approx(398e3, rel=0.3)


def pooling(name, *, window, stride, padding=0, side=56):
    images = [64, 96, side, side]
    arguments = [None, [window] * 2, [stride] * 2, [padding] * 2]
    return work(f"aten::{name}", [images], arguments, moved=4 * 64 * 96 * side**2)


def test_pooling_counts_the_results_that_its_window_and_step_leave():
    halves, all_places = (pooling("max_pool2d_with_indices", window=3, stride=n, padding=1) for n in (2, 1))
    assert facts_of(halves).column("positions") == 28 * 28
    assert facts_of(all_places).column("positions") == 56 * 56
    assert 3 < price_ns(all_places) / price_ns(halves) < 5


def test_a_formula_has_a_start_and_no_part_gets_longer_with_more_bandwidth():
    items = [lists("_foreach_mul_", 1, 2), pooling("avg_pool2d", window=2, stride=2)]
    for item in items:
        (there,), (here,) = (parts_of(facts_of(item), chip) for chip in (device("h100-sxm5-80g"), CHIP))
        assert (there.terms[:, 0] == 1).all()
        assert (here.terms <= there.terms).all()
