"""Recorded timings of operators as the work that a captured graph would state.

In: the journals and tables of stage ``operators`` of one device. Out: ``Timings``: ``Work``, the time of each row, the
device and the class that a row belongs to. Needs no GPU.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.shared_data import find_shared

from windtunnel.cost.operators.facts import plain_name
from windtunnel.cost.work import Work
from windtunnel.graph.flops import operator_flops

__all__ = ["FOLDERS", "Timings", "host_times", "read_all", "shared_folder"]

HERE = Path(__file__).parent
FOLDERS = {"h100-sxm5-80g": HERE / "h100" / "operators", "h200-sxm5-141g": HERE / "h200" / "operators"}
TYPES = {
    "float32": "Tensor(float)",
    "bfloat16": "Tensor(c10::BFloat16)",
    "float16": "Tensor(c10::Half)",
    "int64": "Tensor(long int)",
    "bool": "Tensor(bool)",
}
FORMS = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
ITEMS = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "bool": 1}
MIN_CALLS = 3  # that a quartile is taken of
# backward passes that were timed through torch.autograd.grad, and what that call takes by itself: the norm of layers
# takes 18 us where its operator is called, that of root mean squares 77 us through autograd
THROUGH_AUTOGRAD = (
    "native_batch_norm_backward",
    "fused_rms_norm_backward",
    "scaled_dot_product_flash_attention_backward",
)
AUTOGRAD_NS = 59_000.0
SIZE_NAMES = ("B", "M", "N", "K", "H", "causal", "batch", "in_channels", "out_channels", "kernel", "image", "stride")

Row = dict[str, Any]
Tensor = tuple[list[int], str, list[int]]  # shape, type, strides


@dataclass(frozen=True, eq=False)
class Timings:
    """Work that was timed on devices.

    Parameters
    ----------
    work : Work
    latency_ns : float64 [P]
    device : object [P]
    shape : object [P]
        The operator and its sizes without the type: what is held out together.
    """

    work: Work
    latency_ns: NDArray[np.float64]
    device: NDArray[np.object_]
    shape: NDArray[np.object_]

    def take(self, rows: NDArray[Any]) -> Timings:
        return Timings(self.work.take(rows), self.latency_ns[rows], self.device[rows], self.shape[rows])

    def __len__(self) -> int:
        return len(self.latency_ns)


def read_all(shared: Path | None) -> Timings:
    """All timings of the H100 and the H200: those of this folder, and those of the shared data where they are."""
    rows = [(device, row) for device, folder in FOLDERS.items() for row in _rows(folder)]
    if shared is not None:
        rows += [("h200-sxm5-141g", row) for row in _rows(shared)]
    return _timings(rows)


def host_times(shared: Path | None) -> dict[str, tuple[float, int]]:
    """Lower quartile of a call from Python by operator, and of how many timings, where the host sets the pace."""
    rows = list(_rows(FOLDERS["h200-sxm5-141g"]))
    rows += _rows(shared) if shared is not None else []
    calls: dict[str, list[float]] = {}
    for row in rows:
        call = _call(row) if row["latency_ms"] < 0.5 * row["eager_ms"] else None
        if call is not None:
            name = plain_name(call[0])
            engine_ns = AUTOGRAD_NS if name in THROUGH_AUTOGRAD else 0.0
            calls.setdefault(name, []).append(1e6 * row["eager_ms"] - engine_ns)
    return {
        name: (float(np.quantile(times, 0.25)), len(times))
        for name, times in sorted(calls.items())
        if len(times) >= MIN_CALLS
    }


def shared_folder() -> Path | None:
    """Folder of the 4,096 shared timings of an H200; None where it is absent."""
    return find_shared("gpu_h200/operators")


def _rows(folder: Path) -> Iterator[Row]:
    for path in sorted(folder.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            row = json.loads(line)
            if "latency_ms" in row and row.get("is_replayed", True):
                yield row
    for path in sorted(folder.glob("*/*.csv")):
        with path.open(newline="") as file:
            for text in csv.DictReader(file):
                sizes = {name: int(float(text[name])) for name in SIZE_NAMES if text.get(name)}
                op = text.get("op") or "conv2d"
                if op == "conv2d":
                    sizes["padding"] = int(text["padding"])
                yield {**sizes, "op": op, "dtype": text["dtype"], "latency_ms": float(text["latency_ms"])}


def _timings(rows: list[tuple[str, Row]]) -> Timings:
    built, latency, devices, shapes = [], [], [], []
    for device, row in rows:
        call = _call(row)
        if call is None:
            continue
        name, inputs, arguments, outputs = call
        built.append(_work_row(name, inputs, arguments, outputs, row["dtype"]))
        latency.append(1e6 * row["latency_ms"])
        devices.append(device)
        shapes.append(" ".join((built[-1][0], built[-1][1], built[-1][3])))
    columns = list(zip(*built, strict=True))
    texts = [np.array(column, dtype=object) for column in columns[:6]]
    numbers = [np.array(column, dtype=np.float64) for column in columns[6:]]
    work = Work(*texts, *numbers, np.ones(len(built), dtype=np.int64))
    return Timings(work, np.array(latency), np.array(devices, dtype=object), np.array(shapes, dtype=object))


def _work_row(name: str, inputs: list[Any], arguments: list[Any], outputs: list[Tensor], form: str) -> tuple[Any, ...]:
    """Operator, shapes, types, strides, arguments, type, flops and bytes of one row."""
    shapes = [_nested(item, 0) for item in inputs]
    strides = [_nested(item, 2) for item in inputs]
    types = [_type_of(item) for item in inputs]
    out_shapes = [tensor[0] for tensor in outputs]
    flops = operator_flops(name, shapes, arguments, out_shapes)
    moved = sum(_bytes(tensor) for item in inputs for tensor in _tensors(item)) + sum(map(_bytes, outputs))
    texts = (json.dumps(item) for item in (shapes, types, strides, arguments))
    return (name, *texts, form, flops, moved)


def _tensors(item: Any) -> list[Tensor]:
    return item if isinstance(item, list) else [item] if isinstance(item, tuple) else []


def _nested(item: Any, index: int) -> Any:
    if isinstance(item, list):
        return [tensor[index] for tensor in item]
    return item[index] if isinstance(item, tuple) else []


def _type_of(item: Any) -> str:
    if isinstance(item, list):
        return f"GenericList[{','.join(TYPES[tensor[1]] for tensor in item)}]"
    return TYPES[item[1]] if isinstance(item, tuple) else "Int"


def _bytes(tensor: Tensor) -> float:
    return float(math.prod(tensor[0])) * ITEMS[tensor[1]]


def tensor(shape: list[int], dtype: str, strides: list[int] | None = None) -> Tensor:
    usual = [math.prod(shape[index + 1 :]) for index in range(len(shape))]
    return shape, dtype, strides or usual


# --- calls ------------------------------------------------------------------------------------------------------


def _call(row: Row) -> tuple[str, list[Any], list[Any], list[Tensor]] | None:
    """Operator, inputs, arguments and outputs of a timed case; None where no graph states such a call."""
    if "aten" in row:
        return _training_call(row)
    dtype = FORMS[row["dtype"]]

    def new(*shape: int, strides: list[int] | None = None) -> Tensor:
        return tensor(list(shape), dtype, strides)

    op = row["op"]
    if op == "linear":
        rows, inner, columns = (row[name] for name in "MNK")
        inputs = [new(columns), new(rows, inner), new(inner, columns, strides=[1, inner]), None, None]
        return "aten::addmm", inputs, [None, None, None, 1, 1], [new(rows, columns)]
    if op == "bmm":
        batch, rows, inner, columns = (row[name] for name in "BMNK")
        return (
            "aten::bmm",
            [new(batch, rows, inner), new(batch, inner, columns)],
            [None, None],
            [new(batch, rows, columns)],
        )
    if op == "attention":
        batch, rows, keys, width = (row[name] for name in "BMNK")
        inputs = [new(batch, 1, rows, width), new(batch, 1, keys, width), new(batch, 1, keys, width)]
        name = "aten::scaled_dot_product_attention"
        return name, inputs, [None, None, None, None, 0.0, bool(row["causal"])], [new(batch, 1, rows, width)]
    if op == "conv2d":
        return _convolution(row, dtype, is_backward=False)
    values = new(row["B"], row["H"])
    width = row["H"]
    norms: dict[str, Any] = {
        "ln": (
            "aten::native_layer_norm",
            [values, None, new(width), new(width), None],
            [None, [width], None, None, 0.0],
        ),
        "rms": ("aten::_fused_rms_norm", [values, None, new(width), None], [None, [width], None, 0.0]),
        "bn": (
            "aten::native_batch_norm",
            [values, *[new(width)] * 4, None, None, None],
            [None, None, None, None, None, False, 0.1, 0.0],
        ),
        "gn": (
            "aten::native_group_norm",
            [values, new(width), new(width), None, None, None, None, None],
            [None, None, None, row["B"], width, 1, 1, 0.0],
        ),
    }
    if op in norms:
        return (*norms[op], [values])
    reductions = {"sum": "aten::sum", "max": "aten::amax", "argmax": "aten::argmax"}
    if op == "softmax":
        return "aten::_softmax", [values, None, None], [None, -1, False], [values]
    if op in reductions:
        dims = -1 if op == "argmax" else [-1]
        return reductions[op], [values, None, None], [None, dims, False], [tensor([row["B"]], dtype)]
    second = None if op.endswith("u") or op in ("relu", "gelu", "tanh") else values
    name = op.removesuffix("u") if op in ("addu", "divu", "mulu", "powu") else op
    return f"aten::{name}", [values, second], [None, None if second else 1.5], [values]


def _convolution(row: Row, dtype: str, *, is_backward: bool) -> tuple[str, list[Any], list[Any], list[Tensor]]:
    groups, side, kernel = row.get("groups", 1), row["image"], row["kernel"]
    stride, padding = row["stride"], row.get("padding", row["kernel"] // 2)
    out_side = (side + 2 * padding - kernel) // stride + 1
    shapes = [
        [row["batch"], row["in_channels"], side, side],
        [row["out_channels"], row["in_channels"] // groups, kernel, kernel],
        [row["batch"], row["out_channels"], out_side, out_side],
    ]
    steps = [_channels_last(shape) if row.get("channels_last") else None for shape in shapes]
    images, weight, outputs = (tensor(shape, dtype, step) for shape, step in zip(shapes, steps, strict=True))
    options = [[stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups]
    if not is_backward:
        return "aten::convolution", [images, weight, *[None] * 7], [None, None, None, *options], [outputs]
    wanted = [row["in_channels"] > 3, True, False]
    results = [weight, *([images] if wanted[0] else [])]
    inputs = [outputs, images, weight, *[None] * 8]
    return "aten::convolution_backward", inputs, [None, None, None, None, *options, wanted], results


def _channels_last(shape: list[int]) -> list[int]:
    _, channels, height, width = shape
    return [height * width * channels, 1, width * channels, channels]


def _training_call(row: Row) -> tuple[str, list[Any], list[Any], list[Tensor]] | None:
    name, dtype, kind = row["aten"], FORMS[row["dtype"]], row["kind"]
    given = [tensor(item[0], item[1], *item[2:]) for item in row["tensors"]]
    if kind in ("conv-forward", "conv-backward"):
        return _convolution(row, dtype, is_backward=kind == "conv-backward")
    if kind in ("mm", "addmm", "bmm-strided"):
        left, right = given[-2:]
        result = tensor([*left[0][:-1], right[0][-1]], dtype)
        return f"aten::{name}", [*given, *[None] * (2 * (name == "addmm"))], [None] * len(given), [result]
    if kind == "attention-heads":
        causal = [None, None, None, None, 0.0, bool(row["causal"])]
        return "aten::scaled_dot_product_attention", given, causal, [given[0]]
    if kind == "attention-backward":
        query, key, value, gradient = given
        row_sums = tensor(query[0][:-1], "float32")
        inputs = [gradient, query, key, value, query, row_sums, None, None, None, None, None]
        arguments = [*[None] * 11, bool(row["causal"])]
        return "aten::_scaled_dot_product_flash_attention_backward", inputs, arguments, [query, key, value]
    if kind == "batch-norm":
        if name == "native_batch_norm":
            channels = given[1]
            inputs = [given[0], *[channels] * 4, None, None, None]
            return f"aten::{name}", inputs, [None, None, None, None, None, True, 0.1, 0.0], [given[0]]
        gradient, images, weight = given
        inputs = [gradient, images, *[weight] * 5, None, None, None]
        return f"aten::{name}", inputs, [*[None] * 7, True, 0.0, [True] * 3], [images]
    if kind == "norm-rows":
        return _norm_call(name, given)
    if kind in ("update", "clip"):
        return _update_call(row, name, dtype)
    if kind == "host-copy":
        return None  # nothing in a graph says where the other tensor lies
    return _other_call(row, name, given, dtype)


def _norm_call(name: str, given: list[Tensor]) -> tuple[str, list[Any], list[Any], list[Tensor]]:
    width = given[0][0][-1]
    if name == "native_layer_norm":
        return f"aten::{name}", [given[0], None, given[1], given[1], None], [None, [width], None, None, 0.0], [given[0]]
    gradient, values, weight = given
    rows = tensor([values[0][0], 1], "float32")
    if name == "native_group_norm_backward":
        inputs = [gradient, values, rows, rows, weight, *[None] * 5]
        return f"aten::{name}", inputs, [*[None] * 5, values[0][0], width, 1, 32, [True] * 3], [values]
    prefix = (
        "aten::native_layer_norm_backward" if name == "native_layer_norm_backward" else "aten::_fused_rms_norm_backward"
    )
    return prefix, [gradient, values, None, rows, rows, weight, weight, None], [None, None, [width]], [values]


def _update_call(row: Row, name: str, dtype: str) -> tuple[str, list[Any], list[Any], list[Tensor]] | None:
    width, count = row["width"], row["num_tensors"]
    shapes = [[width] if row["norms"] and index % 2 else [width, width] for index in range(count)]
    if row["kind"] == "clip":
        shapes = [[width, width]] * count
    tensors = [tensor(shape, dtype) for shape in shapes]
    if name.startswith("_foreach"):
        lists = [tensors, tensors] if name == "_foreach_add_" else [tensors, None]
        results = [] if name in ("_foreach_norm", "_foreach_add_") else tensors  # a list is added to itself: read once
        return f"aten::{name}", lists, [None, None], results
    optimizer, _, form = name.partition(".")
    if form != "fused":
        return None  # several calls
    states = {"SGD": 1, "Adam": 2, "AdamW": 2}[optimizer]
    lists = [tensors] * (2 + states)
    return f"aten::_fused_{optimizer.lower()}_", lists, [None] * len(lists), tensors * (1 + states)


def _other_call(
    row: Row, name: str, given: list[Tensor], dtype: str
) -> tuple[str, list[Any], list[Any], list[Tensor]] | None:
    base, _, label = name.partition(".")
    first = given[0]
    rows, width = (first[0][0], first[0][-1]) if first[0] else (1, 1)
    one, arguments, outputs = tensor([], dtype), [None] * len(given), [first]
    inputs: list[Any] = list(given)
    if base in ("max_pool2d_with_indices", "avg_pool2d"):
        side = (first[0][2] + 1) // 2 if base.startswith("max") else first[0][2] // 2
        shape = [*first[0][:2], side, side]
        outputs = [tensor(shape, dtype), *([tensor(shape, "int64")] if base.startswith("max") else [])]
        arguments = [None, [3, 3], [2, 2], [1, 1]] if base.startswith("max") else [None, [2, 2]]
    elif base == "max_pool2d_with_indices_backward":
        outputs = [given[1]]
    elif base == "mean" and label == "dim":
        inputs, arguments, outputs = [first, None, None], [None, [2, 3], True], [tensor([*first[0][:2], 1, 1], dtype)]
    elif base in ("mean", "linalg_vector_norm") or (base == "sum" and not label):
        inputs, arguments, outputs = [first], [None], [one]
    elif base == "sum":
        inputs, arguments, outputs = [first, None, None], [None, [0], True], [tensor([1, width], dtype)]
    elif base in ("_log_softmax", "cumsum"):
        inputs, arguments = [first, None, None], [None, -1, False]
    elif base in ("_softmax_backward_data", "_log_softmax_backward_data"):
        inputs, arguments = [*given, None, None], [None, None, -1, 6]
    elif base == "topk":
        inputs, arguments = [first, None], [None, min(8, width)]
        outputs = [tensor([rows, min(8, width)], dtype), tensor([rows, min(8, width)], "int64")]
    elif base == "nll_loss_backward":
        inputs, arguments = [one, *given], [None] * 3
    elif base in ("nll_loss_forward", "mse_loss"):
        outputs = [one]
    elif base == "mse_loss_backward":
        inputs, arguments = [one, *given], [None] * 3
    elif row["kind"] == "table":
        return _table_call(base, row, given, dtype)
    elif base == "native_dropout":
        inputs, arguments, outputs = [first], [None, 0.1, True], [first, tensor(first[0], "bool")]
    elif base == "_to_copy":
        outputs = [tensor(first[0], "bfloat16" if dtype == "float32" else "float32")]
    elif base == "clone":
        outputs = [tensor(first[0], dtype)]
    elif base == "copy_":
        # the target comes first; the graph counts what is read and written
        inputs, arguments, outputs = [tensor(first[0], dtype), first], [None, None], []
    elif base in ("zero_", "fill_"):
        inputs, outputs = [first], []
    elif base == "cat":
        inputs, arguments, outputs = [given], [None], [tensor([rows, 2 * width], dtype)]
    return f"aten::{base}", inputs, arguments, outputs


def _table_call(
    name: str, row: Row, given: list[Tensor], dtype: str
) -> tuple[str, list[Any], list[Any], list[Tensor]] | None:
    table, numbers = given[:2]
    taken = tensor([row["B"], row["H"]], dtype)
    wide = tensor([row["B"], row["H"]], "int64")
    calls: dict[str, tuple[list[Any], list[Any], list[Tensor]]] = {
        "embedding": ([table, numbers], [None, None], [taken]),
        "embedding_dense_backward": ([taken, numbers], [None, None, row["rows"], -1, False], [table]),
        "index_select": ([table, None, numbers], [None, 0, None], [taken]),
        "index_add_": ([table, None, numbers, taken], [None, 0, None, None], [taken]),
        "gather": ([table, None, wide], [None, 0, None], [taken]),
        "scatter_add_": ([table, None, wide, taken], [None, 0, None, None], [taken]),
    }
    inputs, arguments, outputs = calls[name]
    return f"aten::{name}", inputs, arguments, outputs
