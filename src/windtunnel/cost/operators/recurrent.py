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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.work import ITEM_BYTES, Work

__all__ = ["RECURRENT", "Parts", "split_recurrent"]

# P rows of work, Q parts of them
RECURRENT = {"aten::mkldnn_rnn_layer": False, "aten::mkldnn_rnn_layer_backward": True}
"""Operators that are a whole layer, and whether they are its backward pass."""
_Call = tuple[str, list[list[int]], int]  # operator, shapes, how often


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
    layers = [row for row, name in enumerate(work.operator.tolist()) if name in RECURRENT and work.shapes[row]]
    if not layers:
        return Parts(work, np.arange(len(work)), np.ones(len(work)))
    others = np.setdiff1d(np.arange(len(work)), layers)
    split = [(row, *call) for row in layers for call in _calls(work.operator[row], json.loads(work.shapes[row]))]
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


def _calls(operator: str, shapes: Sequence[Any]) -> list[_Call]:
    """Kernels of one layer of one direction."""
    (num_steps, batch, inner), (gates, _), (_, hidden) = shapes[0], shapes[1], shapes[2]
    rows = num_steps * batch
    gate_shapes = [[batch, gates], [batch, gates]]
    if not RECURRENT[operator]:
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
