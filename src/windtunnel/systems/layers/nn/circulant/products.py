"""Products with matrices of circulant blocks, in several ways.

In: rows [..., n] and first columns [p, q, k]. Out: rows [..., m], differentiable by both. The ways give the same
numbers, but for the order in which floats are added:

- ``fft`` transforms each block of the input once, multiplies per frequency, and transforms each block of the output
  back once;
- ``dft`` does the same with the transform as a product of matrices, in real numbers, which wins for small blocks;
- ``dense`` makes the dense matrix first, and wins for many rows and small matrices.

All are made of torch's operators, so that they compile and export. Not here: layers (``layers``).

Source: CirCNN, MICRO 2017: accumulate in the frequency domain, one transform back per row of blocks.
"""

# R rows, p x q blocks of k, F = k // 2 + 1 frequencies of real numbers

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import torch

from windtunnel.errors import InputError
from windtunnel.systems.layers.nn.choice import coarse, quickest
from windtunnel.systems.layers.nn.circulant.algebra import Blocks, dense

__all__ = ["AUTOMATIC", "WAYS", "check_way", "multiply", "multiply_by_prepared_weight", "prepare_weight", "way_for"]

Tensor = torch.Tensor
Prepare = Callable[[Tensor, Blocks], Tensor]
Apply = Callable[[Tensor, Tensor, Blocks], Tensor]
AUTOMATIC = "auto"


def _split_into_blocks(x: Tensor, blocks: Blocks) -> Tensor:
    """Rows [R, n] as blocks [R, q, k], padded with zeros."""
    _, q, k = blocks.shape
    columns = blocks.padding[1]
    padded = torch.nn.functional.pad(x, (0, columns)) if columns else x
    return padded.reshape(-1, q, k)


def _join_blocks(y: Tensor, blocks: Blocks) -> Tensor:
    """Blocks [R, p, k] as rows [R, m]."""
    return y.reshape(len(y), -1)[:, : blocks.num_outputs]


def _spectrum(weight: Tensor) -> Tensor:
    """Frequencies of first columns, [F, q, p] complex."""
    frequencies: Tensor = torch.fft.rfft(weight)
    return frequencies.permute(2, 1, 0).contiguous()


def _by_spectrum(x: Tensor, spectrum: Tensor, blocks: Blocks) -> Tensor:
    #      x [R, q, k] --rfft--> [F, R, q] --product per frequency--> [F, R, p] --irfft--> y [R, p, k]
    # q + p transforms instead of q * p: sums over blocks are taken among the frequencies.
    frequencies = torch.fft.rfft(_split_into_blocks(x, blocks)).permute(2, 0, 1)  # [F, R, q]
    product = torch.bmm(frequencies, spectrum)  # [F, R, p]
    return _join_blocks(torch.fft.irfft(product.permute(1, 2, 0), n=blocks.size), blocks)


