"""Block-circulant products in fixed point, as an engine of integers does them (room nn).

In: rows and first columns as floats, and a number of bits. Out: the product that integers give, bit by bit: values,
twiddle factors and spectra have ``bits`` bits with a sign, scales are powers of two, roundings go half to even, what is
too large saturates, and every stage of a transform halves, which the scale makes good. For inference only. The slow
second implementation lies in the tests.

Source: Liao et al., ICCAD 2017, 16 bits; Wang et al., AAAI 2018, 12 bits.
"""

# R rows, p x q blocks of k = 2 ** depth

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.nn.circulant.algebra import Blocks

__all__ = ["Fixed", "multiply_fixed", "quantize", "scale_of"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Fixed:
    """Integers and the power of two that they are multiplied with."""

    values: Integers
    exponent: int

    def to_float(self) -> NDArray[np.float64]:
        """What they stand for."""
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


def twiddles(k: int, bits: int) -> tuple[Integers, Integers]:
    """Cosines and minus sines of a transform of k, with ``bits - 2`` bits behind the point so that 1 is there."""
    angle = 2 * np.pi / k * np.arange(k // 2)
    one = 1 << (bits - 2)
    return np.rint(np.cos(angle) * one).astype(np.int64), np.rint(-np.sin(angle) * one).astype(np.int64)


@numba.njit(cache=True)
def _rounded(value: Any, shift: int) -> Any:
    """``value / 2 ** shift``, half to even."""
    if shift <= 0:
        return value << -shift
    half = np.int64(1) << (shift - 1)
    down = value >> shift
    rest = value - (down << shift)
    if rest > half or (rest == half and down & 1):
        return down + 1
    return down


@numba.njit(cache=True)
def _transform(real: Any, imaginary: Any, cosines: Any, sines: Any, bits: int, is_back: bool) -> None:
    """In place, halved at every stage: so forward gives F / k, and back the whole inverse."""
    k = len(real)
    depth = 0
    while (1 << depth) < k:
        depth += 1
    for place in range(k):
        mirrored = 0
        for bit in range(depth):
            mirrored |= ((place >> bit) & 1) << (depth - 1 - bit)
        if mirrored > place:
            real[place], real[mirrored] = real[mirrored], real[place]
            imaginary[place], imaginary[mirrored] = imaginary[mirrored], imaginary[place]
    width = 1
    while width < k:
        stride = k // (2 * width)
        for first in range(0, k, 2 * width):
            for step in range(width):
                cosine, sine = cosines[step * stride], sines[step * stride]
                if is_back:
                    sine = -sine
                upper, lower = first + step, first + step + width
                turned_real = _rounded(real[lower] * cosine - imaginary[lower] * sine, bits - 2)
                turned_imaginary = _rounded(real[lower] * sine + imaginary[lower] * cosine, bits - 2)
                a, b = real[upper], imaginary[upper]
                real[upper], imaginary[upper] = _rounded(a + turned_real, 1), _rounded(b + turned_imaginary, 1)
                real[lower], imaginary[lower] = _rounded(a - turned_real, 1), _rounded(b - turned_imaginary, 1)
        width *= 2


@numba.njit(cache=True)
def _product(x: Any, spectra: Any, cosines: Any, sines: Any, bits: int, shift: int, out: Any) -> None:
    """X [R, q, k], spectra [2, p, q, k]; out [R, p, k] from sums that are shifted and saturated."""
    R, q, k = x.shape
    top = (np.int64(1) << (bits - 1)) - 1
    real, imaginary = np.zeros((q, k), np.int64), np.zeros((q, k), np.int64)
    sum_real, sum_imaginary = np.zeros(k, np.int64), np.zeros(k, np.int64)
    for row in range(R):
        for column in range(q):
            real[column] = x[row, column]
            imaginary[column] = 0
            _transform(real[column], imaginary[column], cosines, sines, bits, False)
        for line in range(out.shape[1]):
            sum_real[:] = 0
            sum_imaginary[:] = 0
            for column in range(q):
                for place in range(k):
                    a, b = real[column, place], imaginary[column, place]
                    c, d = spectra[0, line, column, place], spectra[1, line, column, place]
                    sum_real[place] += a * c - b * d
                    sum_imaginary[place] += a * d + b * c
            for place in range(k):
                sum_real[place] = min(max(_rounded(sum_real[place], shift), -top - 1), top)
                sum_imaginary[place] = min(max(_rounded(sum_imaginary[place], shift), -top - 1), top)
            _transform(sum_real, sum_imaginary, cosines, sines, bits, True)
            out[row, line] = sum_real


def spectra_of(weight: torch.Tensor, bits: int) -> tuple[Integers, int]:
    """Spectra of first columns as integers [2, p, q, k], and their exponent: made once, from floats."""
    spectrum = np.fft.fft(weight.detach().double().numpy())
    both = quantize(np.stack([spectrum.real, spectrum.imag]), bits)
    return both.values, both.exponent


def multiply_fixed(
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
        k is no power of two, or so many bits are not offered.
    """
    p, q, k = blocks.shape
    if k & (k - 1):
        raise InputError(f"the integer transform halves k until 1 is left, and {k} is no power of two", where=f"k={k}")
    given = quantize(x.detach().double().numpy(), bits)
    padded = np.pad(given.values, ((0, 0), (0, blocks.padding[1]))).reshape(-1, q, k)
    spectra, exponent = spectra_of(weight, bits)
    cosines, sines = twiddles(k, bits)
    if shift is None:
        spectrum = np.abs(np.fft.fft(padded)) / k
        most = np.einsum("rqf,pqf->rpf", spectrum, np.abs(spectra[0] + 1j * spectra[1])).max(initial=1.0)
        shift = max(0, math.ceil(math.log2(most)) - (bits - 1))
    out = np.zeros((len(padded), p, k), np.int64)
    _product(padded, spectra, cosines, sines, bits, shift, out)
    # forward gave F / k: fold it into the scale; the transform back gave the whole inverse
    depth = k.bit_length() - 1
    return Fixed(out.reshape(len(out), -1)[:, : blocks.num_outputs], given.exponent + exponent + shift + depth)
