"""What the engine computes, bit for bit: transforms and products of whole numbers.

In: weights and inputs as real numbers, the width of a word. Out: whole numbers as the engine makes them, and how far
they are from real ones. Every butterfly halves its results, so that no level overflows; halves are rounded to the even
neighbor; products add up in a wide sum, are shifted once, and saturate. The inverse transform is the forward one of
conjugates. ``nn`` multiplies with the same words; tests of both compute them in another way.
"""

# p, q blocks down and across, k their size; B samples; the last axis has the real and the imaginary part

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.errors import InputError

__all__ = ["FixedLayer", "multiply_words", "relative_error", "run_fixed", "scale_layer", "twiddles"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_TWIDDLE_BITS = 15


@dataclass(frozen=True, eq=False)
class FixedLayer:
    """A layer as the engine holds it.

    Parameters
    ----------
    spectra_pqk2 : int64 [p, q, k, 2]
        Of the first columns of its blocks.
    twiddles_k2 : int64 [k / 2, 2]
    word_bits : int
    input_bits, spectrum_bits : int
        Of the fraction: what is stored is the number times two to that power.
    shift : int
        By which sums of products are shifted down.
    """

    spectra_pqk2: Ints
    twiddles_k2: Ints
    word_bits: int
    input_bits: int
    spectrum_bits: int
    shift: int

    @property
    def output_bits(self) -> int:
        """Of the fraction of what comes out: the transform of an input is halved once per level."""
        levels = self.spectra_pqk2.shape[2].bit_length() - 1
        return int(self.input_bits - levels + self.spectrum_bits - self.shift)


def scale_layer(vectors_pqk: Floats, calibration_Bqk: Floats, word_bits: int = 16) -> FixedLayer:
    """Scales by what a layer sees.

    Parameters
    ----------
    vectors_pqk : float [p, q, k]
        First column of each block; k a power of two.
    calibration_Bqk : float [B, q, k]
        Inputs whose largest values have to fit.
    word_bits : int

    Raises
    ------
    InputError
        The block is no power of two, or shapes do not fit each other.
    """
    block = vectors_pqk.shape[-1]
    if block < 2 or block & (block - 1) or calibration_Bqk.shape[1:] != vectors_pqk.shape[1:]:
        raise InputError(
            f"vectors {vectors_pqk.shape} and inputs {calibration_Bqk.shape} are no blocks of a power of two",
            where="fixed point",
        )
    spectra = np.fft.fft(vectors_pqk)
    spectrum_bits = _fraction_bits(max(np.abs(spectra.real).max(), np.abs(spectra.imag).max()), word_bits)
    input_bits = _fraction_bits(np.abs(calibration_Bqk).max(), word_bits)
    stored = np.stack([spectra.real, spectra.imag], axis=-1)
    limit = 2 ** (word_bits - 1)
    spectra_pqk2 = np.clip(np.rint(stored * 2.0**spectrum_bits), -limit, limit - 1).astype(np.int64)
    # the largest sum of products that the calibration makes has to fit a word behind the shift
    sums = np.einsum("pqk,bqk->bpk", spectra, np.fft.fft(calibration_Bqk) / block)
    largest = max(np.abs(sums.real).max(), np.abs(sums.imag).max(), 1e-300)
    of_sum = input_bits + spectrum_bits
    shift = max(of_sum - _fraction_bits(largest, word_bits), 0)
    return FixedLayer(spectra_pqk2, twiddles(block, _TWIDDLE_BITS), word_bits, input_bits, spectrum_bits, shift)


def twiddles(block: int, fraction_bits: int) -> Ints:
    """Cosines and minus sines of a transform, int64 [k / 2, 2], with ``fraction_bits`` fraction bits."""
    angles = -2 * np.pi / block * np.arange(block // 2)
    result: Ints = np.rint(np.stack([np.cos(angles), np.sin(angles)], axis=-1) * 2**fraction_bits).astype(np.int64)
    return result


def _fraction_bits(largest: float, word_bits: int) -> int:
    """The most bits of a fraction with which a number still fits a word."""
    return word_bits - 1 - int(np.floor(np.log2(max(float(largest), 1e-30)))) - 1


def run_fixed(layer: FixedLayer, inputs_Bqk: Floats) -> tuple[Floats, Ints]:
    """What the engine makes of inputs.

    Returns
    -------
    outputs : float [B, p, k]
        The numbers that the words mean.
    words : int64 [B, p, k]
    """
    limit = 2 ** (layer.word_bits - 1)
    given = np.clip(np.rint(inputs_Bqk * 2.0**layer.input_bits), -limit, limit - 1).astype(np.int64)
    down, _, block, _ = layer.spectra_pqk2.shape
    words = np.zeros((len(given), down, block), np.int64)
    multiply_words(given, layer.spectra_pqk2, layer.twiddles_k2, _TWIDDLE_BITS, layer.shift, limit, words)
    return (words * 2.0**-layer.output_bits).astype(np.float64), words


def relative_error(down: int, across: int, block: int, word_bits: int, *, seed: int = 0, samples: int = 16) -> float:
    """Root mean square of what fixed point changes over that of the outputs, for normal weights and inputs.

    Examples
    --------
    >>> relative_error(4, 4, 16, 16) < 0.001 < relative_error(4, 4, 16, 8)
    True
    """
    draw = np.random.default_rng(seed)
    vectors = draw.normal(0, (across * block) ** -0.5, (down, across, block))
    inputs = draw.normal(0, 1, (samples, across, block))
    outputs, _ = run_fixed(scale_layer(vectors, inputs, word_bits), inputs)
    exact = np.fft.ifft(np.einsum("pqk,bqk->bpk", np.fft.fft(vectors), np.fft.fft(inputs))).real
    return float(np.sqrt(np.mean((outputs - exact) ** 2) / np.mean(exact**2)))


@njit(cache=True)
def _round_shift(value: int, bits: int) -> int:
    """Shift down, halves to the even neighbor."""
    # Adding half a unit rounds half up; adding one less, plus the bit that becomes the lowest, rounds half
    # to even:  value + (2**(bits-1) - 1) + (lowest bit of the result)
    if bits == 0:
        return value
    return (value + (1 << (bits - 1)) - 1 + ((value >> bits) & 1)) >> bits


@njit(cache=True)
def _transform(real_k: Any, imag_k: Any, twiddles_k2: Any, fraction_bits: int) -> None:
    """In place, decimated in time; every level halves."""
    # Cooley-Tukey: bit-reversed order first, then log2(k) levels of butterflies on spans of 1, 2, 4, ...
    #      low   o----(+)--o   (low + w*high) / 2
    #             \  /
    #             /  \
    #      high  o-w--(-)--o   (low - w*high) / 2
    # Halving at each level keeps words within their width whatever the input. It scales by 1/k: for the
    # inverse transform that is its definition, for the forward one ``output_bits`` takes it into account.
    block = len(real_k)
    other = 0
    for index in range(1, block):  # reverse the bits of places
        bit = block >> 1
        while other & bit:
            other ^= bit
            bit >>= 1
        other ^= bit
        if index < other:
            real_k[index], real_k[other] = real_k[other], real_k[index]
            imag_k[index], imag_k[other] = imag_k[other], imag_k[index]
    half = 1
    while half < block:
        step = block // (2 * half)
        for begin in range(0, block, 2 * half):
            for position in range(half):
                cosine, sine = twiddles_k2[position * step, 0], twiddles_k2[position * step, 1]
                low, high = begin + position, begin + position + half
                real = _round_shift(real_k[high] * cosine - imag_k[high] * sine, fraction_bits)
                imag = _round_shift(real_k[high] * sine + imag_k[high] * cosine, fraction_bits)
                real_k[high], imag_k[high] = _round_shift(real_k[low] - real, 1), _round_shift(imag_k[low] - imag, 1)
                real_k[low], imag_k[low] = _round_shift(real_k[low] + real, 1), _round_shift(imag_k[low] + imag, 1)
        half *= 2


@njit(cache=True)
def multiply_words(inputs_Bqk: Any, spectra_pqk2: Any, twiddles_k2: Any, fraction_bits: int, shift: int, limit: int,
                   words_Bpk: Any) -> None:  # fmt: skip
    """Words [B, p, k] of words [B, q, k] and spectra: sums are shifted once, and saturate at ``limit``."""
    #      x --transform--> X;  sum over columns of W * X;  conjugate --transform--> y
    # The conjugate turns the forward transform into the inverse one: the engine needs one circuit only.
    # Products of a row add up in 64 bits and are shifted once, so that only one rounding is seen per sum.
    samples, across, block = inputs_Bqk.shape
    down = len(spectra_pqk2)
    real_qk, imag_qk = np.zeros((across, block), np.int64), np.zeros((across, block), np.int64)
    real_k, imag_k = np.zeros(block, np.int64), np.zeros(block, np.int64)
    for sample in range(samples):
        for column in range(across):
            real_qk[column] = inputs_Bqk[sample, column]
            imag_qk[column] = 0
            _transform(real_qk[column], imag_qk[column], twiddles_k2, fraction_bits)
        for row in range(down):
            for index in range(block):
                real = imag = 0
                for column in range(across):
                    weight_real = spectra_pqk2[row, column, index, 0]
                    weight_imag = spectra_pqk2[row, column, index, 1]
                    real += weight_real * real_qk[column, index] - weight_imag * imag_qk[column, index]
                    imag += weight_real * imag_qk[column, index] + weight_imag * real_qk[column, index]
                real_k[index] = min(max(_round_shift(real, shift), -limit), limit - 1)
                imag_k[index] = -min(max(_round_shift(imag, shift), -limit), limit - 1)  # the conjugate
            _transform(real_k, imag_k, twiddles_k2, fraction_bits)
            words_Bpk[sample, row] = real_k
