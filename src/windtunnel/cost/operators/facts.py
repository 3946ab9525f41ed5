"""What an operator's arguments determine of its time on a GPU: its family, sizes, layout, operations and bytes.

In: ``Work``, whose rows have shapes, strides and arguments as captured. Out: ``Facts``, one row of numbers for each row
of work. Rows of families that nothing is known of, or whose arguments were not captured, have no family. Devices do not
enter (``learned_features``), nor do times.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.work import Work
from windtunnel.graph.flops import operator_flops
from windtunnel.graph.kernel_classes import class_of

__all__ = ["COLUMNS", "FAMILIES", "Facts", "facts_of", "plain_name"]

# P rows of work
Floats = NDArray[np.float64]
Shape = Sequence[int]
Row = dict[str, float]

FAMILIES = (
    "product", "attention", "attention backward", "convolution", "convolution backward", "normalization", "softmax",
    "pointwise", "reduction", "pooling", "table", "copy", "loss", "update", "multi-tensor",
)  # fmt: skip
"""Operators of one family are priced by the same trees."""
COLUMNS = (
    "rows", "columns", "inner", "batch", "flops", "read_bytes", "written_bytes", "item_bytes", "variant", "layout",
    "is_causal", "is_strided", "window", "stride", "channels", "num_groups", "alignment", "alignment_right",
    "num_tensors",
)  # fmt: skip
"""Of a product (rows x inner) times (inner x columns), ``batch`` times; attention has queries, keys and the elements of
a head; a convolution is taken as the product of all windows and the filters of a group. Others have ``rows`` of
``columns`` elements. An alignment is the largest power of two, at most 128 bytes, that divides a row's length."""
_LINE = 128  # bytes of a line of the cache
ITEM_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp64": 8, "fp8": 1, "int8": 1}

_VARIANTS: dict[str, tuple[tuple[str, ...], ...]] = {
    # operators of one variant do the same kind of work per element; a later variant is more work
    "pointwise": (
        ("sqrt", "rsqrt", "div", "reciprocal", "addcdiv"),
        ("exp", "sigmoid", "silu", "tanh", "erf", "log", "sin", "cos", "expm1", "log1p", "silu_backward"),
        ("gelu", "gelu_backward", "tanh_backward", "sigmoid_backward"),
        ("pow",),
        ("native_dropout", "bernoulli", "rand", "randn", "normal", "uniform", "randint", "random"),
    ),
    "normalization": (
        ("rms_norm", "_fused_rms_norm", "fused_rms_norm"),
        ("native_batch_norm", "cudnn_batch_norm", "batch_norm", "native_batch_norm_legit"),
        ("native_group_norm", "group_norm"),
        ("native_layer_norm_backward", "layer_norm_backward"),
        ("rms_norm_backward", "fused_rms_norm_backward"),
        ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
        ("native_group_norm_backward",),
        ("batch_norm_inference",),
    ),
    "softmax": (("log_softmax",), ("softmax_backward_data",), ("log_softmax_backward_data",)),
    "reduction": (("amax", "amin", "max", "min"), ("argmax", "argmin"), ("linalg_vector_norm", "norm"), ("cumsum",)),
    "pooling": (
        ("max_pool2d_with_indices_backward",),
        ("avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d"),
        ("avg_pool2d_backward", "adaptive_avg_pool2d_backward"),
        ("upsample_nearest2d", "upsample_bilinear2d"),
        ("upsample_nearest2d_backward", "upsample_bilinear2d_backward"),
    ),
    "table": (("gather",), ("embedding_dense_backward",), ("scatter_add", "index_put"), ("index_add",)),
    "copy": (("fill", "zero", "full", "zeros", "ones", "zeros_like", "ones_like", "full_like"), ("cat", "stack")),
    "loss": (("nll_loss_backward", "nll_loss2d_backward"), ("mse_loss",), ("mse_loss_backward",)),
    "update": (("fused_sgd",), ("fused_adam", "fused_adamw")),
    "multi-tensor": (("foreach_norm",), ("foreach_zero",)),
}


