"""Which operators are timed in which sizes (stage ``operators`` of ``benchmarks.gpu``).

In: a number. Out: a ``Case``; the same number is always the same case. Sizes are drawn evenly over their logarithms,
within what a device holds and what a timing may take. Classes take turns in fixed shares, so that any beginning of the
list is a fair sample of all of it. Not here: running them (``operators``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

NUM_CASES, NUM_SMALL = 20_992, 48
SEED = 2026
PRODUCT_FORMS, OTHER_FORMS = ("fp32", "tf32", "bf16", "fp16"), ("fp32", "bf16", "fp16")
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
POINTWISE = ("add", "addu", "div", "divu", "mul", "mulu", "pow", "powu", "relu", "gelu", "tanh")
NORMS = ("ln", "rms", "bn", "gn")
REDUCTIONS = ("softmax", "sum", "max", "argmax")
# of 32 cases in a row
SHARES = {"linear": 6, "bmm": 4, "attention": 4, "conv": 5, "norm": 4, "pointwise": 5, "reduction": 4}
_TURNS = tuple(name for name, count in SHARES.items() for _ in range(count))
LIMITS = {False: (2**31, 4e11), True: (2**22, 2e7)}  # bytes and operations; the small ones are for a test


@dataclass(frozen=True)
class Case:
    """One operator in one size and one form of arithmetic.

    Parameters
    ----------
    number : int
    kind : str
        A key of ``SHARES``.
    op : str
    form : str
        ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
    sizes : dict of str to int
        In the columns of the op sets: B, M, N, K of products; B rows of H elements; those of a convolution.
    """

    number: int
    kind: str
    op: str
    form: str
    sizes: dict[str, int] = field(default_factory=dict)


def case(number: int, *, is_small: bool = False) -> Case:
    """The case of that number."""
    random = np.random.default_rng((SEED, number))
    kind = _TURNS[(number * 11) % len(_TURNS)]  # 11 and 32 have no common factor: kinds are mixed
    forms = PRODUCT_FORMS if kind in ("linear", "bmm", "attention", "conv") else OTHER_FORMS
    form = forms[(number // len(_TURNS)) % len(forms)]
    most_bytes, most_flops = LIMITS[is_small]
    while True:
        op, sizes = _DRAWS[kind](random)
        num_elements, num_flops = _work(kind, sizes)
        if num_elements * ELEMENT_BYTES[form] <= most_bytes and num_flops <= most_flops:
            return Case(number, kind, op, form, sizes)


def size(random: np.random.Generator, low: int, high: int, multiple: int = 1) -> int:
    """Evenly over logarithms; in one case of two a multiple, as most networks have them."""
    drawn = round(float(np.exp(random.uniform(np.log(low), np.log(high)))))
    if multiple > 1 and random.random() < 0.5:
        drawn = max(multiple, drawn // multiple * multiple)
    return min(max(drawn, low), high)


def _linear(random: np.random.Generator) -> tuple[str, dict[str, int]]:
    sizes = {name: size(random, 16, 16_384, 64) for name in "MNK"}
    return "linear", {"B": 1, **sizes}


def _bmm(random: np.random.Generator) -> tuple[str, dict[str, int]]:
    return "bmm", {"B": size(random, 1, 2048), **{name: size(random, 8, 4096, 32) for name in "MNK"}}


def _attention(random: np.random.Generator) -> tuple[str, dict[str, int]]:
    """B heads of all samples together, M queries, N keys, K elements per head; causal where N is M in one of two."""
    length = size(random, 32, 8192, 64)
    keys = length if random.random() < 0.8 else size(random, 32, 8192, 64)
    is_causal = int(keys == length and random.random() < 0.5)
    head = int(random.choice([32, 64, 80, 96, 128]))
    return "attention", {"B": size(random, 1, 512), "M": length, "N": keys, "K": head, "causal": is_causal}


def _conv(random: np.random.Generator) -> tuple[str, dict[str, int]]:
    kernel = int(random.choice([1, 3, 3, 5, 7]))
    return "conv2d", {
        "batch": size(random, 1, 256),
        "in_channels": size(random, 3, 2048, 16),
        "out_channels": size(random, 8, 2048, 16),
        "kernel": kernel,
        "image": size(random, max(7, kernel), 256),
        "stride": int(random.choice([1, 1, 2])),
        "padding": kernel // 2,
    }


def _vector(names: tuple[str, ...], low: int, high: int) -> Any:
    def draw(random: np.random.Generator) -> tuple[str, dict[str, int]]:
        rows, width = size(random, 1, 1 << 20), size(random, low, high, 32)
        return str(random.choice(names)), {"B": rows, "H": width}

    return draw


_DRAWS: dict[str, Any] = {
    "linear": _linear,
    "bmm": _bmm,
    "attention": _attention,
    "conv": _conv,
    "norm": _vector(NORMS, 32, 16_384),
    "pointwise": _vector(POINTWISE, 32, 65_536),
    "reduction": _vector(REDUCTIONS, 32, 65_536),
}


def _work(kind: str, sizes: dict[str, int]) -> tuple[float, float]:
    """Elements of all tensors and floating-point operations, roughly; as floats, which never overflow."""
    if kind == "conv":
        side = sizes["image"] // sizes["stride"] + 1
        inside = float(sizes["batch"]) * sizes["in_channels"] * sizes["image"] ** 2
        outside = float(sizes["batch"]) * sizes["out_channels"] * side**2
        return 3 * inside + outside, 2.0 * outside * sizes["in_channels"] * sizes["kernel"] ** 2
    if "M" in sizes:
        batch, rows, middle, columns = (float(sizes[name]) for name in "BMNK")
        if kind == "attention":  # scores may lie in memory
            return batch * (
                2 * rows * columns + 2 * middle * columns + rows * middle
            ), 4 * batch * rows * middle * columns
        return batch * (rows * middle + middle * columns + rows * columns), 2 * batch * rows * middle * columns
    elements = float(sizes["B"]) * sizes["H"]
    return 3 * elements, 8 * elements
