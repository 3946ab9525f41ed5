"""What the operators of a Kineto trace were called with (sources, Kineto).

In: the arguments ``Input Dims``, ``Input type``, ``Input Strides`` and ``Concrete Inputs``, which torch.profiler
records with ``record_shapes``. Out: ``OperatorRecords``: the same as texts of a graph's columns, and the work that
follows from them. Results are not recorded: their shapes follow from those of the inputs, by the kind of the operator.
Not here: data flow, which needs an execution trace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph.flops import operator_flops
from windtunnel.sources.kineto.trace import Trace, is_string
from windtunnel.sources.timeline.events import MISSING, Category, OperatorRecords

__all__ = ["find_operators"]

_KEYS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_NO_TENSOR = ("", "Scalar", "ScalarList", "TensorList", "GenericList", "OptionalTensorList")
_ITEM_BYTES = {
    **dict.fromkeys(("bool", "signed char", "unsigned char", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
    **dict.fromkeys(("c10::BFloat16", "c10::Half", "short int"), 2),
    **dict.fromkeys(("double", "long int", "c10::complex<float>"), 8),
}
_LOOKUPS = ("embedding", "index_select", "gather")
_TOO_MUCH = 2**62
_ACCUMULATE = "torch::autograd::AccumulateGrad"
Shapes = list[Any]


@dataclass(frozen=True)
class _Work:
    flops: int
    bytes_read: int
    bytes_written: int


def find_operators(trace: Trace, category: NDArray[np.uint8]) -> OperatorRecords:
    """Records of the operators whose inputs the trace tells."""
    rows = trace.rare("Input Dims")[0]
    rows = rows[category[rows] == Category.OPERATOR]
    if not len(rows):
        return OperatorRecords.empty()
    columns = [trace.argument(key)[rows] for key in _KEYS]
    keys = np.stack([trace.name[rows].astype(np.int64), *columns])
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    trained = _sum_gradients(trace, rows, columns[0])
    texts: dict[str, int] = {"": 0}
    described = [_describe(trace, key, trained) for key in distinct.T.tolist()]
    codes = np.array([[texts.setdefault(text, len(texts)) for text in item[0]] for item in described], np.int32)
    works = np.array([(work.flops, work.bytes_read, work.bytes_written) for _, work in described], np.int64)
    shapes, dtypes, strides, arguments = codes[inverse].T
    flops, bytes_read, bytes_written = works[inverse].T
    count = len(rows)
    return replace(
        OperatorRecords.empty(),
        row=rows.astype(np.int32),
        schema=np.zeros(count, np.int32),
        shapes=shapes,
        dtypes=dtypes,
        strides=strides,
        arguments=arguments,
        flops=flops,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        node=np.full(count, -1, np.int64),
        computes=np.full(count, -1, np.int8),
        texts=tuple(texts),
    )


def _sum_gradients(trace: Trace, rows: NDArray[np.int32], dims: NDArray[np.int64]) -> int:
    """Elements of all gradients of a step: what updates of long lists, whose shapes are not recorded, work on."""
    is_gradient = np.array([name == _ACCUMULATE for name in trace.strings], bool)[trace.name[rows]]
    steps = {name for name in trace.strings if name.startswith("ProfilerStep#")}
    shapes = [_read(trace, value)[:1] for value in dims[is_gradient].tolist()]
    try:
        return sum(map(_count, shapes)) // max(len(steps), 1)
    except (RecursionError, TypeError):
        return 0


def _describe(trace: Trace, key: list[int], trained: int) -> tuple[tuple[str, ...], _Work]:
    """Texts of one distinct call (shapes, types, strides, arguments), and its work."""
    name = trace.strings[key[0]]
    shapes, types, strides, given = (_read(trace, value) for value in key[1:])
    if len(shapes) != len(types):
        return ("", "", "", ""), _Work(0, 0, 0)
    is_tensor = [kind not in _NO_TENSOR for kind in types]
    dtypes = [f"Tensor({kind})" if tensor else str(kind) for kind, tensor in zip(types, is_tensor, strict=True)]
    values = [None if tensor else _parse(text) for text, tensor in zip(_pad(given, types), is_tensor, strict=True)]
    texts = tuple(json.dumps(item, separators=(",", ":")) for item in (shapes, dtypes, strides, values))
    try:
        work = _work(name, shapes, [str(kind) for kind in types], values, trained)
    except (ArithmeticError, AttributeError, IndexError, RecursionError, TypeError, ValueError):
        work = _Work(0, 0, 0)  # an overload with other arguments
    numbers = (work.flops, work.bytes_read, work.bytes_written)
    return texts, work if 0 <= min(numbers) and max(numbers) < _TOO_MUCH else _Work(0, 0, 0)


def _pad(given: list[Any], types: list[Any]) -> list[Any]:
    return [*given, *([""] * len(types))][: len(types)]


def _read(trace: Trace, value: int) -> list[Any]:
    """An argument that is a list; old profilers wrote it as text."""
    if value == MISSING or not is_string(value):
        return []
    try:
        result = json.loads(trace.text(value))
    except (RecursionError, ValueError):
        return []
    return result if isinstance(result, list) else []


def _parse(text: Any) -> Any:
    """The value of a concrete input, which is written as text."""
    if not isinstance(text, str) or not text:
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text.replace("True", "true").replace("False", "false").rstrip("."))
    except (RecursionError, ValueError):
        return text


def _count(shape: Any) -> int:
    """Elements of a tensor, or of all tensors of a list."""
    if isinstance(shape, list) and any(isinstance(size, list) for size in shape):
        return sum(map(_count, shape))
    return math.prod(shape) if isinstance(shape, list) else 0


def _work(name: str, shapes: Shapes, types: list[str], values: list[Any], trained: int) -> _Work:
    plain = name.removeprefix("aten::").rstrip("_")
    counts = [
        0 if kind in ("", "Scalar", "ScalarList") else trained if _is_unknown_list(kind, shape) else _count(shape)
        for kind, shape in zip(types, shapes, strict=True)
    ]
    sizes = [_ITEM_BYTES.get(kind, 4) for kind in types]
    moved = [count * size for count, size in zip(counts, sizes, strict=True)]
    if not name.startswith("aten::"):  # a generated kernel: which of its arguments it writes is not recorded
        return _Work(max(counts, default=0), sum(moved), 0)
    results = _results(plain, shapes, types, values)
    written = sum(map(_count, results)) * (sizes[0] if sizes else 4)
    if plain.startswith("_foreach_"):
        written = moved[0]
    if plain in _LOOKUPS:  # only the rows that are asked for are read
        return _Work(sum(map(_count, results)), written + moved[-1 if plain == "index_select" else 1], written)
    is_overwritten = plain in ("copy", "fill", "zero", "random", "normal", "uniform")
    flops = operator_flops(name, shapes, values, results)
    if plain.startswith("_foreach_"):
        flops = counts[0]
    return _Work(flops, sum(moved[1:] if is_overwritten else moved), written)


def _is_unknown_list(kind: str, shape: Any) -> bool:
    return kind == "TensorList" and shape == []


def _results(plain: str, shapes: Shapes, types: list[str], values: list[Any]) -> Shapes:
    """Shapes of an operator's results."""
    if plain in ("mm", "bmm"):
        return [[*shapes[0][:-1], shapes[1][-1]]]
    if plain in ("addmm", "baddbmm"):
        return [[*shapes[1][:-1], shapes[2][-1]]]
    if plain.endswith("convolution") and len(shapes[0]) == len(shapes[1]) > 2:
        return [_convolution_result(plain, shapes, types, values)]
    if plain == "convolution_backward":
        needed = values[-1] if isinstance(values[-1], list) else [True, True, False]
        return [
            shape for shape, is_needed in zip((shapes[1], shapes[2], [shapes[0][1]]), needed, strict=True) if is_needed
        ]
    if plain == "embedding":
        return [[*shapes[1], shapes[0][-1]]]
    if plain in ("embedding_dense_backward", "embedding_backward"):
        return [[values[2], shapes[0][-1]]]
    if plain == "index_select":
        return [[*shapes[-1], *shapes[0][1:]]]
    if plain == "gather":
        return [shapes[2]]
    if plain in ("sum", "mean", "amax", "amin", "argmax", "norm", "linalg_vector_norm", "nll_loss_forward"):
        return [_reduction_result(shapes[0], values[1] if len(values) > 1 else None)]
    if plain == "nll_loss_backward":
        return [shapes[1]]
    if "attention" in plain and plain.endswith("backward"):
        return shapes[1:4]
    if "attention" in plain:
        return [[*shapes[0][:-1], shapes[2][-1]]]
    if plain == "cat":
        return [[sum(map(_count, shapes[0]))]]
    if plain.endswith(("layer_norm_backward", "batch_norm_backward")):
        return [shapes[0], [2 * shapes[0][1 if "batch" in plain else -1]]]
    tensors = [shape for shape, kind in zip(shapes, types, strict=True) if kind not in _NO_TENSOR]
    return [max(tensors, key=_count)] if tensors else []  # element by element