@dataclass(frozen=True, eq=False)
class Facts:
    """Numbers about P rows of work.

    Parameters
    ----------
    family : object [P]
        One of ``FAMILIES``; empty where the row is of none.
    values : float [P, ``COLUMNS``]
        0 where a column does not apply.
    dtype : object [P]
        The type that is computed in.
    """

    family: NDArray[np.object_]
    values: Floats
    dtype: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.family)

    def column(self, name: str) -> Floats:
        """One of ``COLUMNS`` [P]."""
        return self.values[:, COLUMNS.index(name)]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Facts:
        """The given rows."""
        return Facts(self.family[rows], self.values[rows], self.dtype[rows])


def facts_of(work: Work) -> Facts:
    """Facts about all rows of work."""
    families, values = np.full(len(work), "", dtype=object), np.zeros((len(work), len(COLUMNS)))
    texts = (work.operator, work.shapes, work.strides, work.arguments, work.dtype, work.bytes_moved)
    for index, (operator, shapes, strides, arguments, dtype, moved) in enumerate(
        zip(*(column.tolist() for column in texts), strict=True)
    ):
        if not shapes or dtype not in ITEM_BYTES:
            continue
        try:
            call = _Call(
                plain_name(operator),
                json.loads(shapes),
                json.loads(strides) if strides else [],
                json.loads(arguments) if arguments else [],
                ITEM_BYTES[dtype],
                float(moved),
            )
            family, row = _describe(call)
        except (IndexError, TypeError, ValueError, KeyError, ZeroDivisionError):
            continue  # arguments of another form than those of this operator: another model may know it
        if family and all(math.isfinite(value) and value >= 0 for value in row.values()):
            families[index] = family
            row = {"item_bytes": float(ITEM_BYTES[dtype]), "variant": _variant(family, call.name), **row}
            values[index] = [row.get(name, 0.0) for name in COLUMNS]
    return Facts(families, values, work.dtype)


def plain_name(operator: str) -> str:
    """Schema name without namespace, overload and underscores around it.

    Examples
    --------
    >>> plain_name("aten::add_.Tensor"), plain_name("aten::_fused_adamw_")
    ('add', 'fused_adamw')
    """
    return operator.rpartition("::")[2].partition(".")[0].strip("_")


@dataclass(frozen=True)
class _Call:
    name: str
    shapes: list[Any]
    strides: list[Any]
    arguments: list[Any]
    item: int
    moved: float

    def stride(self, index: int) -> list[int]:
        """Strides of a tensor; those of one that lies row by row where they were not captured."""
        if index < len(self.strides) and len(self.strides[index]) == len(self.shapes[index]):
            return list(self.strides[index])
        return _usual(self.shapes[index])

    def argument(self, index: int, default: Any = None) -> Any:
        return self.arguments[index] if index < len(self.arguments) else default

    def flops(self, outputs: Sequence[Any] = ()) -> float:
        return float(operator_flops(f"aten::{self.name}", self.shapes, self.arguments, list(outputs)))


def _usual(shape: Shape) -> list[int]:
    return [math.prod(shape[index + 1 :]) for index in range(len(shape))]


def _is_strided(shape: Shape, stride: Shape) -> bool:
    return any(size > 1 and step != usual for size, step, usual in zip(shape, stride, _usual(shape), strict=True))


def _alignment(length: float, item: int) -> float:
    """Bytes, a power of two and at most ``_LINE``, that divide a row of this many elements."""
    num_bytes = int(length) * item
    return float(min(num_bytes & -num_bytes, _LINE)) if num_bytes else float(_LINE)


def _variant(family: str, name: str) -> float:
    variants = _VARIANTS.get(family, ())
    return float(next((index + 1 for index, names in enumerate(variants) if name in names), 0))


