"""One product of two matrices by the library that is quicker for its shape.

In: two matrices in any layout. Out: their product in a new matrix. On a processor torch hands float32 products to the
BLAS it was built with, although the oneDNN that it also holds can be several times as quick on some processors and
slower on others: which one is measured once per size. Not here: what is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch

from windtunnel.systems.layers.nn.choice import coarse, quickest

__all__ = ["add_product", "product"]

Tensor = torch.Tensor


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product ``a b``."""
    return _library(a, b)(a, b)


def add_product(out: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    """``out += scale a b``; gives ``out``."""
    if _library(a, b) is torch.mm:
        return out.addmm_(a, b, alpha=scale)
    return out.add_(_onednn(a, b), alpha=scale)


def _library(a: Tensor, b: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    is_plain = a.dtype is torch.float32 and a.device.type == "cpu" and min(*a.shape, b.shape[1]) > 0
    if not (is_plain and torch.backends.mkldnn.is_available()):
        return torch.mm
    rows, inner, columns = map(coarse, (*a.shape, b.shape[1]))
    layout = a.stride(1) == 1, b.stride(1) == 1
    return _quicker(rows, inner, columns, layout, torch.get_num_threads())


@cache
def _quicker(
    rows: int, inner: int, columns: int, layout: tuple[bool, bool], threads: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the quicker product, measured once for sizes that are rounded to powers of two."""
    del threads
    a, b = (
        _constant_matrix(rows, inner, is_row_major=layout[0]),
        _constant_matrix(inner, columns, is_row_major=layout[1]),
    )
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"torch": torch.mm, "onednn": _onednn}
    return ways[quickest({name: partial(way, a, b) for name, way in ways.items()}, plain="torch", budget_s=0.05)]


def _constant_matrix(rows: int, columns: int, *, is_row_major: bool) -> Tensor:
    return torch.full((rows, columns), 0.01) if is_row_major else torch.full((columns, rows), 0.01).t()


def _onednn(a: Tensor, b: Tensor) -> Tensor:
    created: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return created
