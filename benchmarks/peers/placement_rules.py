"""How partitioners place operators: what a plan has to beat.

In: a ``Problem``. Out: ``Plan``s by simple rules, evaluated like all others: everything on one accelerator, local
search, a balanced min-cut in the manner of Scotch, PipeDream's planner on graphs that are no chains. Some of them
know no memory limit; their loads say so.

Source: Tarnawski et al., NeurIPS 2020, section 7.
"""

# N nodes, C classes (colors), D devices

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.search.downsets import chain, depth_first
from windtunnel.search.minmax import solve
from windtunnel.search.placement.baselines import accelerator_of, plan_of_devices
from windtunnel.search.placement.contraction import contract, merge_supernodes
from windtunnel.search.placement.model import Problem
from windtunnel.search.placement.throughput import Plan, plan_of_stages

__all__ = ["local_search", "min_cut", "pipedream", "single"]

Ints = NDArray[np.int64]


def single(problem: Problem) -> Plan:
    """Everything on one accelerator."""
    return plan_of_devices(
        problem, np.zeros(problem.num_nodes, np.int64), np.array([accelerator_of(problem)]), "single"
    )


def pipedream(problem: Problem, *, ignored: Collection[str] = ()) -> Plan:
    """Biconnected parts of the graph become one node, the rest a chain; no replicas.

    On operator graphs a biconnected part often holds nearly everything, so that nothing is cut: that is the finding.

    Parameters
    ----------
    problem : Problem
    ignored : names
        Nodes whose outputs join nothing, such as a mask that every layer reads.
    """
    began_s = time.monotonic()
    contraction = contract(problem)
    parts = _biconnected(problem, ignored)
    smaller = merge_supernodes(contraction, [set(contraction.super_N[sorted(part)].tolist()) for part in parts])
    order = depth_first(smaller.num_nodes, smaller.src, smaller.dst)
    table = solve(chain(order), smaller.work)
    stages = table.stages()
    if not stages:
        return plan_of_devices(
            problem, np.zeros(problem.num_nodes, np.int64), np.array([accelerator_of(problem)]), "pipedream"
        )
    return plan_of_stages(smaller, stages, "sum", "pipedream", time.monotonic() - began_s, 0.0)


def _biconnected(problem: Problem, ignored: Collection[str]) -> list[set[int]]:
    """The tails of the edges of each biconnected component."""
    rustworkx = require("rustworkx", extra="plan")
    graph = rustworkx.PyGraph(multigraph=False)
    graph.add_nodes_from(range(problem.num_nodes))
    pairs = sorted(set(zip(problem.src.tolist(), problem.dst.tolist(), strict=True)))
    edges = [(a, b) for a, b in pairs if problem.names[a] not in ignored]
    graph.add_edges_from_no_data(edges)
    component_of = rustworkx.biconnected_components(graph)
    tails: dict[int, set[int]] = {}
    for a, b in edges:
        component = component_of[(a, b)] if (a, b) in component_of else component_of[(b, a)]
        tails.setdefault(component, set()).add(a)
    return [one for one in tails.values() if len(one) > 1]


def local_search(problem: Problem, *, num_restarts: int = 10, seed: int = 0) -> Plan:
    """A random accelerator for each color, then the best single move as long as one helps; memory is not looked at."""
    began_s = time.monotonic()
    kind = accelerator_of(problem)
    num_devices = problem.types[kind].count
    _, color_N = np.unique(problem.color, return_inverse=True)
    arrays = _packed(problem, color_N, kind)
    rng = np.random.default_rng(seed)
    best: tuple[float, Ints] = (np.inf, np.zeros(0, np.int64))
    for _ in range(num_restarts):
        device_C = rng.integers(0, num_devices, color_N.max() + 1)
        value = _descend(device_C, num_devices, *arrays)
        if value < best[0]:
            best = (value, device_C)
    device_N = best[1][color_N]
    return plan_of_devices(problem, device_N, np.full(num_devices, kind), "local search", time.monotonic() - began_s)