def _describe(call: _Call) -> tuple[str, Row]:
    describe = _BY_NAME.get(call.name)
    if describe is not None:
        return describe(call)
    kind = class_of(f"aten::{call.name}")
    if kind in _BY_CLASS and not _OTHER_WORK.search(call.name):
        return _BY_CLASS[kind](call)
    return "", {}


# --- matrix work ------------------------------------------------------------------------------------------------


def _product(left: int, *, has_sum: bool = False) -> Callable[[_Call], tuple[str, Row]]:
    """Of two matrices, the first being that argument, alone or in batches."""

    def describe(call: _Call) -> tuple[str, Row]:
        first, second = call.shapes[left], call.shapes[left + 1]
        batch = math.prod(first[:-2])
        if len(first) != len(second) or len(first) < 2 or batch != math.prod(second[:-2]):
            return "", {}
        first_steps, second_steps = call.stride(left), call.stride(left + 1)
        return _matrices(
            call, batch, first[-2], first[-1], second[-1], first_steps[-1] != 1 and first_steps[-2] == 1,
            second_steps[-1] != 1 and second_steps[-2] == 1, has_sum=has_sum,
        )  # fmt: skip

    return describe


def _linear(call: _Call) -> tuple[str, Row]:
    first, weight = call.shapes[:2]
    has_sum = len(call.shapes) > 2 and bool(call.shapes[2])
    return _matrices(call, 1, math.prod(first[:-1]), first[-1], weight[0], False, True, has_sum=has_sum)


def _matrices(
    call: _Call,
    batch: int,
    rows: int,
    inner: int,
    columns: int,
    is_left_turned: bool,
    is_right_turned: bool,
    *,
    has_sum: bool = False,
) -> tuple[str, Row]:
    """``turned``: the other dimension of a factor lies in a row, as in a transposed view."""
    return "product", {
        "rows": rows, "columns": columns, "inner": inner, "batch": batch,
        "flops": 2.0 * batch * rows * columns * inner,
        "read_bytes": call.item * batch * float(rows * inner + inner * columns),
        "written_bytes": call.item * float(batch) * rows * columns,
        "layout": float(is_left_turned) + 2.0 * float(is_right_turned),
        "variant": float(has_sum),
        "alignment": _alignment(rows if is_left_turned else inner, call.item),
        "alignment_right": min(
            _alignment(inner if is_right_turned else columns, call.item), _alignment(columns, call.item)
        ),
    }  # fmt: skip


def _attention(query: int, causal: int, *, is_backward: bool = False) -> Callable[[_Call], tuple[str, Row]]:
    def describe(call: _Call) -> tuple[str, Row]:
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
            "alignment": _alignment(width, call.item), "alignment_right": _alignment(num_keys, call.item),
        }  # fmt: skip

    return describe


def _convolution(call: _Call) -> tuple[str, Row]:
    images, weight = call.shapes[:2]
    pairs = [call.argument(index) for index in (3, 4, 5)]
    sizes = [_out_size(size, side, *item) for size, side, *item in zip(images[2:], weight[2:], *pairs, strict=True)]
    if call.argument(6) is True:
        return "", {}  # transposed: no timings
    outputs = [images[0], weight[0], *sizes]
    return "convolution", _windows(call, images, weight, outputs, call.stride(0), pairs[0], int(call.argument(8, 1)), 1)


