"""Matrices of circulant blocks: what they are, the nearest one, their size.

In: first columns of blocks [p, q, k], or a dense matrix [m, n]. Out: the dense matrix, or the first columns of the
matrix of circulant blocks that is nearest to it. Not here: products with them (``products``).

A block W has W[r, c] = w[(r - c) mod k]: w is its first *column*, and W x is the circular convolution of w and x. The
papers say first row, whose formula is that of the transpose. Where k divides neither m nor n, the last blocks are
padded: the product reads zeros there, and what it gives there is dropped.

Source: Ding et al., CirCNN, MICRO 2017; Liao et al., ICCAD 2017; Wang et al., AAAI 2018.
"""

# m outputs, n inputs, k size of a block, p = ceil(m / k) rows and q = ceil(n / k) columns of blocks

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from windtunnel.errors import InputError

__all__ = ["Blocks", "dense", "nearest"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Blocks:
    """How a matrix is cut.

    Parameters
    ----------
    num_outputs, num_inputs : int
        Rows m and columns n of the matrix.
    size : int
        Rows and columns k of a block.

    Raises
    ------
    InputError
        A block is smaller than 2, or larger than the matrix.

    Examples
    --------
    >>> blocks = Blocks(10, 6, 4)
    >>> blocks.shape, blocks.num_weights, blocks.padding
    ((3, 2, 4), 24, (2, 2))
    """

    num_outputs: int
    num_inputs: int
    size: int

    def __post_init__(self) -> None:
        """Refuse sizes that do not form blocks."""
        most = max(self.num_outputs, self.num_inputs)
        if not 2 <= self.size <= most:
            raise InputError(
                f"a matrix of {self.num_outputs} x {self.num_inputs} has no circulant blocks of {self.size}",
                where=f"k={self.size}",
                fix=f"take k from 2 to {most}",
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows of blocks, columns of blocks, weights of a block: (p, q, k)."""
        return -(-self.num_outputs // self.size), -(-self.num_inputs // self.size), self.size

    @property
    def num_weights(self) -> int:
        """Number of stored weights, p q k."""
        p, q, k = self.shape
        return p * q * k

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns beyond the matrix."""
        p, q, k = self.shape
        return p * k - self.num_outputs, q * k - self.num_inputs

    @property
    def compression(self) -> float:
        """Dense weights over stored ones: k, less what is padded."""
        return self.num_outputs * self.num_inputs / self.num_weights

    def warn(self) -> None:
        """Warn where the blocks do not divide the matrix."""
        rows, columns = self.padding
        if rows or columns:
            warnings.warn(
                f"blocks of {self.size} do not divide {self.num_outputs} x {self.num_inputs}: padded by {rows} rows "
                f"and {columns} columns, {self.compression:.2f} times as small instead of {self.size}",
                stacklevel=3,
            )


def _offsets(k: int, device: torch.device) -> Tensor:
    """(r - c) mod k of every place of a block, [k, k]."""
    index = torch.arange(k, device=device)
    return (index[:, None] - index[None, :]) % k


def dense(weight: Tensor, blocks: Blocks) -> Tensor:
    """The matrix [..., m, n] of first columns [..., p, q, k].

    Examples
    --------
    >>> dense(torch.tensor([[[1.0, 2.0, 3.0]]]), Blocks(3, 3, 3)).tolist()
    [[1.0, 3.0, 2.0], [2.0, 1.0, 3.0], [3.0, 2.0, 1.0]]
    """
    p, q, k = blocks.shape
    # rows are windows of the backward weights written twice; adding windows up again is quicker than by indices
    backward = weight.flip(-1)
    whole = torch.cat([backward, backward[..., :-1]], dim=-1).unfold(-1, k, 1).flip(-2)  # [..., p, q, k, k]
    whole = whole.transpose(-3, -2).reshape(*weight.shape[:-3], p * k, q * k)
    return whole[..., : blocks.num_outputs, : blocks.num_inputs]


def nearest(matrix: Tensor, blocks: Blocks) -> Tensor:
    """First columns [..., p, q, k] of the nearest matrix of circulant blocks: the mean of every wrapped diagonal.

    Of the places beyond the matrix nothing is known, and they do not count: this is the least-squares optimum.
    """
    p, q, k = blocks.shape
    rows, columns = blocks.padding
    lead = matrix.shape[:-2]

    # The least-squares fit of a circulant block is the mean of each wrapped diagonal; padded places are not
    # counted, hence the division by the number of real ones.
    def sum_blocks(whole: Tensor) -> Tensor:
        cut = torch.nn.functional.pad(whole, (0, columns, 0, rows))
        cut = cut.reshape(*whole.shape[:-2], p, k, q, k).transpose(-3, -2).reshape(*whole.shape[:-2], p, q, k * k)
        index = _offsets(k, matrix.device).reshape(-1).expand(cut.shape)
        return cut.new_zeros(*whole.shape[:-2], p, q, k).scatter_add_(-1, index, cut)

    count = sum_blocks(torch.ones_like(matrix[(0,) * len(lead)]))
    return sum_blocks(matrix) / count.clamp(min=1)
