"""Formulas of operators: their time is a sum of few terms that their kernels count, each with a rate that timings say.

In: ``Facts`` and a ``Device``. Out: ``Part``s: the rows of one kind of kernel with the terms of their time. A kind
counts what its kernels do: one block for each row of a table, one thread for each output of a window, one block for all
rows of a loss, chunks of 65,536 elements of a list of tensors. Terms are nanoseconds at a device's peaks and bandwidth,
or thousands of elements times how much faster an H200 computes in fp32; a start is alike on all devices.
Not here: the rates, which the shipped file holds (``learned_model``), and what else shapes say (``learned_features``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.operators.facts import COLUMNS, Facts
from windtunnel.hardware import Device

__all__ = [
    "START_NS",
    "Part",
    "Rates",
    "compute_and_memory_ns",
    "formula_ns",
    "has_formula_alone",
    "is_depthwise",
    "parts_of",
]

# P rows of work, R rows of a part, K terms of a formula
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rates = Mapping[str, tuple[float, ...]]

START_NS = 1_300.0
"""The shortest kernels of an H100 take about this long in a CUDA graph."""
_MIN_NS = 900.0
_FP32_FLOPS_PER_S = 6.69e13  # of an H200, whose timings set most rates
_HALF = ("bf16", "fp16")
_CACHE_BYTES = 50.0 * 2**20
_LINES = 4096.0  # bytes of a row that one block of a kernel on tables moves
_FEW_NUMBERS = 3072  # gradients of fewer rows of a table are added up without sorting them
_FOUR = 4  # elements that kernels on rows load at a time
_LIST_EFFICIENCY = 0.75  # of the bandwidth: what long lists of tensors reach
_CHUNK_BYTES_PER_S = 7.5e10  # of one thread block of a kernel on lists
_QUERIES = 128  # of one block of attention
_SHORT_LOSS = 32_768  # elements of a loss that one block reduces
_Kinds = dict[str, tuple[Mask, list[Floats]]]


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of work that run the same kind of kernel.

    Parameters
    ----------
    name : str
    rows : int64 [R]
    terms : float [R, K]
        What the time is a sum of, each with its own rate; the first is 1.
    """

    name: str
    rows: NDArray[np.int64]
    terms: Floats


class _Scaled(NamedTuple):
    """Columns of facts, and what all formulas count [P]."""

    column: Mapping[str, Floats]
    memory_ns: Floats
    beyond_ns: Floats  # of the bytes that the last cache does not hold
    elements: Floats  # thousands, of an H200
    ns_per_byte: float
    slowness: float
    is_half: Mask
    dtype: NDArray[np.str_]
    compute_ns: Floats
    num_units: float


def has_formula_alone(facts: Facts) -> Mask:
    """Rows that a formula prices and nothing corrects: there are too few timings of them, bool [P]."""
    result: Mask = np.isin(facts.family.astype(str), ("loss", "update", "multi-tensor")) | is_depthwise(facts)
    return result


def is_depthwise(facts: Facts) -> Mask:
    """Convolutions in which each channel is a group, bool [P]."""
    is_convolution = np.isin(facts.family.astype(str), ("convolution", "convolution backward"))
    result: Mask = is_convolution & (facts.column("num_groups") > 1) & (facts.column("columns") == 1)
    return result


def formula_ns(facts: Facts, device: Device, rates: Rates, otherwise: Floats) -> Floats:
    """Times by formulas; ``otherwise`` of rows without one [P]."""
    times = otherwise.copy()
    for part in parts_of(facts, device):
        if part.name in rates:
            times[part.rows] = np.maximum(part.terms @ np.array(rates[part.name]), _MIN_NS)
    return times


def parts_of(facts: Facts, device: Device) -> tuple[Part, ...]:
    """Parts of the rows that have a formula."""
    scaled = _scale(facts, device)
    parts = []
    for family, kinds in _KINDS.items():
        of_family = facts.family == family
        for name, (mask, terms) in kinds(scaled).items() if of_family.any() else ():
            rows = np.flatnonzero(of_family & mask)
            if len(rows):
                columns = [np.ones(len(facts)), *terms]
                parts.append(Part(f"{family}/{name}", rows, np.stack(columns, axis=1)[rows]))
    return tuple(parts)


def _scale(facts: Facts, device: Device) -> _Scaled:
    column = {name: facts.values[:, index] for index, name in enumerate(COLUMNS)}
    compute_ns, memory_ns = compute_and_memory_ns(facts, device)
    cache_bytes = float(device.last_cache_bytes or _CACHE_BYTES)
    slowness = _FP32_FLOPS_PER_S / device.peak_flops_per_s.get("fp32", _FP32_FLOPS_PER_S)
    ns_per_byte, dtype = 1e9 / device.bandwidth_bytes_per_s, facts.dtype.astype(str)
    return _Scaled(
        column,
        memory_ns,
        np.maximum(memory_ns - ns_per_byte * cache_bytes, 0.0),
        slowness * column["rows"] * column["columns"] / 1e3,
        ns_per_byte,
        slowness,
        np.isin(dtype, _HALF),
        dtype,
        compute_ns,
        float(device.num_units),
    )