def _packed(problem: Problem, color_N: Ints, kind: int) -> tuple[NDArray[Any], ...]:
    """Members of colors and readers of nodes as the loops take them."""
    order = np.argsort(color_N, kind="stable")
    ptr = np.searchsorted(color_N[order], np.arange(color_N.max() + 2))
    pairs = np.unique(np.stack([problem.src, problem.dst]), axis=1)
    by_dst = pairs[:, np.argsort(pairs[1], kind="stable")]
    nodes = np.arange(problem.num_nodes + 1)
    return (
        color_N.astype(np.int64),
        order,
        ptr,
        problem.time_ns[:, kind].copy(),
        problem.cost_ns * problem.types[kind].comm_scale,
        pairs[1].copy(),
        np.searchsorted(pairs[0], nodes),
        by_dst[0].copy(),
        np.searchsorted(by_dst[1], nodes),
    )


@numba.njit(cache=True)
def _descend(device_C: Any, num_devices: int, color_N: Any, order: Any, ptr: Any, time_N: Any, cost_N: Any,
             readers: Any, reader_ptr: Any, writers: Any, writer_ptr: Any) -> Any:  # fmt: skip
    """Best single moves until none gains; changes ``device_C``, gives the largest load."""
    num_nodes = color_N.size
    count_ND = np.zeros((num_nodes, num_devices), np.int64)  # readers by device
    for node in range(num_nodes):
        for at in range(reader_ptr[node], reader_ptr[node + 1]):
            count_ND[node, device_C[color_N[readers[at]]]] += 1
    load_D = np.zeros(num_devices)
    for node in range(num_nodes):
        load_D[device_C[color_N[node]]] += time_N[node]
        _sends(node, 1.0, device_C, color_N, cost_N, count_ND, reader_ptr, load_D)
    trial_D = np.empty(num_devices)
    while True:
        best_value, best_color, best_device = load_D.max() - 1e-5, -1, -1
        for color in range(ptr.size - 1):
            before = device_C[color]
            for device in range(num_devices):
                if device == before:
                    continue
                trial_D[:] = load_D
                _move(color, device, device_C, color_N, order, ptr, time_N, cost_N, reader_ptr, writers,
                      writer_ptr, count_ND, trial_D)  # fmt: skip
                value = trial_D.max()
                _move(color, before, device_C, color_N, order, ptr, time_N, cost_N, reader_ptr, writers,
                      writer_ptr, count_ND, trial_D)  # fmt: skip
                if value < best_value:
                    best_value, best_color, best_device = value, color, device
        if best_color < 0:
            return load_D.max()
        _move(best_color, best_device, device_C, color_N, order, ptr, time_N, cost_N, reader_ptr, writers,
              writer_ptr, count_ND, load_D)  # fmt: skip


@numba.njit(cache=True)
def _sends(node: int, sign: float, device_C: Any, color_N: Any, cost_N: Any, count_ND: Any, reader_ptr: Any,
           load_D: Any) -> None:  # fmt: skip
    """Add (or take off) what one node's output costs every device."""
    own = device_C[color_N[node]]
    if count_ND[node, own] < reader_ptr[node + 1] - reader_ptr[node]:
        load_D[own] += sign * cost_N[node]
        for device in range(load_D.size):
            if device != own and count_ND[node, device] > 0:
                load_D[device] += sign * cost_N[node]


@numba.njit(cache=True)
def _move(color: int, device: int, device_C: Any, color_N: Any, order: Any, ptr: Any, time_N: Any, cost_N: Any,
          reader_ptr: Any, writers: Any, writer_ptr: Any, count_ND: Any, load_D: Any) -> None:  # fmt: skip
    """Move a color and keep loads and counts right: senders inside and before it are taken off and put on again."""
    before = device_C[color]
    for place in range(ptr[color], ptr[color + 1]):
        node = order[place]
        load_D[before] -= time_N[node]
        load_D[device] += time_N[node]
    _toggle(color, -1.0, device_C, color_N, order, ptr, cost_N, reader_ptr, writers, writer_ptr, count_ND, load_D)
    for place in range(ptr[color], ptr[color + 1]):
        node = order[place]
        for at in range(writer_ptr[node], writer_ptr[node + 1]):
            count_ND[writers[at], before] -= 1
            count_ND[writers[at], device] += 1
    device_C[color] = device
    _toggle(color, 1.0, device_C, color_N, order, ptr, cost_N, reader_ptr, writers, writer_ptr, count_ND, load_D)


