"""Work of a captured operator on an accelerator: products for its arrays, elements for its vector units.

In: ``Work``. Out: ``Parts``: matrix products, each with the row that it belongs to, and elements by row. Convolutions
and their gradients are products of pixels by filters; attention is two products and a softmax, its gradient five. Not
here: how long they take (``pricer``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.work import Work, shapes_of, sides_of
from windtunnel.graph.kernel_classes import MATRIX_CLASSES, class_of
from windtunnel.systems.chips.accelerators.systolic import Gemms

__all__ = ["Parts", "parts_of"]

# P rows of work, G products
Shapes = Sequence[Sequence[int]]
Sizes = tuple[int, int, int, int]

_RECURRENT = ("rnn", "lstm", "gru")


@dataclass(frozen=True, eq=False)
class Parts:
    """P rows of work, taken apart.

    Parameters
    ----------
    products : Gemms
        G of them.
    row : int64 [G]
        The row that the product belongs to.
    times : int64 [G]
        How often it is done, one after the other.
    elements : int64 [P]
        For the vector units; 0 where the arrays do all.
    is_product : bool [P]
        Rows that have products.
    is_known : bool [P]
        Rows whose shapes say what they ask.
    """

    products: Gemms
    row: NDArray[np.int64]
    times: NDArray[np.int64]
    elements: NDArray[np.int64]
    is_product: NDArray[np.bool_]
    is_known: NDArray[np.bool_]


def parts_of(work: Work) -> Parts:
    """Split work into products and elements, once per distinct row."""
    result: list[tuple[int, Sizes, int]] = []
    elements = work.flops.astype(np.int64)
    is_product, is_known = np.zeros(len(work), dtype=bool), np.ones(len(work), dtype=bool)
    rows = zip(work.operator.tolist(), work.shapes.tolist(), work.flops.tolist(), strict=True)
    for row, (operator, text, flops) in enumerate(rows):
        kind = class_of(operator)
        if kind not in MATRIX_CLASSES or flops <= 0:
            continue
        is_product[row] = True
        products, times, elements[row] = _products(operator, kind, text, int(flops))
        is_known[row] = bool(products)
        result += [(row, product, times) for product in products]
    sizes = np.array([item for _, item, _ in result], dtype=np.int64).reshape(-1, 4)
    numbers = np.array([(row, times) for row, _, times in result], dtype=np.int64).reshape(-1, 2)
    return Parts(Gemms(*sizes.T), numbers[:, 0], numbers[:, 1], elements, is_product, is_known)


def _products(operator: str, kind: str, text: str, flops: int) -> tuple[list[Sizes], int, int]:
    """Products (M, N, K, count), how often they are done in turn, and elements for the vector units."""
    try:
        shapes = [item for item in shapes_of(text) if len(item) > 1]
        if kind == "product":
            return *_of_product(operator, text, flops), 0
        if kind.startswith("convolution"):
            return _of_convolution(shapes, flops, is_backward=kind.endswith("backward")), 1, 0
        result, scores = _of_attention(shapes, is_backward=kind.endswith("backward"))
        return result, 1, scores
    except (ValueError, IndexError, ZeroDivisionError):
        return [], 1, 0  # shapes of another form: another model may know them


def _of_product(operator: str, text: str, flops: int) -> tuple[list[Sizes], int]:
    rows, inner, columns, batch = sides_of(operator, text)
    if min(rows, inner, columns, batch) < 1:
        return [], 1
    num_flops = 2 * rows * inner * columns * batch
    if any(name in operator for name in _RECURRENT):
        return [(rows, columns, inner, batch)], max(flops // num_flops, 1)
    return [(rows, columns, inner, batch)], 1


def _of_convolution(shapes: Shapes, flops: int, *, is_backward: bool) -> list[Sizes]:
    """Pixels by filters, over the window; the gradients swap them round."""
    images, weight = shapes[1:3] if is_backward else shapes[:2]
    filters, window = weight[0], math.prod(weight[1:])
    groups = max(images[1] // weight[1], 1)
    per_output = 2 * filters * window
    pixels = _pixels(shapes[0]) if is_backward else flops // per_output
    if is_backward and flops % (per_output * pixels):  # transposed: its work goes by the pixels of what was put in
        pixels, groups = _pixels(images), max(shapes[0][1] // weight[1], 1)
    if min(pixels, filters // groups, window) < 1:
        return []
    if not is_backward:
        return [(pixels, filters // groups, window, groups)]
    of_weight = (filters // groups, window, pixels, groups)
    of_input = (pixels, window, filters // groups, groups)
    return [of_weight, of_input][: max(flops // (per_output * pixels), 1)]


def _pixels(shape: Sequence[int]) -> int:
    return math.prod(shape) // shape[1]


def _of_attention(shapes: Shapes, *, is_backward: bool) -> tuple[list[Sizes], int]:
    """Scores and mix of all heads; backward the scores again and the gradients of values, scores, queries and keys."""
    query, key, value = shapes[1:4] if is_backward else shapes[:3]
    heads, rows, width = math.prod(query[:-2]), query[-2], query[-1]
    columns, mixed = key[-2], value[-1]
    scores, mix = (rows, columns, width, heads), (rows, mixed, columns, heads)
    if not is_backward:
        return [scores, mix], heads * rows * columns
    gradients = [
        (columns, mixed, rows, heads), (rows, columns, mixed, heads), (rows, width, columns, heads),
        (columns, width, rows, heads),
    ]  # fmt: skip
    return [scores, *gradients], 2 * heads * rows * columns
