"""Packed sequences where tensors are fake.

In: calls of the two operators that read lengths and batch sizes in C++. Out: their results, fake but for batch sizes
and lengths, which recurrent layers read in C++ as well, so that they have to be real.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["PACK", "PAD", "pack", "pad"]

PACK = torch.ops.aten._pack_padded_sequence.default
PAD = torch._C._VariableFunctions._pad_packed_sequence


def pack(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of samples one time step after the other, and how many samples each time step has.

    Parameters
    ----------
    padded : Tensor
        Fake.
    lengths : Tensor
        Real.
    batch_first : bool
    """
    with _disable_current_modes():
        thin = torch.empty((*padded.shape[:2], 1))
        rows, batch_sizes = PACK(thin, lengths, batch_first)
    return padded.new_empty((rows.shape[0], *padded.shape[2:])), batch_sizes


def pad(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reverse, differentiable; ``batch_sizes`` is real, and so are the lengths that are returned."""
    with _disable_current_modes():
        sizes: list[int] = batch_sizes.tolist()
        times = torch.repeat_interleave(torch.arange(len(sizes)), batch_sizes)
        samples = torch.cat([torch.arange(size) for size in sizes])
        lengths = torch.tensor([sum(size > sample for size in sizes) for sample in range(sizes[0])])
    num_steps = max(total_length, len(sizes))
    order: Any = (samples, times) if batch_first else (times, samples)
    shape = (sizes[0], num_steps) if batch_first else (num_steps, sizes[0])
    return data.new_full((*shape, *data.shape[1:]), padding_value).index_put(order, data), lengths
