"""Products of float32 on matrix units, their inputs rounded (what-if family "precision").

In: a graph whose devices multiply matrices in float32. Out: the same kernels, faster; what they move stays.
Source: NVIDIA A100 whitepaper, 2020 (TensorFloat-32); where the GPU is not known the factor is Daydream's for products
on matrix units.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InEffectError, InputError, NotApplicableError
from windtunnel.graph import Graph, Kind
from windtunnel.simulate.limits import Baseline, less_work
from windtunnel.whatifs.insert_tasks import chip_of, is_on_host, products_by_type, rescale, runs_in_16_bits
from windtunnel.whatifs.product_speed import price_ratios, product_speedup, rate_ratio

__all__ = ["tf32"]

Mask = NDArray[np.bool_]
_PUBLISHED = 3.0


def _kernels(baseline: Baseline) -> np.ndarray:
    return baseline.graph.select(kind=Kind.COMPUTE) & ~is_on_host(baseline.graph)


def _most(baseline: Baseline) -> float:
    return float(baseline.options["factor"] or _factor(baseline.graph))


@registry.whatif(
    "tf32",
    source="NVIDIA A100 whitepaper, 2020; Daydream, ATC 2020",
    decides="precision of products",
    limits=less_work(_kernels, "products gain at most the ratio of the peaks of both types", factor=_most),
)
def tf32(graph: Graph, factor: float | None = None) -> Graph:
    """Multiply float32 matrices on matrix units, with inputs rounded to TensorFloat-32.

    Parameters
    ----------
    graph : Graph
    factor : float, optional
        How much faster a product becomes. By default 3; on a GPU of the catalog what products of that length gain by
        the data sheet's peaks.

    Raises
    ------
    NotApplicableError
        No product runs in float32 on a device.
    InEffectError
        All of them run in 16 bits.
    """
    given = factor
    factor = _factor(graph) if factor is None else factor
    if not math.isfinite(factor) or factor <= 0:
        raise InputError(f"products cannot become {factor} times as fast", fix="give a factor above 0")
    kernels = graph.select(kind=Kind.COMPUTE) & ~is_on_host(graph)
    products_of = products_by_type(graph, kernels)
    products: Mask = np.logical_or.reduce(list(products_of.values()))
    low = products & runs_in_16_bits(graph)
    full = products_of["fp32"] & ~low
    if low.any() and not full.any():
        raise InEffectError(f"{int(low.sum())} products run in 16 bits, on matrix units already")
    if not full.any():
        raise NotApplicableError(
            "no product runs in float32 on a device",
            where=f"{int(np.count_nonzero(kernels))} kernels, {int(np.count_nonzero(products))} of them products",
        )
    priced = price_ratios(graph, "tf32") if given is None else None
    if priced is not None:
        return rescale(graph, full, 1.0 / priced[full], "paper")
    chip = chip_of(graph)
    if given is not None or chip is None or not {"tf32", "fp32"} <= set(chip.peak_flops_per_s):
        return rescale(graph, full, 1.0 / factor, "paper")
    shorter = graph.duration_ns[full] / product_speedup(graph.duration_ns[full], rate_ratio(chip, "tf32", "fp32"))
    return graph.set_duration(full, np.rint(shorter).astype(np.int64), cost_source="paper")


def _factor(graph: Graph) -> float:
    peaks = getattr(chip_of(graph), "peak_flops_per_s", {})
    return peaks["tf32"] / peaks["fp32"] if {"tf32", "fp32"} <= set(peaks) else _PUBLISHED
