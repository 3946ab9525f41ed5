"""A graph at another batch: shapes, flops and bytes as if it had been captured there."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers

from tests.whatifs.test_forecast import step, with_size
from windtunnel.cost.work import work_of
from windtunnel.errors import InputError
from windtunnel.graph import Kind, Phase
from windtunnel.whatifs.another_batch import batch_of, sizes_between, with_batch
from windtunnel.whatifs.batch_shapes import Inputs, carriers, resize_operator

FLOAT = "Tensor(float)"


def inputs(name, *shapes, param_bytes=0, is_backward=False, strides=None):
    types = [FLOAT if shape else "Int" for shape in shapes]
    return Inputs(
        f"aten::{name}",
        json.dumps(shapes),
        json.dumps(types),
        json.dumps(strides) if strides else "",
        param_bytes,
        is_backward,
    )


def shapes_after(captured, sizes=frozenset({8, 64}), old=8, new=16):
    return json.loads(resize_operator(captured, sizes, old, new).inputs.shapes)


@pytest.mark.parametrize(
    ("captured", "expected"),
    [
        (inputs("addmm", [32], [64, 256], [256, 32], param_bytes=4 * (256 * 32 + 32)), [[32], [128, 256], [256, 32]]),
        (inputs("mm", [64, 32], [32, 256], param_bytes=4 * 32 * 256), [[128, 32], [32, 256]]),
        (inputs("mm", [32, 64], [64, 256], is_backward=True), [[32, 128], [128, 256]]),  # gradient of a weight
        (inputs("mm", [64, 64], [64, 64], is_backward=True), [[64, 128], [128, 64]]),
        (inputs("bmm", [64, 16, 4], [64, 4, 16]), [[128, 16, 4], [128, 4, 16]]),
        (inputs("linear", [8, 7, 32], [24, 32], param_bytes=4 * 24 * 32), [[16, 7, 32], [24, 32]]),
        (inputs("conv2d", [8, 3, 8, 8], [8, 3, 3, 3], param_bytes=4 * 8 * 27), [[16, 3, 8, 8], [8, 3, 3, 3]]),
        (inputs("native_layer_norm", [8, 7, 8], [], [8], [8], param_bytes=64), [[16, 7, 8], [], [8], [8]]),
        (inputs("copy_", [64, 32], [64, 32], param_bytes=4 * 64 * 32), [[64, 32], [64, 32]]),  # a weight is copied
        (inputs("add", [8, 7, 32], [1, 7, 32]), [[16, 7, 32], [1, 7, 32]]),
        (inputs("mkldnn_rnn_layer", [7, 8, 32], [128, 32], param_bytes=4 * 128 * 32), [[7, 16, 32], [128, 32]]),
        (inputs("nll_loss_forward", [64, 10], [64]), [[128, 10], [128]]),
        (inputs("sum", [5, 3]), [[5, 3]]),
    ],
    ids=lambda one: one.name if isinstance(one, Inputs) else "",
)
def test_the_samples_grow_and_parameters_stay(captured, expected):
    assert expected == shapes_after(captured)


def test_rows_of_layers_are_known_to_hold_samples():
    found = carriers([inputs("mm", [40, 16], [16, 4], param_bytes=256), inputs("relu", [8, 3, 7])], 8)

    assert {8, 24, 40} == found


def test_strides_reach_over_the_samples():
    transposed = inputs("mul", [7, 8, 4], strides=[[32, 4, 1]])
    grown = resize_operator(transposed, frozenset({8}), 8, 24)

    assert [[7, 24, 4]] == json.loads(grown.inputs.shapes)
    assert [[96, 4, 1]] == json.loads(grown.inputs.strides)


@given(integers(1, 64), integers(1, 64), integers(1, 64), integers(1, 8))
def test_a_layer_at_another_batch_has_the_flops_and_bytes_of_that_batch(rows, inner, columns, times):
    """What is counted for the changed step is what a capture at that batch would count."""
    layer = inputs("mm", [8 * rows, inner], [inner, columns], param_bytes=4 * inner * columns)
    grown = resize_operator(layer, carriers([layer], 8), 8, 8 * times)
    read = 4 * (8 * rows * inner + inner * columns)

    assert times == pytest.approx(grown.flops_ratio)
    if 8 * rows * inner != inner * columns:
        wide = 4 * (8 * times * rows * inner + inner * columns)
        assert wide == pytest.approx(read * grown.read_ratio)


def test_where_no_shapes_are_known_all_but_parameters_grows():
    twice = with_batch(step(), 8, 16)

    assert [200 * 10**6, 2, 1] == twice.tasks["flops"][[1, 3, 5]].tolist()
    assert [600 + 2 * 400, 60_000, 4] == twice.tasks["bytes_read"][[1, 3, 5]].tolist()
    with pytest.raises(InputError, match="does not show its batch size"):
        with_batch(step(), 0, 16)
    with pytest.raises(InputError, match="0 samples"):
        with_batch(step(), 8, 0)


def test_the_column_that_cost_models_read_changes_too():
    """Cost models that price by shapes would else price the captured batch again."""
    shapes = [json.dumps(one) for one in ([], [[8, 4], [4, 2]], [], [[3, 5]], [], [])]
    twice = with_batch(step().with_columns(input_shapes=shapes), 8, 16)
    work, row_T = work_of(twice)

    assert "[[16,4],[4,2]]" == work.shapes[row_T[1]]
    assert "[[3, 5]]" == work.shapes[row_T[3]]
    assert [200 * 10**6, 1] == twice.tasks["flops"][[1, 3]].tolist()


def test_updates_and_the_host_stay():
    before, after = step(), with_batch(step(), 8, 80)
    stays = before.select(phase=Phase.UPDATE) | ~before.select(kind=Kind.COMPUTE)

    for name in ("flops", "bytes_read", "bytes_written", "duration_ns"):
        assert np.array_equal(before.tasks[name][stays], after.tasks[name][stays])


def test_the_dimension_that_holds_the_samples_can_be_named():
    graph = with_size(step(), 8)

    assert (8, 8, 4) == (batch_of(graph), batch_of(graph, 0), batch_of(graph, -1))
    with pytest.raises(InputError, match="no size in dimension 2"):
        batch_of(graph, 2)


def test_on_the_way_to_a_batch_lie_its_doubles():
    assert [8, 16, 32] == sizes_between(8, 32)
    assert [8, 4, 3] == sizes_between(8, 3)
    assert [0] == sizes_between(0, 0)
