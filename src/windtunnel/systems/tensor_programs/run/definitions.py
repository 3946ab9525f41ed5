"""Definition of each task in the tensor compiler's expression language.

In: a ``Task``. Out: its definition without any schedule. The blocks of a definition are named by ``BLOCKS``, which
schedules refer to. Not here: schedules, building, measuring; what a right result is (``references``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from windtunnel.base.extras import require
from windtunnel.systems.tensor_programs.run.tasks import BINARY_OPS, CHANNEL_OPS, Task

__all__ = ["BLOCKS", "primitive_function"]

BLOCKS = ("main", "pad", "op0", "op1", "op2", "op3", "op4", "op5", "row_max", "row_exp", "row_sum", "row_square", "out")
"""Names of blocks; ``main`` does the work of the kind, ``op*`` are the operators behind it."""
_EPSILON = 1e-5
_LEAK = 0.2
_CONSTANT = 0.5


def primitive_function(task: Task) -> Any:
    """The task as a TensorIR function without a schedule (``tirx.PrimFunc``)."""
    te = require("tvm.te", extra="tvm")
    own = len(task.input_shapes) - sum(op in (*BINARY_OPS, *CHANNEL_OPS) for op in task.ops)
    arguments = [te.placeholder(shape, name=f"in{index}") for index, shape in enumerate(task.input_shapes)]
    value = _MAIN[task.kind](te, task.shape, *arguments[:own])
    extra = iter(arguments[own:])
    for index, op in enumerate(task.ops):
        value = _after(te, op, value, None if op in _UNARY else next(extra), f"op{index}")
    return te.create_prim_func([*arguments, value])


def _after(te: Any, op: str, value: Any, other: Any, name: str) -> Any:
    channel = 1 if len(value.shape) > 2 else len(value.shape) - 1

    def element(*indices: Any) -> Any:
        local = value(*indices)
        if op in _UNARY:
            return _UNARY[op](local)
        return _BINARY[op](local, other(indices[channel]) if op in CHANNEL_OPS else other(*indices))

    return te.compute(value.shape, element, name=name)


@functools.cache
def _tir() -> Any:
    return require("tvm.tirx", extra="tvm")


def _const(value: float) -> Any:
    return _tir().const(value, "float32")


def _sigmoid(x: Any) -> Any:
    return _const(1.0) / (_const(1.0) + _tir().exp(_const(0.0) - x))


def _gelu(x: Any) -> Any:
    return x * _const(0.5) * (_const(1.0) + _tir().erf(x * _const(0.5**0.5)))


def _clip(x: Any, low: float, high: float) -> Any:
    return _tir().min(_tir().max(x, _const(low)), _const(high))


_UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: _tir().max(x, _const(0.0)),
    "relu6": lambda x: _clip(x, 0.0, 6.0),
    "leaky_relu": lambda x: _tir().max(x, x * _const(_LEAK)),
    "gelu": _gelu,
    "tanh": lambda x: _tir().tanh(x),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: x * _clip(x + _const(3.0), 0.0, 6.0) * _const(1 / 6),
    "exp": lambda x: _tir().exp(x),
    "sqrt": lambda x: _tir().sqrt(x),
    "rsqrt": lambda x: _const(1.0) / _tir().sqrt(x),
    "square": lambda x: x * x,
    "neg": lambda x: _const(0.0) - x,
    "mul_const": lambda x: x * _const(_CONSTANT),
    "add_const": lambda x: x + _const(_CONSTANT),
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "bias": lambda x, y: x + y,
    "scale": lambda x, y: x * y,
}


def _matmul(te: Any, shape: Mapping[str, int], a: Any, b: Any) -> Any:
    k = te.reduce_axis((0, shape["k"]), name="k")
    return te.compute((shape["m"], shape["n"]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="main")


def _dense(te: Any, shape: Mapping[str, int], a: Any, b: Any) -> Any:
    k = te.reduce_axis((0, shape["k"]), name="k")
    return te.compute((shape["m"], shape["n"]), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="main")


def _bmm(te: Any, shape: Mapping[str, int], a: Any, b: Any) -> Any:
    k = te.reduce_axis((0, shape["k"]), name="k")
    extents = shape["b"], shape["m"], shape["n"]
    return te.compute(extents, lambda o, i, j: te.sum(a[o, i, k] * b[o, k, j], axis=k), name="main")


def _pad(te: Any, x: Any, pad_h: int, pad_w: int, value: float = 0.0) -> Any:
    if not (pad_h or pad_w):
        return x
    n, c, h, w = (int(extent) for extent in x.shape)

    def element(b: Any, ch: Any, i: Any, j: Any) -> Any:
        is_inside = _tir().all(i >= pad_h, i < pad_h + h, j >= pad_w, j < pad_w + w)
        return _tir().if_then_else(is_inside, x[b, ch, i - pad_h, j - pad_w], _const(value))

    return te.compute((n, c, h + 2 * pad_h, w + 2 * pad_w), element, name="pad")


def _conv2d(te: Any, shape: Mapping[str, int], x: Any, weights: Any) -> Any:
    padded, stride = _pad(te, x, shape["pad_h"], shape["pad_w"]), shape["stride"]
    per_group, outputs_per_group = shape["ci"] // shape["groups"], shape["co"] // shape["groups"]
    rc, ry, rx = (
        te.reduce_axis((0, size), name=name)
        for size, name in ((per_group, "rc"), (shape["kh"], "ry"), (shape["kw"], "rx"))
    )

    def element(n: Any, c: Any, i: Any, j: Any) -> Any:
        source = rc if shape["groups"] == 1 else _tir().floordiv(c, outputs_per_group) * per_group + rc
        return te.sum(padded[n, source, i * stride + ry, j * stride + rx] * weights[c, rc, ry, rx], axis=[rc, ry, rx])

    return te.compute(Task("conv2d", shape).output_shape, element, name="main")


def _depthwise(te: Any, shape: Mapping[str, int], x: Any, weights: Any) -> Any:
    padded, stride = _pad(te, x, shape["pad_h"], shape["pad_w"]), shape["stride"]
    ry, rx = (te.reduce_axis((0, shape[name]), name=f"r{name}") for name in ("kh", "kw"))
    return te.compute(
        Task("depthwise_conv2d", shape).output_shape,
        lambda n, c, i, j: te.sum(padded[n, c, i * stride + ry, j * stride + rx] * weights[c, ry, rx], axis=[ry, rx]),
        name="main",
    )


def _pool2d(te: Any, shape: Mapping[str, int], x: Any, *, is_max: bool) -> Any:
    padded = _pad(te, x, shape["pad_h"], shape["pad_h"], -3.4e38 if is_max else 0.0)
    stride, share = shape["stride"], 1.0 / shape["kh"] ** 2
    ry, rx = (te.reduce_axis((0, shape["kh"]), name=name) for name in ("ry", "rx"))

    def element(n: Any, c: Any, i: Any, j: Any) -> Any:
        value = padded[n, c, i * stride + ry, j * stride + rx]
        return te.max(value, axis=[ry, rx]) if is_max else te.sum(value * _const(share), axis=[ry, rx])

    return te.compute(Task("max_pool2d", shape).output_shape, element, name="main")


def _global_avg_pool(te: Any, shape: Mapping[str, int], x: Any) -> Any:
    r, share = te.reduce_axis((0, shape["s"]), name="r"), 1.0 / shape["s"]
    return te.compute((shape["n"], shape["ci"]), lambda n, c: te.sum(x[n, c, r] * _const(share), axis=r), name="main")


def _reduce_sum(te: Any, shape: Mapping[str, int], x: Any) -> Any:
    k = te.reduce_axis((0, shape["k"]), name="k")
    return te.compute((shape["b"], shape["n"]), lambda i, j: te.sum(x[i, k, j], axis=k), name="main")


def _softmax(te: Any, shape: Mapping[str, int], x: Any) -> Any:
    m, n = shape["m"], shape["n"]
    r, s = te.reduce_axis((0, n), name="r"), te.reduce_axis((0, n), name="s")
    highest = te.compute((m,), lambda i: te.max(x[i, r], axis=r), name="row_max")
    powers = te.compute((m, n), lambda i, j: _tir().exp(x[i, j] - highest[i]), name="row_exp")
    total = te.compute((m,), lambda i: te.sum(powers[i, s], axis=s), name="row_sum")
    return te.compute((m, n), lambda i, j: powers[i, j] / total[i], name="out")


def _layer_norm(te: Any, shape: Mapping[str, int], x: Any, weight: Any, bias: Any) -> Any:
    m, n = shape["m"], shape["n"]
    r, s = te.reduce_axis((0, n), name="r"), te.reduce_axis((0, n), name="s")
    share = 1.0 / n
    total = te.compute((m,), lambda i: te.sum(x[i, r], axis=r), name="row_sum")
    squares = te.compute((m,), lambda i: te.sum(x[i, s] * x[i, s], axis=s), name="row_square")

    def element(i: Any, j: Any) -> Any:
        mean = total[i] * _const(share)
        variance = squares[i] * _const(share) - mean * mean
        return (x[i, j] - mean) * (_const(1.0) / _tir().sqrt(variance + _const(_EPSILON))) * weight[j] + bias[j]

    return te.compute((m, n), element, name="out")


def _transpose(te: Any, shape: Mapping[str, int], x: Any) -> Any:
    extents = shape["b"], shape["n"], shape["m"], shape["s"]
    return te.compute(extents, lambda o, j, i, s: x[o, i, j, s], name="main")


def _identity(te: Any, shape: Mapping[str, int], x: Any) -> Any:
    del te, shape
    return x


_MAIN: dict[str, Callable[..., Any]] = {
    "matmul": _matmul,
    "dense": _dense,
    "bmm": _bmm,
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise,
    "max_pool2d": functools.partial(_pool2d, is_max=True),
    "avg_pool2d": functools.partial(_pool2d, is_max=False),
    "global_avg_pool": _global_avg_pool,
    "reduce_sum": _reduce_sum,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "transpose": _transpose,
    "elementwise": _identity,
    "residual_add": _identity,
    "gelu": _identity,
}
