"""Which neighboring kernels a compiler makes one of.

In: kernels that follow each other on a stream, none of which multiplies matrices. Out: groups as Inductor forms them:
kernels share memory (one reads what another writes, or both read the same) and loop over as many elements, and no
group waits for another that waits for it. Where a graph does not say what kernels hand each other, all are one group.
Not here: which kernels take part, what becomes of a group (``compilation``).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict

import numpy as np

from windtunnel.graph import EdgeKind, Graph

__all__ = ["group_for_compiler"]


def group_for_compiler(graph: Graph, chain: list[int]) -> list[list[int]]:
    """Groups of a chain's kernels, each in order.

    Parameters
    ----------
    graph : Graph
    chain : list of int
        Rows of kernels, in the order of their stream.
    """
    spaces = _num_elements(graph, chain)
    if spaces is None:
        return [chain]
    producers, sources = _producers(graph, chain)
    if not any(producers.values()):
        return [chain]
    group_of: dict[int, int] = {}
    waits_for: dict[int, set[int]] = defaultdict(set)  # by group: groups whose results it needs
    for row in chain:
        partners = [*producers[row], *(other for other in group_of if sources[other] & sources[row])]
        candidates = [group_of[other] for other in partners if spaces[other] == spaces[row]]
        needs = {group_of[other] for other in producers[row]}
        group = next((item for item in candidates if not _is_needed(item, needs - {item}, waits_for)), len(chain) + row)
        group_of[row] = group
        waits_for[group] |= needs - {group}
    groups: dict[int, list[int]] = defaultdict(list)
    for row, group in group_of.items():
        groups[group].append(row)
    return list(groups.values())


def _is_needed(group: int, by: set[int], waits_for: dict[int, set[int]]) -> bool:
    """Whether one of several groups waits for a group, directly or not."""
    seen: set[int] = set()
    todo = list(by)
    while todo:
        item = todo.pop()
        if item == group:
            return True
        if item not in seen:
            seen.add(item)
            todo.extend(waits_for[item])
    return False


def _num_elements(graph: Graph, chain: list[int]) -> dict[int, int] | None:
    """Over how many elements each kernel loops: those of its largest input."""
    if "input_shapes" not in graph.tasks:
        return None
    texts = graph.tasks.strings("input_shapes")
    result = {row: _largest(json.loads(texts.decode(row) or "[]")) for row in chain}
    return result if any(result.values()) else None


def _largest(shapes: object) -> int:
    if not isinstance(shapes, list):
        return 0
    if shapes and all(isinstance(size, int) for size in shapes):
        return math.prod(shapes)
    return max((_largest(item) for item in shapes), default=0)


def _producers(graph: Graph, chain: list[int]) -> tuple[dict[int, list[int]], dict[int, set[int]]]:
    """Kernels of the chain whose results each one reads, and all tasks whose results it reads."""
    edges, members = graph.edges, set(chain)
    rows = np.zeros(graph.num_tasks, dtype=bool)
    rows[chain] = True
    is_read = rows[edges["dst"]] & (edges["kind"] == EdgeKind.DATA)
    producers: dict[int, list[int]] = {row: [] for row in chain}
    sources: dict[int, set[int]] = {row: set() for row in chain}
    for source, row in zip(edges["src"][is_read].tolist(), edges["dst"][is_read].tolist(), strict=True):
        sources[row].add(source)
        if source in members:
            producers[row].append(source)
    return producers, sources
