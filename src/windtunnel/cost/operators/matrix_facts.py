"""Sizes, operations and bytes of products, attention and convolutions.

In: calls. Out: their family, and numbers by column of ``facts``. Not here: which operator is described how (``facts``).
"""

from __future__ import annotations

import math
from typing import Any

from windtunnel.cost.operators.calls import Call, Describe, Row, Shape, alignment_of

__all__ = ["attention_of", "describe_convolution", "describe_convolution_backward", "describe_linear", "product_of"]


def product_of(left: int, *, has_sum: bool = False) -> Describe:
    """Of two matrices, the first being that argument, alone or in batches."""

    def describe(call: Call) -> tuple[str, Row]:
        first, second = call.shapes[left], call.shapes[left + 1]
        batch = math.prod(first[:-2])
        if len(first) != len(second) or len(first) < 2 or batch != math.prod(second[:-2]):
            return "", {}
        first_steps, second_steps = call.stride(left), call.stride(left + 1)
        return _matrices(
            call, batch, first[-2], first[-1], second[-1], first_steps[-1] != 1 and first_steps[-2] == 1,
            second_steps[-1] != 1 and second_steps[-2] == 1, has_sum=has_sum, is_batch=len(first) > 2,
        )  # fmt: skip

    return describe


def describe_linear(call: Call) -> tuple[str, Row]:
    """A linear layer: a weight that lies transposed."""
    first, weight = call.shapes[:2]
    has_sum = len(call.shapes) > 2 and bool(call.shapes[2])
    return _matrices(call, 1, math.prod(first[:-1]), first[-1], weight[0], False, True, has_sum=has_sum)


def _matrices(
    call: Call,
    batch: int,
    rows: int,
    inner: int,
    columns: int,
    is_left_turned: bool,
    is_right_turned: bool,
    *,
    has_sum: bool = False,
    is_batch: bool = False,
) -> tuple[str, Row]:
    """``turned``: the other dimension of a factor lies in a row, as in a transposed view."""
    return "product", {
        "rows": rows, "columns": columns, "inner": inner, "batch": batch,
        "flops": 2.0 * batch * rows * columns * inner,
        "read_bytes": call.item * batch * float(rows * inner + inner * columns),
        "written_bytes": call.item * float(batch) * rows * columns,
        "layout": float(is_left_turned) + 2.0 * float(is_right_turned),
        "variant": 2.0 if is_batch else float(has_sum),
        "alignment": alignment_of(rows if is_left_turned else inner, call.item),
        "alignment_right": min(
            alignment_of(inner if is_right_turned else columns, call.item), alignment_of(columns, call.item)
        ),
    }  # fmt: skip


def attention_of(query: int, causal: int, *, is_backward: bool = False) -> Describe:
    """Of a call whose queries are that argument, and whose flag says whether it is causal."""

    def describe(call: Call) -> tuple[str, Row]:
        queries, keys = call.shapes[query], call.shapes[query + 1]
        if len(queries) < 3:
            return "", {}
        heads, length, width, num_keys = math.prod(queries[:-2]), queries[-2], queries[-1], keys[-2]
        is_causal = call.argument(causal) is True
        met = 0.5 * length * (length + 1) if is_causal and length == num_keys else float(length) * num_keys
        passes = 10.0 if is_backward else 4.0
        tensors = float(heads * width) * (length * (4 if is_backward else 1) + num_keys * 2)
        written = float(heads * width) * (length + (2 * num_keys if is_backward else 0))
        return "attention backward" if is_backward else "attention", {
            "rows": length, "columns": num_keys, "inner": width, "batch": heads, "flops": passes * heads * met * width,
            "read_bytes": call.item * tensors, "written_bytes": call.item * written, "is_causal": float(is_causal),
            "alignment": alignment_of(width, call.item), "alignment_right": alignment_of(num_keys, call.item),
        }  # fmt: skip

    return describe


def describe_convolution(call: Call) -> tuple[str, Row]:
    """A convolution of one to three dimensions; a transposed one is taken as the one that it transposes."""
    images, weight = call.shapes[:2]
    pairs = [call.argument(index) for index in (3, 4, 5)]
    groups = int(call.argument(8, 1))
    if call.argument(6) is True:
        more = zip(images[2:], weight[2:], *pairs, call.argument(7), strict=True)
        sizes = [_size_of_transpose(size, side, *item) for size, side, *item in more]
        outputs = [images[0], weight[1] * groups, *sizes]
        return "convolution", _windows(call, outputs, weight, images, call.stride(0), pairs[0], groups, 1)
    sizes = [_out_size(size, side, *item) for size, side, *item in zip(images[2:], weight[2:], *pairs, strict=True)]
    outputs = [images[0], weight[0], *sizes]
    return "convolution", _windows(call, images, weight, outputs, call.stride(0), pairs[0], groups, 1)


def _out_size(size: int, side: int, stride: int, padding: int, dilation: int) -> int:
    return int((size + 2 * padding - dilation * (side - 1) - 1) // stride + 1)


def _size_of_transpose(size: int, side: int, stride: int, padding: int, dilation: int, more: int) -> int:
    return int((size - 1) * stride - 2 * padding + dilation * (side - 1) + more + 1)


def describe_convolution_backward(call: Call) -> tuple[str, Row]:
    """Gradients of a convolution by its inputs, its weights or both."""
    outputs, images, weight = call.shapes[:3]
    if call.argument(7) is True:
        outputs, images = images, outputs
    requested = call.argument(10) or [True, True, False]
    count = int(bool(requested[0])) + int(bool(requested[1]))
    row = _windows(call, images, weight, outputs, call.stride(1), call.argument(4), int(call.argument(9, 1)), count)
    return "convolution backward", {**row, "variant": float(bool(requested[0])) + 2.0 * float(bool(requested[1]))}


def _windows(
    call: Call, images: Shape, weight: Shape, outputs: Shape, steps: Shape, strides: Any, groups: int, count: int
) -> Row:
    """A convolution as the product of all windows and all filters of a group, ``count`` times."""
    positions, window = outputs[0] * math.prod(outputs[2:]), math.prod(weight[2:])
    inner, filters = weight[1] * window, weight[0] // max(groups, 1)
    tensors = [float(math.prod(shape)) for shape in (images, weight, outputs)]
    return {
        "rows": positions, "columns": filters, "inner": inner, "batch": groups, "channels": images[1],
        "flops": 2.0 * count * positions * weight[0] * inner,
        "read_bytes": call.item * (sum(tensors) * count - (tensors[2] if count == 1 else tensors[0])),
        "written_bytes": call.item * (tensors[2] if count == 1 else tensors[0] + tensors[1]),
        "layout": float(len(steps) > 2 and steps[1] == 1 and images[1] > 1), "window": window,
        "stride": math.prod(strides) if strides else 1.0, "num_groups": groups,
        "alignment": alignment_of(weight[1], call.item), "alignment_right": alignment_of(weight[0], call.item),
        "positions": math.prod(outputs[2:]),
    }  # fmt: skip
