"""Lengths that operators believe, when they are run again.

In: an operator that takes lengths as an integer tensor. Out: one that gets lengths which fit the shapes. What such a
tensor held is not captured, and kernels of packed sequences do not check it: with drawn numbers they read and write
beyond their memory. Equal shapes get equal lengths, so that what packs, computes and unpacks agrees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from windtunnel.cost.rerun.program import Call

__all__ = ["with_lengths"]

Function = Callable[..., Any]


def with_lengths(call: Call, function: Function) -> Function:
    """The operator of ``call`` with lengths that it may trust; ``function`` itself where it asks for none.

    The result raises ``ValueError`` where no lengths fit the shapes.
    """
    change = _CHANGES.get(call.schema.partition("(")[0])
    return function if change is None else change(call, function)


def _packing(call: Call, function: Function) -> Function:
    count, longest = _batch_and_time(call.shapes[0], call.inputs[2])
    filled = call.output_shapes[0][0] / (count * longest)  # the rest is padding

    def pack(padded: torch.Tensor, _lengths: Any, batch_first: bool) -> Any:
        count, longest = _batch_and_time(padded.shape, batch_first)
        return function(padded, _lengths_of(round(filled * count * longest), longest, count), batch_first)

    return pack


def _recurring(_call: Call, function: Function) -> Function:
    def recur(data: torch.Tensor, sizes: torch.Tensor, state: Any, *others: Any) -> Any:
        hidden = state if isinstance(state, torch.Tensor) else state[0]
        return function(data, _sizes_of(data.shape[0], sizes.shape[0], hidden.shape[1]), state, *others)

    return recur


def _padding(call: Call, function: Function) -> Function:
    count, longest = _batch_and_time(call.output_shapes[0], call.inputs[2])
    filled = call.shapes[0][0] / (count * longest)

    def pad(data: torch.Tensor, sizes: torch.Tensor, *others: Any) -> Any:
        longest = sizes.shape[0]
        return function(data, _sizes_of(data.shape[0], longest, round(data.shape[0] / longest / filled)), *others)

    return pad


def _aligning(call: Call, function: Function) -> Function:
    """CTC: every input is as long as its tensor, targets share what there is of them."""
    is_one_row = len(call.shapes[1]) == 1

    def loss(outputs: torch.Tensor, targets: torch.Tensor, _inputs: Any, _targets: Any, *others: Any) -> Any:
        time, count = outputs.shape[0], outputs.shape[1]
        total = targets.shape[0] if is_one_row else targets.shape[1] * count
        whole, rest = divmod(total, count)
        lengths = torch.full((count,), whole).index_fill_(0, torch.arange(rest), whole + 1)
        return function(outputs, targets, torch.full((count,), time), lengths, *others)

    return loss


_CHANGES: dict[str, Callable[[Call, Function], Function]] = {
    "aten::_pack_padded_sequence": _packing,
    "aten::_pad_packed_sequence": _padding,
    "aten::lstm.data": _recurring,
    "aten::gru.data": _recurring,
    "aten::rnn_tanh.data": _recurring,
    "aten::rnn_relu.data": _recurring,
    "aten::ctc_loss.Tensor": _aligning,
}


def _batch_and_time(shape: Sequence[int], batch_first: bool) -> tuple[int, int]:
    return (shape[0], shape[1]) if batch_first else (shape[1], shape[0])


@functools.lru_cache(maxsize=256)
def _lengths_of(total: int, longest: int, count: int) -> torch.Tensor:
    """Lengths int64 [count] from the longest on, with this sum: a straight line about their mean."""
    if not longest + count - 1 <= total <= longest * count:
        raise ValueError(f"no {count} sequences of 1 to {longest} items have {total} items")
    mean = total / count
    reach = min(longest - mean, mean - 1)
    line = mean + reach * (1 - 2 * torch.arange(count, dtype=torch.float64) / max(1, count - 1))
    lengths = [longest, *line.round().long().clamp(1, longest).tolist()[1:]]
    index = 0
    # what rounding and the longest one took is given back, one item each in turn
    while missing := total - sum(lengths):
        index = index % (count - 1) + 1
        lengths[index] = min(longest, max(1, lengths[index] + (1 if missing > 0 else -1)))
    return torch.tensor(sorted(lengths, reverse=True))


@functools.lru_cache(maxsize=256)
def _sizes_of(total: int, longest: int, count: int) -> torch.Tensor:
    """How many sequences still run at each place in time, int64 [longest]."""
    return (_lengths_of(total, longest, count)[:, None] > torch.arange(longest)).sum(dim=0)
