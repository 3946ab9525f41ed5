"""From nodes to those that are cut between: colors, backward partners and cycles become one node.

In: a ``Problem``. Out: ``Contraction``: a graph of forward supernodes with their ``Work``, in which every contiguous
cut is one of the problem. Costs are those of the original edges, whatever was merged. Not here: solvers.

Source: Tarnawski et al., NeurIPS 2020, section 5.1 and the released preprocessing, in its order.
"""

# N nodes, S supernodes, E edges

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.search.placement.model import Problem
from windtunnel.search.work import Groups, Work

__all__ = ["Contraction", "by_color", "contract", "merge_supernodes"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Contraction:
    """A smaller graph to cut.

    Parameters
    ----------
    problem : Problem
    super_N : int64 [N]
        Supernode of every node, forward and backward; supernodes are numbered by their first forward node.
    src, dst : int64
        Edges between supernodes, each once: those of the forward part and the mirrored ones of orphans.
    work : Work
    """

    problem: Problem
    super_N: Ints
    src: Ints
    dst: Ints
    work: Work

    @property
    def num_nodes(self) -> int:
        """S."""
        return len(self.work.memory_N)

    @property
    def order(self) -> Ints:
        """Supernodes after all their predecessors."""
        rustworkx = require("rustworkx", extra="plan")
        graph = rustworkx.PyDiGraph()
        graph.add_nodes_from(range(self.num_nodes))
        graph.add_edges_from_no_data(list(zip(self.src.tolist(), self.dst.tolist(), strict=True)))
        return np.array(rustworkx.topological_sort(graph), np.int64)

    def members(self, supernodes: NDArray[Any]) -> Ints:
        """Nodes of the problem within some supernodes."""
        return np.flatnonzero(np.isin(self.super_N, supernodes))


def contract(problem: Problem, *, shrink: bool = True) -> Contraction:
    """Contract a problem.

    Parameters
    ----------
    problem : Problem
    shrink : bool
        Merge supernodes that cost nothing into their only neighbor, which loses no cut.
    """
    pair_N, edges = _forward_part(problem)
    pair_N, edges = _without_cycles(pair_N, edges)
    if shrink:
        pair_N, edges = _shrunk(problem, pair_N, edges)
    return _number_supernodes(problem, pair_N, edges)


def merge_supernodes(contraction: Contraction, parts: Iterable[Iterable[int]]) -> Contraction:
    """The same with some sets of supernodes as one each, and whatever then lies on a cycle.

    Parameters
    ----------
    parts : sets of int
        Supernodes; sets that share one become one set.
    """
    rustworkx = require("rustworkx", extra="plan")
    graph = rustworkx.PyGraph()
    graph.add_nodes_from(range(contraction.num_nodes))
    for part in parts:
        first, *rest = sorted(part)
        graph.add_edges_from_no_data([(first, item) for item in rest])
    same = np.arange(contraction.num_nodes)
    for component in rustworkx.connected_components(graph):
        same[list(component)] = min(component)
    pairs = set(zip(contraction.src.tolist(), contraction.dst.tolist(), strict=True))
    super_N, edges = _without_cycles(same[contraction.super_N], _map_edges(pairs, same))
    return _number_supernodes(contraction.problem, super_N, edges)


def by_color(problem: Problem) -> Contraction:
    """Colors alone contracted, in no order: what any assignment keeps together."""
    _, color_N = np.unique(problem.color, return_inverse=True)
    none = np.zeros(0, np.int64)
    return Contraction(problem, color_N, none, none, _work(problem, color_N, int(color_N.max()) + 1))


def _forward_part(problem: Problem) -> tuple[Ints, set[tuple[int, int]]]:
    """Each color's nodes as one, backward nodes together with their forward partners; edges that order them.

    A color without forward nodes stands for itself: its edges to and from other backward nodes are mirrored.
    """
    _, color_N = np.unique(problem.color, return_inverse=True)
    has_forward = np.zeros(color_N.max() + 1, bool)
    has_forward[color_N[~problem.is_backward]] = True
    edges: set[tuple[int, int]] = set()
    for src, dst in zip(problem.src.tolist(), problem.dst.tolist(), strict=True):
        a, b = int(color_N[src]), int(color_N[dst])
        if a == b:
            continue
        if not problem.is_backward[dst]:
            edges.add((a, b))
        elif problem.is_backward[src] and not (has_forward[a] and has_forward[b]):
            edges.add((b, a))
    return color_N, edges


def _without_cycles(super_N: Ints, edges: set[tuple[int, int]]) -> tuple[Ints, set[tuple[int, int]]]:
    """Strongly connected supernodes as one."""
    rustworkx = require("rustworkx", extra="plan")
    graph = rustworkx.PyDiGraph()
    graph.add_nodes_from(range(int(super_N.max()) + 1))
    graph.add_edges_from_no_data(sorted(edges))
    into = np.arange(graph.num_nodes())
    for component in rustworkx.strongly_connected_components(graph):
        into[component] = min(component)
    return into[super_N], _map_edges(edges, into)


def _map_edges(edges: set[tuple[int, int]], into: Ints) -> set[tuple[int, int]]:
    pairs = ((int(into[a]), int(into[b])) for a, b in edges)
    return {(a, b) for a, b in pairs if a != b}


def _shrunk(problem: Problem, super_N: Ints, edges: set[tuple[int, int]]) -> tuple[Ints, set[tuple[int, int]]]:
    """Merge each supernode of no time into its neighbor, where it has only one in both directions.

    Apart they would only pay for a transfer. A node that some device cannot run or hold is not merged.
    """
    num = int(super_N.max()) + 1
    is_roomy = problem.size_bytes.sum() <= min(
        (type_.memory_bytes for type_ in problem.types if type_.count), default=0.0
    )
    is_free_N = (problem.time_ns == 0).all(axis=1) & ~problem.is_barred.any(axis=1)
    is_free = np.ones(num, bool)
    np.logical_and.at(is_free, super_N, is_free_N & (is_roomy | (problem.size_bytes == 0)))
    has_backward_neighbor = np.zeros(num, bool)
    mixed = problem.is_backward[problem.src] != problem.is_backward[problem.dst]
    for side, other in ((problem.src, problem.dst), (problem.dst, problem.src)):
        rows = mixed & ~problem.is_backward[side] & problem.is_backward[other]
        has_backward_neighbor[super_N[side[rows]]] = True
    into = np.arange(num)
    neighbors: dict[int, set[int]] = {node: set() for node in range(num)}
    for a, b in edges:
        neighbors[a].add(b)
        neighbors[b].add(a)
    waiting = [node for node in range(num) if is_free[node] and not has_backward_neighbor[node]]
    while waiting:
        node = waiting.pop()
        if into[node] != node or len(neighbors[node]) != 1:
            continue
        only = min(neighbors[node])
        into[into == node] = only
        neighbors[only].discard(node)
        neighbors[node] = set()
        has_backward_neighbor[only] |= has_backward_neighbor[node]
        # it lost a neighbor, and may have only one left now
        if is_free[only] and not has_backward_neighbor[only]:
            waiting.append(only)
    return into[super_N], _map_edges(edges, into)


def _number_supernodes(problem: Problem, super_N: Ints, edges: set[tuple[int, int]]) -> Contraction:
    """Supernodes from 0 in the order of their first forward nodes, with sums of what their nodes need."""
    names, compact_N = np.unique(super_N, return_inverse=True)
    first = np.full(len(names), problem.num_nodes)
    np.minimum.at(first, compact_N, np.where(problem.is_backward, problem.num_nodes, np.arange(problem.num_nodes)))
    number = np.empty(len(names), np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(names))
    index = dict(zip(names.tolist(), number.tolist(), strict=True))
    ends = np.array(sorted((index[a], index[b]) for a, b in edges), np.int64).reshape(-1, 2)
    super_N = number[compact_N]
    return Contraction(problem, super_N, ends[:, 0], ends[:, 1], _work(problem, super_N, len(names)))


def _work(problem: Problem, super_N: Ints, num: int) -> Work:
    def sum_by_supernode(values: NDArray[Any]) -> NDArray[Any]:
        total = np.zeros((num, *values.shape[1:]), np.float64)
        np.add.at(total, super_N, values)
        return total

    sizes = sum_by_supernode(problem.size_bytes)
    return Work(
        problem.types,
        sum_by_supernode(problem.time_ns),
        sizes,
        sum_by_supernode(problem.is_barred.astype(np.float64)).astype(np.int64),
        _groups(problem, super_N),
        sizes if problem.weight_bytes is None else sum_by_supernode(problem.weight_bytes),
        problem.link_scale,
    )


def _groups(problem: Problem, super_N: Ints) -> Groups:
    """Nodes of one supernode and phase whose outputs are read by the same others, their costs added."""
    readers: dict[int, set[int]] = {}
    for src, dst in zip(problem.src.tolist(), problem.dst.tolist(), strict=True):
        if super_N[src] != super_N[dst]:
            readers.setdefault(src, set()).add(int(super_N[dst]))
    costs: dict[tuple[int, bool, tuple[int, ...]], float] = {}
    for node, targets in readers.items():
        if problem.cost_ns[node] > 0:
            key = (int(super_N[node]), bool(problem.is_backward[node]), tuple(sorted(targets)))
            costs[key] = costs.get(key, 0.0) + float(problem.cost_ns[node])
    keys = sorted(costs)
    return Groups(
        np.array([own for own, _, _ in keys], np.int32),
        np.concatenate([[0], np.cumsum([len(targets) for _, _, targets in keys])]).astype(np.int64),
        np.array([target for _, _, targets in keys for target in targets], np.int32),
        np.array([costs[key] for key in keys], np.float64),
        np.array([is_backward for _, is_backward, _ in keys], np.bool_),
    )
