"""How far an operator's work extends each way: what its efficiency depends on, together with its class.

In: an operator's name, its inputs as text. Out: the extents of its work, whether its inputs lie row by row. Not here:
the class (``graph.kernel_classes``), efficiencies (``measured``), what it computes (``graph.flops``).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from windtunnel.cost.kernels import usual_stride
from windtunnel.graph.kernel_classes import class_of

__all__ = ["NUM_EXTENTS", "extents_of", "lies_otherwise", "sides_of"]

NUM_EXTENTS = 4

_DECODER = json.JSONDecoder()
_SHAPE = re.compile(r"(?<!/)\[(\d[\d, ]*)\]")


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
