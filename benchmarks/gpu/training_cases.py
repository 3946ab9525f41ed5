"""What training steps run on a device besides plain forward operators (stage ``operators`` of ``benchmarks.gpu``).

In: a number from ``FIRST`` on. Out: a ``Case``, and the operator it names on tensors of its own: products with
transposed operands, backward passes, batch statistics, losses, embeddings, copies, layouts, updates of optimizers. The
calls are those that autograd makes, so that a timing holds one direction alone. Kinds take turns in fixed shares, as in
``cases``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from benchmarks.gpu.cases import DTYPES, ELEMENT_BYTES, LIMITS, SEED, Case, size

__all__ = ["FIRST", "NUM_CASES", "Call", "call_of", "training_case"]

FIRST, NUM_CASES = 100_000, 12_288
PRODUCTS, OTHERS = ("bf16", "tf32", "fp16", "fp32"), ("fp32", "bf16", "fp16")
aten: Any = torch.ops.aten
Random = np.random.Generator
Sizes = dict[str, int]


class Call(NamedTuple):
    """An operator that can be called again and again, its name, and the tensors that it reads."""

    run: Callable[[], object]
    aten: str
    tensors: list[torch.Tensor]


class Kind(NamedTuple):
    """How sizes of a kind are drawn, what it reads and writes, in elements and operations, and how it is called."""

    share: int
    forms: tuple[str, ...]
    draw: Callable[[Random], Sizes]
    work: Callable[[Sizes], tuple[float, float]]
    call: Callable[[Sizes, Any], Call]


def training_case(number: int, *, is_small: bool = False) -> Case:
    """The case of that number."""
    random = np.random.default_rng((SEED, number))
    turn = number - FIRST
    name = _TURNS[(turn * _STRIDE) % len(_TURNS)]
    kind = KINDS[name]
    form = kind.forms[(turn // len(_TURNS)) % len(kind.forms)]
    max_bytes, max_flops = LIMITS[is_small]
    while True:
        sizes = kind.draw(random)
        num_elements, num_flops = kind.work(sizes)
        if num_elements * ELEMENT_BYTES[form] <= max_bytes and num_flops <= max_flops:
            return Case(number, name, name, form, sizes)


def call_of(case: Case, device: str) -> Call:
    """The operator of a case, ready to be called."""
    dtype = DTYPES[case.form]

    def tensor(*shape: int, dtype: torch.dtype = dtype, high: int = 0) -> torch.Tensor:
        if high:
            return torch.randint(high, shape, device=device)
        return torch.rand(shape, device=device, dtype=dtype)

    return KINDS[case.kind].call(case.sizes, tensor)


def _pick(random: Random, *values: int) -> int:
    return int(random.choice(values))


# --- products -------------------------------------------------------------------------------------------------


def _draw_product(random: Random) -> Sizes:
    """Tokens by features, as linear layers have them; the layout says which operand is transposed in memory."""
    tokens = size(random, 16, 65_536, 64)
    return {
        "M": tokens,
        "N": size(random, 16, 16_384, 64),
        "K": size(random, 16, 16_384, 64),
        "layout": _pick(random, 0, 1, 2),
    }


def _product_work(sizes: Sizes) -> tuple[float, float]:
    batch, rows, columns, middle = (float(sizes.get(name, 1)) for name in "BMNK")
    return batch * (rows * middle + middle * columns + rows * columns), 2 * batch * rows * columns * middle


def _mm(sizes: Sizes, tensor: Any) -> Call:
    rows, columns, middle = (sizes[name] for name in "MNK")
    left = tensor(middle, rows).t() if sizes["layout"] == 1 else tensor(rows, middle)  # gradient of a weight
    right = tensor(columns, middle).t() if sizes["layout"] == 2 else tensor(middle, columns)  # forward of a linear
    return Call(lambda: aten.mm(left, right), "mm", [left, right])


def _addmm(sizes: Sizes, tensor: Any) -> Call:
    rows, columns, middle = (sizes[name] for name in "MNK")
    bias, left, right = tensor(columns), tensor(rows, middle), tensor(columns, middle).t()
    return Call(lambda: aten.addmm(bias, left, right), "addmm", [bias, left, right])


def _draw_bmm(random: Random) -> Sizes:
    length = size(random, 16, 4096, 32)
    head = _pick(random, 32, 64, 80, 128)
    shape = _pick(random, 0, 1, 2)
    rows, columns, middle = ((length, length, head), (length, head, length), (head, length, length))[shape]
    return {"B": size(random, 1, 1024), "M": rows, "N": columns, "K": middle, "layout": _pick(random, 0, 1, 2)}


def _bmm(sizes: Sizes, tensor: Any) -> Call:
    batch, rows, columns, middle = (sizes[name] for name in "BMNK")
    left = tensor(batch, middle, rows).mT if sizes["layout"] == 1 else tensor(batch, rows, middle)
    right = tensor(batch, columns, middle).mT if sizes["layout"] == 2 else tensor(batch, middle, columns)
    return Call(lambda: aten.bmm(left, right), "bmm", [left, right])


# --- attention ------------------------------------------------------------------------------------------------


def _draw_attention(random: Random) -> Sizes:
    length = size(random, 64, 8192, 64)
    sizes = {
        "B": size(random, 1, 64),
        "heads": size(random, 1, 32),
        "L": length,
        "K": _pick(random, 64, 64, 128, 96, 32),
    }
    return {**sizes, "causal": _pick(random, 0, 1)}


def _attention_work(sizes: Sizes) -> tuple[float, float]:
    rows = float(sizes["B"]) * sizes["heads"] * sizes["L"]
    scores = rows * sizes["L"]  # they lie in memory where no fused kernel takes the type
    return 8 * rows * sizes["K"] + 2 * scores, 10 * scores * sizes["K"]


def _attention(sizes: Sizes, tensor: Any) -> Call:
    query, key, value = (_heads(sizes, tensor) for _ in range(3))
    causal = bool(sizes["causal"])
    scaled = functional.scaled_dot_product_attention
    return Call(
        lambda: scaled(query, key, value, is_causal=causal), "scaled_dot_product_attention", [query, key, value]
    )


def _attention_backward(sizes: Sizes, tensor: Any) -> Call:
    with torch.enable_grad():
        inputs = [_heads(sizes, tensor).detach().requires_grad_() for _ in range(3)]
        result = functional.scaled_dot_product_attention(*inputs, is_causal=bool(sizes["causal"]))
    gradient = torch.rand_like(result)
    return Call(
        lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True),
        type(result.grad_fn).__name__,
        [*(one.detach() for one in inputs), gradient],
    )


def _heads(sizes: Sizes, tensor: Any) -> torch.Tensor:
    """As projections leave them: the heads lie next to each other."""
    made: torch.Tensor = tensor(sizes["B"], sizes["L"], sizes["heads"], sizes["K"])
    return made.transpose(1, 2)


# --- convolutions and pooling -----------------------------------------------------------------------------------


def _draw_conv(random: Random) -> Sizes:
    kernel = _pick(random, 1, 3, 3, 3, 5, 7)
    inputs, outputs = size(random, 3, 2048, 16), size(random, 8, 2048, 16)
    groups = 1
    if random.random() < 0.2:  # depthwise
        groups = outputs = inputs
    return {
        "batch": size(random, 1, 256), "in_channels": inputs, "out_channels": outputs, "groups": groups,
        "kernel": kernel, "image": size(random, max(7, kernel), 256), "stride": _pick(random, 1, 1, 2),
        "padding": kernel // 2, "channels_last": _pick(random, 0, 1),
    }  # fmt: skip


def _conv_work(sizes: Sizes) -> tuple[float, float]:
    side = sizes["image"] // sizes["stride"] + 1
    inside = float(sizes["batch"]) * sizes["in_channels"] * sizes["image"] ** 2
    outside = float(sizes["batch"]) * sizes["out_channels"] * side**2
    flops = 4.0 * outside * sizes["in_channels"] / sizes["groups"] * sizes["kernel"] ** 2
    return 3 * inside + 2 * outside, flops


def _conv_tensors(sizes: Sizes, tensor: Any) -> tuple[torch.Tensor, torch.Tensor]:
    images = tensor(sizes["batch"], sizes["in_channels"], sizes["image"], sizes["image"])
    weight = tensor(sizes["out_channels"], sizes["in_channels"] // sizes["groups"], sizes["kernel"], sizes["kernel"])
    if sizes["channels_last"]:
        return images.to(memory_format=torch.channels_last), weight.to(memory_format=torch.channels_last)
    return images, weight


def _conv_options(sizes: Sizes) -> tuple[Any, ...]:
    pairs = ([sizes[name]] * 2 for name in ("stride", "padding"))
    return (*pairs, [1, 1], False, [0, 0], sizes["groups"])


def _conv(sizes: Sizes, tensor: Any) -> Call:
    images, weight = _conv_tensors(sizes, tensor)
    options = _conv_options(sizes)
    return Call(lambda: aten.convolution(images, weight, None, *options), "convolution", [images, weight])


def _conv_backward(sizes: Sizes, tensor: Any) -> Call:
    images, weight = _conv_tensors(sizes, tensor)
    options = _conv_options(sizes)
    gradient = torch.rand_like(aten.convolution(images, weight, None, *options))
    wanted = [sizes["in_channels"] > 3, True, False]  # the first layer has no gradient of its input
    return Call(
        lambda: aten.convolution_backward(gradient, images, weight, None, *options, wanted),
        "convolution_backward",
        [gradient, images, weight],
    )


def _draw_images(random: Random) -> Sizes:
    return {
        "batch": size(random, 1, 256), "channels": size(random, 3, 2048, 16), "image": size(random, 7, 224),
        "channels_last": _pick(random, 0, 1), "op": _pick(random, 0, 1, 2, 3),
    }  # fmt: skip


def _images_work(sizes: Sizes) -> tuple[float, float]:
    elements = float(sizes["batch"]) * sizes["channels"] * sizes["image"] ** 2
    return 4 * elements, 16 * elements


def _images(sizes: Sizes, tensor: Any) -> torch.Tensor:
    made: torch.Tensor = tensor(sizes["batch"], sizes["channels"], sizes["image"], sizes["image"])
    return made.to(memory_format=torch.channels_last) if sizes["channels_last"] else made


def _pool(sizes: Sizes, tensor: Any) -> Call:
    images = _images(sizes, tensor)
    options = ([3, 3], [2, 2], [1, 1])
    if sizes["op"] == 0:
        return Call(lambda: aten.max_pool2d_with_indices(images, *options), "max_pool2d_with_indices", [images])
    if sizes["op"] == 1:
        result, rows = aten.max_pool2d_with_indices(images, *options)
        run = lambda: aten.max_pool2d_with_indices_backward(result, images, *options, [1, 1], False, rows)  # noqa: E731
        return Call(run, "max_pool2d_with_indices_backward", [result, images, rows])
    if sizes["op"] == 2:
        return Call(lambda: aten.mean(images, [2, 3], True), "mean.dim", [images])
    return Call(lambda: aten.avg_pool2d(images, [2, 2]), "avg_pool2d", [images])


def _batch_norm(sizes: Sizes, tensor: Any) -> Call:
    images = _images(sizes, tensor)
    channels = sizes["channels"]
    weight, bias, mean, variance = (tensor(channels, dtype=torch.float32) for _ in range(4))
    if sizes["op"] % 2 == 0:
        run = lambda: aten.native_batch_norm(images, weight, bias, mean, variance, True, 0.1, 1e-5)  # noqa: E731
        return Call(run, "native_batch_norm", [images, weight])
    with torch.enable_grad():
        given = images.detach().requires_grad_()
        weight.requires_grad_(), bias.requires_grad_()
        result = functional.batch_norm(given, mean, variance, weight, bias, training=True)
    gradient = torch.rand_like(result)
    return Call(
        lambda: torch.autograd.grad(result, (given, weight, bias), gradient, retain_graph=True),
        "native_batch_norm_backward",
        [gradient, images, weight.detach()],
    )


# --- rows of features -------------------------------------------------------------------------------------------


def _draw_rows(random: Random) -> Sizes:
    return {"B": size(random, 1, 1 << 18), "H": size(random, 32, 65_536, 32), "op": int(random.integers(1 << 16))}


def _rows_work(sizes: Sizes) -> tuple[float, float]:
    elements = float(sizes["B"]) * sizes["H"]
    return 5 * elements, 16 * elements


def _norm(sizes: Sizes, tensor: Any) -> Call:
    rows, width = sizes["B"], sizes["H"]
    values, gradient, weight, bias = tensor(rows, width), tensor(rows, width), tensor(width), tensor(width)
    names = ("native_layer_norm", "native_layer_norm_backward", "rms_norm_backward", "group_norm_backward")
    name = names[sizes["op"] % len(names)]
    if name == "native_layer_norm":
        return Call(lambda: aten.native_layer_norm(values, [width], weight, bias, 1e-5), name, [values, weight])
    _, mean, rstd = aten.native_layer_norm(values, [width], weight, bias, 1e-5)
    if name == "native_layer_norm_backward":
        options = (values, [width], mean, rstd, weight, bias, [True] * 3)
        return Call(lambda: aten.native_layer_norm_backward(gradient, *options), name, [gradient, values, weight])
    if name == "group_norm_backward" and width % 32 == 0:
        groups = (rows, width, 1, 32)
        _, mean, rstd = aten.native_group_norm(values, weight, bias, *groups, 1e-5)
        options = (values, mean, rstd, weight, *groups, [True] * 3)
        return Call(
            lambda: aten.native_group_norm_backward(gradient, *options), f"native_{name}", [gradient, values, weight]
        )
    with torch.enable_grad():
        given, scale = values.detach().requires_grad_(), weight.detach().requires_grad_()
        result = functional.rms_norm(given, (width,), scale)
    return Call(
        lambda: torch.autograd.grad(result, (given, scale), gradient, retain_graph=True),
        "rms_norm_backward",
        [gradient, values, weight],
    )


def _pointwise(sizes: Sizes, tensor: Any) -> Call:
    rows, width = sizes["B"], sizes["H"]
    left, right, row = tensor(rows, width), tensor(rows, width), tensor(width)
    mask = right > 0.1
    calls: list[tuple[str, Callable[[], object], list[torch.Tensor]]] = [
        ("gelu_backward", lambda: aten.gelu_backward(left, right), [left, right]),
        ("threshold_backward", lambda: aten.threshold_backward(left, right, 0), [left, right]),
        ("silu", lambda: aten.silu(left), [left]),
        ("silu_backward", lambda: aten.silu_backward(left, right), [left, right]),
        ("tanh_backward", lambda: aten.tanh_backward(left, right), [left, right]),
        ("sigmoid", lambda: aten.sigmoid(left), [left]),
        ("native_dropout", lambda: aten.native_dropout(left, 0.1, True), [left]),
        ("native_dropout_backward", lambda: aten.native_dropout_backward(left, mask, 1.1), [left, mask]),
        ("masked_fill", lambda: aten.masked_fill(left, mask, 0.0), [left, mask]),
        ("where", lambda: aten.where(mask, left, right), [mask, left, right]),
        ("add.row", lambda: aten.add(left, row), [left, row]),
        ("mul.row", lambda: aten.mul(left, row), [left, row]),
        ("add_", lambda: aten.add_(left, right), [left, right]),
        ("mul_", lambda: aten.mul_(left, 0.5), [left]),
        ("neg", lambda: aten.neg(left), [left]),
        ("exp", lambda: aten.exp(left), [left]),
        ("sqrt", lambda: aten.sqrt(left), [left]),
        ("rsqrt", lambda: aten.rsqrt(left), [left]),
        ("clamp_min", lambda: aten.clamp_min(left, 0.2), [left]),
        ("addcmul_", lambda: aten.addcmul_(left, right, right, value=0.1), [left, right]),
    ]
    name, run, tensors = calls[sizes["op"] % len(calls)]
    return Call(run, name, tensors)


def _reduction(sizes: Sizes, tensor: Any) -> Call:
    rows, width = sizes["B"], sizes["H"]
    values, gradient = tensor(rows, width), tensor(rows, width)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("_softmax_backward_data", lambda: aten._softmax_backward_data(gradient, values, -1, values.dtype)),
        ("_log_softmax", lambda: aten._log_softmax(values, -1, False)),
        ("_log_softmax_backward_data", lambda: aten._log_softmax_backward_data(gradient, values, -1, values.dtype)),
        ("sum.rows", lambda: aten.sum(values, [0], True)),  # gradient of a bias
        ("mean", lambda: aten.mean(values)),
        ("linalg_vector_norm", lambda: aten.linalg_vector_norm(values)),
        ("sum", lambda: aten.sum(values)),
        ("cumsum", lambda: aten.cumsum(values, -1)),
        ("topk", lambda: aten.topk(values, min(8, width))),
    ]
    name, run = calls[sizes["op"] % len(calls)]
    return Call(run, name, [values, gradient] if name.endswith("_data") else [values])


# --- losses, tables, copies ------------------------------------------------------------------------------------


def _loss(sizes: Sizes, tensor: Any) -> Call:
    rows, classes = sizes["B"], sizes["H"]
    scores, targets = tensor(rows, classes), tensor(rows, high=classes)
    which = sizes["op"] % 4
    if which == 0:
        run = lambda: aten.nll_loss_forward(scores, targets, None, 1, -100)  # noqa: E731
        return Call(run, "nll_loss_forward", [scores, targets])
    if which == 1:
        result, weight = aten.nll_loss_forward(scores, targets, None, 1, -100)
        run = lambda: aten.nll_loss_backward(result, scores, targets, None, 1, -100, weight)  # noqa: E731
        return Call(run, "nll_loss_backward", [scores, targets])
    other = tensor(rows, classes)
    if which == 2:
        return Call(lambda: aten.mse_loss(scores, other), "mse_loss", [scores, other])
    one = aten.mse_loss(scores, other)
    return Call(lambda: aten.mse_loss_backward(one, scores, other, 1), "mse_loss_backward", [scores, other])


def _draw_table(random: Random) -> Sizes:
    return {
        "rows": size(random, 100, 500_000), "H": size(random, 16, 8192, 32), "B": size(random, 16, 262_144, 64),
        "op": int(random.integers(1 << 16)),
    }  # fmt: skip


def _table_work(sizes: Sizes) -> tuple[float, float]:
    read = float(sizes["B"]) * sizes["H"]
    return 2.0 * sizes["rows"] * sizes["H"] + 3 * read, 8 * read


def _table(sizes: Sizes, tensor: Any) -> Call:
    table, places = tensor(sizes["rows"], sizes["H"]), tensor(sizes["B"], high=sizes["rows"])
    taken = tensor(sizes["B"], sizes["H"])
    wide = places[:, None].expand(-1, sizes["H"])
    calls: list[tuple[str, Callable[[], object]]] = [
        ("embedding", lambda: aten.embedding(table, places)),
        ("embedding_dense_backward", lambda: aten.embedding_dense_backward(taken, places, sizes["rows"], -1, False)),
        ("index_select", lambda: aten.index_select(table, 0, places)),
        ("index_add_", lambda: aten.index_add_(table, 0, places, taken)),
        ("gather", lambda: aten.gather(table, 0, wide)),
        ("scatter_add_", lambda: aten.scatter_add_(table, 0, wide, taken)),
    ]
    name, run = calls[sizes["op"] % len(calls)]
    return Call(
        run,
        name,
        [table, places, *([taken] if name in ("embedding_dense_backward", "index_add_", "scatter_add_") else [])],
    )


def _copy(sizes: Sizes, tensor: Any) -> Call:
    rows, width = sizes["B"], sizes["H"]
    values, target = tensor(rows, width), tensor(rows, width)
    turned = tensor(width, rows).t()
    other = torch.float32 if values.dtype is not torch.float32 else torch.bfloat16
    split = tensor(rows, width).view(rows, -1, 16 if width % 16 == 0 else 1).transpose(0, 1)
    calls: list[tuple[str, Callable[[], object], list[torch.Tensor]]] = [
        ("copy_", lambda: target.copy_(values), [values]),
        ("copy_.transposed", lambda: target.copy_(turned), [turned]),
        ("clone.heads", lambda: split.contiguous(), [split]),
        ("_to_copy", lambda: values.to(other), [values]),
        ("zero_", lambda: target.zero_(), [target]),
        ("fill_", lambda: target.fill_(0.5), [target]),
        ("cat", lambda: torch.cat([values, target], 1), [values, target]),
    ]
    name, run, tensors = calls[sizes["op"] % len(calls)]
    return Call(run, name, tensors)


def _host_copy(sizes: Sizes, tensor: Any) -> Call:
    """Between host and device; pinned copies can be part of a CUDA graph, others cannot."""
    there = tensor(sizes["B"], sizes["H"])
    here = torch.empty(there.shape, dtype=there.dtype)
    is_pinned = there.is_cuda and sizes["op"] % 3 != 0
    here = here.pin_memory() if is_pinned else here
    label = "pinned" if is_pinned else "pageable"
    if sizes["op"] % 2:
        return Call(lambda: there.copy_(here, non_blocking=is_pinned), f"copy_.to_device.{label}", [there])
    return Call(lambda: here.copy_(there, non_blocking=is_pinned), f"copy_.to_host.{label}", [there])


# --- updates ----------------------------------------------------------------------------------------------------

OPTIMIZERS = ("SGD", "Adam", "AdamW")
FORMS = ("fused", "foreach", "loop")


def _draw_update(random: Random) -> Sizes:
    return {
        "num_tensors": size(random, 1, 400), "width": size(random, 16, 4096, 64), "op": int(random.integers(1 << 16)),
        "norms": _pick(random, 0, 1),
    }  # fmt: skip


def _update_work(sizes: Sizes) -> tuple[float, float]:
    elements = float(sizes["num_tensors"]) * sizes["width"] ** 2
    return 8 * elements, 16 * elements


def _update(sizes: Sizes, tensor: Any) -> Call:
    """Weights and, between them, vectors, as networks have them."""
    width = sizes["width"]
    shapes = [(width,) if sizes["norms"] and place % 2 else (width, width) for place in range(sizes["num_tensors"])]
    weights = [tensor(*shape).requires_grad_() for shape in shapes]
    for weight in weights:
        weight.grad = torch.rand_like(weight)
    name, form = OPTIMIZERS[sizes["op"] % 3], FORMS[sizes["op"] // 3 % 3]
    options: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {}
    if weights[0].is_cuda and name != "SGD" and form == "fused":
        options["capturable"] = True  # the others would run other kernels with it, and are no part of a CUDA graph
    optimizer = getattr(torch.optim, name)(
        weights, lr=1e-3, **options, **({"fused": True} if form == "fused" else {"foreach": form == "foreach"})
    )
    optimizer.step()
    return Call(optimizer.step, f"{name}.{form}", [one.detach() for one in weights])


def _clip(sizes: Sizes, tensor: Any) -> Call:
    width = sizes["width"]
    gradients = [tensor(width, width) for _ in range(sizes["num_tensors"])]
    calls: list[tuple[str, Callable[[], object]]] = [
        ("_foreach_norm", lambda: torch._foreach_norm(gradients)),
        ("_foreach_mul_", lambda: torch._foreach_mul_(gradients, 0.999)),
        ("_foreach_zero_", lambda: torch._foreach_zero_(gradients)),
        ("_foreach_add_", lambda: torch._foreach_add_(gradients, gradients)),
    ]
    name, run = calls[sizes["op"] % len(calls)]
    return Call(run, name, gradients)


KINDS: dict[str, Kind] = {
    "mm": Kind(7, PRODUCTS, _draw_product, _product_work, _mm),
    "addmm": Kind(4, PRODUCTS, _draw_product, _product_work, _addmm),
    "bmm-strided": Kind(3, PRODUCTS, _draw_bmm, _product_work, _bmm),
    "attention-heads": Kind(4, ("bf16", "fp16", "fp32"), _draw_attention, _attention_work, _attention),
    "attention-backward": Kind(4, ("bf16", "fp16", "fp32"), _draw_attention, _attention_work, _attention_backward),
    "conv-forward": Kind(5, PRODUCTS, _draw_conv, _conv_work, _conv),
    "conv-backward": Kind(6, PRODUCTS, _draw_conv, _conv_work, _conv_backward),
    "batch-norm": Kind(4, OTHERS, _draw_images, _images_work, _batch_norm),
    "pool": Kind(2, OTHERS, _draw_images, _images_work, _pool),
    "norm-rows": Kind(4, OTHERS, _draw_rows, _rows_work, _norm),
    "pointwise-training": Kind(6, OTHERS, _draw_rows, _rows_work, _pointwise),
    "reduction-training": Kind(4, OTHERS, _draw_rows, _rows_work, _reduction),
    "loss": Kind(2, ("fp32", "bf16"), _draw_rows, _rows_work, _loss),
    "table": Kind(3, OTHERS, _draw_table, _table_work, _table),
    "copy": Kind(3, OTHERS, _draw_rows, _rows_work, _copy),
    "host-copy": Kind(1, ("fp32",), _draw_rows, _rows_work, _host_copy),
    "update": Kind(3, ("fp32", "fp32", "bf16"), _draw_update, _update_work, _update),
    "clip": Kind(1, ("fp32",), _draw_update, _update_work, _clip),
}
_TURNS = tuple(name for name, kind in KINDS.items() for _ in range(kind.share))
_STRIDE = next(step for step in range(len(_TURNS) // 3, len(_TURNS)) if math.gcd(step, len(_TURNS)) == 1)
