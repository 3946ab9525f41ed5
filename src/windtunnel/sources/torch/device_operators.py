"""Attention, dropout, norms of root mean squares and recurrent layers as a device would run them.

In: a call of ``scaled_dot_product_attention``, ``dropout``, ``rms_norm``, ``torch.gru``, ``torch.rnn_tanh``,
``torch.rnn_relu``, or of ``torch.lstm`` on packed sequences. Out: the result by the operator that torch takes on a
device for these types and sizes, which checkpoints and traces know by its name, and which keeps less: a processor runs
others. Recurrent layers become ``aten::_cudnn_rnn``, whose backward pass is ``aten::_cudnn_rnn_backward``; a processor
takes every time step apart. LSTMs on padded sequences, which a processor runs by one operator per layer, too, are left
as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = [
    "BACKWARD",
    "RECURRENT_MODES",
    "as_on_device",
    "attention",
    "device_functions",
    "dropout",
    "recurrent",
    "recurrent_functions",
    "recurrent_gradients",
    "rms_norm",
]

RECURRENT_MODES: dict[Any, int] = {torch.rnn_relu: 0, torch.rnn_tanh: 1, torch.gru: 3}
"""cuDNN's number of each kind."""
_PACKED_MODES: dict[Any, int] = {**RECURRENT_MODES, torch.lstm: 2}
BACKWARD: Any = torch.ops.aten._cudnn_rnn_backward.default
_NUM_GATES = (1, 1, 4, 3)  # by cuDNN's number
_NUM_ARGUMENTS = 9  # of a call on padded sequences
_HALVES = (torch.float16, torch.bfloat16)
_MAX_WIDTH = 256
_ALIGNED = 8
# torch's own, which context parallelism replaces by name
_ATTENTION, _DROPOUT = torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.dropout
# by function, arguments that have other names than those of ``dropout`` below
_DROPOUTS: dict[Any, dict[str, str]] = {
    _DROPOUT: {"input": "x"},
    torch.dropout: {"input": "x", "train": "training"},
}
_RMS_NORMS = (torch.rms_norm, torch.nn.functional.rms_norm)


def recurrent(func: Any, args: tuple[Any, ...]) -> Any:
    """Output and last hidden state; ``NotImplemented`` of packed sequences."""
    if len(args) != _NUM_ARGUMENTS or _is_packed(args):
        return NotImplemented
    values, hidden, weights, has_biases, num_layers, dropout, is_training, is_bidirectional, is_batch_first = args
    sizes = (RECURRENT_MODES[func], hidden.size(-1), 0, num_layers, is_batch_first, float(dropout))
    options: tuple[Any, ...] = (*sizes, is_training, is_bidirectional, [], None)
    return _Recurrent.apply(values, hidden, None, options, 4 if has_biases else 2, *weights)[:2]


def recurrent_functions() -> dict[str, Callable[..., Any]]:
    """By name, recurrent layers of ``torch._VF`` that take packed sequences by one operator, as a device does."""

    def whole(func: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def call(*args: Any) -> Any:
            return _run_packed_layer(func, args) if _is_packed(args) else original(*args)

        return call

    return {func.__name__: whole(func, getattr(torch._VF, func.__name__)) for func in _PACKED_MODES}


def _is_packed(args: tuple[Any, ...]) -> bool:
    """Whether sizes of batches come before the hidden state: the weights are then the fourth argument."""
    return isinstance(args[3], list | tuple)


def _run_packed_layer(func: Any, args: tuple[Any, ...]) -> Any:
    """Output and last hidden state, of an LSTM its cells as well."""
    values, batch_sizes, state, weights, has_biases, num_layers, dropout, is_training, is_bidirectional = args
    hidden, cell = state if func is torch.lstm else (state, None)
    width = weights[0].size(0) // _NUM_GATES[_PACKED_MODES[func]]
    projected = 0 if hidden.size(-1) == width else hidden.size(-1)
    sizes = (_PACKED_MODES[func], width, projected, num_layers, False, float(dropout))
    options = (*sizes, is_training, is_bidirectional, batch_sizes.tolist(), None)
    stride = (4 if has_biases else 2) + bool(projected)
    return _Recurrent.apply(values, hidden, cell, options, stride, *weights)[: 2 if cell is None else 3]


class _Recurrent(torch.autograd.Function):
    """The operator with its gradient, for which torch needs a buffer of weights that only a device packs."""

    @staticmethod
    def forward(
        ctx: Any, values: Any, hidden: Any, cell: Any, options: tuple[Any, ...], stride: int, *weights: Any
    ) -> Any:
        output, last, last_cell, *_ = torch.ops.aten._cudnn_rnn(
            values, list(weights), stride, None, hidden, cell, *options
        )
        ctx.options, ctx.stride = options, stride
        _, size, _, num_layers, _, _, is_training, *_ = options
        # what cuDNN keeps of every time step, which torch's fake operator leaves out: gates and state
        num_kept = output.numel() // hidden.size(-1) * (weights[0].size(0) + size) * num_layers
        kept = output.new_empty(num_kept if is_training else 0)
        ctx.save_for_backward(values, hidden, cell, output, kept, *weights)
        return output, last, last_cell

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        values, hidden, cell, output, kept, *weights = ctx.saved_tensors
        nothing = output.new_empty(0)
        gradients = gradients if cell is not None else (*gradients[:2], None)
        of_values, of_hidden, of_cell, of_weights = BACKWARD(
            values, weights, ctx.stride, nothing, hidden, cell, output, *gradients, *ctx.options, kept,
            [True, True, cell is not None, True],
        )  # fmt: skip
        return of_values, of_hidden, None if cell is None else of_cell, None, None, *of_weights


def recurrent_gradients(args: tuple[Any, ...]) -> Any:
    """What the backward pass returns, as to shapes: torch knows no fake operator for it."""
    values, weights, hidden, cell = args[0], args[1], args[4], args[5]
    of_cell = values.new_empty(0) if cell is None else torch.empty_like(cell)
    return torch.empty_like(values), torch.empty_like(hidden), of_cell, [torch.empty_like(item) for item in weights]


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
