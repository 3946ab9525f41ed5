"""Recurrent layers as a device would run them: all layers and time steps in one operator of cuDNN.

In: a call of ``torch.gru``, ``torch.rnn_tanh`` or ``torch.rnn_relu`` on padded sequences. Out: the result by
``aten::_cudnn_rnn``, whose backward pass is ``aten::_cudnn_rnn_backward``; a processor takes every time step apart.
Not here: LSTMs, which a processor runs by one operator per layer, too (``device_operators`` leaves them as they are).
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["BACKWARD", "RECURRENT_MODES", "recurrent", "recurrent_gradients"]

RECURRENT_MODES = {torch.rnn_relu: 0, torch.rnn_tanh: 1, torch.gru: 3}
"""cuDNN's number of each kind."""
BACKWARD: Any = torch.ops.aten._cudnn_rnn_backward.default
_NUM_ARGUMENTS = 9  # of a call on padded sequences


def recurrent(func: Any, args: tuple[Any, ...]) -> Any:
    """Output and last hidden state; ``NotImplemented`` of packed sequences."""
    if len(args) != _NUM_ARGUMENTS or not isinstance(args[1], torch.Tensor):
        return NotImplemented
    values, hidden, weights, has_biases, num_layers, dropout, is_training, is_bidirectional, is_batch_first = args
    options = (RECURRENT_MODES[func], hidden.size(-1), num_layers, is_batch_first, float(dropout), is_training)
    return _Recurrent.apply(values, hidden, (*options, is_bidirectional, 4 if has_biases else 2), *weights)


class _Recurrent(torch.autograd.Function):
    """The operator with its gradient, for which torch needs a buffer of weights that only a device packs."""

    @staticmethod
    def forward(ctx: Any, values: Any, hidden: Any, options: tuple[Any, ...], *weights: Any) -> Any:
        mode, size, num_layers, is_batch_first, dropout, is_training, is_bidirectional, stride = options
        output, last, *_ = torch.ops.aten._cudnn_rnn(
            values, list(weights), stride, None, hidden, None, mode, size, 0, num_layers, is_batch_first, dropout,
            is_training, is_bidirectional, [], None,
        )  # fmt: skip
        ctx.options = options
        # what cuDNN keeps of every time step, which torch's fake operator leaves out: gates and state
        num_kept = output.numel() // hidden.size(-1) * (weights[0].size(0) + size) * num_layers
        ctx.save_for_backward(values, hidden, output, output.new_empty(num_kept if is_training else 0), *weights)
        return output, last

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        values, hidden, output, kept, *weights = ctx.saved_tensors
        mode, size, num_layers, is_batch_first, dropout, is_training, is_bidirectional, stride = ctx.options
        nothing = output.new_empty(0)
        of_values, of_hidden, _, of_weights = BACKWARD(
            values, weights, stride, nothing, hidden, None, output, *gradients, None, mode, size, 0, num_layers,
            is_batch_first, dropout, is_training, is_bidirectional, [], None, kept, [True, True, False, True],
        )  # fmt: skip
        return of_values, of_hidden, None, *of_weights


def recurrent_gradients(args: tuple[Any, ...]) -> Any:
    """What the backward pass returns, as to shapes: torch knows no fake operator for it."""
    values, weights, hidden = args[0], args[1], args[4]
    nothing = values.new_empty(0)
    return torch.empty_like(values), torch.empty_like(hidden), nothing, [torch.empty_like(item) for item in weights]
