"""How much faster a kernel becomes in another type: by its time and the peaks of both types, or by prices of both.

In: recorded durations, the ratio of two peaks of a data sheet; or a graph of prices. Out: speed-ups. Peaks are reached
by long products only, and not wholly. Not here: which kernels change (``amp``, ``tf32``).
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.cost.pricing import AUTO, price
from windtunnel.errors import PriceError
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.hardware import Device
from windtunnel.whatifs.insert_tasks import gpu_of_prices, is_launching, is_on_host, products_by_type

__all__ = [
    "host_time_per_launch_ns",
    "names_16_bits",
    "price_ratios",
    "product_slowdown",
    "product_speedup",
    "rate_ratio",
    "type_of_16_bits",
]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

REACHED_RATIOS = {"tf32": 0.65}
"""Share of its peak that a type reaches, over that of float32; 1 for the others: TF32 runs on older instructions."""
HALF_NS = 100_000
"""Time in the slower type at which half of a gain is reached; 2,100 products of all sizes timed on an H200."""
_FORMS = {
    "bf16": re.compile(r"(?i)bf16|bfloat16|nvjet_(sm\d+_)?t"),
    "fp16": re.compile(r"(?i)fp16|float16|half|hgemm|nvjet_(sm\d+_)?h"),
}


def rate_ratio(chip: Device, new: str, old: str) -> float:
    """How many times as fast long products run in one type as in another."""
    rates = [chip.flops_per_s(dtype) * REACHED_RATIOS.get(dtype, 1.0) for dtype in (new, old)]
    return rates[0] / rates[1]


def product_speedup(duration_ns: ArrayLike, ratio: float) -> Floats:
    """How many times as fast kernels become in a type in which long ones are so many times as fast.

    Examples
    --------
    >>> [round(float(value), 1) for value in product_speedup([0, 100_000, 10**9], 10.0)]
    [1.0, 5.5, 10.0]
    """
    duration = np.asarray(duration_ns, dtype=np.float64)
    result: Floats = 1.0 + max(ratio - 1.0, 0.0) * duration / (duration + HALF_NS)
    return result


def price_ratios(graph: Graph, dtype: str) -> Floats | None:
    """How many times as fast each task becomes in another type, by the cost models of the GPU it was priced on.

    Returns
    -------
    float64 [T]
        1 where there is no price; None of a graph whose times are no prices of a GPU with that type.
    """
    chip = gpu_of_prices(graph)
    if chip is None or dtype not in chip.peak_flops_per_s:
        return None
    try:
        before, after = (price(graph, chip, AUTO, dtype=name).duration_ns for name in ("", dtype))
    except PriceError:  # some of the tasks were priced by a model that is not shipped
        return None
    result: Floats = np.divide(before, after, out=np.ones(graph.num_tasks), where=(before > 0) & (after > 0))
    return result


def product_slowdown(duration_ns: ArrayLike, ratio: float) -> Floats:
    """How many times as long kernels take in a type in which long ones take so many times as long: the reverse."""
    old = np.asarray(duration_ns, dtype=np.float64)
    # new = old * (1 + gain * new / (new + half)), a quadratic equation in new
    gain = max(ratio - 1.0, 0.0)
    linear = HALF_NS - old * (1.0 + gain)
    new = (-linear + np.sqrt(linear * linear + 4.0 * old * HALF_NS)) / 2.0
    result: Floats = np.divide(new, old, out=np.ones_like(new), where=old > 0)
    return result


def names_16_bits(graph: Graph, kernels: Mask) -> Mask:
    """Products of these kernels whose names say that they take 16-bit numbers, bool [T]."""
    return products_by_type(graph, kernels)["other"]


def type_of_16_bits(graph: Graph, kernels: Mask) -> str:
    """``bf16`` or ``fp16``: what the names or inputs of most of these kernels say; empty where they do not."""
    rows = np.flatnonzero(kernels)
    counts = {"bf16": 0, "fp16": 0}
    for column in ("name", "input_dtypes"):
        if column in graph.tasks:
            strings = graph.tasks.strings(column).take(rows)
            types = [
                next((dtype for dtype, form in _FORMS.items() if form.search(text)), "") for text in strings.values
            ]
            for dtype in counts:
                counts[dtype] += int(np.array([name == dtype for name in types], dtype=bool)[strings.codes].sum())
    dtype, count = max(counts.items(), key=lambda item: item[1])
    return dtype if count else ""


def host_time_per_launch_ns(graph: Graph, phase: Phase) -> float:
    """What the host works in a phase, over its launches there: about the cost of one more operator."""
    count = int((is_launching(graph) & graph.select(phase=phase)).sum())
    host = is_on_host(graph) & graph.select(kind=Kind.HOST, phase=phase)
    return float(graph.duration_ns[host].sum()) / count if count else 0.0
