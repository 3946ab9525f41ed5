"""Operators to sample on a host: random shapes of the classes that training is made of.

In: a class, a random generator. Out: ``Sample``: a kernel with its flops and bytes. Sizes are drawn by their logarithm,
from what fits into L1 to what takes some milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from windtunnel.cost.kernels import Kernel, TensorShape, usual_stride
from windtunnel.graph.flops import operator_flops

__all__ = ["CLASSES", "Sample", "draw"]

_BYTES = 4
_MAX_FLOPS, _MAX_BYTES = 4e9, 64e6
_WINDOWS = ((1, 1), (1, 1), (1, 2), (3, 1), (3, 1), (3, 1), (3, 2), (4, 4), (4, 2), (5, 1), (7, 1), (7, 2))
_ELEMENTWISE: dict[str, tuple[int, tuple[float, ...]]] = {
    "add.Tensor": (2, ()), "mul.Tensor": (2, ()), "relu.default": (1, ()), "gelu.default": (1, ()),
    "exp.default": (1, ()), "tanh.default": (1, ()), "sqrt.default": (1, ()), "gelu_backward.default": (2, ()),
    "tanh_backward.default": (2, ()), "threshold_backward.default": (2, (0.0,)), "div.Scalar": (1, (2.0,)),
    "add_.Tensor": (2, ()), "add_.Scalar": (1, (1e-8,)), "mul_.Scalar": (1, (0.9,)), "lerp_.Scalar": (2, (0.1,)),
    "addcmul_.default": (3, ()), "addcdiv_.default": (3, ()),
}  # fmt: skip


class Sample(NamedTuple):
    """A kernel in fp32, its flops, and the bytes that it reads and writes."""

    kernel: Kernel
    flops: int
    bytes_moved: int


Maker = Callable[[np.random.Generator], Sample]


def draw(name: str, rng: np.random.Generator) -> Sample:
    """One operator of a class; none that takes far longer than the others."""
    while True:
        sample = CLASSES[name](rng)
        if sample.flops <= _MAX_FLOPS and sample.bytes_moved <= _MAX_BYTES:
            return sample


def _size(rng: np.random.Generator, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _width(rng: np.random.Generator, low: int, high: int) -> int:
    """A size as nets have them: a multiple of 8 or 16, but for one in five."""
    size = _size(rng, low, high)
    unit = 1 if size < 8 or rng.random() < 0.2 else 8 if size < 64 else 16
    return max(unit, round(size / unit) * unit)


class _Tensor(NamedTuple):
    """A tensor among what an operator is called with; integers are row numbers. ``swaps`` sides of a row by row one."""

    shape: tuple[int, ...]
    is_integer: bool = False
    swaps: tuple[int, int] | None = None

    @property
    def stride(self) -> tuple[int, ...]:
        """Steps of each side."""
        if self.swaps is None:
            return usual_stride(self.shape)
        order = list(range(len(self.shape)))
        first, second = self.swaps
        order[first], order[second] = second, first
        lying = usual_stride([self.shape[side] for side in order])
        return tuple(lying[index] for index in order)


def _sample(operator: str, arguments: Sequence[Any], *outputs: tuple[int, ...], flops: int | None = None) -> Sample:
    """An operator with its arguments, tensors and others, and the shapes of what it makes."""
    import torch

    filled: list[Any] = []
    for argument in arguments:
        if isinstance(argument, _Tensor):
            dtype = torch.int64 if argument.is_integer else torch.float32
            filled.append(TensorShape(argument.shape, argument.stride, dtype))
        else:
            filled.append(argument)
    shapes: list[Any] = [list(item.shape) if isinstance(item, _Tensor) else [] for item in arguments]
    values = [
        None if isinstance(item, _Tensor) else list(item) if isinstance(item, tuple) else item for item in arguments
    ]
    # in units of `_BYTES`: an integer takes two of them
    read = sum((1 + item.is_integer) * math.prod(item.shape) for item in arguments if isinstance(item, _Tensor))
    if flops is None:
        flops = operator_flops(operator.rpartition(".")[0], shapes, values, [list(tensor) for tensor in outputs])
    moved = _BYTES * (read + sum(map(math.prod, outputs)))
    return Sample(Kernel(operator, tuple(filled)), flops, moved)


def _product(rng: np.random.Generator) -> Sample:
    # of a layer: forward the weight is transposed, backward nothing or the gradient
    swaps = [(None, (-1, -2)), (None, None), ((-1, -2), None)][int(rng.integers(3))]
    if rng.random() < 0.7:
        rows, inner, columns = (_width(rng, 8, 2048) for _ in range(3))
        ends = [_Tensor((rows, inner), swaps=swaps[0]), _Tensor((inner, columns), swaps=swaps[1])]
        return _sample("aten::mm.default", ends, (rows, columns))
    batch = _size(rng, 2, 64)
    rows, inner, columns = (_width(rng, 8, 512) for _ in range(3))
    ends = [_Tensor((batch, rows, inner), swaps=swaps[0]), _Tensor((batch, inner, columns), swaps=swaps[1])]
    return _sample("aten::bmm.default", ends, (batch, rows, columns))


class _Conv(NamedTuple):
    """Input, weight and output of a convolution, and what else it is called with."""

    inputs: _Tensor
    weight: _Tensor
    outputs: _Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    groups: int

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.outputs.shape) * math.prod(self.weight.shape[1:])


def _conv(rng: np.random.Generator) -> _Conv:
    batch, side = _size(rng, 1, 64), _size(rng, 4, 112)
    kernel, stride = _WINDOWS[int(rng.integers(len(_WINDOWS)))]
    channels = 3 if rng.random() < 0.1 else _width(rng, 8, 256)
    filters, groups = _width(rng, 8, 256), 1
    if kernel in (3, 5, 7) and rng.random() < 0.25:
        filters = groups = channels
    padding = (kernel - 1) // 2 if stride < kernel else 0
    after = max(1, (side + 2 * padding - kernel) // stride + 1)
    side = max(side, kernel)
    return _Conv(
        _Tensor((batch, channels, side, side)), _Tensor((filters, channels // groups, kernel, kernel)),
        _Tensor((batch, filters, after, after)), (stride, stride), (padding, padding), groups,
    )  # fmt: skip


def _convolution(rng: np.random.Generator) -> Sample:
    conv = _conv(rng)
    others = (None, conv.stride, conv.padding, (1, 1), conv.groups)
    return _sample("aten::conv2d.default", [conv.inputs, conv.weight, *others], conv.outputs.shape, flops=conv.flops)


def _convolution_backward(rng: np.random.Generator) -> Sample:
    conv = _conv(rng)
    others = (None, conv.stride, conv.padding, (1, 1), False, (0, 0), conv.groups, (True, True, False))
    ends = [conv.outputs, conv.inputs, conv.weight]
    return _sample("aten::convolution_backward.default", [*ends, *others], conv.inputs.shape, conv.weight.shape,
                   flops=2 * conv.flops)  # fmt: skip


def _attention_shape(rng: np.random.Generator) -> tuple[int, int, int, int]:
    return _size(rng, 1, 64), _size(rng, 1, 16), _size(rng, 8, 512), 8 * _size(rng, 1, 16)


def _attention(rng: np.random.Generator) -> Sample:
    query = _Tensor(_attention_shape(rng))
    name = "aten::_scaled_dot_product_flash_attention_for_cpu.default"
    return _sample(name, [query, query, query, 0.0, bool(rng.integers(2))], query.shape, query.shape[:3])


def _attention_backward(rng: np.random.Generator) -> Sample:
    query = _Tensor(_attention_shape(rng))
    name = "aten::_scaled_dot_product_flash_attention_for_cpu_backward.default"
    arguments = [*[query] * 5, _Tensor(query.shape[:3]), 0.0, bool(rng.integers(2))]
    return _sample(name, arguments, query.shape, query.shape, query.shape)


def _elementwise(rng: np.random.Generator) -> Sample:
    tensor = _Tensor((_size(rng, 1, 4096), _width(rng, 8, 8192)))
    operator = str(rng.choice(list(_ELEMENTWISE)))
    num_tensors, others = _ELEMENTWISE[operator]
    return _sample(f"aten::{operator}", [*[tensor] * num_tensors, *others], tensor.shape)


def _normalization(rng: np.random.Generator) -> Sample:
    return _NORMS[int(rng.integers(len(_NORMS)))](rng)


def _rows(rng: np.random.Generator) -> tuple[_Tensor, _Tensor, _Tensor]:
    """A matrix, one of its rows, and a number for each."""
    rows, columns = _width(rng, 4, 8192), _width(rng, 16, 4096)
    return _Tensor((rows, columns)), _Tensor((columns,)), _Tensor((rows, 1))


def _softmax(rng: np.random.Generator) -> Sample:
    matrix, _, _ = _rows(rng)
    return _sample("aten::_softmax.default", [matrix, -1, False], matrix.shape)


def _layer_norm(rng: np.random.Generator) -> Sample:
    matrix, row, per_row = _rows(rng)
    return _sample("aten::native_layer_norm.default", [matrix, row.shape, row, row, 1e-5], matrix.shape, per_row.shape)


def _layer_norm_backward(rng: np.random.Generator) -> Sample:
    matrix, row, per_row = _rows(rng)
    arguments = [matrix, matrix, row.shape, per_row, per_row, row, row, (True, True, True)]
    return _sample("aten::native_layer_norm_backward.default", arguments, matrix.shape, row.shape, row.shape)


def _images(rng: np.random.Generator) -> tuple[_Tensor, _Tensor]:
    """Images, and a number for each of their channels."""
    channels, side = _width(rng, 3, 256), _size(rng, 4, 112)
    return _Tensor((_size(rng, 1, 64), channels, side, side)), _Tensor((channels,))


def _batch_norm(rng: np.random.Generator) -> Sample:
    images, per_channel = _images(rng)
    return _sample("aten::native_batch_norm.default", [images, *[per_channel] * 4, True, 0.1, 1e-5], images.shape)


def _batch_norm_backward(rng: np.random.Generator) -> Sample:
    images, per_channel = _images(rng)
    arguments = [images, images, *[per_channel] * 5, True, 1e-5, (True, True, True)]
    return _sample(
        "aten::native_batch_norm_backward.default", arguments, images.shape, per_channel.shape, per_channel.shape
    )


_NORMS: tuple[Maker, ...] = (_softmax, _layer_norm, _layer_norm_backward, _batch_norm, _batch_norm_backward)


def _reduction(rng: np.random.Generator) -> Sample:
    matrix, row, per_row = _rows(rng)
    dim = int(rng.integers(2))
    return _sample("aten::sum.dim_IntList", [matrix, (dim,)], (row if dim == 0 else per_row).shape)


def _moving(rng: np.random.Generator) -> Sample:
    if rng.random() < 0.5:  # heads of attention, one after the other
        heads = _attention_shape(rng)
        return _sample("aten::copy_.default", [_Tensor(heads), _Tensor(heads, swaps=(1, 2))])
    matrix = _Tensor((_size(rng, 4, 4096), _size(rng, 16, 4096)))
    return _sample("aten::clone.default", [matrix], matrix.shape)


def _indexing(rng: np.random.Generator) -> Sample:
    table, columns = _Tensor((_size(rng, 64, 100_000), _size(rng, 4, 512))), _Tensor((_size(rng, 16, 16_384),), True)
    outputs = (*columns.shape, table.shape[1])
    if rng.random() < 0.5:
        return _sample("aten::index_select.default", [table, 0, columns], outputs)
    return _sample("aten::embedding.default", [table, columns], outputs)


def _drawing(rng: np.random.Generator) -> Sample:
    matrix = _Tensor((_size(rng, 4, 2048), _size(rng, 16, 2048)))
    # a coin that mostly falls one way is quicker: what dropout keeps
    kept = (0.5, 0.8, 0.9, 0.9)[int(rng.integers(4))]
    name, *others = (("normal_", 0.0, 1.0), ("uniform_", 0.0, 1.0), ("bernoulli_.float", kept))[int(rng.integers(3))]
    return _sample(f"aten::{name if '.' in name else name + '.default'}", [matrix, *others], matrix.shape)


def _sorting(rng: np.random.Generator) -> Sample:
    matrix = _Tensor((_size(rng, 1, 256), _size(rng, 16, 8192)))
    return _sample("aten::sort.default", [matrix, -1, False], matrix.shape, matrix.shape)


def _pooling(rng: np.random.Generator) -> Sample:
    images, _ = _images(rng)
    batch, channels, side, _ = images.shape
    half, double = (side // 2,) * 2, (2 * side,) * 2
    name, after, *others = (
        ("max_pool2d_with_indices", half, (2, 2)),
        ("avg_pool2d", half, (2, 2)),
        ("upsample_nearest2d", double, double),
        ("upsample_bilinear2d", double, double, False),
    )[int(rng.integers(4))]
    return _sample(f"aten::{name}.default", [images, *others], (batch, channels, *after))


CLASSES: dict[str, Maker] = {
    "product": _product,
    "convolution": _convolution,
    "convolution backward": _convolution_backward,
    "attention": _attention,
    "attention backward": _attention_backward,
    "elementwise": _elementwise,
    "normalization": _normalization,
    "reduction": _reduction,
    "moving": _moving,
    "indexing": _indexing,
    "drawing": _drawing,
    "sorting": _sorting,
    "pooling": _pooling,
}
"""What is sampled, by the classes of ``graph.kernel_classes``."""
