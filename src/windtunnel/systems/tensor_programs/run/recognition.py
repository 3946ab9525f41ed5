"""Which task an operator of torch is.

In: the name, arguments and result of a call. Out: ``Found``, a task that may yet grow, or nothing. Not here: running
networks and watching their calls (``harvest``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windtunnel.systems.tensor_programs.run.tasks import Task

__all__ = ["START", "Found", "pointwise"]

_UNARY = {
    "relu": "relu",
    "relu_": "relu",
    "hardtanh": "relu6",
    "hardtanh_": "relu6",
    "leaky_relu": "leaky_relu",
    "leaky_relu_": "leaky_relu",
    "gelu": "gelu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "silu": "silu",
    "silu_": "silu",
    "hardswish": "hardswish",
    "hardswish_": "hardswish",
    "exp": "exp",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "neg": "neg",
}
_BINARY = {"add": "add", "add_": "add", "sub": "sub", "mul": "mul", "mul_": "mul", "div": "div"}


@dataclass
class Found:
    """A task that may yet grow by the operators that follow it."""

    kind: str
    shape: dict[str, int]
    ops: list[str] = field(default_factory=list)

    def task(self) -> Task:
        """The task with all operators that were fused into it."""
        kind, ops = self.kind, tuple(self.ops)
        if kind == "elementwise" and ops == ("gelu",):
            kind = "gelu"
        elif kind == "elementwise" and ops and ops[0] == "add":
            kind = "residual_add"
        return Task(kind, self.shape, ops)


def pointwise(name: str, args: Any, result: Any) -> str | None:
    """The operator on each element that a call is, or None."""
    if name in _UNARY:
        return _UNARY[name]
    if name == "pow" and args[1:] == (2,):
        return "square"
    if name not in _BINARY or len(args) < 2:
        return None
    other = next((value for value in args[:2] if tuple(getattr(value, "shape", ())) != tuple(result.shape)), None)
    if other is None:
        return _BINARY[name]
    if not getattr(other, "shape", ()):
        return {"add": "add_const", "sub": "add_const"}.get(_BINARY[name], "mul_const")
    channel = 1 if result.dim() == 4 else result.dim() - 1
    wide = [1] * (result.dim() - other.dim()) + list(other.shape)
    is_per_channel = math.prod(wide) == wide[channel] == result.shape[channel]
    return {"add": "bias", "mul": "scale"}.get(_BINARY[name]) if is_per_channel else None


def _elements(result: Any) -> dict[str, int]:
    shape = [int(extent) for extent in result.shape] or [1]
    if len(shape) == 4:
        return {"b": shape[0], "c": shape[1], "s": shape[2] * shape[3]}
    return {"b": math.prod(shape[:-1]), "c": shape[-1], "s": 1}


def _single(name: str) -> Callable[[Any, Any], Found | None]:
    def start(args: Any, result: Any) -> Found | None:
        op = pointwise(name, args, result)
        return None if op is None else Found("elementwise", _elements(result), [op])

    return start


def _normalization(args: Any, result: Any) -> Found:
    del args
    return Found("elementwise", _elements(result), ["scale", "bias"])


def _convolution(args: Any, result: Any) -> Found | None:
    x, weight, bias, stride, padding, dilation, is_transposed, _, groups = args[:9]
    if x.dim() != 4 or is_transposed or set(dilation) != {1} or len(set(stride)) != 1:
        return None
    n, ci, h, w = (int(extent) for extent in x.shape)
    sizes = {"kh": int(weight.shape[2]), "kw": int(weight.shape[3]), "stride": int(stride[0])}
    pads = {"pad_h": int(padding[0]), "pad_w": int(padding[-1])}
    del result
    ops = ["bias"] if bias is not None else []
    if groups == ci == weight.shape[0] and ci > 1:
        return Found("depthwise_conv2d", {"n": n, "ci": ci, "h": h, "w": w} | sizes | pads, ops)
    shape = {"n": n, "ci": ci, "h": h, "w": w, "co": int(weight.shape[0])} | sizes | pads | {"groups": int(groups)}
    return Found("conv2d", shape, ops)


def _product(args: Any, result: Any) -> Found:
    a, b = args[-2:] if len(args) < 3 else args[1:3]
    m, n, k = int(result.shape[0]), int(result.shape[1]), int(a.shape[1])
    kind = "dense" if b.stride(0) == 1 and b.shape[1] > 1 else "matmul"
    return Found(kind, {"m": m, "n": n, "k": k}, ["bias"] if len(args) >= 3 else [])


def _bmm(args: Any, result: Any) -> Found:
    b, m, n = (int(extent) for extent in result.shape)
    return Found("bmm", {"b": b, "m": m, "n": n, "k": int(args[-2].shape[2])})


def _pool(kind: str) -> Callable[[Any, Any], Found | None]:
    def start(args: Any, result: Any) -> Found | None:
        del result
        x, kernel, stride, padding = args[0], list(args[1]), list(args[2] or args[1]), list((*args, (0,))[3])
        if x.dim() != 4 or len(set(kernel)) != 1 or len(set(stride)) != 1 or 2 * padding[0] > kernel[0]:
            return None
        n, ci, h, w = (int(extent) for extent in x.shape)
        sizes = {"kh": int(kernel[0]), "stride": int(stride[0]), "pad_h": int(padding[0])}
        return Found(kind, {"n": n, "ci": ci, "h": h, "w": w} | sizes)

    return start


def _reduction(args: Any, result: Any) -> Found | None:
    """A sum or mean over neighboring dimensions; over the last two of an image it is a global pooling."""
    del result
    x, rank = args[0], args[0].dim()
    dims = sorted(int(dim) % rank for dim in args[1]) if len(args) > 1 and args[1] else list(range(rank))
    if dims != list(range(dims[0], dims[-1] + 1)):
        return None
    shape = [int(extent) for extent in x.shape]
    before, within, after = (
        math.prod(part) for part in (shape[: dims[0]], shape[dims[0] : dims[-1] + 1], shape[dims[-1] + 1 :])
    )
    if within == 1:
        return None
    if rank == 4 and dims == [2, 3]:
        return Found("global_avg_pool", {"n": shape[0], "ci": shape[1], "s": within})
    return Found("reduce_sum", {"b": before, "k": within, "n": after})


def _row_wise(kind: str) -> Callable[[Any, Any], Found | None]:
    def start(args: Any, result: Any) -> Found | None:
        rank = result.dim()
        columns = math.prod(args[1]) if kind == "layer_norm" else int(result.shape[-1])
        if kind == "softmax" and int(args[1]) % rank != rank - 1:
            return None
        return Found(kind, {"m": math.prod(result.shape) // columns, "n": int(columns)})

    return start


def _transpose(args: Any, result: Any) -> Found | None:
    """A copy that exchanges two neighboring groups of dimensions."""
    source = args[0]
    if source.is_contiguous() or source.dim() < 2 or 0 in source.stride():
        return None
    order = sorted(range(source.dim()), key=lambda dim: (-source.stride(dim), dim))
    shape = [int(source.shape[dim]) for dim in order]
    for start in range(source.dim()):
        for middle in range(start + 1, source.dim()):
            for end in range(middle + 1, source.dim() + 1):
                if order[:start] + order[middle:end] + order[start:middle] + order[end:] == list(range(source.dim())):
                    parts = shape[:start], shape[start:middle], shape[middle:end], shape[end:]
                    return Found("transpose", dict(zip("bmns", map(math.prod, parts), strict=True)))
    del result
    return None


START: Mapping[str, Callable[[Any, Any], Found | None]] = {
    "convolution": _convolution,
    "addmm": _product,
    "mm": _product,
    "bmm": _bmm,
    "max_pool2d_with_indices": _pool("max_pool2d"),
    "avg_pool2d": _pool("avg_pool2d"),
    "mean": _reduction,
    "sum": _reduction,
    "_softmax": _row_wise("softmax"),
    "_safe_softmax": _row_wise("softmax"),
    "native_layer_norm": _row_wise("layer_norm"),
    "native_batch_norm": _normalization,
    "clone": _transpose,
    **{name: _single(name) for name in (*_UNARY, *_BINARY, "pow")},
}
