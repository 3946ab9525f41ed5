"""Products of linear layers in 8 bits (what-if family "precision").

In: a graph whose GPU multiplies matrices in 16 bits, and which knows their shapes. Out: these products at the peak of 8
bits and with half the bytes to read, behind the kernels that scale and cast what they read.
Source: Micikevicius et al., FP8 Formats for Deep Learning, arXiv 2209.05433; scaled per tensor, as PyTorch does it.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.graph.kernel_classes import does_matrix_work
from windtunnel.hardware import Device
from windtunnel.simulate.limits import Baseline, less_work
from windtunnel.whatifs.device_tasks import lies_on_device
from windtunnel.whatifs.insert_tasks import chip_of, insert_ahead, runs_in_16_bits, streaming_bandwidth, traffic_ns

__all__ = ["fp8_linear"]

Mask = NDArray[np.bool_]
_OPERATORS = r"aten::(mm|addmm|linear|matmul)"  # attention multiplies in batches, and stays as it is
_FP8_OPERATORS = r"aten::_scaled_mm.*"
_MULTIPLE = 16  # of which both inner sizes must be, for PyTorch's products in 8 bits
# of the bytes in 16 bits: read for the largest value, read for the cast, half of them written
_CAST_RATIO = 2.5


def _products(baseline: Baseline) -> Mask:
    return lies_on_device(baseline.graph) & baseline.graph.select(op=_OPERATORS)


def _max_factor(baseline: Baseline) -> float:
    chip = chip_of(baseline.graph)
    return _peak_ratio(chip) if chip is not None and "fp8" in chip.peak_flops_per_s else 1.0


@registry.whatif(
    "fp8-linear",
    source="Micikevicius et al., arXiv 2209.05433",
    decides="precision of products",
    limits=less_work(_products, "products gain at most the ratio of the peaks of both types", factor=_max_factor),
)
def fp8_linear(graph: Graph, layer: str = "") -> Graph:
    """Multiply the matrices of linear layers in 8-bit floating point, forward and backward.

    A product keeps the share of the peak that it reaches in 16 bits, unless memory limits it. Each of its inputs is
    read twice and written once before it, to scale and to cast it: a compiler that fuses this into the kernels before
    saves some of it, so that this is no upper bound.

    Parameters
    ----------
    graph : Graph
    layer : str
        Regular expression that matches the whole path of a module; all linear layers by default.

    Raises
    ------
    NotApplicableError
        The GPU has no products in 8 bits, or none of the products in 16 bits has sizes that are multiples of 16.
    InEffectError
        Products run in 8 bits.
    """
    chip = chip_of(graph)
    if chip is None or "fp8" not in chip.peak_flops_per_s:
        raise NotApplicableError(
            f"{chip.name} has no products in 8-bit floating point" if chip else "the GPU of this graph is not known",
            where="devices that the graph names",
            fix="ask it of a step on a GPU that has them, such as an H100",
        )
    if graph.select(op=_FP8_OPERATORS).any():
        raise InEffectError("products run in 8 bits", where="aten::_scaled_mm")
    products = _fitting_products(graph, layer)
    old_ns = graph.duration_ns[products]
    read, written = (graph.tasks[name][products] for name in ("bytes_read", "bytes_written"))
    bandwidth = streaming_bandwidth(chip)
    new_ns = np.maximum(np.rint(old_ns / _peak_ratio(chip)), traffic_ns(read / 2 + written, bandwidth))
    graph = graph.set_duration(products, np.minimum(new_ns, old_ns).astype(np.int64), cost_source="data sheet")
    casts = {
        "name": "scale and cast to 8 bits",
        "op": "aten::_to_copy",
        "duration_ns": traffic_ns(_CAST_RATIO * read, bandwidth),
        "cost_source": "memory traffic",
    }
    return insert_ahead(graph, np.flatnonzero(products), casts)[0]


def _peak_ratio(chip: Device) -> float:
    peaks = chip.peak_flops_per_s
    return float(peaks["fp8"] / max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0)))


def _fitting_products(graph: Graph, layer: str) -> Mask:
    """Kernels of products in 16 bits, with sizes that have a kernel in 8 bits."""
    within = {"layer": layer} if layer else {}
    found = lies_on_device(graph) & does_matrix_work(graph) & graph.select(op=_OPERATORS, **within)
    low = found & runs_in_16_bits(graph)
    if not low.any() or "bytes_read" not in graph.tasks:
        raise NotApplicableError(
            "no product of a linear layer is known to run in 16 bits",
            where=f"{int(found.sum())} products",
            fix="ask it of a step in 16 bits whose trace has the shapes of operators",
        )
    texts = graph.tasks.strings("input_shapes")
    fits = texts.where({text: _fits(text) for text in texts.values})
    if not (low & fits).any():
        raise NotApplicableError(
            f"no product has inner sizes that are multiples of {_MULTIPLE}", where=f"{int(low.sum())} products"
        )
    return low & fits


def _fits(text: str) -> bool:
    """Whether the matrices of a call have last sizes that are multiples of 16."""
    shapes = json.loads(text) if text else []
    # an argument that is a list of tensors has a list of shapes
    tensors = [shape for shape in shapes if isinstance(shape, list) and all(isinstance(size, int) for size in shape)]
    matrices = [shape for shape in tensors if len(shape) > 1]
    return len(matrices) > 1 and all(size % _MULTIPLE == 0 for shape in matrices for size in shape[-2:])
