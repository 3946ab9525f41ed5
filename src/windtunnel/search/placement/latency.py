"""When one sample is done: any split of a graph evaluated for latency, and quick splits.

In: a ``Problem`` for inference and a device for every node. Out: the finish time of every piece and node. Nodes on
CPUs run as soon as their inputs are there; an accelerator runs contiguous pieces one after another, each waits for
all of its inputs to arrive and sends all of its outputs at its end. Not here: the integer program (``latency_ilp``).

Source: Tarnawski et al., NeurIPS 2020, sections 3 and 6, and its released evaluator.
"""

# N nodes, D devices, P pieces

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.errors import InfeasibleError, InputError, NotApplicableError
from windtunnel.search.placement.contraction import contract
from windtunnel.search.placement.model import Problem
from windtunnel.search.placement.throughput import Plan

__all__ = ["Latency", "descend", "greedy", "latency_of", "longest_path_ns", "of_plan", "on_cpus", "require_inference"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Latency:
    """One sample's way through a split.

    Parameters
    ----------
    piece : int64 [N]
        Contiguous piece of each node; -1 on a CPU.
    device_P : int64 [P]
        Device of each piece.
    start_ns, finish_ns : float64 [P]
    done_ns : float64 [N]
        When a node's output is in host memory.
    """

    piece: Ints
    device_P: Ints
    start_ns: Floats
    finish_ns: Floats
    done_ns: Floats

    @property
    def total_ns(self) -> float:
        """When all is done."""
        return float(self.done_ns.max(initial=0.0))


def require_inference(problem: Problem) -> None:
    """Latency is that of one sample forward.

    Raises
    ------
    NotApplicableError
        There are backward nodes.
    """
    if problem.is_backward.any():
        raise NotApplicableError(
            "latency is of inference, and this graph has backward nodes", fix="--objective throughput"
        )


def pieces_of(problem: Problem, inside: NDArray[np.bool_]) -> Ints:
    """How often the way to each node has come back into a set: nodes of the set with one number are contiguous [N]."""
    number = np.zeros(problem.num_nodes, np.int64)
    before = problem.before
    for node in problem.order.tolist():
        ends = before[node]
        if inside[node]:
            number[node] = max((number[end] + (0 if inside[end] else 1) for end in ends), default=1)
            number[node] = max(1, number[node])
        else:
            number[node] = max((number[end] for end in ends), default=0)
    return number


def latency_of(problem: Problem, device: NDArray[Any], kind: NDArray[Any]) -> Latency:
    """Evaluate a split.

    Parameters
    ----------
    problem : Problem
    device : int [N]
        Row of ``kind``; all rows of a type without communication are one pool of CPUs.
    kind : int [D]

    Raises
    ------
    InputError
        Two pieces wait for each other: names a node of each.
    NotApplicableError
        There are backward nodes.
    """
    require_inference(problem)
    device_N, kind_D = np.asarray(device, np.int64), np.asarray(kind, np.int64)
    is_cpu_D = np.array([problem.types[item].comm_scale == 0 for item in kind_D.tolist()], bool)
    unit = np.full(problem.num_nodes, -1)
    device_P: list[int] = []
    first_of: list[list[int]] = []
    for index in np.unique(device_N).tolist():
        if is_cpu_D[index]:
            continue
        numbers = pieces_of(problem, device_N == index)
        for number in np.unique(numbers[device_N == index]).tolist():
            members = np.flatnonzero((device_N == index) & (numbers == number))
            unit[members] = len(device_P)
            device_P.append(index)
            first_of.append(members.tolist())
    return _schedule_pieces(problem, unit, np.array(device_P, np.int64), kind_D, kind_D[device_N])


def _schedule_pieces(problem: Problem, piece_N: Ints, device_P: Ints, kind_D: Ints, kind_N: Ints) -> Latency:
    """Pieces and CPU nodes in an order that respects both the graph and each device's own order of pieces."""
    rustworkx = require("rustworkx", extra="plan")
    num_pieces = len(device_P)
    # Vertices 0 .. P-1 are pieces, P + node is a node on the CPUs (vertices of placed nodes stay isolated).
    # Contracting pieces may close a cycle, which no order could run: it is reported with its nodes.
    vertex_N = np.where(piece_N >= 0, piece_N, num_pieces + np.arange(problem.num_nodes))
    graph = rustworkx.PyDiGraph(multigraph=False)
    graph.add_nodes_from(range(num_pieces + problem.num_nodes))
    pairs = {
        (int(vertex_N[a]), int(vertex_N[b])) for a, b in zip(problem.src.tolist(), problem.dst.tolist(), strict=True)
    }
    own = {(a, b) for a, b in zip(range(num_pieces), range(1, num_pieces), strict=False) if device_P[a] == device_P[b]}
    graph.add_edges_from_no_data(sorted((pairs | own) - {(a, a) for a in range(num_pieces)}))
    try:
        order = rustworkx.topological_sort(graph)
    except rustworkx.DAGHasCycle as error:
        raise InputError("pieces of this split wait for each other", where=_cycle(problem, piece_N, graph)) from error
    members: list[list[int]] = [[] for _ in range(num_pieces)]
    for node in np.flatnonzero(piece_N >= 0).tolist():
        members[piece_N[node]].append(node)
    before = problem.before
    after: list[set[int]] = [set() for _ in range(problem.num_nodes)]
    for a, b in zip(problem.src.tolist(), problem.dst.tolist(), strict=True):
        after[a].add(b)
    start, finish, done = np.zeros(num_pieces), np.zeros(num_pieces), np.zeros(problem.num_nodes)
    for vertex in order:
        if vertex >= num_pieces:
            node = vertex - num_pieces
            if piece_N[node] < 0:
                ready = max((done[end] for end in before[node]), default=0.0)
                done[node] = ready + problem.time_ns[node, kind_N[node]]
            continue
        kind = int(kind_D[device_P[vertex]])
        scale = problem.types[kind].comm_scale
        # A piece loads all of its inputs, computes, and stores all outputs that anything outside reads; nothing
        # overlaps, as in the paper. Each tensor moves once, however many nodes of the piece read it.
        inputs = {end for node in members[vertex] for end in before[node] if piece_N[end] != vertex}
        outputs = [node for node in members[vertex] if any(piece_N[other] != vertex for other in after[node])]
        is_next = vertex > 0 and device_P[vertex - 1] == device_P[vertex]
        start[vertex] = max([done[end] for end in inputs] + [finish[vertex - 1] if is_next else 0.0])
        moved = sum(problem.cost_ns[node] for node in [*inputs, *outputs])
        finish[vertex] = start[vertex] + problem.time_ns[members[vertex], kind].sum() + scale * moved
        done[members[vertex]] = finish[vertex]
    return Latency(piece_N, device_P, start, finish, done)


def _cycle(problem: Problem, piece_N: Ints, graph: Any) -> str:
    rustworkx = require("rustworkx", extra="plan")
    inside = next(
        strongly_connected_component
        for strongly_connected_component in rustworkx.strongly_connected_components(graph)
        if len(strongly_connected_component) > 1
    )
    nodes = [problem.names[int(np.flatnonzero(piece_N == piece)[0])] for piece in inside if piece <= piece_N.max()]
    return "nodes " + ", ".join(nodes[:4])


def longest_path_ns(problem: Problem) -> Floats:
    """What no split is below, for every node [N]: the longest way to it, each node on the device that suits it best."""
    counts = np.array([type_.count for type_ in problem.types])
    times = np.where(problem.is_barred | (counts == 0), np.inf, problem.time_ns).min(axis=1)
    result = np.zeros(problem.num_nodes)
    before = problem.before
    for node in problem.order.tolist():
        result[node] = times[node] + max((result[end] for end in before[node]), default=0.0)
    return result


def of_plan(plan: Plan, bound_ns: float | None = None, solver: str = "") -> Plan:
    """The same assignment judged by latency."""
    began_s = time.monotonic()
    value = latency_of(plan.problem, plan.device, plan.kind).total_ns
    bound = float(longest_path_ns(plan.problem).max(initial=0.0)) if bound_ns is None else bound_ns
    return Plan(
        plan.problem,
        plan.device,
        plan.kind,
        plan.replicas,
        value,
        min(bound, value),
        solver or f"{plan.solver}, for latency",
        plan.seconds + time.monotonic() - began_s,
        plan.note,
    )


def greedy(problem: Problem) -> Plan:
    """Blocks in topological order fill one accelerator after another while memory lasts; the rest runs on CPUs.

    A block holds what cannot be parted: a color, or colors that wait for each other.

    Raises
    ------
    InfeasibleError
        There is no CPU for what is left.
    """
    require_inference(problem)
    began_s = time.monotonic()
    contraction = contract(problem, shrink=False)
    work = contraction.work
    slots = [kind for kind, type_ in enumerate(work.types) if type_.comm_scale for _ in range(type_.count)]
    cpus = [kind for kind, type_ in enumerate(work.types) if not type_.comm_scale and type_.count]
    device_S = np.full(contraction.num_nodes, -1)
    slot, used = 0, 0.0
    for block in contraction.order.tolist():
        while slot < len(slots) and used + work.memory_N[block] > work.types[slots[slot]].memory_bytes * (1 + _SLACK):
            slot, used = slot + 1, 0.0
        if slot == len(slots):
            break
        # a block that this one may not run is left to the CPUs, though a later accelerator might take it
        if not work.barred_NT[block, slots[slot]]:
            device_S[block] = slot
            used += work.memory_N[block]
    if (device_S < 0).any() and not cpus:
        raise InfeasibleError("the accelerators are full and there is no CPU", fix="more memory, or a CPU")
    kinds = np.array([*slots, *cpus[:1]], np.int64)
    device_S[device_S < 0] = len(slots)
    plan = Plan.of(problem, device_S[contraction.super_N], kinds, "greedy", time.monotonic() - began_s)
    return of_plan(plan, solver="greedy")


def on_cpus(problem: Problem) -> Plan:
    """Everything on CPUs, which run side by side.

    Raises
    ------
    InfeasibleError
        There is none.
    """
    require_inference(problem)
    cpus = [kind for kind, type_ in enumerate(problem.types) if not type_.comm_scale and type_.count]
    if not cpus:
        raise InfeasibleError("there is no CPU", where="devices")
    device, ones = np.zeros(problem.num_nodes, np.int64), np.ones(1, np.int64)
    return of_plan(Plan(problem, device, np.array(cpus[:1]), ones, 0.0, 0.0, "on CPUs", 0.0), solver="on CPUs")


def descend(plan: Plan, *, num_pieces: int = 1, time_limit_s: float = 30.0, seed: int = 0) -> Plan:
    """Move what cannot be parted, one by one, to wherever latency falls, until nothing helps or time is over.

    Parameters
    ----------
    plan : Plan
        With its latency as value.
    num_pieces : int
        Contiguous pieces per accelerator, at most.
    time_limit_s : float
    seed : int
        Of the order in which moves are tried.
    """
    began_s = time.monotonic()
    problem = plan.problem
    contraction = contract(problem, shrink=False)
    slots = np.array(
        [kind for kind, type_ in enumerate(problem.types) for _ in range(type_.count if type_.comm_scale else 1)]
    )
    # Each node's row of ``slots``; devices of one type take them in turn, CPUs share one.
    free = {kind: np.flatnonzero(slots == kind).tolist() for kind in set(slots.tolist())}
    index = [free[kind][0] if len(free[kind]) == 1 else free[kind].pop(0) for kind in plan.kind.tolist()]
    device_S = np.array(index)[plan.device][np.unique(contraction.super_N, return_index=True)[1]]
    limits = np.array([problem.types[kind].memory_bytes * (1 + _SLACK) for kind in slots.tolist()])
    counts = np.array([problem.types[kind].count for kind in slots.tolist()])
    work = contraction.work
    rng = np.random.default_rng(seed)
    best, is_changed = plan.value_ns, True
    while is_changed:
        is_changed = False
        for node in rng.permutation(contraction.num_nodes).tolist():
            own = int(device_S[node])
            used = np.bincount(device_S, work.memory_N, len(slots))
            for target in _worth_trying(contraction, device_S, node, slots, problem):
                is_full = used[target] + work.memory_N[node] > limits[target]
                if is_full or work.barred_NT[node, slots[target]] or not counts[target]:
                    continue
                if time.monotonic() - began_s > time_limit_s:
                    return _keep_better_plan(plan, device_S[contraction.super_N], slots, best, began_s)
                device_S[node] = target
                value = _value(problem, device_S[contraction.super_N], slots, num_pieces)
                if value < best * (1 - _SLACK):
                    best, own, is_changed = value, target, True
                device_S[node] = own
    return _keep_better_plan(plan, device_S[contraction.super_N], slots, best, began_s)


def _worth_trying(contraction: Any, device_S: Ints, node: int, slots: Ints, problem: Problem) -> list[int]:
    """Devices of neighbors, one that is empty of each type, and CPUs."""
    ends = np.concatenate([contraction.src[contraction.dst == node], contraction.dst[contraction.src == node]])
    result = set(device_S[ends].tolist())
    used = set(device_S.tolist())
    for kind in set(slots.tolist()):
        rows = np.flatnonzero(slots == kind).tolist()
        empty = [row for row in rows if row not in used]
        result |= set(empty[:1]) if problem.types[kind].comm_scale else {rows[0]}
    return sorted(result - {int(device_S[node])})


def _value(problem: Problem, device_N: Ints, slots: Ints, num_pieces: int) -> float:
    try:
        result = latency_of(problem, device_N, slots)
    except InputError:
        return float("inf")
    if len(result.device_P) and np.bincount(result.device_P).max() > num_pieces:
        return float("inf")
    return result.total_ns


def _keep_better_plan(plan: Plan, device_N: Ints, slots: Ints, value_ns: float, began_s: float) -> Plan:
    if value_ns >= plan.value_ns:
        return plan
    seconds = plan.seconds + time.monotonic() - began_s
    moved = Plan.of(plan.problem, device_N, slots, f"{plan.solver}, then single moves", seconds)
    return of_plan(moved, plan.bound_ns, moved.solver)
