"""Block-circulant products in fixed point, as an engine of integers does them.

In: rows and first columns as floats, and a number of bits. Out: the product that integers give, bit by bit: values,
twiddle factors and spectra have ``bits`` bits with a sign, scales are powers of two, roundings go half to even, what is
too large saturates, and every stage of a transform halves, which the scale makes good. For inference only. Not here:
transforms and products of words, which are the engine's (``cost``); the slow second implementation lies in the tests.

Source: Liao et al., ICCAD 2017, 16 bits; Wang et al., AAAI 2018, 12 bits.
"""

# R rows, p x q blocks of k = 2 ** depth

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from windtunnel.cost.fixed_point import multiply_words, twiddles
from windtunnel.errors import InputError
from windtunnel.systems.layers.nn.circulant.algebra import Blocks

__all__ = ["Fixed", "multiply_fixed_point", "quantize", "scale_of"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Fixed:
    """Integers and the power of two that they are multiplied with."""

    values: Integers
    exponent: int

    def to_float(self) -> NDArray[np.float64]:
        """Return the real numbers that the integers represent."""
        return np.ldexp(self.values.astype(np.float64), self.exponent)


def scale_of(largest: float, bits: int) -> int:
    """Exponent of the smallest power of two at which no value up to the largest saturates.

    Examples
    --------
    >>> scale_of(1.0, 16), scale_of(0.0, 16)
    (-14, 0)
    """
    if largest == 0:
        return 0
    top = (1 << (bits - 1)) - 1
    return math.ceil(math.log2(largest / top))


def quantize(values: Any, bits: int, exponent: int | None = None) -> Fixed:
    """Nearest integers, half to even, saturated.

    Raises
    ------
    InputError
        So many bits are not offered.
    """
    if not 4 <= bits <= 24:
        raise InputError(f"fixed point has 4 to 24 bits here, not {bits}", where=f"bits={bits}")
    array = np.asarray(values, dtype=np.float64)
    exponent = scale_of(float(np.abs(array).max(initial=0.0)), bits) if exponent is None else exponent
    top = (1 << (bits - 1)) - 1
    return Fixed(np.clip(np.rint(np.ldexp(array, -exponent)), -top - 1, top).astype(np.int64), exponent)


def spectra_of(weight: torch.Tensor, bits: int) -> tuple[Integers, int]:
    """Spectra of first columns as integers [2, p, q, k], and their exponent: made once, from floats."""
    spectrum = np.fft.fft(weight.detach().double().numpy())
    both = quantize(np.stack([spectrum.real, spectrum.imag]), bits)
    return both.values, both.exponent


def multiply_fixed_point(
    x: torch.Tensor, weight: torch.Tensor, blocks: Blocks, bits: int = 16, shift: int | None = None
) -> Fixed:
    """``x W'`` in integers, [R, m].

    Parameters
    ----------
    x : [R, n]
    weight : [p, q, k]
    blocks : Blocks
        k is a power of two.
    bits : int
    shift : int, optional
        How far sums over blocks are shifted to the right; by default so far that none of these rows saturates.

    Raises
    ------
    InputError
        k is no power of two, or the number of bits is not supported.
    """
    p, q, k = blocks.shape
    if k & (k - 1):
        raise InputError(f"the integer transform halves k until 1 is left, and {k} is no power of two", where=f"k={k}")
    given = quantize(x.detach().double().numpy(), bits)
    padded = np.pad(given.values, ((0, 0), (0, blocks.padding[1]))).reshape(-1, q, k)
    spectra, exponent = spectra_of(weight, bits)
    if shift is None:
        spectrum = np.abs(np.fft.fft(padded)) / k
        most = np.einsum("rqf,pqf->rpf", spectrum, np.abs(spectra[0] + 1j * spectra[1])).max(initial=1.0)
        shift = max(0, math.ceil(math.log2(most)) - (bits - 1))
    out = np.zeros((len(padded), p, k), np.int64)
    spectra_pqk2 = np.ascontiguousarray(np.moveaxis(spectra, 0, -1))
    fraction_bits = bits - 2  # so that 1 is a twiddle
    multiply_words(padded, spectra_pqk2, twiddles(k, fraction_bits), fraction_bits, shift, 1 << (bits - 1), out)
    # forward gave F / k: fold it into the scale; the transform back gave the whole inverse
    depth = k.bit_length() - 1
    return Fixed(out.reshape(len(out), -1)[:, : blocks.num_outputs], given.exponent + exponent + shift + depth)