def _out_size(size: int, side: int, stride: int, padding: int, dilation: int) -> int:
    return int((size + 2 * padding - dilation * (side - 1) - 1) // stride + 1)


def _convolution_backward(call: _Call) -> tuple[str, Row]:
    outputs, images, weight = call.shapes[:3]
    if call.argument(7) is True:
        return "", {}
    requested = call.argument(10) or [True, True, False]
    count = int(bool(requested[0])) + int(bool(requested[1]))
    row = _windows(call, images, weight, outputs, call.stride(1), call.argument(4), int(call.argument(9, 1)), count)
    return "convolution backward", {**row, "variant": float(bool(requested[0])) + 2.0 * float(bool(requested[1]))}


def _windows(
    call: _Call, images: Shape, weight: Shape, outputs: Shape, steps: Shape, strides: Any, groups: int, count: int
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
        "alignment": _alignment(weight[1], call.item), "alignment_right": _alignment(weight[0], call.item),
    }  # fmt: skip


# --- rows of elements -------------------------------------------------------------------------------------------


def _rows(call: _Call, rows: float, columns: float, read: float, written: float, **more: float) -> Row:
    strided = any(
        _is_tensor(shape) and _is_strided(shape, call.stride(index)) for index, shape in enumerate(call.shapes)
    )
    return {
        "rows": rows, "columns": columns, "read_bytes": read, "written_bytes": written, "flops": rows * columns,
        "is_strided": float(strided), "alignment": _alignment(columns, call.item), "batch": 1.0, **more,
    }  # fmt: skip


def _is_tensor(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) > 0 and all(isinstance(size, int) for size in shape)


def _normalization(call: _Call) -> tuple[str, Row]:
    name, is_backward = call.name, "backward" in call.name
    values = call.shapes[1] if is_backward and len(call.shapes[1]) == len(call.shapes[0]) else call.shapes[0]
    total = float(math.prod(values))
    passes = 2.0 if is_backward else 1.0
    more: Row = {}
    if "batch_norm" in name:
        rows, last = float(values[1]), total / values[1]
        steps = call.stride(0)
        more = {"layout": float(len(values) > 2 and steps[1] == 1), "channels": float(values[1])}
        if name in ("native_batch_norm", "batch_norm") and call.argument(5) is False:
            more["variant"] = _variant("normalization", "batch_norm_inference")
    elif "group_norm" in name:
        index = 5 if is_backward else 3
        samples = values[0]
        groups = int(call.argument(index + 3, 0) or 0)
        rows = float(samples * groups) if groups else float(samples)
        last = total / rows
        more = {"channels": float(values[1]), "num_groups": float(groups)}
    else:
        last = float(values[-1])
        rows = total / last
    # copies of the gradient, values and results that the graph counts may be fewer than the kernels read
    row = _rows(call, rows, last, passes * total * call.item, total * call.item, **more)
    row["is_strided"] = 0.0
    return "normalization", row


def _softmax(call: _Call) -> tuple[str, Row]:
    values = call.shapes[0]
    total, passes = float(math.prod(values)), 2.0 if "backward" in call.name else 1.0
    dim = int(call.argument(2 if "backward" in call.name else 1, -1))
    width = float(values[dim])
    is_last = dim in (-1, len(values) - 1)
    row = _rows(call, total / width, width, passes * total * call.item, total * call.item)
    return "softmax", {**row, "is_strided": float(not is_last)}


def _reduction(call: _Call) -> tuple[str, Row]:
    values = call.shapes[0]
    if not _is_tensor(values):
        return "", {}
    total = float(math.prod(values))
    dims = _dims(call, len(values))
    reduced = float(math.prod(values[dim] for dim in dims))
    kept = total / reduced
    is_last = (len(values) - 1) in dims
    written = (total if call.name in ("cumsum",) else kept) * call.item
    more: Row = {}
    if call.name == "mean" and len(values) == 4 and len(dims) == 2:
        more = {"layout": float(call.stride(0)[1] == 1)}
    row = _rows(call, kept, reduced, total * call.item, written, **more)
    # which dimension goes decides over the kernel: layout 2 adds up rows
    return "reduction", {**row, "layout": row.get("layout", 0.0) + 2.0 * float(not is_last)}


def _dims(call: _Call, count: int) -> list[int]:
    index = 2 if call.name in ("linalg_vector_norm", "norm") else 1
    given = call.argument(index)
    if isinstance(given, bool) or given is None or isinstance(given, (str, float)):
        return list(range(count))
    dims = given if isinstance(given, list) else [given]
    return sorted({int(dim) % count for dim in dims}) or list(range(count))


def _sorting(call: _Call) -> tuple[str, Row]:
    if call.name != "topk":
        return "", {}
    values = call.shapes[0]
    total = float(math.prod(values))
    row = _rows(call, total / values[-1], float(values[-1]), total * call.item, total / values[-1] * 12 * 8)
    return "reduction", {**row, "variant": 5.0, "layout": 0.0}


def _pooling(call: _Call) -> tuple[str, Row]:
    values = [shape for shape in call.shapes if _is_tensor(shape) and len(shape) >= 3]
    largest = max(values, key=math.prod)
    total = float(math.prod(largest))
    channels = float(largest[1])
    index = values.index(largest)
    steps = call.stride(index)
    read = 0.6 if "backward" in call.name else 1.0
    row = _rows(
        call, total / largest[-1], float(largest[-1]), read * total * call.item, 0.5 * total * call.item,
        channels=channels, layout=float(steps[1] == 1 and channels > 1),
    )  # fmt: skip
    if "backward" in call.name:
        row["written_bytes"] = total * call.item
    return "pooling", {**row, "is_strided": 0.0, "flops": total}


def _table(call: _Call) -> tuple[str, Row]:
    """Rows of a table by their numbers: what counts is how many are read or written, not the size of the table."""
    name = call.name
    if name == "embedding":
        count, width = float(math.prod(call.shapes[1])), float(call.shapes[0][-1])
        table = float(math.prod(call.shapes[0]))
    elif name == "embedding_dense_backward":
        count, width = float(math.prod(call.shapes[1])), float(call.shapes[0][-1])
        table = float(call.argument(2)) * width
    elif name in ("gather", "scatter_add", "scatter"):
        count, width = float(math.prod(call.shapes[2][:-1])), float(call.shapes[2][-1])
        table = float(math.prod(call.shapes[0]))
    elif name in ("index_select", "index_add"):
        count, width = float(math.prod(call.shapes[2])), float(math.prod(call.shapes[0][1:]))
        table = float(math.prod(call.shapes[0]))
    elif name in ("index", "index_put"):
        numbers = [shape for shape in call.shapes[1] if _is_tensor(shape)]
        count = float(max(math.prod(shape) for shape in numbers))
        width = float(math.prod(call.shapes[0][len(call.shapes[1]) :]))
        table = float(math.prod(call.shapes[0]))
    else:
        return "", {}
    moved = count * width * call.item
    adds = name in ("scatter_add", "index_add", "index_put")
    read, written = moved * (2.0 if adds else 1.0) + 8.0 * count, moved
    if name == "embedding_dense_backward":
        written += table * call.item  # all of the gradient is set to zero first
    row = _rows(call, count, max(width, 1.0), read, written, channels=table / max(width, 1.0))
    return "table", {**row, "is_strided": 0.0}


def _copy(call: _Call) -> tuple[str, Row]:
    """The bytes are those that the graph states, which know types and repeated elements."""
    given = call.shapes[0]
    shapes = [given] if _is_tensor(given) else [shape for shape in given if _is_tensor(shape)] if given else []
    if not shapes and isinstance(call.argument(0), list):
        shapes = [call.argument(0)]  # of a new tensor
    if not shapes:
        shapes = [[1]]
    total = float(sum(math.prod(shape) for shape in shapes))
    width = float(shapes[0][-1]) if shapes[0] else 1.0
    writes_only = _variant("copy", call.name) == 1.0
    written = call.moved if writes_only else call.moved / 2
    row = _rows(call, total / max(width, 1.0), max(width, 1.0), call.moved - written, written)
    if len(call.shapes) > 1 and call.name == "copy" and _is_tensor(call.shapes[1]):
        row["is_strided"] = float(_is_strided(call.shapes[1], call.stride(1)))
    if row["is_strided"] and _is_tensor(given):
        source = 1 if call.name == "copy" and len(call.shapes) > 1 and _is_tensor(call.shapes[1]) else 0
        row["layout"] = float(call.stride(source)[-1] != 1)  # neighbors of the result do not lie next to each other
    return "copy", {**row, "num_tensors": float(len(shapes))}


def _pointwise(call: _Call) -> tuple[str, Row]:
    shapes = [shape for shape in call.shapes if _is_tensor(shape)]
    if call.moved <= 0:
        return "", {}
    largest = max(shapes, key=math.prod) if shapes else [1]
    total = float(math.prod(largest))
    if not shapes and isinstance(call.argument(0), list):
        total = max(total, call.moved / call.item)  # random values of a new tensor
    width = float(largest[-1]) if largest else 1.0
    written = min(total * call.item, call.moved)
    same = [shape for shape in shapes if math.prod(shape) == math.prod(largest)]
    row = _rows(call, total / max(width, 1.0), max(width, 1.0), call.moved - written, written)
    return "pointwise", {**row, "num_tensors": float(len(same)), "layout": float(len(same) < len(shapes))}


def _loss(call: _Call) -> tuple[str, Row]:
    is_backward = "backward" in call.name
    if "nll_loss" in call.name:
        scores = call.shapes[1 if is_backward else 0]
        rows, width = float(math.prod(scores)) / scores[-1], float(scores[-1])
        read, written = rows * (32.0 + 8.0), rows * width * call.item if is_backward else 4.0
        return "loss", {**_rows(call, rows, width, read, written), "is_strided": 0.0}
    shapes = [shape for shape in call.shapes if _is_tensor(shape)]
    if not shapes:
        return "", {}
    total = float(math.prod(max(shapes, key=math.prod)))
    width = float(max(shapes, key=math.prod)[-1])
    row = _rows(call, total / width, width, 2 * total * call.item, total * call.item if is_backward else 4.0)
    return "loss", {**row, "variant": 3.0 if is_backward else 2.0}


def _update(call: _Call) -> tuple[str, Row]:
    """One kernel works on chunks of many tensors: what counts is how many chunks there are and how long the longest."""
    lists = [item for item in call.shapes if isinstance(item, list) and item and isinstance(item[0], list)]
    sizes = [math.prod(shape) for shape in lists[0]] if lists else []
    if not sizes or not any(sizes):
        return "", {}
    total = float(sum(sizes))
    num_lists = 1 + sum(len(item) == len(sizes) and any(item) for item in lists[1:])
    reads, writes = _UPDATE_PASSES.get(call.name, (float(num_lists), 1.0))
    num_chunks = sum(math.ceil(size / _CHUNK) for size in sizes)
    num_kernels = max(math.ceil(len(sizes) / _TENSORS_PER_KERNEL[min(num_lists, 5)]), math.ceil(num_chunks / 320))
    return "multi-tensor" if call.name.startswith("foreach") else "update", {
        "rows": num_chunks, "columns": min(max(sizes), _CHUNK), "batch": 1.0, "flops": total,
        "read_bytes": reads * total * call.item, "written_bytes": writes * total * call.item,
        "num_tensors": float(len(sizes)), "window": float(num_kernels),
        "alignment": min(_alignment(size, call.item) for size in sizes),
    }  # fmt: skip


_CHUNK = 65_536  # elements that one thread block of a multi-tensor kernel takes
_TENSORS_PER_KERNEL = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}  # by the number of lists
_UPDATE_PASSES = {
    "fused_sgd": (3.0, 2.0),
    "fused_adam": (4.0, 3.0),
    "fused_adamw": (4.0, 3.0),
    "foreach_zero": (0.0, 1.0),
    "foreach_norm": (1.0, 0.0),
}
"""How often all elements are read and written."""

