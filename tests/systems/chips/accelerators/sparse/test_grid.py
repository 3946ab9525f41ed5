"""The grid that skips zeros: equal to a slow grid, to direct convolutions, and never slower for skipping more."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.systems.chips.accelerators.sparse import slow
from windtunnel.base.bitmaps import count, pack, unpack
from windtunnel.errors import InputError
from windtunnel.hardware.parts import SparseGrid
from windtunnel.systems.chips.accelerators.sparse import (
    MODES,
    PHASES,
    ConvShape,
    LayerZeros,
    functional,
    layer_cycles,
    shape_of,
)
from windtunnel.systems.chips.accelerators.sparse.costs import patch_costs

SMALL = SparseGrid(rows=3, cols=2, lanes=4, pixels_per_element=2, channels_per_element=3, steal_cycles=1, steal_group=6)


@st.composite
def shapes(draw):
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    side, kernel = draw(st.integers(3, 7)), draw(st.integers(1, 3))
    return ConvShape(
        draw(st.integers(1, 2)), groups * draw(st.integers(1, 10)), side, draw(st.integers(3, 7)),
        groups * draw(st.integers(1, 10)), (kernel, draw(st.integers(1, 3))),
        (draw(st.integers(1, 2)), draw(st.integers(1, 2))), (draw(st.integers(0, 1)), draw(st.integers(0, 1))),
        groups=groups,
    )  # fmt: skip


@st.composite
def grids(draw):
    rows, cols = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return SparseGrid(
        rows, cols, draw(st.sampled_from([1, 4, 16])), draw(st.integers(1, 3)), draw(st.integers(1, 4)),
        draw(st.integers(1, 8)), draw(st.sampled_from([cols, rows * cols])),
    )  # fmt: skip


densities = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])


def bits_of(shape, seed, of_inputs, of_gradients):
    rng = np.random.default_rng(seed)
    inputs = slow.random_bits(rng, (shape.images, shape.channels, shape.height, shape.width), of_inputs, blocks=2)
    return inputs, slow.random_bits(rng, (shape.images, shape.filters, *shape.output), of_gradients)


def zeros_of(shape, inputs, gradients, **more):
    return LayerZeros("layer", shape, pack(inputs), pack(gradients), **more)


@given(shapes(), grids(), st.integers(0, 99), densities, densities)
@settings(max_examples=60, deadline=None)
def test_the_grid_takes_as_many_cycles_as_one_that_is_stepped_cycle_by_cycle(shape, grid, seed, dense, denser):
    inputs, gradients = bits_of(shape, seed, dense, denser)
    found = layer_cycles(zeros_of(shape, inputs, gradients), grid)

    for phase, operands, outputs, wanted in (
        ("forward", inputs, shape.filters, None),
        ("backward", gradients, shape.channels, np.moveaxis(inputs, 1, -1).reshape(-1, shape.channels)),
    ):
        streams = slow.patches(operands, shape, phase)
        costs = [[[slow.stream_cycles(one, grid.lanes, skips) for one in row] for row in streams]
                 for skips in (False, True)]  # fmt: skip
        groups = [one // (outputs // shape.groups) for one in range(outputs)]
        cycles, work = slow.grid_cycles(*costs, groups, wanted, grid)
        assert cycles == dict(found.passes[phase].cycles)
        assert -(-work // grid.num_elements) == found.passes[phase].bound_cycles


@given(shapes(), st.integers(0, 99), densities, densities)
@settings(max_examples=30, deadline=None)
def test_gradients_of_weights_take_what_a_slow_count_of_pairs_says(shape, seed, dense, denser):
    inputs, gradients = bits_of(shape, seed, dense, denser)
    found = layer_cycles(zeros_of(shape, inputs, gradients), SMALL, ("weights",)).passes["weights"]
    each, pairs = shape.channels // shape.groups, []
    for channel in range(each):
        for tap_y in range(shape.kernel[0]):
            for tap_x in range(shape.kernel[1]):
                pairs.append([[], []])
                for one in range(shape.filters):
                    source = one // (shape.filters // shape.groups) * each + channel
                    inside, both = [], []
                    for image in range(shape.images):
                        for y in range(shape.output[0]):
                            for x in range(shape.output[1]):
                                at = slow.reached(shape, "weights", y, x, tap_y, tap_x, (shape.height, shape.width))
                                inside.append(at is not None)
                                value = at is not None and inputs[image, source, at[0], at[1]]
                                both.append(bool(value and gradients[image, one, y, x]))
                    for place, bits in enumerate((inside, both)):
                        pairs[-1][place].append(slow.stream_cycles_of_bits(bits, SMALL.lanes))
    dense_of, sparse_of = ([row[place] for row in pairs] for place in (0, 1))
    cycles, _ = slow.grid_cycles(dense_of, sparse_of, list(range(shape.filters)), None, SMALL)

    assert cycles == dict(found.cycles)


@given(shapes(), st.integers(0, 99), densities, densities)
@settings(max_examples=40, deadline=None)
def test_skipping_computes_what_a_direct_convolution_does_and_counts_its_multiplications(shape, seed, dense, denser):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    inputs, gradients = (one * rng.integers(1, 90, one.shape) for one in bits_of(shape, seed, dense, denser))
    weight = rng.integers(-90, 90, (shape.filters, shape.channels // shape.groups, *shape.kernel))
    narrow = [one.astype(np.int16) for one in (inputs, gradients, weight)]
    x, dy, w = (torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in (inputs, gradients, weight))
    y = torch.nn.functional.conv2d(x, w, None, shape.stride, shape.padding, shape.dilation, shape.groups)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    counted = layer_cycles(zeros_of(shape, inputs, gradients), SMALL)

    found, macs = functional.forward(narrow[0], narrow[2], shape)
    assert (y.detach().numpy() == found).all()
    assert counted.passes["forward"].macs["in"] == macs
    found, macs = functional.backward(narrow[1], narrow[2], shape, narrow[0])
    assert (dx.numpy() * (inputs > 0) == found).all()
    assert counted.passes["backward"].macs["in+out"] == macs
    found, macs = functional.backward(narrow[1], narrow[2], shape, None)
    assert (dx.numpy() == found).all()
    assert counted.passes["backward"].macs["in"] == macs
    found, macs = functional.weight_gradient(narrow[0], narrow[1], shape)
    assert (dw.numpy() == found).all()
    assert counted.passes["weights"].macs["in"] == macs


@given(shapes(), grids(), st.integers(0, 99), densities, densities)
@settings(max_examples=100, deadline=None)
def test_no_mode_is_slower_than_one_that_skips_less_and_none_beats_the_bound(shape, grid, seed, dense, denser):
    found = layer_cycles(zeros_of(shape, *bits_of(shape, seed, dense, denser)), grid)

    for one in found.passes.values():
        cycles = one.cycles
        assert one.bound_cycles <= cycles["in+out+wr"] <= cycles["in+out"]
        assert cycles["in+out"] <= min(cycles["in"], cycles["out"]) <= cycles["dc"]
        assert cycles["in"] <= cycles["dc"] >= cycles["out"]
        assert one.step_cycles["in+out+wr"] <= one.step_cycles["in+out"]


@given(shapes(), grids())
@settings(max_examples=40, deadline=None)
def test_without_zeros_nothing_is_won_but_by_sharing_work(shape, grid):
    found = layer_cycles(zeros_of(shape, *bits_of(shape, 0, 1.0, 1.0)), grid)

    for one in found.passes.values():
        assert {one.cycles["dc"]} == {one.cycles[mode] for mode in MODES[:-1]}


def test_full_tiles_without_zeros_take_what_a_dense_grid_takes_even_with_sharing():
    shape = ConvShape(2, 256, 8, 8, 128)
    found = layer_cycles(zeros_of(shape, *bits_of(shape, 0, 1.0, 1.0)), SparseGrid())

    for phase in ("forward", "backward"):
        assert found.passes[phase].cycles["dc"] == pytest.approx(found.passes[phase].cycles["in+out+wr"], rel=0.03)


def test_a_layer_whose_gradient_nobody_wants_takes_the_time_to_look_through_its_mask():
    shape = ConvShape(1, 64, 8, 8, 64, (3, 3), padding=(1, 1))
    found = layer_cycles(zeros_of(shape, *bits_of(shape, 0, 0.0, 1.0)), SparseGrid()).passes["backward"]

    assert 0 == found.cycles["out"] == found.cycles["in+out+wr"] == found.macs["out"]
    assert 64 * 64 // 64 == found.scan_cycles


def test_behind_no_relu_outputs_are_not_skipped():
    shape = ConvShape(1, 32, 8, 8, 32)
    found = layer_cycles(zeros_of(shape, *bits_of(shape, 0, 0.5, 1.0), is_masked=False), SparseGrid())

    assert found.passes["backward"].cycles["dc"] == found.passes["backward"].cycles["out"]


def test_the_first_layer_has_no_backward_pass():
    shape = ConvShape(1, 3, 8, 8, 32, (3, 3))
    found = layer_cycles(zeros_of(shape, *bits_of(shape, 0, 1.0, 0.5), is_first=True), SparseGrid())

    assert ["forward", "weights"] == list(found.passes)


def test_images_of_a_batch_may_change_places_where_each_fills_its_own_tile():
    shape = ConvShape(3, 64, 8, 8, 64, (3, 3), padding=(1, 1))
    inputs, gradients = bits_of(shape, 3, 0.5, 0.5)
    grid = SparseGrid()
    order = [2, 0, 1]
    totals = [
        layer_cycles(zeros_of(shape, x, y), grid, ("forward", "backward"))
        for x, y in ((inputs, gradients), (inputs[order], gradients[order]))
    ]

    for phase in ("forward", "backward"):
        assert totals[0].passes[phase].cycles == totals[1].passes[phase].cycles


def test_a_transposed_layer_swaps_its_passes():
    """The backward pass of a layer is the forward pass of the layer whose inputs are its gradients."""
    shape = ConvShape(2, 24, 6, 6, 40, (3, 3), padding=(1, 1))
    turned = ConvShape(2, 40, 6, 6, 24, (3, 3), padding=(1, 1))
    inputs, gradients = bits_of(shape, 5, 0.4, 0.6)
    there = layer_cycles(zeros_of(shape, inputs, gradients, is_masked=False), SMALL)
    back = layer_cycles(zeros_of(turned, gradients, inputs, is_masked=False), SMALL)

    assert there.passes["backward"].macs == back.passes["forward"].macs
    assert there.passes["backward"].cycles["dc"] == back.passes["forward"].cycles["dc"]


@given(st.integers(1, 3), st.integers(1, 70), st.integers(0, 9))
@settings(deadline=None)
def test_bits_come_back_as_they_were_packed(pixels, channels, seed):
    values = np.random.default_rng(seed).integers(-1, 2, (2, channels, pixels, pixels)) * -0.5
    words = pack(values)

    assert (np.moveaxis(values != 0, 1, -1).reshape(-1, channels) == unpack(words, channels)).all()
    assert np.count_nonzero(values) == count(words)


def test_dense_cycles_are_whole_lanes_of_operands():
    shape = ConvShape(1, 64, 8, 8, 32, (3, 3))
    costs = patch_costs(pack(np.ones((1, 64, 8, 8))), shape.taps("forward"), 1, 64, 1, 16)

    assert {9 * 64 // 16} == set(costs.dense.ravel().tolist()) == set(costs.sparse.ravel().tolist())


def test_masks_of_another_shape_are_refused_with_both_shapes():
    shape = ConvShape(1, 64, 8, 8, 32)
    with pytest.raises(InputError, match=r"inputs have the shape \(64, 1\), not \(64, 2\)"):
        LayerZeros("conv1", shape, pack(np.ones((1, 32, 8, 8))), pack(np.ones((1, 32, 8, 8))))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lanes": 0}, "lanes must be above zero"),
        ({"channels_per_element": 64}, "channels_per_element cannot be 64"),
        ({"steal_group": 100}, "does not divide 256"),
    ],
)
def test_what_is_no_grid_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        SparseGrid(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([1, 4, 8], [8, 4, 3]), "no convolution of two dimensions"),
        (([1, 4, 2, 2], [8, 4, 3, 3]), "does not fit an image"),
        (([1, 4, 8, 8], [8, 4, 3, 3], (1, 1), (0, 0), (1, 1), 3), "3 groups do not divide"),
    ],
)
def test_what_is_no_convolution_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        shape_of(*given)


def test_a_layer_has_a_total_over_passes():
    shape = ConvShape(1, 8, 4, 4, 8)
    found = layer_cycles(zeros_of(shape, *bits_of(shape, 0, 0.5, 0.5)), SMALL)

    assert found.total("in") == sum(found.passes[phase].cycles["in"] for phase in PHASES)
    assert list(MODES) == list(found.passes["forward"].energy_j)
    for low, high in pairwise(("in+out", "in")):
        assert found.total(low, field="energy_j") <= found.total(high, field="energy_j")