def _convolution_result(plain: str, shapes: Shapes, types: list[str], values: list[Any]) -> list[int]:
    """Batch, channels and places of a convolution's result."""
    lists = [
        value for value, kind in zip(values, types, strict=True) if kind == "ScalarList" and isinstance(value, list)
    ]
    if plain.startswith("cudnn"):
        lists[0], lists[1] = lists[1], lists[0]  # padding comes first
    stride, padding, dilation = lists[:3]
    places = []
    for size, width, step, pad, apart in zip(
        shapes[0][2:], shapes[1][2:], _spread(stride, shapes), _spread(padding, shapes), _spread(dilation, shapes),
        strict=True,
    ):  # fmt: skip
        places.append((size + 2 * pad - apart * (width - 1) - 1) // step + 1)
    return [shapes[0][0], shapes[1][0], *places]


def _spread(values: Sequence[int], shapes: Shapes) -> list[int]:
    count = len(shapes[0]) - 2
    return [*values] if len(values) == count else [*values] * count


def _reduction_result(shape: list[int], dims: Any) -> list[int]:
    dims = [dims] if isinstance(dims, int) and not isinstance(dims, bool) else dims
    if not isinstance(dims, list) or not dims:
        return []
    gone = {dim % max(len(shape), 1) for dim in dims}
    return [size for dim, size in enumerate(shape) if dim not in gone]
