"""How much an operator computes, from the shapes of its tensors: what the column ``flops`` means.

In: an operator's name, the shapes and values of its arguments, the shapes of its results. Out: floating point
operations; a multiply and an add are two. Readers fill the column with it and ``sources.torch.flop_count`` counts live
code with it, so that both say the same. May not enter: torch, tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["CONTRACTIONS", "PRODUCT_OPERANDS", "contraction_flops", "operator_flops", "sums_products"]

Shapes = Sequence[Any]
Counter = Callable[[Shapes, Sequence[Any], Shapes], int]
PRODUCT_OPERANDS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "linear": (0, 1)}
"""Products of matrices, and which arguments are multiplied; ``linear`` has its weight the other way round."""


def operator_flops(name: str, shapes: Shapes, values: Sequence[Any], outputs: Shapes) -> int:
    """Floating point operations of one call; an operator that sums no products counts one per element.

    Parameters
    ----------
    name : str
        Schema name, such as ``aten::mm`` or ``aten::add_.Tensor``.
    shapes : sequence
        Of the arguments, in the order of the schema; a list of shapes for a list of tensors, empty for all else.
    values : sequence
        The arguments that are not tensors, at the same places.
    outputs : sequence
        Shapes of the results.

    Examples
    --------
    >>> operator_flops("aten::mm", [[8, 4], [4, 16]], [None, None], [[8, 16]])
    1024
    >>> operator_flops("aten::relu", [[8, 4]], [None], [[8, 4]])
    32
    """
    counted = contraction_flops(name, shapes, values, outputs)
    if counted is not None:
        return counted
    return max((_count(shape) for shape in [*outputs, *shapes[:1]]), default=0)


def sums_products(name: str) -> bool:
    """Whether an operator is one of ``CONTRACTIONS``, by its schema name."""
    return _plain(name) in CONTRACTIONS


def _plain(name: str) -> str:
    return name.split(".")[0].removeprefix("aten::").rstrip("_")


def contraction_flops(name: str, shapes: Shapes, values: Sequence[Any], outputs: Shapes) -> int | None:
    """Floating point operations of an operator that sums products; None if it is none, 0 for an unknown overload."""
    counter = CONTRACTIONS.get(_plain(name))
    if counter is None:
        return None
    try:
        return int(counter(shapes, values, outputs))
    except (IndexError, TypeError, ValueError):
        return 0  # an overload with other arguments


def _count(shape: Any) -> int:
    is_shape = isinstance(shape, Sequence) and all(isinstance(size, int) for size in shape)
    return int(math.prod(shape)) if is_shape else 0


def _matmul(first: int, second: int) -> Counter:
    """Every element of the first factor meets every column of the second."""

    def count(shapes: Shapes, _values: Sequence[Any], _outputs: Shapes) -> int:
        columns = int(shapes[second][-1]) if len(shapes[second]) > 1 else 1
        return 2 * _count(shapes[first]) * columns

    return count


def _convolution(weight: int, transposed: int | bool) -> Counter:
    """Two per output (per input, if transposed) and weight of its channel: groups divide, dilation does not matter."""

    def count(shapes: Shapes, values: Sequence[Any], outputs: Shapes) -> int:
        places = shapes[0] if _resolve_flag(transposed, values) else outputs[0]
        return 2 * _count(places) * _per_channel(shapes[weight])

    return count


def _convolution_backward(transposed: int | bool) -> Counter:
    """As much as the forward pass for each of the two gradients that is wanted; the bias' gradient sums no products."""

    def count(shapes: Shapes, values: Sequence[Any], _outputs: Shapes) -> int:
        places = shapes[1] if _resolve_flag(transposed, values) else shapes[0]
        requested = next(
            (value for value in reversed(values) if isinstance(value, Sequence) and len(value) >= 2), (1, 1)
        )
        return 2 * _count(places) * _per_channel(shapes[2]) * (int(bool(requested[0])) + int(bool(requested[1])))

    return count


def _resolve_flag(flag: int | bool, values: Sequence[Any]) -> bool:
    """Return a flag that an operator's name determines, or the argument at its position."""
    return flag if isinstance(flag, bool) else bool(values[flag])


def _per_channel(weight: Sequence[int]) -> int:
    return _count(list(weight)[1:])


