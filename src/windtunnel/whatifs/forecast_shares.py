"""What a predicted time is made of: by pricer, by what binds it, by class of operators.

In: a priced graph and some of its tasks. Out: shares, the longest first. Not here: the prediction (``forecast``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Graph
from windtunnel.graph.kernel_classes import class_of

__all__ = ["ClassUse", "Share", "classes_of", "shares_of", "unsure_ns"]


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a time: what one pricer, or one limit, answers for."""

    name: str
    duration_ns: int
    ratio: float
    num_tasks: int


@dataclass(frozen=True, slots=True)
class ClassUse:
    """What a class of operators takes of the device, and how much of its bound it is taken to reach."""

    name: str
    duration_ns: int
    ratio: float
    num_tasks: int
    efficiency: float


def shares_of(
    graph: Graph, tasks: NDArray[np.int32], durations: NDArray[np.int64], name: str, whole_ns: int
) -> tuple[Share, ...]:
    """Durations of tasks by a column of texts, such as ``cost_source``; ratios are of ``whole_ns``."""
    column = graph.tasks.strings(name)
    codes = column.codes[tasks]
    spent = np.bincount(codes, durations, len(column.values))
    counts = np.bincount(codes, minlength=len(column.values))
    result = [
        Share(value or "captured", int(spent[code]), float(spent[code] / max(whole_ns, 1)), int(counts[code]))
        for code, value in enumerate(column.values)
        if counts[code]
    ]
    return tuple(sorted(result, key=lambda share: -share.duration_ns))


def classes_of(graph: Graph, tasks: NDArray[np.int32], whole_ns: int) -> tuple[ClassUse, ...]:
    """Durations and efficiency of priced tasks by class of operator; ratios are of ``whole_ns``."""
    column = graph.tasks.strings("op" if "op" in graph.tasks else "name").take(tasks).compact()
    names = sorted({class_of(value) for value in column.values})
    index = np.array([names.index(class_of(value)) for value in column.values], dtype=np.int64)[column.codes]
    duration = graph.duration_ns[tasks].astype(np.float64)
    spent, least = (
        np.bincount(index, item, len(names)) for item in (duration, duration * graph.tasks["efficiency"][tasks])
    )
    counts = np.bincount(index, minlength=len(names))
    result = [
        ClassUse(
            name,
            int(spent[row]),
            float(spent[row] / max(whole_ns, 1)),
            int(counts[row]),
            float(least[row] / max(spent[row], 1.0)),
        )
        for row, name in enumerate(names)
    ]
    return tuple(sorted(result, key=lambda share: -share.duration_ns))


def unsure_ns(graph: Graph, computes: NDArray[np.int32]) -> float:
    """Time of the priced work without an interval."""
    return float(graph.duration_ns[computes][np.isnan(graph.tasks["efficiency_low"][computes])].sum())
