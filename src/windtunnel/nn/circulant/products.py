"""Products with matrices of circulant blocks, in several ways (room nn).

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
from windtunnel.nn.choice import coarse, quickest
from windtunnel.nn.circulant.algebra import Blocks, dense

__all__ = ["AUTOMATIC", "WAYS", "checked_way", "multiply", "spectrum", "way_for"]

Tensor = torch.Tensor
Product = Callable[[Tensor, Tensor, Blocks], Tensor]
AUTOMATIC = "auto"


def _cut(x: Tensor, blocks: Blocks) -> Tensor:
    """Rows [R, n] as blocks [R, q, k], padded with zeros."""
    _, q, k = blocks.shape
    columns = blocks.padding[1]
    padded = torch.nn.functional.pad(x, (0, columns)) if columns else x
    return padded.reshape(-1, q, k)


def _joined(y: Tensor, blocks: Blocks) -> Tensor:
    """Blocks [R, p, k] as rows [R, m]."""
    return y.reshape(len(y), -1)[:, : blocks.num_outputs]


def spectrum(weight: Tensor) -> Tensor:
    """Frequencies of first columns, [F, q, p] complex: what ``fft`` multiplies with."""
    frequencies: Tensor = torch.fft.rfft(weight)
    return frequencies.permute(2, 1, 0)


def _fft(x: Tensor, weight: Tensor, blocks: Blocks) -> Tensor:
    return by_spectrum(x, spectrum(weight), blocks)


def by_spectrum(x: Tensor, weight: Tensor, blocks: Blocks) -> Tensor:
    """The product with frequencies [F, q, p] that are there already."""
    frequencies = torch.fft.rfft(_cut(x, blocks)).permute(2, 0, 1)  # [F, R, q]
    product = torch.bmm(frequencies, weight)  # [F, R, p]
    return _joined(torch.fft.irfft(product.permute(1, 2, 0), n=blocks.size), blocks)


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


def _dft(x: Tensor, weight: Tensor, blocks: Blocks) -> Tensor:
    p, q, k = blocks.shape
    num_frequencies = k // 2 + 1
    ahead, back = _transform(k, x.dtype, x.device.type)
    real, imaginary = (_cut(x, blocks) @ ahead).view(-1, q, 2, num_frequencies).permute(2, 3, 0, 1)  # [F, R, q]
    w_real, w_imaginary = (weight @ ahead).view(p, q, 2, num_frequencies).permute(2, 3, 1, 0)  # [F, q, p]
    both = torch.cat([real, imaginary], dim=2)  # [F, R, 2 q]
    y_real = torch.bmm(both, torch.cat([w_real, -w_imaginary], dim=1))
    y_imaginary = torch.bmm(both, torch.cat([w_imaginary, w_real], dim=1))
    product = torch.stack([y_real, y_imaginary]).permute(2, 3, 0, 1).reshape(-1, p, 2 * num_frequencies)
    return _joined(product @ back, blocks)


def _dense(x: Tensor, weight: Tensor, blocks: Blocks) -> Tensor:
    return torch.nn.functional.linear(x, dense(weight, blocks))


WAYS: dict[str, Product] = {"fft": _fft, "dft": _dft, "dense": _dense}


def checked_way(name: str) -> str:
    """The name, if it is that of a way.

    Raises
    ------
    InputError
        It is not.
    """
    if name not in (AUTOMATIC, *WAYS):
        raise InputError(
            f"no way of a circulant product is called {name!r}", fix=f"use one of {AUTOMATIC}, {', '.join(WAYS)}"
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
    rows = WAYS[way](x.reshape(-1, x.shape[-1]), weight, blocks)
    return rows.reshape(*x.shape[:-1], blocks.num_outputs)


def way_for(blocks: Blocks, num_rows: int, dtype: torch.dtype, device: str, *, trains: bool) -> str:
    """The quickest way for so many rows here, measured once; ``dense`` unless another is clearly quicker."""
    return _quickest(blocks, coarse(num_rows), dtype, device, trains, torch.get_num_threads())


@cache
def _quickest(blocks: Blocks, num_rows: int, dtype: torch.dtype, device: str, trains: bool, threads: int) -> str:
    del threads
    x = torch.full((num_rows, blocks.num_inputs), 0.01, dtype=dtype, device=device, requires_grad=trains)
    weight = torch.full(blocks.shape, 0.01, dtype=dtype, device=device, requires_grad=trains)
    if trains:
        return quickest({name: partial(_trained, way, x, weight, blocks) for name, way in WAYS.items()}, plain="dense")
    made = dense(weight, blocks)
    ways = {
        "fft": partial(by_spectrum, x, spectrum(weight).contiguous(), blocks),
        "dft": partial(_dft, x, weight, blocks),
    }
    with torch.no_grad():
        return quickest({**ways, "dense": partial(torch.nn.functional.linear, x, made)}, plain="dense")


def _trained(way: Product, x: Tensor, weight: Tensor, blocks: Blocks) -> None:
    with torch.enable_grad():
        torch.autograd.grad(way(x, weight, blocks).sum(), [x, weight])
