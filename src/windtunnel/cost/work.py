"""The distinct pieces of work of a graph, as columns, and how far each extends: what pricers see.

In: a graph whose tasks say what they compute and move. Out: ``Work``: one row per distinct (operator, arguments, type,
flops, bytes), since equal work costs the same, and the row of every task; the extents of an operator's work, which its
efficiency depends on together with its class. Not here: prices, the class (``graph.kernel_classes``), what an operator
computes (``graph.flops``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.kernels import usual_stride
from windtunnel.graph import Graph, Kind, Strings
from windtunnel.graph.kernel_classes import class_of

__all__ = [
    "ITEM_BYTES",
    "NUM_EXTENTS",
    "TYPES",
    "Work",
    "dtype_of",
    "extents_of",
    "lies_otherwise",
    "shapes_of",
    "sides_of",
    "work_of",
]

# T tasks, P distinct pieces of work
Texts = NDArray[np.object_]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

TYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "signed char": "int8",
}
"""Types as a capture names them, and as a device's sheet does."""
ITEM_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
"""Bytes of an element, by the type that an operator computes in."""
_TEXTS = {"shapes": "input_shapes", "dtypes": "input_dtypes", "strides": "input_strides", "arguments": "input_args"}
_SUMS = ("addmm", "addmv", "addbmm", "baddbmm")
_MIX = np.uint64(0x9E3779B97F4A7C15)
NUM_EXTENTS = 4
_DECODER = json.JSONDecoder()
_SHAPE = re.compile(r"(?<!/)\[(\d[\d, ]*)\]")


