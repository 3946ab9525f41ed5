"""Recurrent layers as the kernels that cuDNN runs for them: products and gates of every time step.

In: work with whole layers, as a dry run notes them. Out: the products and element-by-element operators that a layer is
made of, each with how often it runs. A time step needs the one before it, so its product is small, and the layer takes
many short kernels where its operations alone would fill the device. What cuDNN's persistent kernels save (half types,
small layers) is not known here. Not here: prices (``learned``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.work import ITEM_BYTES, Work

__all__ = ["RECURRENT", "Layer", "Parts", "layers_of", "split_recurrent"]

# P rows of work, Q parts of them
RECURRENT = {
    "aten::mkldnn_rnn_layer": False,
    "aten::mkldnn_rnn_layer_backward": True,
    "aten::_cudnn_rnn": False,
    "aten::_cudnn_rnn_backward": True,
}
"""Operators that are whole layers, and whether they are their backward pass."""
# where cuDNN's operators say how many weights a layer has, and whether samples come first
_CUDNN_STRIDE, _CUDNN_BATCH_FIRST = 2, {False: 10, True: 14}
_BATCH_SIZES_BEHIND = 4  # places behind that: samples of every time step of packed sequences
_Call = tuple[str, list[list[int]], int]  # operator, shapes, how often


class Layer(NamedTuple):
    """Sizes of one layer in one direction; ``gates`` are those of all gates together."""

    num_steps: int
    batch: int
    inner: int
    gates: int
    hidden: int


@dataclass(frozen=True, eq=False)
class Parts:
    """What rows of work are made of.

    Parameters
    ----------
    work : Work [Q]
    owner : int64 [Q]
        Row that a part belongs to.
    count : float64 [Q]
        How often the part runs within it.
    """

    work: Work
    owner: NDArray[np.int64]
    count: NDArray[np.float64]

    def sum(self, durations_ns: NDArray[np.float64], num_rows: int) -> NDArray[np.float64]:
        """Durations of the rows from those of their parts [P]."""
        total: NDArray[np.float64] = np.bincount(self.owner, self.count * durations_ns, num_rows).astype(np.float64)
        return total


def split_recurrent(work: Work, types: Iterable[str]) -> Parts:
    """Parts of all rows; a row that is no recurrent layer is its own part.

    Parameters
    ----------
    work : Work
    types : iterable of str
        What the device multiplies in; cuDNN takes fp32 as tf32 where that is one of them.
    """
    rows = [row for row, name in enumerate(work.operator.tolist()) if name in RECURRENT]
    known = {row: layers_of(work.operator[row], work.shapes[row], work.arguments[row]) for row in rows}
    split = [
        (row, *call)
        for row, layers in known.items()
        for layer in layers
        for call in _calls(layer, is_backward=RECURRENT[work.operator[row]])
    ]
    if not split:
        return Parts(work, np.arange(len(work)), np.ones(len(work)))
    others = np.setdiff1d(np.arange(len(work)), [row for row, layers in known.items() if layers])
    has_tf32 = "tf32" in set(types)
    dtypes = [work.dtype[row] for row, *_ in split]
    dtypes = ["tf32" if name == "fp32" and has_tf32 else name for name in dtypes]
    parts = [_row(name, shapes, dtype) for (_, name, shapes, _), dtype in zip(split, dtypes, strict=True)]
    columns = list(zip(*parts, strict=True))
    kept = work.take(others)
    names = ("operator", "shapes", "dtypes", "strides", "arguments", "dtype", "flops", "bytes_moved", "num_tasks")
    joined = {name: np.concatenate([getattr(kept, name), _array(name, columns[i])]) for i, name in enumerate(names)}
    owner = np.concatenate([others, [row for row, *_ in split]]).astype(np.int64)
    count = np.concatenate([np.ones(len(others)), [float(call[-1]) for call in split]])
    return Parts(Work(**joined), owner, count)


def layers_of(operator: str, shapes_text: str, arguments_text: str) -> list[Layer]:
    """Layers of an operator of ``RECURRENT``, each direction by itself; none where shapes or arguments are unknown."""
    shapes, arguments = (json.loads(text) if text else [] for text in (shapes_text, arguments_text))
    try:
        if "mkldnn" in operator:
            (num_steps, batch, inner), (gates, _), (_, hidden) = shapes[:3]
            return [Layer(num_steps, batch, inner, gates, hidden)]
        stride = arguments[_CUDNN_STRIDE]
        batch_first = _CUDNN_BATCH_FIRST[RECURRENT[operator]]
        if batch_sizes := arguments[batch_first + _BATCH_SIZES_BEHIND]:  # packed: fewer samples with every time step
            num_steps = len(batch_sizes)
            batch = max(1, round(shapes[0][0] / num_steps))
        else:
            first, second, _ = shapes[0]
            batch, num_steps = (first, second) if arguments[batch_first] else (second, first)
        pairs = [(shapes[1][i], shapes[1][i + 1]) for i in range(0, len(shapes[1]), stride)]
        return [Layer(num_steps, batch, inner, gates, hidden) for (gates, inner), (_, hidden) in pairs]
    except (IndexError, TypeError, ValueError):
        return []  # of another form: another model may know it


def _calls(layer: Layer, *, is_backward: bool) -> list[_Call]:
    """Kernels of one layer of one direction."""
    num_steps, batch, inner, gates, hidden = layer
    rows, gate_shapes = num_steps * batch, [[batch, gates], [batch, gates]]
    if not is_backward:
        return [
            ("aten::mm", [[rows, inner], [inner, gates]], 1),  # inputs of all steps at once
            ("aten::mm", [[batch, hidden], [hidden, gates]], num_steps),
            ("aten::add", gate_shapes, num_steps),
        ]
    return [
        ("aten::mm", [[batch, gates], [gates, hidden]], num_steps),
        ("aten::add", gate_shapes, num_steps),
        ("aten::mm", [[rows, gates], [gates, inner]], 1),  # gradients of the inputs and of both weights
        ("aten::mm", [[gates, rows], [rows, inner]], 1),
        ("aten::mm", [[gates, rows], [rows, hidden]], 1),
    ]


def _row(name: str, shapes: list[list[int]], dtype: str) -> tuple[Any, ...]:
    (rows, inner), (_, columns) = shapes
    is_product = name == "aten::mm"
    elements = rows * inner + inner * columns + rows * columns if is_product else 3 * rows * inner
    flops = 2.0 * rows * inner * columns if is_product else float(rows * inner)
    return name, json.dumps(shapes), "", "", "", dtype, flops, float(elements * ITEM_BYTES[dtype]), 1


def _array(name: str, values: Sequence[Any]) -> NDArray[Any]:
    types = {"flops": np.float64, "bytes_moved": np.float64, "num_tasks": np.int64}
    return np.array(values, dtype=types.get(name, object))
