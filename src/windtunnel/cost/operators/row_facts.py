"""Sizes and bytes of operators that work on rows of elements, or on lists of tensors.

In: calls. Out: their family, and numbers by column of ``facts``. Not here: which operator is described how (``facts``).
"""

from __future__ import annotations

import math
from typing import Any

from windtunnel.cost.operators.calls import Call, Row, alignment_of, is_strided

__all__ = [
    "describe_copy",
    "describe_loss",
    "describe_normalization",
    "describe_pointwise",
    "describe_pooling",
    "describe_reduction",
    "describe_softmax",
    "describe_sorting",
    "describe_table",
    "describe_update",
    "variant_of",
]

_VARIANTS: dict[str, tuple[tuple[str, ...], ...]] = {
    # operators of one variant do the same kind of work per element; a later variant is more work
    "pointwise": (
        ("sqrt", "rsqrt", "div", "reciprocal", "addcdiv"),
        ("exp", "sigmoid", "silu", "tanh", "erf", "log", "sin", "cos", "expm1", "log1p", "silu_backward"),
        ("gelu", "gelu_backward", "tanh_backward", "sigmoid_backward"),
        ("pow",),
        ("native_dropout", "bernoulli", "rand", "randn", "normal", "uniform", "randint", "random"),
        ("masked_fill", "where"),
        ("native_dropout_backward",),
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
    "copy": (
        ("fill", "zero", "full", "zeros", "ones", "zeros_like", "ones_like", "full_like"),
        ("cat", "stack"),
        ("to_copy",),
    ),
    "loss": (("nll_loss_backward", "nll_loss2d_backward"), ("mse_loss",), ("mse_loss_backward",)),
    "update": (("fused_sgd",), ("fused_adam", "fused_adamw")),
    "multi-tensor": (("foreach_norm",), ("foreach_zero",)),
}
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


def variant_of(family: str, name: str) -> float:
    """Which of the kinds of work of a family an operator does; 0 for the usual one."""
    variants = _VARIANTS.get(family, ())
    return float(next((index + 1 for index, names in enumerate(variants) if name in names), 0))


def _rows(call: Call, rows: float, columns: float, read: float, written: float, **more: float) -> Row:
    strided = any(
        _is_tensor(shape) and is_strided(shape, call.stride(index)) for index, shape in enumerate(call.shapes)
    )
    return {
        "rows": rows, "columns": columns, "read_bytes": read, "written_bytes": written, "flops": rows * columns,
        "is_strided": float(strided), "alignment": alignment_of(columns, call.item), "batch": 1.0, **more,
    }  # fmt: skip


def _is_tensor(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) > 0 and all(isinstance(size, int) for size in shape)


def describe_normalization(call: Call) -> tuple[str, Row]:
    """Norms over rows, groups or channels, forward and backward."""
    name, is_backward = call.name, "backward" in call.name
    values = call.shapes[1] if is_backward and len(call.shapes[1]) == len(call.shapes[0]) else call.shapes[0]
    total = float(math.prod(values))
    passes = 2.0 if is_backward else 1.0
    more: Row = {}
    if "batch_norm" in name:
        rows, last = float(values[1]), total / values[1]
        steps = call.stride(0)
        more = {"layout": float(len(values) > 2 and steps[1] == 1), "channels": float(values[1])}
        more["positions"] = float(math.prod(values[2:]))
        if name in ("native_batch_norm", "batch_norm") and call.argument(5) is False:
            more["variant"] = variant_of("normalization", "batch_norm_inference")
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


def describe_softmax(call: Call) -> tuple[str, Row]:
    """Softmax and its logarithm, forward and backward."""
    values = call.shapes[0]
    total, passes = float(math.prod(values)), 2.0 if "backward" in call.name else 1.0
    dim = int(call.argument(2 if "backward" in call.name else 1, -1))
    width = float(values[dim])
    is_last = dim in (-1, len(values) - 1)
    row = _rows(call, total / width, width, passes * total * call.item, total * call.item)
    return "softmax", {**row, "is_strided": float(not is_last)}


def describe_reduction(call: Call) -> tuple[str, Row]:
    """Sums, means, extremes and norms over some dimensions."""
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


def _dims(call: Call, count: int) -> list[int]:
    index = 2 if call.name in ("linalg_vector_norm", "norm") else 1
    given = call.argument(index)
    if isinstance(given, bool) or given is None or isinstance(given, (str, float)):
        return list(range(count))
    dims = given if isinstance(given, list) else [given]
    return sorted({int(dim) % count for dim in dims}) or list(range(count))


def describe_sorting(call: Call) -> tuple[str, Row]:
    """The largest values of each row; full sorts have no timings."""
    if call.name != "topk":
        return "", {}
    values = call.shapes[0]
    total = float(math.prod(values))
    row = _rows(call, total / values[-1], float(values[-1]), total * call.item, total / values[-1] * 12 * 8)
    return "reduction", {**row, "variant": 5.0, "layout": 0.0}


def describe_pooling(call: Call) -> tuple[str, Row]:
    """Windows of images, and their enlargement: rows are channels of an image, with all elements of its larger side."""
    values = [shape for shape in call.shapes if _is_tensor(shape) and len(shape) >= 3]
    largest = max(values, key=math.prod)
    steps = call.stride(call.shapes.index(largest))
    planes, channels = float(math.prod(largest[:2])), float(largest[1])
    sides = sorted({math.prod(shape[2:]) for shape in values} | _other_side(call, values[0]))
    total, fewer = planes * sides[-1], planes * sides[0]
    read, written = (fewer, total) if ("backward" in call.name) != ("upsample" in call.name) else (total, fewer)
    row = _rows(
        call, planes, float(sides[-1]), read * call.item, written * call.item, channels=channels,
        layout=float(steps[1] == 1 and channels > 1), positions=float(sides[0]),
    )  # fmt: skip
    return "pooling", {**row, "is_strided": 0.0}


def _other_side(call: Call, images: list[int]) -> set[int]:
    """Elements of a channel after pooling or enlargement, where no tensor has them; empty where nothing says it."""
    if "backward" in call.name:
        return set()
    sizes = call.argument(1)
    if not isinstance(sizes, list) or len(sizes) != len(images) - 2:
        return set()
    if "adaptive" in call.name or "upsample" in call.name:
        return {math.prod(sizes)}
    steps, padding = call.argument(2) or sizes, call.argument(3) or [0] * len(sizes)
    sides = zip(images[2:], sizes, steps, padding, strict=True)
    return {math.prod((side + 2 * more - size) // step + 1 for side, size, step, more in sides)}


def describe_table(call: Call) -> tuple[str, Row]:
    """Rows of a table by their numbers: what counts is how many are read or written, not the size of the table."""
    name = call.name
    if name == "embedding_bag":
        # a bag is the sum of its rows: fewer are written than read, and the offsets are as few
        count, width = float(math.prod(call.shapes[1])), float(call.shapes[0][-1])
        table = float(math.prod(call.shapes[0]))
    elif name == "embedding":
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
        # a mask covers several dimensions of the tensor, a list of numbers covers one
        is_mask = len(numbers) == 1 and numbers[0] == call.shapes[0][: len(numbers[0])]
        width = float(math.prod(call.shapes[0][len(numbers[0]) if is_mask else len(call.shapes[1]) :]))
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


def describe_copy(call: Call) -> tuple[str, Row]:
    """The bytes are those that the graph states, which know types and repeated elements."""
    given = call.shapes[0]
    shapes = [given] if _is_tensor(given) else [shape for shape in given if _is_tensor(shape)] if given else []
    if not shapes and isinstance(call.argument(0), list):
        shapes = [call.argument(0)]  # of a new tensor
    if not shapes:
        shapes = [[1]]
    total = float(sum(math.prod(shape) for shape in shapes))
    width = float(shapes[0][-1]) if shapes[0] else 1.0
    writes_only = variant_of("copy", call.name) == 1.0
    written = call.moved if writes_only else call.moved / 2
    row = _rows(call, total / max(width, 1.0), max(width, 1.0), call.moved - written, written)
    if len(call.shapes) > 1 and call.name == "copy" and _is_tensor(call.shapes[1]):
        row["is_strided"] = float(is_strided(call.shapes[1], call.stride(1)))
    if row["is_strided"] and _is_tensor(given):
        source = 1 if call.name == "copy" and len(call.shapes) > 1 and _is_tensor(call.shapes[1]) else 0
        # neighbors of the result do not lie next to each other
        row["layout"] = float(_last_step(call.shapes[source], call.stride(source)) != 1)
    return "copy", {**row, "num_tensors": float(len(shapes))}


def _last_step(shape: list[int], steps: list[int]) -> int:
    """Stride of the last dimension that has more than one element."""
    return next((step for size, step in zip(reversed(shape), reversed(steps), strict=True) if size > 1), 1)


def describe_pointwise(call: Call) -> tuple[str, Row]:
    """One value for each element of the largest tensor."""
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


def describe_loss(call: Call) -> tuple[str, Row]:
    """Losses of classes and of distances, forward and backward."""
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


def describe_update(call: Call) -> tuple[str, Row]:
    """One kernel works on chunks of many tensors: what counts is how many chunks there are and how long the longest."""
    lists = [item for item in call.shapes if isinstance(item, list) and item and isinstance(item[0], list)]
    sizes = [math.prod(shape) for shape in lists[0]] if lists else []
    if not sizes or not any(sizes):
        return "", {}
    total = float(sum(sizes))
    num_lists = 1 + sum(len(item) == len(sizes) and any(item) for item in lists[1:])
    reads, writes = _UPDATE_PASSES.get(call.name, (float(num_lists), 1.0))
    if call.moved and call.name.startswith("foreach") and reads:  # the graph knows which lists are the same tensors
        reads = max(call.moved / (total * call.item) - writes, 0.0)
    num_chunks = sum(math.ceil(size / _CHUNK) for size in sizes)
    num_kernels = max(math.ceil(len(sizes) / _TENSORS_PER_KERNEL[min(num_lists, 5)]), math.ceil(num_chunks / 320))
    return "multi-tensor" if call.name.startswith("foreach") else "update", {
        "rows": num_chunks, "columns": min(max(sizes), _CHUNK), "batch": 1.0, "flops": total,
        "read_bytes": reads * total * call.item, "written_bytes": writes * total * call.item,
        "num_tensors": float(len(sizes)), "window": float(num_kernels),
        "alignment": min(alignment_of(size, call.item) for size in sizes),
    }  # fmt: skip