def compute_and_memory_ns(facts: Facts, device: Device) -> tuple[Floats, Floats]:
    """Operations at the peak of their type and bytes at the bandwidth of the memory, each alone [P]."""
    peaks = {name: _peak(device, name) for name in set(facts.dtype.tolist())}
    rates = np.array([peaks[name] for name in facts.dtype.tolist()])
    moved = facts.column("read_bytes") + facts.column("written_bytes")
    return 1e9 * facts.column("flops") / rates, 1e9 * moved / device.bandwidth_bytes_per_s


def _peak(device: Device, dtype: str) -> float:
    """Peak of a type; that of fp32 where the sheet has none."""
    known = device.peak_flops_per_s
    return float(known.get(dtype, known.get("fp32", np.nan)))


def _product_kinds(scaled: _Scaled) -> _Kinds:
    """All operations, all bytes, and one block's way along the inner dimension."""
    terms = [scaled.compute_ns, scaled.memory_ns, scaled.slowness * scaled.column["inner"] / 1e3]
    return _by_arithmetic(scaled, terms)


def _attention_kinds(scaled: _Scaled) -> _Kinds:
    """As products; a block of 128 queries walks over all keys, and blocks that find no room wait for their turn."""
    column = scaled.column
    walk = scaled.slowness * column["columns"] / 1e3
    turns = np.ceil(np.maximum(column["batch"], 1.0) * np.ceil(column["rows"] / _QUERIES) / scaled.num_units)
    return _by_arithmetic(
        scaled, [scaled.compute_ns, scaled.memory_ns, walk, turns * walk, turns * walk * column["inner"]]
    )


def _by_arithmetic(scaled: _Scaled, terms: list[Floats]) -> _Kinds:
    is_tf32 = scaled.dtype == "tf32"
    return {"fp32": (~is_tf32 & ~scaled.is_half, terms), "tf32": (is_tf32, terms), "half": (scaled.is_half, terms)}


def _pointwise_kinds(scaled: _Scaled) -> _Kinds:
    """All bytes, slower beyond the last cache, and elements where each takes a function of many steps."""
    is_long = np.isin(scaled.column["variant"], (2, 3, 4, 5))
    everywhere = np.ones(len(is_long), dtype=bool)
    return {"values": (everywhere, [scaled.memory_ns, scaled.beyond_ns, scaled.elements * is_long])}


def _table_kinds(scaled: _Scaled) -> _Kinds:
    """Rows that lie on 16 bytes are moved by a block each; others element by element; sums of gradients are sorted."""
    column, variant = scaled.column, scaled.column["variant"]
    count, width, num_rows = column["rows"], column["columns"], np.maximum(column["channels"], 1.0)
    is_read, is_aligned = variant <= 1, column["alignment"] >= 16
    table_ns = scaled.ns_per_byte * num_rows * width * column["item_bytes"]
    blocks = scaled.slowness * count * np.ceil(width * column["item_bytes"] / _LINES) / 1e3
    # runs of equal numbers are added up in pieces of ten
    pieces = num_rows * (1 - np.exp(-count / num_rows)) + count / 10
    by_type = [scaled.elements * scaled.is_half, scaled.elements * ~scaled.is_half]
    return {
        "read by blocks": (is_read & is_aligned, [blocks, scaled.memory_ns]),
        "read by elements": (is_read & ~is_aligned, [scaled.elements, scaled.memory_ns]),
        "few gradients": ((variant == 2) & (count <= _FEW_NUMBERS), [table_ns, scaled.slowness * count / 1e3]),
        "sorted gradients": (
            (variant == 2) & (count > _FEW_NUMBERS),
            [table_ns, scaled.slowness * pieces * width / 1e3, scaled.slowness * count / 1e3],
        ),
        "scattered": (variant == 3, [*by_type, scaled.memory_ns]),
        "added": (variant == 4, [*by_type, scaled.memory_ns]),
    }


def _pooling_kinds(scaled: _Scaled) -> _Kinds:
    """A thread for each result of a window; where channels lie next to each other, blocks walk over an image."""
    column, variant = scaled.column, scaled.column["variant"]
    is_last = column["layout"] == 1
    results = scaled.slowness * column["rows"] * column["positions"] / 1e3
    images = column["rows"] / np.maximum(column["channels"], 1.0)
    pixels = scaled.slowness * images * column["positions"] / 1e3
    return {
        "average": (variant == 2, [results * ~is_last, results * is_last, scaled.memory_ns]),
        "largest": ((variant == 0) & ~is_last, [results]),
        "largest, channels last": ((variant == 0) & is_last, [results, pixels, column["positions"]]),
        "gradients": ((variant == 1) & ~is_last, [scaled.elements, scaled.memory_ns]),
        "gradients, channels last": ((variant == 1) & is_last, [scaled.elements, pixels, column["positions"]]),
    }


