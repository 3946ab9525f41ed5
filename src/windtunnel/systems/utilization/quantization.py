"""Padding work, because shapes do not fill the machine.

In: shapes of products, vector width, number of threads. Out: work really done over work asked for, >= 1. A kernel
computes whole vectors of channels, and the last thread's share decides when all are done. On a GPU the same holds for
tiles over multiprocessors: the time goes up in steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.bounds import padding_ratios
from windtunnel.cost.host import Ceilings, lanes_of
from windtunnel.graph import Graph
from windtunnel.graph.flops import PRODUCT_OPERANDS

__all__ = ["padding_ratio", "product_ratio", "quantization_ratios", "wave_ratio"]

_FEW_INPUTS = 4  # images have three channels, and kernels of their own that do not pad them
_ROWS_PER_TILE = 16


def padding_ratio(size: int, multiple: int) -> float:
    """Return a size rounded up to a multiple, over the size.

    Examples
    --------
    >>> padding_ratio(24, 16), padding_ratio(32, 16)
    (1.3333333333333333, 1.0)
    """
    return float(padding_ratios(np.float64(size), np.float64(multiple)))


def wave_ratio(num_tiles: int, num_workers: int) -> float:
    """Return the rounds of the busiest worker over the mean: tiles on multiprocessors, or shares on threads.

    Examples
    --------
    >>> wave_ratio(133, 132) == 2 * 132 / 133
    True
    """
    return padding_ratio(num_tiles, num_workers)


def quantization_ratios(graph: Graph, products: NDArray[np.bool_], ceilings: Ceilings) -> NDArray[np.float64]:
    """Return the padding of every product of a captured graph, float [P]; 1 if its shapes are unknown."""
    if "input_shapes" not in graph.tasks:
        return np.ones(int(products.sum()))
    num_lanes = lanes_of(ceilings.peaks[ceilings.dtype])
    names = graph.tasks.strings("op").take(np.flatnonzero(products))
    shapes = graph.tasks.strings("input_shapes").take(np.flatnonzero(products))
    known: dict[tuple[str, str], float] = {}
    for row in range(int(products.sum())):
        key = names.decode(row), shapes.decode(row)
        if key not in known:
            known[key] = product_ratio(key[0], json.loads(key[1]), num_lanes, ceilings.num_threads)
    return np.array([known[names.decode(row), shapes.decode(row)] for row in range(int(products.sum()))])


def product_ratio(operator: str, shapes: Sequence[Any], num_lanes: int, num_threads: int) -> float:
    """Return the padding of one convolution or matrix product; 1 for other operators."""
    name = operator.rpartition("::")[2].partition(".")[0]
    try:
        if "conv" in name and not name.endswith("backward"):
            return _convolution_ratio(shapes[0], shapes[1], num_lanes, num_threads)
        if name in PRODUCT_OPERANDS:
            first, second = PRODUCT_OPERANDS[name]
            rows, columns = math.prod(shapes[first][:-1]), int(shapes[second][-1])
            shares = math.ceil(rows / _ROWS_PER_TILE) * math.ceil(columns / num_lanes)
            return padding_ratio(columns, num_lanes) * wave_ratio(shares, num_threads)
    except (IndexError, TypeError, ValueError):
        return 1.0  # an overload with other arguments
    return 1.0


def _convolution_ratio(images: Sequence[int], weight: Sequence[int], num_lanes: int, num_threads: int) -> float:
    outputs, inputs_per_group = int(weight[0]), int(weight[1])
    groups = max(1, int(images[1]) // inputs_per_group)
    is_depthwise = inputs_per_group == 1
    per_group = outputs if is_depthwise else outputs // groups
    ratio = padding_ratio(per_group, num_lanes)
    if not is_depthwise and inputs_per_group > _FEW_INPUTS:
        ratio *= padding_ratio(inputs_per_group, num_lanes)
    shares = int(images[0]) * math.ceil(outputs / num_lanes) * max(1, math.prod(images[2:-1]))
    return ratio * wave_ratio(shares, num_threads)