@dataclass(frozen=True, eq=False)
class Work:
    """P distinct pieces of work.

    Parameters
    ----------
    operator : object [P]
        Schema name as captured, such as ``aten::addmm``.
    shapes, dtypes, strides, arguments : object [P]
        Of the inputs, as JSON text; empty where the graph does not say.
    dtype : object [P]
        Type of the first tensor as ``fp32``, ``bf16`` ...; ``fp32`` where that is not known or no type of a peak.
    flops, bytes_moved : float [P]
    num_tasks : int64 [P]
        Tasks that are this piece of work.
    """

    operator: Texts
    shapes: Texts
    dtypes: Texts
    strides: Texts
    arguments: Texts
    dtype: Texts
    flops: Floats
    bytes_moved: Floats
    num_tasks: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.flops)

    @property
    def step_bytes(self) -> float:
        """What all tasks together move."""
        return float((self.bytes_moved * self.num_tasks).sum())

    @property
    def is_empty(self) -> Mask:
        """Rows that compute and move nothing, as a tensor of theirs has no elements, bool [P]."""
        known = {text: any(0 in shape for shape in shapes_of(text)) for text in set(self.shapes.tolist())}
        result: Mask = np.array([known[text] for text in self.shapes.tolist()], dtype=bool)
        return result & (self.flops <= 0) & (self.bytes_moved <= 0)

    def take(self, rows: NDArray[np.int64] | Mask) -> Work:
        """The given rows."""
        return Work(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @classmethod
    def of_counts(cls, operators: Texts, flops: Floats, bytes_moved: Floats, dtype: str = "fp32") -> Work:
        """Work of which no more is known than operator, flops and bytes."""
        empty = np.full(len(flops), "", dtype=object)
        return cls(
            np.asarray(operators, dtype=object),
            *(empty,) * 4,
            np.full(len(flops), dtype, dtype=object),
            np.asarray(flops, dtype=np.float64),
            np.asarray(bytes_moved, dtype=np.float64),
            np.ones(len(flops), dtype=np.int64),
        )


def work_of(graph: Graph, where: Mask | None = None) -> tuple[Work, NDArray[np.int64]]:
    """Distinct work of the tasks that compute.

    Parameters
    ----------
    graph : Graph
    where : bool [T], optional
        Only these tasks; by default all of kind COMPUTE that are no part of an operator for which another task stands.

    Returns
    -------
    work : Work
    row_T : int64 [T]
        Row of each task in it, -1 for tasks that were not asked for.
    """
    if where is None:
        where = graph.select(kind=Kind.COMPUTE) & ~graph.tasks.get("is_part", np.zeros(graph.num_tasks, dtype=bool))
    selected = np.flatnonzero(where)
    flops, moved = _numbers(graph, "flops", selected), _numbers(graph, "bytes_read", selected)
    moved = moved + _numbers(graph, "bytes_written", selected)
    strings = {name: _codes(graph, column, selected) for name, column in _columns(graph).items()}
    first, inverse, counts = _distinct([*(column.codes for column in strings.values()), flops, moved])
    result = {name: column.take(first).to_numpy() for name, column in strings.items()}
    row_T = np.full(graph.num_tasks, -1, dtype=np.int64)
    row_T[selected] = inverse
    # Type that each operator computes in [P]: of a sum with a product, that of the factors.
    pairs = list(zip(result["operator"].tolist(), result["dtypes"].tolist(), strict=True))
    known = {(name, text): dtype_of(_factors(name, text)) or dtype_of(text) or "fp32" for name, text in set(pairs)}
    dtype = np.array([known[pair] for pair in pairs], dtype=object)
    return Work(**result, dtype=dtype, flops=flops[first], bytes_moved=moved[first], num_tasks=counts), row_T


def dtype_of(text: str) -> str:
    """Type of the first tensor in a captured list of types, as a device's sheet names it; empty if it has none.

    Examples
    --------
    >>> dtype_of('["Tensor(c10::BFloat16)", "Scalar"]')
    'bf16'
    """
    return TYPES.get(text.partition("Tensor(")[2].partition(")")[0], "")


def shapes_of(text: str) -> list[tuple[int, ...]]:
    """Shapes of all tensors in a captured text of shapes, lists of tensors opened.

    Examples
    --------
    >>> shapes_of("[[32, 64], [[8], [4, 2]], []]")
    [(32, 64), (8,), (4, 2)]
    """
    return list(_shapes(json.loads(text))) if text else []


def _shapes(value: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(value, list) and value:
        if all(isinstance(size, int) for size in value):
            yield tuple(value)
        else:
            for item in value:
                yield from _shapes(item)


def _columns(graph: Graph) -> dict[str, str]:
    return {"operator": "op" if "op" in graph.tasks else "name", **_TEXTS}


def _codes(graph: Graph, column: str, rows: NDArray[np.int64]) -> Strings:
    if column not in graph.tasks:
        return Strings.repeat("", len(rows))
    return graph.tasks.strings(column).take(rows)


def _numbers(graph: Graph, name: str, rows: NDArray[np.int64]) -> Floats:
    column = graph.tasks.get(name)
    return np.zeros(len(rows)) if column is None else column[rows].astype(np.float64)


def _factors(name: str, dtypes: str) -> str:
    # addmm(bias, a, b): what follows the first tensor are the types of a and b
    is_sum = name.rpartition("::")[2].partition(".")[0].rstrip("_") in _SUMS
    return dtypes.partition("Tensor(")[2] if is_sum else dtypes


def _distinct(columns: list[NDArray[np.int32] | Floats]) -> tuple[NDArray[np.int64], ...]:
    """First row, inverse and count of each distinct row: 64 bits mixed from all columns, then compared in full."""
    # one sort of 64-bit numbers instead of a sort of rows of seven columns
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.int64).view(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(29)
    _, first, inverse, counts = np.unique(mixed, return_index=True, return_inverse=True, return_counts=True)
    if all(np.array_equal(column, column[first][inverse]) for column in columns):
        return first, inverse, counts.astype(np.int64)
    whole = np.rec.fromarrays(columns)  # two rows share 64 bits: sort them in full
    _, first, inverse, counts = np.unique(whole, return_index=True, return_inverse=True, return_counts=True)
    return first, inverse, counts.astype(np.int64)


def extents_of(operator: str, shapes: str) -> tuple[float, ...]:
    """Octaves of the sides of an operator's work, ``NUM_EXTENTS`` of them; 0 where there is none.

    Examples
    --------
    >>> extents_of("aten::addmm", "[[64],[256,32],[32,64]] [[1],[32,1],[64,1]]")
    (8.0, 5.0, 6.0, 0.0)
    >>> extents_of("aten::native_batch_norm", "[[8,16,4,4],[16],[16]]"), extents_of("aten::relu", "[[256,32]]")
    ((4.0, 7.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0))
    """
    octaves = [math.log2(max(item, 1)) for item in sides_of(operator, shapes)]
    return (*octaves, *[0.0] * (NUM_EXTENTS - len(octaves)))


def sides_of(operator: str, shapes: str) -> tuple[int, ...]:
    """How far an operator's work extends each way; empty where that is not known.

    Of a product its rows, inner side, columns and batch (of a recurrent layer the rows of one time step); of a
    convolution channels of a group, filters, window and positions; of attention heads of all samples, rows and columns;
    of a look-up the rows asked for, those of the table, and columns; of a normalization, reduction, sorting or pooling
    the length of a row and how many there are.

    Parameters
    ----------
    operator : str
    shapes : str
        A list of shapes as captured, or the signature of a kernel; strides may follow a slash or a space.

    Examples
    --------
    >>> sides_of("aten::bmm", "[[16,256,32],[16,32,64]]")
    (256, 32, 64, 16)
    """
    kind = class_of(operator)
    captured = shapes.split(" ")[0] if shapes.startswith("[") else shapes
    result = [[int(size) for size in item.split(",")] for item in _SHAPE.findall(captured)]
    tensors = [item for item in result if len(item) > 1 and min(item) > 0]
    if kind == "indexing":
        requested = [math.prod(item) for item in result[1:]]
        return (requested[0], result[0][0], math.prod(result[0][1:])) if requested else ()
    if not tensors or kind in ("elementwise", "moving", "drawing"):
        return ()
    if kind == "product":
        return _of_product(operator, tensors)
    if kind.startswith("convolution"):
        return _of_convolution([tensor for tensor in tensors if len(tensor) > 2])
    if kind.startswith("attention"):
        return (math.prod(tensors[0][:-2]), *tensors[0][-2:])
    row = math.prod(tensors[0][2:]) if "batch_norm" in operator else tensors[0][-1]
    return row, math.prod(tensors[0]) // row


def _of_product(operator: str, tensors: list[list[int]]) -> tuple[int, ...]:
    if "rnn" in operator or "lstm" in operator or "gru" in operator:
        weights = next((tensor for tensor in tensors if len(tensor) == 2), tensors[0])
        return tensors[0][-2], tensors[0][-1], weights[0], 1
    # what is added to the product may be a matrix, too
    first, second = tensors[-2:] if len(tensors) > 2 else (tensors[0], tensors[-1])
    inner = first[-1]
    columns = second[-1] if second[-2] == inner else second[-2]  # ``linear`` has its weight the other way round
    if len(first) == len(second) == 3:
        return first[1], inner, columns, first[0]
    return math.prod(first[:-1]), inner, columns, 1


def _of_convolution(tensors: list[list[int]]) -> tuple[int, ...]:
    """Of images and weight; backward the gradient of the output comes first."""
    if len(tensors) < 2:
        return ()
    images, weight = tensors[-2:]
    return weight[1], weight[0], math.prod(weight[2:]), images[0] * math.prod(images[2:])


def lies_otherwise(inputs: str) -> bool:
    """Whether an input does not lie row by row: copies of such tensors, and products with them, are other work.

    Parameters
    ----------
    inputs : str
        Shapes, types and strides as captured, each a list, with spaces between; or the signature of a kernel, where
        only what lies otherwise has strides, behind a slash.

    Examples
    --------
    >>> lies_otherwise('[[4,2],[]] ["Tensor(float)","Int"] [[2,1],[]]'), lies_otherwise('[[4,2]] ["?"] [[1,4]]')
    (False, True)
    >>> lies_otherwise("(float32[256, 32]/[1, 256], float32[32, 64])")
    True
    """
    if not inputs.startswith("["):
        return "/[" in inputs
    try:
        shapes, end = _DECODER.raw_decode(inputs)
        _, end = _DECODER.raw_decode(inputs, end + 1)
        strides, _ = _DECODER.raw_decode(inputs, end + 1)
    except ValueError:  # nothing was captured
        return False
    return any(map(_is_otherwise, shapes, strides))


def _is_otherwise(shape: Any, stride: Any) -> bool:
    """Lists of tensors are looked into."""
    if not isinstance(shape, list) or not isinstance(stride, list) or len(shape) != len(stride):
        return False
    if shape and isinstance(shape[0], list):
        return any(map(_is_otherwise, shape, stride))
    # the step of a side of one is never taken
    sides = zip(shape, stride, usual_stride(shape), strict=True)
    return any(size != 1 and result != usual for size, result, usual in sides)
