"""Operators that are priced by a formula: there are too few timings of them for trees, and few numbers tell their time.

In: ``Facts`` and a ``Device``. Out: which rows have a formula, and their time. Kernels on lists of tensors are as long
as all bytes take, or as their longest chunk. Depthwise convolutions are no products: a thread computes an output by
itself, on the units of fp32, and the gradient of a filter is a sum over all images that few threads share.
Not here: what all others are priced by (``learned_features``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.operators.facts import Facts
from windtunnel.hardware import Device

__all__ = ["DEPTHWISE", "START_NS", "depthwise_terms", "formula_ns", "has_formula", "is_depthwise"]

# P rows of work, K terms of a formula
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

START_NS = 1_300.0
"""The shortest kernels of an H100 take about this long in a CUDA graph."""
LISTS = "multi-tensor"
_LIST_EFFICIENCY = 0.75  # of the bandwidth: what lists of all sizes reach, in timings and in steps
_CHUNK_BYTES_PER_S = 7.5e10  # of one thread block of a kernel on lists
_FP32_FLOPS_PER_S = 6.69e13  # of an H200, whose timings the numbers below were fitted to
_HALF = ("bf16", "fp16")
DEPTHWISE: dict[str, tuple[float, ...]] = {
    "convolution": (2752.0, 0.312, 6.356, 0.0, 0.076, 4.997, 1.645),
    "convolution backward": (7527.0, 3.997, 13.825, 0.0, 0.378, 27.912, 2.076),
}
"""Nanoseconds of each of ``depthwise_terms``, by family."""


def has_formula(facts: Facts) -> Mask:
    """Rows that a formula prices, bool [P]."""
    result: Mask = (facts.family == LISTS) | is_depthwise(facts)
    return result


def is_depthwise(facts: Facts) -> Mask:
    """Convolutions in which each channel is a group, bool [P]."""
    groups = facts.column("num_groups")
    result: Mask = np.isin(facts.family.astype(str), tuple(DEPTHWISE)) & (groups > 1) & (facts.column("columns") == 1)
    return result


def formula_ns(facts: Facts, device: Device) -> Floats:
    """Times of rows that have a formula; of all others without meaning [P]."""
    times = START_NS * np.maximum(facts.column("window"), 1.0) + _list_ns(facts, device)
    terms, scale = depthwise_terms(facts), _FP32_FLOPS_PER_S / device.peak_flops_per_s.get("fp32", _FP32_FLOPS_PER_S)
    for family, coefficients in DEPTHWISE.items():
        rows = is_depthwise(facts) & (facts.family == family)
        start, *rates = coefficients
        times[rows] = start + scale * (terms[rows, 1:] @ np.array(rates))
    return times


def _list_ns(facts: Facts, device: Device) -> Floats:
    """Kernels on lists of tensors without their starts: all bytes, or the longest chunk [P]."""
    moved = facts.column("read_bytes") + facts.column("written_bytes")
    chunk_ns = 1e9 * moved / np.maximum(facts.column("rows"), 1.0) / _CHUNK_BYTES_PER_S
    list_ns: Floats = np.maximum(1e9 * moved / (_LIST_EFFICIENCY * device.bandwidth_bytes_per_s), chunk_ns)
    return list_ns


def depthwise_terms(facts: Facts) -> Floats:
    """What the time of a depthwise convolution is a sum of, each with its own factor [P, K].

    A start; then for fp32 and for half types thousands of multiply-adds, and thousands of outputs where channels come
    first and where they come last.
    """
    outputs = facts.column("rows") * facts.column("batch") / 1e3
    is_half, is_last = np.isin(facts.dtype.astype(str), _HALF), facts.column("layout") == 1
    columns = [np.ones(len(facts))]
    for of_type in (~is_half, is_half):
        columns += [
            of_type * outputs * facts.column("inner"),
            of_type * ~is_last * outputs,
            of_type * is_last * outputs,
        ]
    return np.stack(columns, axis=1)
