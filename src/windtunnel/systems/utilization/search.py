"""Shapes that would use the machine better.

In: a measured graph and the ceilings of its host. Out: ``Advice``: pad channels to whole vectors, merge products that
read the same tensor, take a larger batch; each with a predicted gain, and with kernels before and after wherever a
layer alone can show it. Not here: trying it (``run``).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.cost.host import Ceilings, lanes_of
from windtunnel.cost.kernels import Kernel, TensorShape, usual_stride
from windtunnel.graph import EdgeKind, Graph, Kind
from windtunnel.graph.flops import PRODUCT_OPERANDS
from windtunnel.systems.utilization.model import utilization

__all__ = ["Advice", "advise"]

_MIN_GAIN = 1.02
_MIN_SHARE = 0.002  # of the whole time: what is shorter is not worth a change
_BATCH_FACTOR = 4
# where a captured convolution keeps stride, padding, dilation and groups among its arguments
_SETTINGS = {
    "aten::mkldnn_convolution": (4, 3, 5, 6),
    "aten::_slow_conv2d_forward": (4, 5, None, None),
    "aten::convolution": (3, 4, 5, 8),
}


@dataclass(frozen=True)
class Advice:
    """One change of shape.

    Parameters
    ----------
    kind : str
        ``pad channels``, ``merge``, or ``batch``.
    layers : tuple of str
        Empty for the whole model.
    text : str
        What to do, in words.
    predicted_gain : float
        Work per second after, over before; work is flops when channels are added, samples otherwise.
    share : float
        Of the whole time that the layers take.
    before, after : tuple of Kernel
        What runs now and what would run; empty if only the whole model can show it.
    work_ratio : float
        Work after over before.
    """

    kind: str
    layers: tuple[str, ...]
    text: str
    predicted_gain: float
    share: float
    before: tuple[Kernel, ...] = field(default=(), repr=False)
    after: tuple[Kernel, ...] = field(default=(), repr=False)
    work_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class _Product:
    """A convolution or a linear layer of the graph, with what its kernel needs."""

    row: int
    layer: str
    images: tuple[int, ...]
    weight: tuple[int, ...]
    settings: tuple[Any, ...]  # stride, padding, dilation, groups; empty for a matrix product
    duration_ns: float
    host_ns: float

    def kernel(self, images: Sequence[int], weight: Sequence[int]) -> Kernel:
        """Return the same layer with other channels."""
        tensors = _float(images), _float(weight)
        if not self.settings:
            return Kernel("aten::mm.default", tensors)
        stride, padding, dilation, groups = self.settings
        flat = (0,) * len(stride)
        return Kernel("aten::convolution.default", (*tensors, None, stride, padding, dilation, False, flat, groups))


def _float(shape: Sequence[int]) -> TensorShape:
    torch = require("torch", extra="torch")
    return TensorShape(tuple(shape), usual_stride(shape), torch.float32)


def advise(graph: Graph, ceilings: Ceilings) -> list[Advice]:
    """Propose changes of shape, greatest saving first.

    Parameters
    ----------
    graph : Graph
        Captured here, of float32 work.
    ceilings : Ceilings

    Raises
    ------
    PriceError
        The graph has no utilization.

    Notes
    -----
    Added channels are a gain only if the net is trained with them: they come at no time, not for no reason.
    """
    whole = utilization(graph, ceilings)
    products = [product for product in _products(graph) if product.duration_ns >= _MIN_SHARE * whole.duration_ns]
    num_lanes = lanes_of(ceilings.peaks[ceilings.dtype])
    result = [*_padding(products, num_lanes, whole.duration_ns), *_merging(graph, products, whole.duration_ns)]
    missing = next(loss for loss in whole.waterfall if loss.name == "framework")
    gain = whole.duration_ns / (whole.duration_ns - missing.duration_ns * (1 - 1 / _BATCH_FACTOR))
    if gain >= _MIN_GAIN:
        text = (
            f"take {_BATCH_FACTOR} times the batch: {missing.percent:.0f} % of the time is paid per call, "
            f"not per sample"
        )
        result.append(Advice("batch", (), text, gain, 1.0, work_ratio=_BATCH_FACTOR))
    return sorted(
        (item for item in result if item.predicted_gain >= _MIN_GAIN),
        key=lambda advice: -advice.share * (1 - 1 / advice.predicted_gain),
    )


def _products(graph: Graph) -> Iterator[_Product]:
    if "input_shapes" not in graph.tasks or "input_args" not in graph.tasks:
        return
    columns = [graph.tasks.strings(name) for name in ("op", "layer", "input_shapes", "input_args", "input_dtypes")]
    host = _host_ns(graph)
    for row in np.flatnonzero(graph.select(kind=Kind.COMPUTE) & (graph.tasks["flops"] > 0)).tolist():
        operator, layer, shapes, values, types = (column.decode(row) for column in columns)
        if operator not in (*_SETTINGS, "aten::mm", "aten::addmm") or '"Tensor(float)"' not in types:
            continue
        first, second = PRODUCT_OPERANDS.get(operator.removeprefix("aten::"), (0, 1))
        arguments = json.loads(shapes)
        images, weight = tuple(arguments[first]), tuple(arguments[second])
        duration_ns = float(graph.duration_ns[row])
        settings = _settings(operator, json.loads(values), len(images) - 2)
        yield _Product(row, layer, images, weight, settings, duration_ns, host.get(layer, 0.0))


def _host_ns(graph: Graph) -> dict[str, float]:
    """Return the time of host tasks by layer."""
    spent: dict[str, float] = defaultdict(float)
    layers = graph.tasks.strings("layer")
    for row in np.flatnonzero(graph.select(kind=Kind.HOST)).tolist():
        spent[layers.decode(row)] += float(graph.duration_ns[row])
    return spent


def _settings(operator: str, values: list[Any], num_dims: int) -> tuple[Any, ...]:
    if operator not in _SETTINGS:
        return ()
    stride, padding, dilation, groups = _SETTINGS[operator]
    ones = [1] * num_dims
    parts = [values[stride], values[padding], ones if dilation is None else values[dilation]]
    spread = [tuple(part) if len(part) == num_dims else tuple(part) * num_dims for part in parts]
    return (*spread, 1 if groups is None else int(values[groups]))


def _padding(products: Sequence[_Product], num_lanes: int, whole_ns: float) -> Iterator[Advice]:
    """Advise output channels in whole vectors, which the kernel computes anyway."""
    by_shape: dict[tuple[Any, ...], list[_Product]] = defaultdict(list)
    for product in products:
        by_shape[product.images, product.weight, product.settings].append(product)
    for (images, weight, settings), rows in by_shape.items():
        side = 0 if settings else 1
        size = weight[side]
        requested = math.ceil(size / num_lanes) * num_lanes
        if requested == size or (settings and settings[3] != 1) or size < num_lanes // 2:
            continue
        padded = tuple(requested if index == side else item for index, item in enumerate(weight))
        share = sum(row.duration_ns for row in rows) / whole_ns
        text = f"{size} channels take as long as {requested}: give the layer {requested}"
        old, new = rows[0].kernel(images, weight), rows[0].kernel(images, padded)
        layers = tuple(row.layer for row in rows)
        yield Advice("pad channels", layers, text, requested / size, share, (old,), (new,), requested / size)


def _merging(graph: Graph, products: Sequence[_Product], whole_ns: float) -> Iterator[Advice]:
    """Advise merging products of one tensor into one product with all their channels."""
    src, dst = graph.edges["src"], graph.edges["dst"]
    is_data = graph.edges["kind"] == EdgeKind.DATA
    sources: dict[int, set[int]] = defaultdict(set)
    for before, after in zip(src[is_data].tolist(), dst[is_data].tolist(), strict=True):
        sources[after].add(before)
    # Products that read the same tensor with the same settings differ in their weights alone.
    alike: dict[tuple[Any, ...], list[_Product]] = defaultdict(list)
    for product in products:
        tail = product.weight[1:] if product.settings else product.weight[:1]
        if sources[product.row] and (not product.settings or product.settings[3] == 1):
            alike[product.images, tail, product.settings, frozenset(sources[product.row])].append(product)
    for rows in alike.values():
        if len(rows) > 1:
            yield _merge_advice(rows, whole_ns)


def _merge_advice(rows: Sequence[_Product], whole_ns: float) -> Advice:
    first, side = rows[0], 0 if rows[0].settings else 1
    total = sum(row.weight[side] for row in rows)
    weight = tuple(total if index == side else size for index, size in enumerate(first.weight))
    now_ns = sum(row.duration_ns + row.host_ns for row in rows)
    # the products stay, one call's worth of the host's time is paid instead of several
    then_ns = sum(row.duration_ns for row in rows) + max(row.host_ns for row in rows)
    return Advice(
        "merge",
        tuple(row.layer for row in rows),
        f"{len(rows)} products read the same tensor: make them one with {total} channels and split its result",
        now_ns / then_ns,
        now_ns / whole_ns,
        tuple(row.kernel(row.images, row.weight) for row in rows),
        (first.kernel(first.images, weight),),
    )
