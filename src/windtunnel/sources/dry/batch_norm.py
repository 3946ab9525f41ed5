"""Batch normalization over all ranks, on a device that is not there.

In: ``torch.nn.SyncBatchNorm`` on fake tensors. Out: what it calls on a device, with shapes of the results: torch has
these operators for devices alone. Not here: its messages (``groups``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from windtunnel.sources.dry.patches import patch_attributes

__all__ = ["on_device"]

_LIBRARY = torch.library.Library("aten", "IMPL", "Meta")


def _per_channel(x: torch.Tensor) -> torch.Tensor:
    """Statistics of 16-bit numbers have 32."""
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return x.new_empty(x.size(1), dtype=dtype)


def _two(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _per_channel(x), _per_channel(x)


def _alike(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _sums(
    _gradient: torch.Tensor, x: torch.Tensor, _mean: Any, _invstd: Any, _weight: Any, *is_wanted: bool
) -> tuple[torch.Tensor, ...]:
    """Sums of the gradient, of it times the input, and the gradients of weight and bias."""
    reduces, weighs, is_biased = is_wanted
    return tuple(_per_channel(x) if item else x.new_empty(0) for item in (reduces, reduces, weighs, is_biased))


_RESULTS: dict[str, Callable[..., Any]] = {
    "batch_norm_stats": _two,
    "batch_norm_gather_stats_with_counts": _two,
    "batch_norm_elemt": _alike,
    "batch_norm_backward_reduce": _sums,
    "batch_norm_backward_elemt": _alike,
}
for _name, _result in _RESULTS.items():
    _LIBRARY.impl(_name, _result)


def on_device(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``SyncBatchNorm.forward`` that takes the host for a device, and every rank's batch as one that holds samples."""
    # as while a CUDA graph is captured, where the ranks with empty batches cannot be left out
    for_a_while: dict[Any, dict[str, Any]] = {
        torch._C: {"_get_privateuse1_backend_name": lambda: "cpu"},
        torch.cuda: {"is_current_stream_capturing": lambda: True},
    }

    @functools.wraps(forward)
    def call(*args: Any) -> torch.Tensor:
        with patch_attributes(for_a_while):
            return forward(*args)

    return call
