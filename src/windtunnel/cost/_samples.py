"""Operators to sample on a host (room cost, private): random shapes of the classes that training is made of.

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
_MOST_FLOPS, _MOST_BYTES = 4e9, 256e6


class Sample(NamedTuple):
    """A kernel in fp32, its flops, and the bytes that it reads and writes."""

    kernel: Kernel
    flops: int
    bytes_moved: int


Maker = Callable[[np.random.Generator], Sample]


def draw(name: str, rng: np.random.Generator) -> Sample:
    """One operator of a class; none that takes far longer than the others."""
    while True:
        one = CLASSES[name](rng)
        if one.flops <= _MOST_FLOPS and one.bytes_moved <= _MOST_BYTES:
            return one


def _size(rng: np.random.Generator, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _sample(operator: str, inputs: Sequence[Sequence[int]], output: Sequence[int], *others: Any) -> Sample:
    import torch

    tensors = [TensorShape(tuple(shape), usual_stride(shape), torch.float32) for shape in inputs]
    shapes: list[Any] = [*map(list, inputs), *([] for _ in others)]
    values = [*(None for _ in inputs), *(list(one) if isinstance(one, tuple) else one for one in others)]
    name = operator.rpartition(".")[0]
    flops = operator_flops(name, shapes, values, [list(output)])
    moved = _BYTES * sum(math.prod(shape) for shape in (*inputs, output))
    return Sample(Kernel(operator, (*tensors, *others)), flops, moved)


def _product(rng: np.random.Generator) -> Sample:
    rows, inner, columns = (_size(rng, 4, 2048) for _ in range(3))
    if rng.random() < 0.7:
        return _sample("aten::mm.default", [(rows, inner), (inner, columns)], (rows, columns))
    batch = _size(rng, 2, 64)
    return _sample("aten::bmm.default", [(batch, rows, inner), (batch, inner, columns)], (batch, rows, columns))


def _convolution(rng: np.random.Generator) -> Sample:
    batch, side, kernel = _size(rng, 1, 32), _size(rng, 4, 112), int(rng.choice([1, 3, 5]))
    inputs, outputs = _size(rng, 3, 256), _size(rng, 8, 256)
    shapes = [(batch, inputs, side, side), (outputs, inputs, kernel, kernel)]
    padding = (kernel // 2,) * 2
    flops = 2 * batch * outputs * side * side * inputs * kernel * kernel
    plain = _sample("aten::conv2d.default", shapes, (batch, outputs, side, side), None, (1, 1), padding)
    return plain._replace(flops=flops)


def _elementwise(rng: np.random.Generator) -> Sample:
    shape = (_size(rng, 1, 4096), _size(rng, 8, 8192))
    operator = str(
        rng.choice(["add.Tensor", "mul.Tensor", "relu.default", "gelu.default", "exp.default", "tanh.default"])
    )
    inputs = [shape] * (2 if operator.endswith("Tensor") else 1)
    return _sample(f"aten::{operator}", inputs, shape)


def _normalisation(rng: np.random.Generator) -> Sample:
    rows, columns = _size(rng, 4, 8192), _size(rng, 16, 4096)
    if rng.random() < 0.5:
        return _sample("aten::softmax.int", [(rows, columns)], (rows, columns), -1)
    return _sample("aten::layer_norm.default", [(rows, columns)], (rows, columns), (columns,))


def _reduction(rng: np.random.Generator) -> Sample:
    rows, columns = _size(rng, 4, 8192), _size(rng, 16, 4096)
    dim = int(rng.integers(2))
    return _sample("aten::sum.dim_IntList", [(rows, columns)], (columns,) if dim == 0 else (rows,), (dim,))


def _moving(rng: np.random.Generator) -> Sample:
    shape = (_size(rng, 4, 4096), _size(rng, 16, 4096))
    return _sample("aten::clone.default", [shape], shape)


def _pooling(rng: np.random.Generator) -> Sample:
    batch, channels, side = _size(rng, 1, 32), _size(rng, 8, 256), 2 * _size(rng, 2, 56)
    shape = (batch, channels, side, side)
    return _sample("aten::max_pool2d.default", [shape], (batch, channels, side // 2, side // 2), (2, 2))


CLASSES: dict[str, Maker] = {
    "product": _product,
    "convolution": _convolution,
    "elementwise": _elementwise,
    "normalisation": _normalisation,
    "reduction": _reduction,
    "moving": _moving,
    "pooling": _pooling,
}
"""What is sampled, by the classes of ``measured.class_of``."""