@cache
def _transform(k: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Real transform [k, 2 F] (cosines, then sines) and its inverse [2 F, k]."""
    num_frequencies = k // 2 + 1
    angle = 2 * math.pi / k * torch.outer(torch.arange(k), torch.arange(num_frequencies)).remainder(k).double()
    ahead = torch.cat([angle.cos(), -angle.sin()], dim=1)
    counts = torch.full((num_frequencies,), 2.0, dtype=torch.double)  # each stands for its conjugate too
    counts[0] = 1.0
    if k % 2 == 0:
        counts[-1] = 1.0  # the highest one is real
    back = torch.cat([(angle.cos() * counts).t(), -(angle.sin() * counts).t()]) / k
    return ahead.to(dtype=dtype, device=device), back.to(dtype=dtype, device=device)


def _real_spectrum(weight: Tensor, blocks: Blocks) -> Tensor:
    """Return the spectrum in real numbers, [F, 2 q, 2 p]: real and imaginary parts of inputs to those of outputs."""
    # (a + bi)(c + di) as one real product:  [a b] [ c  d ]
    #                                              [-d  c ]
    p, q, k = blocks.shape
    ahead, _ = _transform(k, weight.dtype, weight.device.type)
    real, imaginary = (weight @ ahead).view(p, q, 2, k // 2 + 1).permute(2, 3, 1, 0)  # [F, q, p]
    return torch.cat([torch.cat([real, imaginary], dim=2), torch.cat([-imaginary, real], dim=2)], dim=1)


def _by_real_spectrum(x: Tensor, spectrum: Tensor, blocks: Blocks) -> Tensor:
    p, q, k = blocks.shape
    num_frequencies = k // 2 + 1
    ahead, back = _transform(k, x.dtype, x.device.type)
    cut = _split_into_blocks(x, blocks)
    # frequencies first: what is copied lies in rows of q and of p
    parts = (ahead.t() @ cut.reshape(-1, k).t()).view(2, num_frequencies, len(cut), q)
    product = torch.bmm(parts.permute(1, 2, 0, 3).reshape(num_frequencies, len(cut), 2 * q), spectrum)  # [F, R, 2 p]
    both = product.view(num_frequencies, len(cut), 2, p).permute(2, 0, 1, 3).reshape(2 * num_frequencies, -1)
    return _join_blocks((both.t() @ back).view(len(cut), p, k), blocks)


WAYS: dict[str, tuple[Prepare, Apply]] = {
    "fft": (lambda weight, _: _spectrum(weight), _by_spectrum),
    "dft": (_real_spectrum, _by_real_spectrum),
    "dense": (dense, lambda x, matrix, _: torch.nn.functional.linear(x, matrix)),
}
"""By method: the operand that it makes of the weights, which may be cached, and the product of rows with it."""


def check_way(name: str) -> str:
    """The name, if it is that of a way.

    Raises
    ------
    InputError
        It is not.
    """
    if name not in (AUTOMATIC, *WAYS):
        raise InputError(
            f"no method for a circulant product is called {name!r}", fix=f"use one of {AUTOMATIC}, {', '.join(WAYS)}"
        )
    return name


def multiply(x: Tensor, weight: Tensor, blocks: Blocks, way: str = "fft") -> Tensor:
    """Rows times the transposed matrix, as ``linear`` does: [..., n] to [..., m].

    Parameters
    ----------
    x : [..., n]
    weight : [p, q, k]
        First columns.
    blocks : Blocks
    way : str
    """
    return multiply_by_prepared_weight(x, prepare_weight(weight, blocks, way), blocks, way)


def prepare_weight(weight: Tensor, blocks: Blocks, way: str) -> Tensor:
    """Return the operand with which a method multiplies."""
    return WAYS[way][0](weight, blocks)


def multiply_by_prepared_weight(x: Tensor, operand: Tensor, blocks: Blocks, way: str) -> Tensor:
    """The product with what ``prepare_weight`` gave."""
    rows = WAYS[way][1](x.reshape(-1, x.shape[-1]), operand, blocks)
    return rows.reshape(*x.shape[:-1], blocks.num_outputs)


def way_for(blocks: Blocks, num_rows: int, dtype: torch.dtype, device: str, *, trains: bool) -> str:
    """Return the quickest method on this host, measured once; ``dense`` unless another is clearly quicker."""
    return _quickest(blocks, coarse(num_rows), dtype, device, trains, torch.get_num_threads())


@cache
def _quickest(blocks: Blocks, num_rows: int, dtype: torch.dtype, device: str, trains: bool, threads: int) -> str:
    # Part of the key of the cache only: with another number of threads another method may win.
    del threads
    x = torch.full((num_rows, blocks.num_inputs), 0.01, dtype=dtype, device=device, requires_grad=trains)
    weight = torch.full(blocks.shape, 0.01, dtype=dtype, device=device, requires_grad=trains)
    if trains:
        return quickest({name: partial(_run_training_pass, name, x, weight, blocks) for name in WAYS}, plain="dense")
    with torch.no_grad():
        ways = {
            name: partial(multiply_by_prepared_weight, x, prepare_weight(weight, blocks, name), blocks, name)
            for name in WAYS
        }
        return quickest(ways, plain="dense")


def _run_training_pass(way: str, x: Tensor, weight: Tensor, blocks: Blocks) -> None:
    with torch.enable_grad():
        torch.autograd.grad(multiply(x, weight, blocks, way).sum(), [x, weight])
