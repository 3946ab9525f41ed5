"""The loss of a linear layer in chunks of rows: what "chunked-loss" prices and flies.

In: the rows that enter the last layer of a language model, its weights, labels. Out: the cross-entropy of all rows, and
its gradients. The logits of one chunk are there at a time; the backward pass computes them again.

Source: Grave et al., PyTorch torchtune, ``CEWithChunkedOutputLoss``, 2024; Hsu et al., Liger Kernel, 2024.
"""

# R rows, D inputs of the layer, V classes

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["cross_entropy_in_chunks"]


def cross_entropy_in_chunks(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    *,
    num_chunks: int,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy of ``linear(rows, weight, bias)``, chunk by chunk.

    Parameters
    ----------
    rows : Tensor [R, D]
    weight : Tensor [V, D]
    bias : Tensor [V], optional
    labels : Tensor [R]
    num_chunks : int
        At most as many chunks of rows, of equal size but for the last.
    reduction : str
        ``mean`` or ``sum``.
    ignore_index : int
        Label of rows that do not count.
    label_smoothing : float

    Examples
    --------
    >>> rows, weight, labels = torch.randn(6, 4), torch.randn(10, 4), torch.randint(10, (6,))
    >>> whole = torch.nn.functional.cross_entropy(rows @ weight.T, labels)
    >>> torch.allclose(whole, cross_entropy_in_chunks(rows, weight, None, labels, num_chunks=3))
    True
    """
    kind = rows.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        rows, weight = rows.to(dtype), weight.to(dtype)
        bias = bias if bias is None else bias.to(dtype)
    total: torch.Tensor = _ChunkedLoss.apply(rows, weight, bias, labels, num_chunks, ignore_index, label_smoothing)
    return total if reduction == "sum" else total / (labels != ignore_index).sum()


class _ChunkedLoss(torch.autograd.Function):
    """Sum of the losses of all rows, in float32 at least."""

    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any, bias: Any, labels: Any, *settings: Any) -> Any:
        num_chunks, ignore_index, label_smoothing = settings
        ctx.save_for_backward(rows, weight, bias, labels)
        ctx.settings = settings
        dtype = _accurate(rows)
        total = torch.zeros((), dtype=dtype, device=rows.device)
        for part, targets in _chunks(num_chunks, rows, labels):
            logits = torch.nn.functional.linear(part, weight, bias)
            total += torch.nn.functional.cross_entropy(
                logits.to(dtype), targets, reduction="sum", ignore_index=ignore_index, label_smoothing=label_smoothing
            )
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[Any, ...]:
        rows, weight, bias, labels = ctx.saved_tensors
        num_chunks, ignore_index, label_smoothing = ctx.settings
        wants_rows, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        of_rows = torch.empty_like(rows) if wants_rows else None
        of_weight = torch.zeros_like(weight) if wants_weight else None
        of_bias = torch.zeros_like(bias) if wants_bias else None
        outputs = (of_rows,) if of_rows is not None else ()
        for part, targets, *into in _chunks(num_chunks, rows, labels, *outputs):
            logits = torch.nn.functional.linear(part, weight, bias)
            of_logits = _gradient_of_logits(logits, targets, slope, ignore_index, label_smoothing)
            if into:
                torch.mm(of_logits, weight, out=into[0])
            if of_weight is not None:
                of_weight.addmm_(of_logits.T, part)
            if of_bias is not None:
                of_bias += of_logits.sum(0)
        return of_rows, of_weight, of_bias, None, None, None, None


def _accurate(tensor: torch.Tensor) -> torch.dtype:
    """The type of exponentials and of sums of many rows."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _chunks(num_chunks: int, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(tensor.chunk(num_chunks) for tensor in tensors), strict=True)


def _gradient_of_logits(
    logits: torch.Tensor, labels: torch.Tensor, slope: torch.Tensor, ignore_index: int, label_smoothing: float
) -> torch.Tensor:
    """Probabilities less those that the labels ask for; [R, V] in the type of the logits."""
    counts = labels != ignore_index
    gradient = torch.softmax(logits, -1, dtype=_accurate(logits))
    targets = torch.where(counts, labels, 0).unsqueeze(-1)
    expected = torch.full_like(targets, label_smoothing - 1.0, dtype=gradient.dtype)
    gradient.scatter_add_(-1, targets, expected)
    if label_smoothing:
        gradient -= label_smoothing / logits.shape[-1]
    gradient *= (counts * slope).unsqueeze(-1)
    return gradient.to(logits.dtype)
