"""The utilization of a host's peak, and a waterfall of the losses.

In: a measured graph whose tasks say their flops and bytes, and the ceilings of the host. Out: ``Utilization``: per
layer and for the whole, and a waterfall of nanoseconds whose parts add up to the whole by construction. Not here:
capturing (sources), predicting (``cost.lookup``), advice (``search``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.host import Ceilings
from windtunnel.errors import PriceError
from windtunnel.graph import Graph, Kind
from windtunnel.graph.flops import sums_products
from windtunnel.simulate import replay, waits_for_data, with_waits_for_data
from windtunnel.systems.utilization.quantization import quantization_ratios

__all__ = ["LOSSES", "LayerUse", "Loss", "Utilization", "utilization"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

LOSSES = {
    "achieved": "products at the peak rate",
    "framework": "framework, Python and idle between operators",
    "loading": "waiting for the next batch",
    "memory": "products that wait for memory (roofline)",
    "low intensity": "operators that only move elements, at full bandwidth",
    "quantization": "channels that do not fill vectors, work that does not divide over threads",
    "kernel": "the rest: kernels below their roofline",
    "above peak": "products done in fewer operations than counted, or a peak measured too low",
    "overlap": "operators that run at the same time",
}
"""Parts of the waterfall, in its order; the last two are negative."""
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "signed char": "int8",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """One part of the waterfall: its fraction of the total time."""

    name: str
    duration_ns: float
    percent: float

    @property
    def meaning(self) -> str:
        """Description of the part."""
        return LOSSES[self.name]


@dataclass(frozen=True, slots=True)
class LayerUse:
    """One layer.

    Parameters
    ----------
    layer : str
    flops, elementwise_flops : int
        Of operators that sum products, and of the others.
    duration_ns : float
        All its tasks, those of the host too.
    utilization : float
        Time that its products would take at the peak, over its duration.
    intensity : float
        Flops per byte read or written by its products; 0 without any.
    bound : float
        The most that the roofline lets its products reach.
    """

    layer: str
    flops: int
    elementwise_flops: int
    duration_ns: float
    utilization: float
    intensity: float
    bound: float


@dataclass(frozen=True)
class Utilization:
    """The utilization of a measured job.

    Parameters
    ----------
    duration_ns : float
        Of the whole job.
    flops, elementwise_flops : int
        Of operators that sum products (the study's count), and of the others.
    value : float
        Flops over duration times peak: the flop-weighted harmonic mean of the layers.
    all_value : float
        The same with elementwise work counted as flops.
    layers : tuple of LayerUse
        Longest first.
    waterfall : tuple of Loss
        In the order of ``LOSSES``; percents add up to 100.
    """

    duration_ns: float
    flops: int
    elementwise_flops: int
    value: float
    all_value: float
    layers: tuple[LayerUse, ...]
    waterfall: tuple[Loss, ...]


def utilization(graph: Graph, ceilings: Ceilings) -> Utilization:
    """Divide the time of a measured job into useful work and losses.

    Parameters
    ----------
    graph : Graph
        Of an inference or of a training iteration.
    ceilings : Ceilings
        Of the host that ran it, at the number of threads that it used.

    Raises
    ------
    PriceError
        No task states flops, or the peak of a type is not known.

    Notes
    -----
    Source: arXiv 2212.07936 for the quantity, Williams, Waterman and Patterson, CACM 2009 for the bound.
    """
    timeline = with_waits_for_data(replay(graph))
    tasks = _Tasks(timeline.graph, ceilings)
    if not tasks.is_product.any():
        raise PriceError(
            "no task states the flops of a product, so there is no utilization",
            where=f"source {graph.meta.source!r}",
            fix="capture the job with windtunnel on this machine",
        )
    parts = _parts(tasks)
    whole = float(timeline.makespan_ns)
    # The time in which at least one of the intervals runs.
    start = timeline.start_ns[tasks.computes]
    order = np.argsort(start, kind="stable")
    begins, ends = start[order], np.maximum.accumulate(timeline.finish_ns[tasks.computes][order])
    gaps = np.maximum(begins[1:] - ends[:-1], 0)
    busy = float(ends[-1] - begins[0] - gaps.sum()) if len(begins) else 0.0
    parts["loading"] = float(tasks.duration_T[waits_for_data(tasks.graph)].sum())
    #      whole = framework + loading + busy                 busy = sum of operators - what overlaps
    #      each operator = ideal + waiting for memory + padding + the rest of its kernel
    # The parts are differences, so that they add up to the whole by construction.
    parts["framework"] = whole - busy - parts["loading"]
    parts["overlap"] = busy - float(tasks.duration_T[tasks.computes].sum())
    ideal, moved = float(tasks.ideal_T.sum()), float(tasks.elementwise_ideal_T.sum())
    return Utilization(
        whole,
        int(tasks.flops_T[tasks.is_product].sum()),
        int(tasks.flops_T[~tasks.is_product].sum()),
        ideal / whole,
        (ideal + moved) / whole,
        _layers(tasks),
        tuple(Loss(name, parts[name], 100.0 * parts[name] / whole) for name in LOSSES),
    )


class _Tasks:
    """Columns of a graph, T tasks: times in ns as floats."""

    def __init__(self, graph: Graph, ceilings: Ceilings) -> None:
        self.graph, self.ceilings = graph, ceilings
        self.computes: Mask = graph.select(kind=Kind.COMPUTE)
        self.duration_T = graph.duration_ns.astype(np.float64)
        self.flops_T = np.where(self.computes, self._column("flops"), 0.0)
        strings = self.graph.tasks.strings("op" if "op" in self.graph.tasks else "name").compact()
        known = [sums_products(text) for text in strings.values]
        self.is_product: Mask = (
            self.computes & (self.flops_T > 0) & np.array([*known, False], dtype=bool)[strings.codes]
        )
        per_s = np.array([ceilings.flops_per_s(name) for name in self._types[0]])
        peak_T = per_s[self._types[1]]
        self.ideal_T: Floats = np.where(self.is_product, 1e9 * self.flops_T / peak_T, 0.0)
        self.elementwise_ideal_T: Floats = np.where(self.is_product, 0.0, 1e9 * self.flops_T / peak_T)
        self.bytes_T = self._column("bytes_read") + self._column("bytes_written")
        rates = {size: ceilings.bytes_per_s(size) for size in np.unique(self.bytes_T).tolist()}
        self.moving_T: Floats = np.array([1e9 * size / rates[size] for size in self.bytes_T.tolist()])

    def _column(self, name: str) -> Floats:
        column = self.graph.tasks.get(name)
        return np.zeros(self.graph.num_tasks) if column is None else column.astype(np.float64)

    @cached_property
    def _types(self) -> tuple[list[str], NDArray[np.int64]]:
        """Return the distinct types of products and the row of each task's type."""
        if "input_dtypes" not in self.graph.tasks:
            return [self.ceilings.dtype], np.zeros(self.graph.num_tasks, dtype=np.int64)
        strings = self.graph.tasks.strings("input_dtypes").compact()
        named = [_dtype_of(text) or self.ceilings.dtype for text in strings.values]
        # only products need a peak: what merely moves elements of a rare type is priced at the usual one
        needed = {named[code] for code in np.unique(strings.codes[self.is_product]).tolist()}
        named = [name if name in needed else self.ceilings.dtype for name in named]
        distinct = list(dict.fromkeys([self.ceilings.dtype, *named]))
        rows = np.array([*(distinct.index(name) for name in named), 0], dtype=np.int64)
        return distinct, rows[strings.codes]


def _dtype_of(text: str) -> str:
    """Return the type of the first tensor in a captured list of types."""
    inside = text.partition("Tensor(")[2].partition(")")[0]
    return _DTYPES.get(inside, "")


def _parts(tasks: _Tasks) -> dict[str, float]:
    """Return the ns of the waterfall within operators; they add up to the durations of the operators."""
    duration, ideal = tasks.duration_T[tasks.is_product], tasks.ideal_T[tasks.is_product]
    # Each loss takes at most what the ones before it leave, so that none is counted twice.
    left = np.maximum(duration - ideal, 0.0)
    waiting = np.clip(tasks.moving_T[tasks.is_product] - ideal, 0.0, left)
    ratios = quantization_ratios(tasks.graph, tasks.is_product, tasks.ceilings)
    padded = np.clip(ideal * (ratios - 1.0), 0.0, left - waiting)
    others = tasks.computes & ~tasks.is_product
    moving = np.minimum(tasks.moving_T[others], tasks.duration_T[others])
    return {
        "achieved": float(ideal.sum()),
        "memory": float(waiting.sum()),
        "low intensity": float(moving.sum()),
        "quantization": float(padded.sum()),
        "kernel": float((left - waiting - padded).sum() + (tasks.duration_T[others] - moving).sum()),
        "above peak": float(np.minimum(duration - ideal, 0.0).sum()),
    }


def _layers(tasks: _Tasks) -> tuple[LayerUse, ...]:
    if "layer" not in tasks.graph.tasks:
        return ()
    strings = tasks.graph.tasks.strings("layer").compact()

    def sum_by_name(values: Floats) -> Floats:
        return np.bincount(strings.codes, values, len(strings.values)).astype(np.float64)

    products = tasks.is_product
    flops, elementwise = sum_by_name(tasks.flops_T * products), sum_by_name(tasks.flops_T * ~products)
    duration, ideal = sum_by_name(tasks.duration_T), sum_by_name(tasks.ideal_T)
    moved, moving = sum_by_name(tasks.bytes_T * products), sum_by_name(tasks.moving_T * products)
    rows = [
        LayerUse(
            layer,
            int(flops[row]),
            int(elementwise[row]),
            float(duration[row]),
            float(ideal[row] / duration[row]) if duration[row] > 0 else 0.0,
            float(flops[row] / moved[row]) if moved[row] > 0 else 0.0,
            float(min(1.0, ideal[row] / moving[row])) if moving[row] > 0 else float(ideal[row] > 0),
        )
        for row, layer in enumerate(strings.values)
    ]
    return tuple(sorted(rows, key=lambda row: -row.duration_ns))