def _attention(query: int, key: int, value: int, causal: int, *, is_backward: bool) -> Counter:
    """Scores and mix; backward the scores again and four gradients. What a causal mask hides is not computed."""

    def count(shapes: Shapes, values: Sequence[Any], _outputs: Shapes) -> int:
        rows, columns = int(shapes[query][-2]), int(shapes[key][-2])
        seen = min(rows, columns)
        is_causal = causal < len(values) and values[causal] is True
        met = seen * (seen + 1) // 2 + (rows - seen) * columns if is_causal else rows * columns
        positions = _count(list(shapes[query])[:-2]) * met
        width, mixed = int(shapes[query][-1]), int(shapes[value][-1])
        return 2 * positions * (3 * width + 2 * mixed if is_backward else width + mixed)

    return count


def _recurrent_layer(factor: int) -> Counter:
    """Input and recurrent products of all gates at every step of one layer in one direction."""

    def count(shapes: Shapes, _values: Sequence[Any], _outputs: Shapes) -> int:
        positions = _count(list(shapes[0])[:-1])
        return factor * positions * (_count(shapes[1]) + _count(shapes[2]))

    return count


def _recurrent_stack(factor: int) -> Counter:
    """FLOPs over all layers and directions, whose matrices come as one list."""

    def count(shapes: Shapes, _values: Sequence[Any], _outputs: Shapes) -> int:
        positions = _count(list(shapes[0])[:-1])
        return factor * positions * sum(_count(weight) for weight in shapes[1] if len(weight) == 2)

    return count


CONTRACTIONS: dict[str, Counter] = {
    **{name: _matmul(*operands) for name, operands in PRODUCT_OPERANDS.items() if name != "linear"},
    "mv": _matmul(0, 1),
    "dot": _matmul(0, 1),
    "vdot": _matmul(0, 1),
    "_int_mm": _matmul(0, 1),
    "_scaled_mm": _matmul(0, 1),
    "_addmm_activation": _matmul(1, 2),
    "addmv": _matmul(1, 2),
    "addbmm": _matmul(1, 2),
    "convolution": _convolution(1, 6),
    "_convolution": _convolution(1, 6),
    "convolution_overrideable": _convolution(1, 6),
    "mkldnn_convolution": _convolution(1, transposed=False),
    "cudnn_convolution": _convolution(1, transposed=False),
    "cudnn_convolution_relu": _convolution(1, transposed=False),
    "cudnn_convolution_transpose": _convolution(1, transposed=True),
    "miopen_convolution": _convolution(1, transposed=False),
    "miopen_convolution_transpose": _convolution(1, transposed=True),
    "thnn_conv2d": _convolution(1, transposed=False),
    "_slow_conv2d_forward": _convolution(1, transposed=False),
    "slow_conv_dilated2d": _convolution(1, transposed=False),
    "slow_conv_dilated3d": _convolution(1, transposed=False),
    "slow_conv3d_forward": _convolution(1, transposed=False),
    "slow_conv_transpose2d": _convolution(1, transposed=True),
    "slow_conv_transpose3d": _convolution(1, transposed=True),
    "_conv_depthwise2d": _convolution(1, transposed=False),
    "conv_depthwise3d": _convolution(1, transposed=False),
    "convolution_backward": _convolution_backward(7),
    "_slow_conv2d_backward": _convolution_backward(transposed=False),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(0, 1, 2, 4, is_backward=False),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, 2, 3, 7, is_backward=True),
    "_scaled_dot_product_flash_attention": _attention(0, 1, 2, 4, is_backward=False),
    "_scaled_dot_product_flash_attention_backward": _attention(1, 2, 3, 11, is_backward=True),
    "_scaled_dot_product_efficient_attention": _attention(0, 1, 2, 6, is_backward=False),
    "_scaled_dot_product_efficient_attention_backward": _attention(1, 2, 3, 11, is_backward=True),
    "_scaled_dot_product_cudnn_attention": _attention(0, 1, 2, 6, is_backward=False),
    "_scaled_dot_product_cudnn_attention_backward": _attention(1, 2, 3, 14, is_backward=True),
    "mkldnn_rnn_layer": _recurrent_layer(2),
    "mkldnn_rnn_layer_backward": _recurrent_layer(4),
    "_cudnn_rnn": _recurrent_stack(2),
    "_cudnn_rnn_backward": _recurrent_stack(4),
    "miopen_rnn": _recurrent_stack(2),
    "miopen_rnn_backward": _recurrent_stack(4),
}
"""Counters of the operators that sum products, by name without namespace and overload."""
