import cmath
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, sampled_from

from windtunnel.errors import InputError

torch = pytest.importorskip("torch")

from windtunnel.systems.layers.nn.circulant.algebra import Blocks, dense  # noqa: E402
from windtunnel.systems.layers.nn.circulant.fixed import multiply_fixed_point, quantize, scale_of, spectra_of  # noqa: E402


def half_to_even(value, shift):
    return round(value / 2**shift) if shift > 0 else value * 2**-shift  # Python rounds a tie to even, exactly here


def transform(values, bits, sign):
    """Recursive, in Python's integers; every level halves."""
    if len(values) == 1:
        return values
    even, odd = transform(values[::2], bits, sign), transform(values[1::2], bits, sign)
    k, one = len(values), 1 << (bits - 2)
    upper, lower = [], []
    for place in range(k // 2):
        turn = cmath.exp(2j * math.pi * place / k)
        cosine, sine = round(turn.real * one), sign * round(turn.imag * one)
        (a, b), (c, d) = even[place], odd[place]
        real, imaginary = half_to_even(c * cosine - d * sine, bits - 2), half_to_even(c * sine + d * cosine, bits - 2)
        upper.append((half_to_even(a + real, 1), half_to_even(b + imaginary, 1)))
        lower.append((half_to_even(a - real, 1), half_to_even(b - imaginary, 1)))
    return upper + lower


def slow_product(x, spectra, bits, shift):
    """Rows [R][q][k] and spectra [2, p, q, k] to [R][p][k]."""
    top = 2 ** (bits - 1) - 1
    result = []
    for row in x:
        ahead = [transform([(int(value), 0) for value in block], bits, -1) for block in row]
        lines = []
        for real, imaginary in zip(*spectra.tolist(), strict=True):
            sums = []
            for place in range(len(row[0])):
                total = sum(
                    complex(*block[place]) * complex(a[place], b[place])
                    for block, a, b in zip(ahead, real, imaginary, strict=True)
                )
                parts = [half_to_even(int(part), shift) for part in (total.real, total.imag)]
                sums.append(tuple(min(max(part, -top - 1), top) for part in parts))
            lines.append([value for value, _ in transform(sums, bits, 1)])
        result.append(lines)
    return result


@given(sampled_from([2, 4, 8, 16]), integers(1, 3), integers(1, 3), sampled_from([8, 12, 16]), integers(0, 999))
def test_two_implementations_give_the_same_integers(k, p, q, bits, seed):
    generator = np.random.default_rng(seed)
    weight, x = (torch.from_numpy(generator.normal(size=size)) for size in ((p, q, k), (2, q * k)))
    blocks = Blocks(p * k, q * k, k)
    spectra, _ = spectra_of(weight, bits)
    shift = bits // 2
    ours = multiply_fixed_point(x, weight, blocks, bits, shift)
    given_ = quantize(x.numpy(), bits).values.reshape(2, q, k)

    assert slow_product(given_, spectra, bits, shift) == ours.values.reshape(2, p, k).tolist()


@given(sampled_from([4, 8, 32, 64]), integers(0, 99))
def test_sixteen_bits_are_near_the_floats(k, seed):
    generator = np.random.default_rng(seed)
    blocks = Blocks(2 * k, 3 * k, k)
    weight, x = (torch.from_numpy(generator.normal(size=size)) for size in (blocks.shape, (4, 3 * k)))
    exact = x @ dense(weight, blocks).t()
    found = multiply_fixed_point(x, weight, blocks).to_float()

    assert 0.02 * exact.abs().max() > np.abs(found - exact.numpy()).max()


def test_values_round_half_to_even_and_saturate():
    assert [0, 2, 2, -8, 7] == quantize([0.5, 1.5, 2.5, -20.0, 20.0], 4, exponent=0).values.tolist()
    assert (-14, 0) == (scale_of(1.0, 16), scale_of(0.0, 16))


def test_a_block_of_no_power_of_two_is_refused():
    with pytest.raises(InputError, match="6 is no power of two"):
        multiply_fixed_point(torch.zeros(1, 6), torch.zeros(1, 1, 6), Blocks(6, 6, 6))


def test_bits_that_are_not_offered_are_refused():
    with pytest.raises(InputError, match="4 to 24 bits"):
        quantize([1.0], 2)