def _loss_kinds(scaled: _Scaled) -> _Kinds:
    """Losses of classes run in one block; its threads, a sixteenth of the rows, each work on some of the rows."""
    column, variant = scaled.column, scaled.column["variant"]
    rows = np.maximum(column["rows"], 1.0)
    turns = rows / np.clip(2.0 ** np.floor(np.log2(rows / 16)), 32, 1024)
    values_ns = scaled.ns_per_byte * rows * column["columns"] * column["item_bytes"]
    is_long = (rows * column["columns"] > _SHORT_LOSS).astype(float)  # several blocks, and the last one adds up
    return {
        "of classes": (variant == 0, [turns, scaled.slowness * rows / 1e3]),
        "of classes, gradients": (variant == 1, [values_ns, turns, scaled.slowness * rows / 1e3]),
        "of distances": (variant == 2, [is_long, values_ns, scaled.beyond_ns]),
        "of distances, gradients": (variant == 3, [scaled.elements, scaled.memory_ns, scaled.beyond_ns]),
    }


def _copy_kinds(scaled: _Scaled) -> _Kinds:
    """Bytes one after the other; elements by themselves where they lie otherwise."""
    column, variant = scaled.column, scaled.column["variant"]
    is_strided, is_turned = column["is_strided"] > 0, column["layout"] > 0
    is_converted = variant == 3
    is_moved = (variant == 0) | is_converted
    lines = [scaled.memory_ns, scaled.beyond_ns]
    starts = [(is_converted & ~scaled.is_half).astype(float), (is_converted & scaled.is_half).astype(float)]
    return {
        "as they lie": (is_moved & ~is_strided, [*lines, *starts]),
        "in pieces": (is_moved & is_strided & ~is_turned, [scaled.elements, scaled.memory_ns]),
        "turned": (is_moved & is_strided & is_turned, [scaled.elements, *lines]),
        "written": (variant == 1, lines),
        "joined": (variant == 2, [*lines, scaled.elements]),
    }


def _update_kinds(scaled: _Scaled) -> _Kinds:
    """A block takes a chunk: the longest one by itself, or all bytes."""
    column = scaled.column
    launches = np.maximum(column["window"], 1.0)
    longest = scaled.slowness * launches * column["columns"] / 1e3
    is_aligned, is_adam = column["alignment"] >= 16, column["variant"] == 2
    kinds = (is_adam & is_aligned, is_adam & ~is_aligned, ~is_adam & is_aligned, ~is_adam & ~is_aligned)
    terms = [is_adam.astype(float), launches - 1, *(longest * kind for kind in kinds)]
    return {"of all tensors": (launches > 0, [*terms, scaled.memory_ns, scaled.beyond_ns])}


def _list_kinds(scaled: _Scaled) -> _Kinds:
    """All bytes, or the longest chunk where that takes longer; norms have a second kernel that adds up."""
    column = scaled.column
    launches = np.maximum(column["window"], 1.0)
    moved = column["read_bytes"] + column["written_bytes"]
    chunk_ns = 1e9 * launches * moved / np.maximum(column["rows"], 1.0) / _CHUNK_BYTES_PER_S
    is_norm = (column["variant"] == 1).astype(float)
    terms = [launches - 1, np.maximum(scaled.memory_ns / _LIST_EFFICIENCY, chunk_ns), is_norm]
    return {"of all tensors": (launches > 0, terms)}


def _convolution_kinds(scaled: _Scaled) -> _Kinds:
    """Where each channel is a group, a thread computes an output; few threads share the sum of a filter's gradient."""
    column = scaled.column
    outputs = scaled.slowness * column["rows"] * column["batch"] / 1e3
    is_last = column["layout"] == 1
    terms = []
    for of_type in (~scaled.is_half, scaled.is_half):
        terms += [of_type * outputs * column["inner"], of_type * ~is_last * outputs, of_type * is_last * outputs]
    return {"of each channel": ((column["num_groups"] > 1) & (column["columns"] == 1), terms)}


def _softmax_kinds(scaled: _Scaled) -> _Kinds:
    """All bytes, slower beyond the last cache, the way along a row, and elements, dearer where rows lie unevenly."""
    column = scaled.column
    walk = scaled.slowness * column["columns"] / 1e3
    is_uneven = column["alignment"] / column["item_bytes"] < _FOUR
    terms = [scaled.memory_ns, scaled.beyond_ns, walk, scaled.elements, scaled.elements * is_uneven]
    return {"rows": (np.ones(len(walk), dtype=bool), terms)}


_KINDS = {
    "product": _product_kinds,
    "attention": _attention_kinds,
    "attention backward": _attention_kinds,
    "pointwise": _pointwise_kinds,
    "softmax": _softmax_kinds,
    "table": _table_kinds,
    "pooling": _pooling_kinds,
    "loss": _loss_kinds,
    "copy": _copy_kinds,
    "update": _update_kinds,
    "multi-tensor": _list_kinds,
    "convolution": _convolution_kinds,
    "convolution backward": _convolution_kinds,
}
