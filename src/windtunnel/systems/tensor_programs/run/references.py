"""What a task's result must be, by numpy.

In: a ``Task``. Out: its random arguments, always the same ones, and its result. Written without a look at
``definitions``, so that an error would have to be made twice. Not here: compiled code.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.tensor_programs.run.tasks import BINARY_OPS, CHANNEL_OPS, Task

__all__ = ["arguments", "is_right", "result"]

Array = NDArray[Any]
RELATIVE_TOLERANCE = 1e-3
_POSITIVE = {"sqrt", "rsqrt", "div"}
_erf = np.vectorize(math.erf, otypes=[np.float32])


def arguments(task: Task) -> list[Array]:
    """Random arguments of a task, float32, in the order of ``task.input_shapes``."""
    generator = np.random.default_rng(zlib.crc32(task.name.encode()))
    low = 0.1 if _POSITIVE & set(task.ops) else -1.0
    return [generator.uniform(low, 1.0, shape).astype(np.float32) for shape in task.input_shapes]


def result(task: Task, values: list[Array]) -> Array:
    """The result of a task for some arguments."""
    own = len(values) - sum(op in BINARY_OPS or op in CHANNEL_OPS for op in task.ops)
    results = _MAIN[task.kind](task.shape, *values[:own])
    others = iter(values[own:])
    for op in task.ops:
        results = _AFTER[op](results) if op in _AFTER else _with(op, results, next(others))
    return results


def is_right(result: Array, expected: Array) -> bool:
    """Whether a result is the expected one up to rounding: 1e-3 of its own size or of the largest element."""
    atol = RELATIVE_TOLERANCE * float(np.abs(expected).max(initial=0.0)) * 0.1
    return bool(np.allclose(result, expected, rtol=RELATIVE_TOLERANCE, atol=atol))


def _with(op: str, value: Array, other: Array) -> Array:
    if op in CHANNEL_OPS and value.ndim > 2:
        other = other.reshape(-1, *[1] * (value.ndim - 2))
    action = {"add": np.add, "bias": np.add, "sub": np.subtract, "mul": np.multiply, "scale": np.multiply}
    return np.asarray(action.get(op, np.divide)(value, other))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


_AFTER: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": np.square,
    "neg": np.negative,
    "mul_const": lambda x: x * 0.5,
    "add_const": lambda x: x + 0.5,
}


def _windows(x: Array, shape: Mapping[str, int], fill: float = 0.0) -> Array:
    """[n, c, out_h, out_w, kh, kw] without a copy."""
    pad_h, pad_w = shape["pad_h"], shape.get("pad_w", shape["pad_h"])
    padded = np.pad(x, ((0, 0), (0, 0), (pad_h, pad_h), (pad_w, pad_w)), constant_values=fill)
    kernel = shape["kh"], shape.get("kw", shape["kh"])
    return np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(2, 3))[
        :, :, :: shape["stride"], :: shape["stride"]
    ]


def _conv2d(shape: Mapping[str, int], x: Array, weights: Array) -> Array:
    windows, groups = _windows(x, shape), shape["groups"]
    parts = [
        np.tensordot(part, kernel, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
        for part, kernel in zip(np.split(windows, groups, axis=1), np.split(weights, groups), strict=True)
    ]
    return np.concatenate(parts, axis=1)


def _softmax(shape: Mapping[str, int], x: Array) -> Array:
    del shape
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _layer_norm(shape: Mapping[str, int], x: Array, weight: Array, bias: Array) -> Array:
    del shape
    centered = x - x.mean(axis=1, keepdims=True)
    return np.asarray(centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias)


_MAIN: dict[str, Callable[..., Array]] = {
    "matmul": lambda _, a, b: a @ b,
    "dense": lambda _, a, b: a @ b.T,
    "bmm": lambda _, a, b: a @ b,
    "conv2d": _conv2d,
    "depthwise_conv2d": lambda shape, x, weights: np.einsum("nchwij,cij->nchw", _windows(x, shape), weights),
    "max_pool2d": lambda shape, x: _windows(x, shape, -math.inf).max(axis=(4, 5)),
    "avg_pool2d": lambda shape, x: _windows(x, shape).mean(axis=(4, 5)),
    "global_avg_pool": lambda _, x: x.mean(axis=2),
    "reduce_sum": lambda _, x: x.sum(axis=1),
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "transpose": lambda _, x: x.transpose(0, 2, 1, 3),
    "elementwise": lambda _, x: x,
    "residual_add": lambda _, x: x,
    "gelu": lambda _, x: x,
}
