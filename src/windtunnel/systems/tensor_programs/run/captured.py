"""Which task a captured operator is.

In: operator, shapes, strides and arguments as a capture writes them. Out: ``Task``, or None where no kind of task is
the same work; backward operators are none. Not here: operators that are running (``harvest``), prices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.run.recognition import START
from windtunnel.systems.tensor_programs.run.tasks import Task

__all__ = ["TENSOR", "task_of_call"]

TENSOR = "tensor::"
"""Operators of this name space are tasks already; their arguments are what ``Task.to_dict`` wrote."""
_SAME_SHAPE = ("_softmax", "_safe_softmax", "native_layer_norm", "native_batch_norm", "clone")
_UNDEFINED_FIELDS = 6  # a tensor among the arguments is written as its identity


@dataclass(frozen=True)
class _Tensor:
    """Shape and strides, asked as torch asks."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()

    def dim(self) -> int:
        return len(self.shape)

    def stride(self, dim: int | None = None) -> Any:
        return self.strides if dim is None else self.strides[dim]

    def is_contiguous(self) -> bool:
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent > 1 and stride != expected:
                return False
            expected *= extent
        return True


def task_of_call(operator: str, shapes: str, strides: str, arguments: str) -> Task | None:
    """The task of one captured call.

    Examples
    --------
    >>> task_of_call("aten::mm", "[[32, 64], [64, 16]]", "[[64, 1], [16, 1]]", "[null, null]").name
    'matmul m=32 n=16 k=64'
    >>> task_of_call("aten::sort", "[[32, 64]]", "[[64, 1]]", "[null]") is None
    True
    """
    try:
        if operator.startswith(TENSOR):
            return Task.from_dict(json.loads(arguments))
        name, given = _canonical_call(operator.removeprefix("aten::"), _arguments(shapes, strides, arguments))
        start = START.get(name)
        result = None if start is None else _result(name, given)
        results = None if start is None or result is None else start(given, result)
        return None if results is None else results.task()
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, InputError):
        return None  # arguments of another form, or extents that no task has


def _arguments(shapes: str, strides: str, arguments: str) -> list[Any]:
    values = json.loads(arguments)
    return [_argument(*item) for item in zip(values, json.loads(shapes), json.loads(strides), strict=True)]


def _argument(value: Any, shape: Any, stride: Any) -> Any:
    if value is None:
        return _Tensor(tuple(shape), tuple(stride))
    is_identity = isinstance(value, list) and len(value) == _UNDEFINED_FIELDS and isinstance(value[-1], str)
    return None if is_identity or value == "<None>" else value


def _canonical_call(name: str, given: list[Any]) -> tuple[str, list[Any]]:
    """Kernels of one library under the name and the arguments of what they compute."""
    if name == "mkldnn_convolution":
        x, weight, bias, padding, stride, dilation, groups = given
        return "convolution", [x, weight, bias, stride, padding, dilation, False, None, groups]
    if name == "_slow_conv2d_forward":
        x, weight, _, bias, stride, padding = given[:6]
        return "convolution", [x, weight, bias, stride, padding, [1, 1], False, None, 1]
    if name in ("clamp_min_", "clamp_min") and given[1] == 0:
        return "relu", given[:1]
    return name, given


def _result(name: str, given: Sequence[Any]) -> _Tensor | None:
    """Return the result of an operator, as far as a task needs it."""
    tensors = [item for item in given if isinstance(item, _Tensor)]
    if name == "bmm":
        return _Tensor((tensors[0].shape[0], tensors[0].shape[1], tensors[1].shape[2]))
    if name in ("mm", "addmm"):
        left, right = tensors[-2:]
        return _Tensor((left.shape[0], right.shape[1]))
    if name in _SAME_SHAPE or name in ("mean", "sum", "convolution") or "pool" in name:
        return tensors[0]
    widest = max((tensor.shape for tensor in tensors[:2]), key=math.prod)
    return _Tensor(widest) if math.prod(widest) > 1 else None
