"""Time and calls by operator (subject "hotspots"). In: a graph. Out: numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.graph import Graph


@dataclass(frozen=True, slots=True)
class Hotspot:
    """An operator, the time that all of its tasks take, and how many there are."""

    operator: str
    duration_ns: int
    num_tasks: int


def find_hotspots(graph: Graph, max_rows: int) -> list[Hotspot]:
    """Operators by the time that they take, the longest first; tasks without an operator are left out."""
    operators, index = np.unique(graph.tasks.strings("op").to_numpy().astype(str), return_inverse=True)
    time_ns = np.bincount(index, graph.duration_ns, len(operators)).astype(np.int64)
    order = [row for row in np.argsort(-time_ns, kind="stable") if operators[row]]
    count = np.bincount(index, minlength=len(operators))
    return [Hotspot(str(operators[row]), int(time_ns[row]), int(count[row])) for row in order[:max_rows]]
