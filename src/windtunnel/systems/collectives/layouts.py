"""How a tensor lies on the ranks of a group, and which part of it each rank holds.

In: shapes, dimensions, numbers of ranks. Out: layouts, tensor types, blocks of dimensions. Not here: what operators
make of them (``rules``).

References
----------
Jangda et al., Breaking the Computation and Communication Abstraction Barrier in Distributed Machine Learning Workloads,
ASPLOS 2022, section 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from windtunnel.base.extras import require
from windtunnel.errors import InputError

__all__ = ["FLAT", "LOCAL", "REPLICATED", "Layout", "TensorType", "block", "numpy_dtype", "ring_dim", "root_layout",
           "slice_layout", "sum_dtype"]  # fmt: skip

FLAT = -1
"""The dimension of slices that are contiguous ranges of the flattened tensor."""

LayoutKind = Literal["replicated", "sliced", "local", "rooted"]
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a tensor are.

    Attributes
    ----------
    kind : str
        ``replicated``: every rank has the same value. ``sliced``: rank r has block r of ``dim``. ``local``: every rank
        has an array of the full shape, and their values are unrelated, as partial sums are. ``rooted``: a local array
        whose value is that of the group on rank ``root`` only.
    dim : int
        Dimension of slices; ``FLAT`` for ranges of the flattened tensor.
    root : int
    """

    kind: LayoutKind
    dim: int = 0
    root: int = 0

    def __str__(self) -> str:
        if self.kind == "sliced":
            return "Sliced(flat)" if self.dim == FLAT else f"Sliced({self.dim})"
        return f"Rooted({self.root})" if self.kind == "rooted" else self.kind.capitalize()

    @property
    def is_replicated(self) -> bool:
        """Whether every rank has the same value."""
        return self.kind == "replicated"

    @property
    def is_sliced(self) -> bool:
        """Whether every rank has its own block."""
        return self.kind == "sliced"

    @property
    def is_local(self) -> bool:
        """Whether the values of the ranks are unrelated."""
        return self.kind == "local"


REPLICATED, LOCAL = Layout("replicated"), Layout("local")


def slice_layout(dim: int) -> Layout:
    """The layout of blocks of a dimension, or of the flattened tensor (``FLAT``)."""
    return Layout("sliced", dim)


def root_layout(root: int) -> Layout:
    """The layout of a value that only rank ``root`` holds."""
    return Layout("rooted", root=root)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape, layout, element type and group of a tensor.

    Parameters
    ----------
    shape : tuple of int
        Of the tensor as a program sees it; a rank stores ``local_shape``.
    layout : Layout
    dtype : str
    group : int
        The group of ranks that holds it; ``Send`` leads to the next.
    """

    shape: tuple[int, ...]
    layout: Layout = REPLICATED
    dtype: str = "float32"
    group: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in _ITEM_BYTES:
            raise InputError(f"there is no element type {self.dtype!r}", fix=f"use {', '.join(_ITEM_BYTES)}")
        if min(self.shape, default=0) < 0:
            raise InputError(f"a tensor has the shape {list(self.shape)}", fix="give sizes of 0 or more")

    def __str__(self) -> str:
        dims = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.dtype}[{dims}] {self.layout}" + (f" on group {self.group}" if self.group else "")

    @property
    def num_elements(self) -> int:
        """Elements of the full tensor."""
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return _ITEM_BYTES[self.dtype]

    @property
    def size_bytes(self) -> int:
        """Bytes of the full tensor."""
        return self.num_elements * self.item_bytes

    @property
    def is_scalar(self) -> bool:
        """Whether it has one element, which every rank may combine with everything."""
        return self.num_elements == 1

    def with_layout(self, layout: Layout) -> TensorType:
        """The same tensor in another layout."""
        return replace(self, layout=layout)

    def local_shape(self, rank: int, num_ranks: int) -> tuple[int, ...]:
        """Shape of what one rank stores; the last blocks of a dimension may be smaller, or empty."""
        if not self.layout.is_sliced:
            return self.shape
        dim = self.layout.dim
        if dim == FLAT:
            start, stop = block(self.num_elements, rank, num_ranks)
            return (stop - start,)
        start, stop = block(self.shape[dim], rank, num_ranks)
        return (*self.shape[:dim], stop - start, *self.shape[dim + 1 :])

    def local_bytes(self, rank: int, num_ranks: int) -> int:
        """Bytes that one rank stores."""
        return math.prod(self.local_shape(rank, num_ranks)) * self.item_bytes

    def take_block(self, full: np.ndarray, rank: int, num_ranks: int, dim: int) -> np.ndarray:
        """A view of what a rank holds of a full array that is sliced along ``dim``."""
        if dim == FLAT:
            start, stop = block(self.num_elements, rank, num_ranks)
            return full.reshape(-1)[start:stop]
        start, stop = block(self.shape[dim], rank, num_ranks)
        return full[(slice(None),) * dim + (slice(start, stop),)]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of an element; bfloat16 is one of the package ml_dtypes."""
    return np.dtype(require("ml_dtypes", extra="bfloat16").bfloat16 if name == "bfloat16" else name)


def sum_dtype(name: str) -> str:
    """The type in which values are added: sums of 16-bit values are kept in 32 bits."""
    return "float32" if _ITEM_BYTES[name] == 2 else name


def block(size: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Where the block of a rank starts and stops: blocks have ``ceil(size / num_ranks)`` elements, the last fewer.

    Examples
    --------
    >>> [block(7, rank, 3) for rank in range(3)]
    [(0, 3), (3, 6), (6, 7)]
    """
    width = -(-size // num_ranks)
    return min(rank * width, size), min((rank + 1) * width, size)


def ring_dim(tensor: TensorType, num_ranks: int) -> int:
    """The dimension that a ring cuts into chunks: the first, or the flattened tensor where it has fewer than k rows."""
    return 0 if len(tensor.shape) == 1 or (tensor.shape and tensor.shape[0] >= num_ranks) else FLAT
