"""The engine of transforms: counted as the closed form says, equal bit for bit to whole numbers done otherwise."""

from fractions import Fraction

import numpy as np
import pytest
from benchmarks.peers.fourier_counted import counted_cycles
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.cost.fixed_point import relative_error, run_fixed, scale_layer
from windtunnel.errors import InputError
from windtunnel.hardware.parts import FourierEngine
from windtunnel.systems.chips.accelerators.fourier_engine import BlockLayer, engine_use

ENGINES = [FourierEngine(), FourierEngine(4, 1, 16), FourierEngine(16, 4, 128), FourierEngine(8, 3, 32)]
SIZES = [(512, 512, 32), (1024, 1024, 64), (1024, 784, 128), (256, 256, 8), (4096, 4096, 128), (512, 512, 2)]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_counted_cycles_lie_within_two_percent_of_the_closed_form(sizes, engine):
    layer = BlockLayer(*sizes)

    assert counted_cycles(layer, engine, 64) == pytest.approx(engine_use(layer, engine, 64).cycles, rel=0.02)


@given(st.integers(1, 6), st.integers(1, 200), st.integers(1, 200), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_nothing_ends_before_its_butterflies_and_its_products_are_done(power, outputs, inputs, batch):
    block = 2**power
    layer, engine = BlockLayer(max(outputs, block), inputs, block), FourierEngine(2, 2, 8)
    use = engine_use(layer, engine, batch)
    busy = max(sum(layer.butterflies) * batch / (engine.num_butterflies * engine.depth),
               layer.products * batch / engine.num_multipliers)  # fmt: skip

    assert counted_cycles(layer, engine, batch) >= busy - 2 * batch
    assert use.cycles >= busy


def test_the_closed_form_is_that_of_the_papers():
    use = engine_use(BlockLayer(1000, 784, 64), FourierEngine(8, 2, 64), 1)

    assert -(-13 * 16 * 6 // 16) == use.transform_cycles
    assert -(-16 * 13 * 33 // 64) == use.product_cycles
    assert 16 * 16 * 6 // 16 == use.inverse_cycles
    assert 2 * 1000 * 784 == use.equivalent_operations
    assert 4 * (16 + 64) == use.num_real_multipliers


def rounded(value):
    """A fraction to the nearest whole number, halves to the even one: what Python's round does."""
    return round(value)


def other_transform(values):
    """The same transform once more: recursive, on pairs of Python's own whole numbers."""
    if len(values) == 1:
        return values
    even, odd = other_transform(values[::2]), other_transform(values[1::2])
    half = len(even)
    found = [None] * len(values)
    for one, ((real, imag), (other_real, other_imag)) in enumerate(zip(even, odd, strict=True)):
        angle = -2 * np.pi * one / len(values)
        cosine, sine = round(np.cos(angle) * 2**15), round(np.sin(angle) * 2**15)
        turned_real = rounded(Fraction(other_real * cosine - other_imag * sine, 2**15))
        turned_imag = rounded(Fraction(other_real * sine + other_imag * cosine, 2**15))
        found[one] = (rounded(Fraction(real + turned_real, 2)), rounded(Fraction(imag + turned_imag, 2)))
        found[one + half] = (rounded(Fraction(real - turned_real, 2)), rounded(Fraction(imag - turned_imag, 2)))
    return found


def other_run(layer, inputs):
    """A sample through the layer: words of each block."""
    limit = 2 ** (layer.word_bits - 1)

    def saturated(value):
        return max(-limit, min(limit - 1, value))

    spectra = [other_transform([(saturated(round(float(one) * 2.0**layer.input_bits)), 0) for one in block])
               for block in inputs]  # fmt: skip
    found = []
    for row in layer.spectra_pqk2.tolist():
        sums = []
        for place in range(len(row[0])):
            real = sum(w[place][0] * x[place][0] - w[place][1] * x[place][1] for w, x in zip(row, spectra, strict=True))
            imag = sum(w[place][0] * x[place][1] + w[place][1] * x[place][0] for w, x in zip(row, spectra, strict=True))
            shifted = [saturated(rounded(Fraction(one, 2**layer.shift))) for one in (real, imag)]
            sums.append((shifted[0], -shifted[1]))
        found.append([real for real, _ in other_transform(sums)])
    return found


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.sampled_from([8, 12, 16]), st.integers(0, 999),
    st.sampled_from([1.0, 3.0]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_fixed_point_is_bit_identical_to_whole_numbers_done_otherwise(down, across, power, word_bits, seed, beyond):
    """Also where inputs are larger than the calibration saw, so that words saturate."""
    draw = np.random.default_rng(seed)
    vectors, inputs = draw.normal(size=(down, across, 2**power)), draw.normal(size=(2, across, 2**power))
    layer = scale_layer(vectors, inputs, word_bits)
    _, words = run_fixed(layer, beyond * inputs)

    assert [other_run(layer, one) for one in (beyond * inputs)] == words.tolist()


def test_sixteen_bits_are_near_real_numbers_and_fewer_bits_are_farther():
    errors = [relative_error(4, 6, 64, bits) for bits in (16, 12, 8)]

    assert sorted(errors) == errors
    assert errors[0] < 0.003
    assert errors[1] < 0.05


def test_a_block_of_a_basis_vector_gives_back_the_shifted_column():
    """w is the first column of its block: (W x)[r] = sum of w[(r - c) mod k] x[c]."""
    column = np.array([0.5, -0.25, 0.125, 0.75])
    basis = np.eye(4)[None, 1:2]
    outputs, _ = run_fixed(scale_layer(column[None, None], basis), basis)

    assert np.roll(column, 1) == pytest.approx(outputs[0, 0], abs=1e-3)


@pytest.mark.parametrize(("outputs", "inputs", "block"), [(8, 8, 3), (8, 8, 16), (8, 8, 1), (0, 8, 2)])
def test_blocks_that_do_not_fit_are_refused(outputs, inputs, block):
    with pytest.raises(InputError, match=r"do not fit|no weights"):
        BlockLayer(outputs, inputs, block)


def test_what_is_no_engine_and_no_batch_is_refused():
    with pytest.raises(InputError, match="depth must be above zero"):
        FourierEngine(depth=0)
    with pytest.raises(InputError, match="word_bits cannot be 10"):
        FourierEngine(word_bits=10)
    with pytest.raises(InputError, match="a batch cannot be 0"):
        engine_use(BlockLayer(8, 8, 4), FourierEngine(), 0)
    with pytest.raises(InputError, match="no blocks of a power of two"):
        scale_layer(np.ones((1, 1, 3)), np.ones((1, 1, 3)))


@pytest.mark.parametrize("block", [1, 3, 6])
def test_a_block_that_is_no_power_of_two_from_two_on_has_no_fixed_point(block):
    with pytest.raises(InputError, match="no blocks of a power of two"):
        scale_layer(np.ones((1, 1, block)), np.ones((2, 1, block)))
