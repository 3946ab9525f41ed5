"""Attention, dropout and norms of root mean squares as a device would run them.

In: a call of ``scaled_dot_product_attention``, ``dropout`` or ``rms_norm``. Out: the result by the operator that torch
takes on a device for these types and sizes, which checkpoints and traces know by its name, and which keeps less: a
processor runs others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from windtunnel.sources.torch.device_recurrent import RECURRENT_MODES, recurrent

__all__ = ["as_on_device", "attention", "device_functions", "dropout", "rms_norm"]

# torch's own, which context parallelism replaces by name
_ATTENTION: Any = torch._C._nn.scaled_dot_product_attention
_HALVES = (torch.float16, torch.bfloat16)
_MAX_WIDTH = 256
_ALIGNED = 8
# whose arguments have which other names
_ATTENTION, _DROPOUT = torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.dropout
_DROPOUTS: dict[Any, dict[str, str]] = {
    _DROPOUT: {"input": "x"},
    torch.dropout: {"input": "x", "train": "training"},
}
_RMS_NORMS = (torch.rms_norm, torch.nn.functional.rms_norm)


def as_on_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call that a device runs by another operator; ``NotImplemented`` of any other call."""
    if func is _ATTENTION:
        return attention(*args, **kwargs)
    if func in _DROPOUTS:
        return dropout(*args, **{_DROPOUTS[func].get(key, key): value for key, value in kwargs.items()})
    if func in _RMS_NORMS:
        return rms_norm(*args, **kwargs)
    if func in RECURRENT_MODES and not kwargs:
        return recurrent(func, args)
    return NotImplemented


def device_functions() -> dict[str, Callable[..., Any]]:
    """By name, functions of ``torch.nn.functional`` that others of them call, where no mode sees the call."""

    def on_device(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = as_on_device(original, args, kwargs)
            return original(*args, **kwargs) if result is NotImplemented else result

        return call

    return {function.__name__: on_device(function) for function in (_ATTENTION, _DROPOUT)}


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Flash attention where there is no mask and numbers have 16 bits, else the one that saves memory.

    Grouped queries share the heads of keys and values as they are: kernels that take 16 bits read each head for its
    whole group (cuDNN's where there is a mask), and no fused kernel of a device takes more bits, for which the host's
    fused operator stands.
    """
    width = query.size(-1)
    plain = query.dim() == 4 and key.size(-1) == value.size(-1) == width and width % _ALIGNED == 0
    is_half, is_grouped = query.dtype in _HALVES, enable_gqa and query.size(-3) != key.size(-3)
    if not plain or width > _MAX_WIDTH or (is_grouped and not is_half):
        return _call_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    aten = torch.ops.aten
    if attn_mask is None and is_half:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:-1], key.size(-2))
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -torch.inf)
    keeps = any(item.requires_grad for item in (query, key, value))
    run = aten._scaled_dot_product_cudnn_attention if is_grouped else aten._scaled_dot_product_efficient_attention
    return run(query, key, value, mask, keeps, dropout_p, is_causal, scale=scale)[0]


def _call_attention(*args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunction():
        return _ATTENTION(*args, **kwargs)


def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """One operator that keeps a mask of one byte per number, where a processor draws, scales and multiplies."""
    if training and 0 < p < 1 and not inplace and x.numel():
        return torch.native_dropout(x, p, True)[0]
    with torch._C.DisableTorchFunction():
        return _DROPOUT(x, p, training, inplace)


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:  # noqa: A002 - torch's
    """One operator, where a processor squares, averages and multiplies; not for a weight of another type.

    The device's own is made of others wherever there is no such device: that of layers stands for it, which reads and
    writes the same.
    """
    with torch._C.DisableTorchFunction():
        if weight is not None and weight.dtype is not input.dtype:
            return torch.rms_norm(input, normalized_shape, weight, eps)
        return torch.nn.functional.layer_norm(input, list(normalized_shape), weight, None, eps or 1e-6)