_BY_NAME: Mapping[str, Callable[[_Call], tuple[str, Row]]] = {
    "mm": _product(0),
    "bmm": _product(0),
    "addmm": _product(1, has_sum=True),
    "baddbmm": _product(1, has_sum=True),
    "matmul": _product(0),
    "linear": _linear,
    "scaled_dot_product_attention": _attention(0, 5),
    "scaled_dot_product_flash_attention": _attention(0, 4),
    "scaled_dot_product_flash_attention_for_cpu": _attention(0, 4),
    "scaled_dot_product_efficient_attention": _attention(0, 6),
    "scaled_dot_product_cudnn_attention": _attention(0, 6),
    "scaled_dot_product_fused_attention_overrideable": _attention(0, 5),
    "scaled_dot_product_flash_attention_backward": _attention(1, 11, is_backward=True),
    "scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, 7, is_backward=True),
    "scaled_dot_product_efficient_attention_backward": _attention(1, 11, is_backward=True),
    "scaled_dot_product_cudnn_attention_backward": _attention(1, 14, is_backward=True),
    "convolution": _convolution,
    "cudnn_convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "topk": _sorting,
    "cumsum": _reduction,
    "select_backward": _copy,
    "slice_backward": _copy,
    "full": _copy,
    "zeros": _copy,
    "ones": _copy,
    "zeros_like": _copy,
    "ones_like": _copy,
    "full_like": _copy,
    "masked_fill": _pointwise,
    "where": _pointwise,
    "native_dropout": _pointwise,
    "native_dropout_backward": _pointwise,
}
_UPDATES: tuple[str, ...] = (
    "fused_sgd", "fused_adam", "fused_adamw", "fused_adagrad", "foreach_add", "foreach_sub", "foreach_mul",
    "foreach_div", "foreach_sqrt", "foreach_lerp", "foreach_addcmul", "foreach_addcdiv", "foreach_neg", "foreach_copy",
    "foreach_norm", "foreach_zero", "foreach_clamp_min",
)  # fmt: skip
_LOSSES: tuple[str, ...] = (
    "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "mse_loss",
    "mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward", "binary_cross_entropy",
)  # fmt: skip
_NORMS: tuple[str, ...] = (
    "rms_norm", "fused_rms_norm", "rms_norm_backward", "fused_rms_norm_backward", "cudnn_batch_norm",
    "cudnn_batch_norm_backward", "native_group_norm",
)  # fmt: skip
_BY_NAME = {
    **_BY_NAME,
    **dict.fromkeys(_UPDATES, _update),
    **dict.fromkeys(_LOSSES, _loss),
    **dict.fromkeys(_NORMS, _normalization),
}
# operators that the classes take for elementwise, of which some do other work than one value per element
_OTHER_WORK = re.compile(
    r"rnn|lstm|gru|linalg_(?!vector)|fft|cdist|ctc|solve|cholesky|histc|bincount|unique|sparse|quant|grid_sampl"
)


def _norms_and_softmax(call: _Call) -> tuple[str, Row]:
    return _softmax(call) if "softmax" in call.name else _normalization(call)


_NORMS = ("rms_norm", "fused_rms_norm", "rms_norm_backward", "fused_rms_norm_backward", "cudnn_batch_norm")
_BY_NAME = {**_BY_NAME, **dict.fromkeys((*_NORMS, "cudnn_batch_norm_backward", "native_group_norm"), _normalization)}
# operators that the classes take for elementwise, of which some do other work than one value per element
_OTHER_WORK = re.compile(
    r"rnn|lstm|gru|linalg_(?!vector)|fft|cdist|ctc|solve|cholesky|histc|bincount|unique|sparse|quant|grid_sampl"
)


_BY_CLASS: Mapping[str, Callable[[_Call], tuple[str, Row]]] = {
    "normalization": _norms_and_softmax,
    "pooling": _pooling,
    "reduction": _reduction,
    "indexing": _table,
    "moving": _copy,
    "drawing": _pointwise,
    "elementwise": _pointwise,
}