@numba.njit(cache=True)
def _toggle(color: int, sign: float, device_C: Any, color_N: Any, order: Any, ptr: Any, cost_N: Any, reader_ptr: Any,
            writers: Any, writer_ptr: Any, count_ND: Any, load_D: Any) -> None:  # fmt: skip
    """Outputs of a color's nodes, and those that its nodes read, each once."""
    seen = set()
    for place in range(ptr[color], ptr[color + 1]):
        node = order[place]
        if node not in seen:
            seen.add(node)
            _sends(node, sign, device_C, color_N, cost_N, count_ND, reader_ptr, load_D)
        for at in range(writer_ptr[node], writer_ptr[node + 1]):
            if writers[at] not in seen:
                seen.add(writers[at])
                _sends(writers[at], sign, device_C, color_N, cost_N, count_ND, reader_ptr, load_D)


def min_cut(problem: Problem, *, imbalance: float = 0.05, num_passes: int = 50) -> Plan:
    """Parts of equal work with little between them, in any order; memory is not looked at.

    The undirected graph of colors: weights are times, an edge is the cost of every distinct source across it. Parts
    of a topological order are refined by the single move that takes most from the cut and keeps the balance.
    """
    began_s = time.monotonic()
    kind = accelerator_of(problem)
    num_devices = problem.types[kind].count
    _, color_N = np.unique(problem.color, return_inverse=True)
    weight_C: Any = np.bincount(color_N, problem.time_ns[:, kind])
    between = _between(problem, color_N)
    first_C = np.full(len(weight_C), problem.num_nodes)
    place_N = np.empty(problem.num_nodes, np.int64)
    place_N[problem.order] = np.arange(problem.num_nodes)
    np.minimum.at(first_C, color_N, place_N)
    order = np.argsort(first_C, kind="stable")
    share = (np.cumsum(weight_C[order]) - weight_C[order] / 2) / max(weight_C.sum(), 1e-300)
    device_C = np.empty(len(weight_C), np.int64)
    device_C[order] = np.minimum((share * num_devices).astype(np.int64), num_devices - 1)
    _refined(device_C, weight_C, between, num_devices, (1 + imbalance) * weight_C.sum() / num_devices, num_passes)
    return plan_of_devices(
        problem, device_C[color_N], np.full(num_devices, kind), "min-cut", time.monotonic() - began_s
    )


def _between(problem: Problem, color_N: Ints) -> list[dict[int, float]]:
    """By color, its neighbors with the cost of what either sends the other."""
    found: list[dict[int, float]] = [{} for _ in range(int(color_N.max()) + 1)]
    seen: set[tuple[int, int]] = set()
    for src, dst in zip(problem.src.tolist(), problem.dst.tolist(), strict=True):
        a, b = int(color_N[src]), int(color_N[dst])
        if a == b or (src, b) in seen:
            continue
        seen.add((src, b))
        cost = float(problem.cost_ns[src])
        found[a][b] = found[a].get(b, 0.0) + cost
        found[b][a] = found[b].get(a, 0.0) + cost
    return found


def _refined(
    device_C: Ints,
    weight_C: NDArray[np.float64],
    between: list[dict[int, float]],
    num_devices: int,
    most: float,
    num_passes: int,
) -> None:
    """Move colors one by one to where most of what they exchange lies, while no part becomes too heavy."""
    weight_D = np.bincount(device_C, weight_C, num_devices)
    for _ in range(num_passes):
        is_changed = False
        for color, others in enumerate(between):
            own = int(device_C[color])
            pull = np.zeros(num_devices)
            for other, cost in others.items():
                pull[device_C[other]] += cost
            fits = weight_D + weight_C[color] <= max(most, float(weight_D[own]))
            fits[own] = True
            target = int(np.where(fits, pull, -1.0).argmax())
            if pull[target] > pull[own]:
                weight_D[own] -= weight_C[color]
                weight_D[target] += weight_C[color]
                device_C[color] = target
                is_changed = True
        if not is_changed:
            return
