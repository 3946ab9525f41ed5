"""Latency as an integer program: the best split that HiGHS or CP-SAT finds, and what they prove.

In: a ``Problem`` for inference, a known ``Plan``. Out: a ``Plan`` whose value is that of the evaluator. Every
accelerator holds up to ``num_pieces`` contiguous pieces that run in order; pieces are the slots of the program, slot
0 is the CPUs. Not here: what a split takes (``latency``).

Source: Tarnawski et al., NeurIPS 2020, section 6. Stronger than there: no time below the longest way to its node, and
big-M is what is known to be reachable.
"""

# N nodes, S slots, E edges

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.search.integer import Model
from windtunnel.search.placement.latency import latency_of, longest_path_ns, require_inference
from windtunnel.search.placement.model import Problem
from windtunnel.search.placement.throughput import Plan

__all__ = ["integer_latency"]

GAP, TIME_LIMIT_S = 0.01, 3600.0
_TICKS = 1e7  # of a known solution: CP-SAT counts in whole numbers
Solver = Literal["highs", "cp-sat"]
Values = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Slots:
    """What both solvers share.

    Parameters
    ----------
    device_S : int64 [S]
        Accelerator of each slot; -1 for the CPUs, which are slot 0.
    kind_S : int64 [S]
        Type of each slot.
    earliest_ns : float64 [N]
        No node is done before.
    limit_ns : float
        A value that is known to be reachable.
    known_N : int64 [N]
        Slot of each node in the split that reaches it; empty where it has more pieces than slots.
    """

    problem: Problem
    device_S: Values
    kind_S: Values
    earliest_ns: NDArray[np.float64]
    limit_ns: float
    known_N: Values

    @classmethod
    def of(cls, problem: Problem, start: Plan, num_pieces: int) -> _Slots:
        """Slots of every accelerator after those of the one before."""
        accelerators = [
            kind for kind, type_ in enumerate(problem.types) if type_.comm_scale for _ in range(type_.count)
        ]
        cpus = [kind for kind, type_ in enumerate(problem.types) if not type_.comm_scale]
        device = [-1, *(index for index in range(len(accelerators)) for _ in range(num_pieces))]
        kind = [cpus[0] if cpus else -1, *(accelerator for accelerator in accelerators for _ in range(num_pieces))]
        slots = cls(
            problem, np.array(device), np.array(kind), longest_path_ns(problem), start.value_ns, np.zeros(0, np.int64)
        )
        return replace(slots, known_N=_slots_of_plan(slots, start))

    @property
    def has_cpu(self) -> bool:
        """Whether slot 0 may be used."""
        return bool(self.kind_S[0] >= 0) and self.problem.types[self.kind_S[0]].count > 0

    def may(self, node: int, slot: int) -> bool:
        """Whether a node can be in a slot."""
        if slot == 0 and not self.has_cpu:
            return False
        return not bool(self.problem.is_barred[node, self.kind_S[slot]])

    def edges(self) -> list[tuple[int, int]]:
        """Edges, each once."""
        return sorted(set(zip(self.problem.src.tolist(), self.problem.dst.tolist(), strict=True)))

    def colors(self) -> list[list[int]]:
        """Nodes of one color, where there is more than one."""
        groups = [np.flatnonzero(self.problem.color == item).tolist() for item in np.unique(self.problem.color)]
        return [group for group in groups if len(group) > 1]

    def slots_of(self, device: int) -> list[int]:
        """Slots of one accelerator."""
        return np.flatnonzero(self.device_S == device).tolist()

    @property
    def num_devices(self) -> int:
        """Accelerators."""
        return int(self.device_S.max(initial=-1)) + 1

    def plan(self, slot_N: Values, bound_ns: float, solver: str, seconds: float) -> Plan | None:
        """The split that a solver found, judged by the evaluator; None where that refuses it."""
        kinds = [self.kind_S[self.slots_of(index)[0]] for index in range(self.num_devices)]
        plan = Plan.of(self.problem, self.device_S[slot_N], np.array([*kinds, self.kind_S[0]]), solver, seconds)
        try:
            value = latency_of(self.problem, plan.device, plan.kind).total_ns
        except InputError:
            return None
        return replace(plan, value_ns=value, bound_ns=min(bound_ns, value)) if plan.loads.is_allowed else None


def _slots_of_plan(slots: _Slots, plan: Plan) -> Values:
    """Slot of every node: a device's pieces take its slots in their order."""
    result = latency_of(plan.problem, plan.device, plan.kind)
    free = {
        kind: [i for i in range(slots.num_devices) if slots.kind_S[slots.slots_of(i)[0]] == kind]
        for kind in set(plan.kind.tolist())
    }
    accelerators = list(dict.fromkeys(result.device_P.tolist()))
    device = {accelerator: free[int(plan.kind[accelerator])].pop(0) for accelerator in accelerators}
    slot_P: list[int] = []
    for piece, index in enumerate(result.device_P.tolist()):
        local = slots.slots_of(device[index])
        number = int((result.device_P[:piece] == index).sum())
        if number >= len(local):
            return np.zeros(0, np.int64)
        slot_P.append(local[number])
    return np.array([slot_P[piece] if piece >= 0 else 0 for piece in result.piece.tolist()], np.int64)


def integer_latency(
    problem: Problem,
    start: Plan,
    *,
    solver: Solver = "highs",
    num_pieces: int = 1,
    gap: float = GAP,
    time_limit_s: float = TIME_LIMIT_S,
) -> Plan:
    """The best split for latency that a solver finds.

    Parameters
    ----------
    problem : Problem
    start : Plan
        Known, with its latency as value; the answer is not worse.
    solver : str
        ``highs`` or ``cp-sat``.
    num_pieces : int
        Contiguous pieces per accelerator, at most.
    gap, time_limit_s : float

    Raises
    ------
    InputError
        The solver is unknown.
    InfeasibleError
        The known plan does not fit.
    NotApplicableError
        There are backward nodes.
    """
    require_inference(problem)
    if not start.loads.is_allowed:
        raise InfeasibleError("the known plan does not fit", where=start.solver, fix="begin with the greedy one")
    solvers: dict[str, Callable[..., tuple[Values | None, float]]] = {"highs": _by_highs, "cp-sat": _by_cp_sat}
    if solver not in solvers:
        raise InputError(f"no solver is called {solver!r}", where="solver", fix=", ".join(solvers))
    began_s = time.monotonic()
    slots = _Slots.of(problem, start, num_pieces)
    try:
        slot_N, bound_ns = solvers[solver](slots, gap, time_limit_s)
    except KeyboardInterrupt:
        slot_N, bound_ns = None, 0.0
    bound_ns = max(bound_ns, float(slots.earliest_ns.max(initial=0.0)))
    seconds = time.monotonic() - began_s
    name = f"{solver}, {num_pieces} piece{'s' if num_pieces > 1 else ''} each"
    result = slots.plan(slot_N, bound_ns, name, seconds) if slot_N is not None else None
    if result is not None and result.value_ns <= start.value_ns:
        return result
    return Plan(
        problem, start.device, start.kind, start.replicas, start.value_ns, min(bound_ns, start.value_ns), name, seconds,
        f"nothing better than {start.solver} was found",
    )  # fmt: skip


# --- HiGHS ------------------------------------------------------------------------------------------------


def _by_highs(slots: _Slots, gap: float, time_limit_s: float) -> tuple[Values | None, float]:
    problem, model = slots.problem, Model()
    num, num_slots = problem.num_nodes, len(slots.device_S)
    unit_ns = slots.limit_ns or 1.0  # the solver's tolerances suit numbers around one
    limit = 1 + 1e-7
    times = problem.time_ns / unit_ns
    x = np.array(
        [[model.choice(float(slots.may(node, slot))) for slot in range(num_slots)] for node in range(num)]
    ).reshape(num, num_slots)
    done = [model.column(slots.earliest_ns[node] / unit_ns, limit) for node in range(num)]
    start = [model.column(0.0, limit) for _ in range(num_slots)]
    finish = [model.column(0.0, limit) for _ in range(num_slots)]
    total = model.column(float(slots.earliest_ns.max(initial=0.0)) / unit_ns, limit, cost=1.0)
    for node in range(num):
        model.row(dict.fromkeys(x[node].tolist(), 1.0), low=1.0, high=1.0)
        model.row({total: 1.0, done[node]: -1.0}, low=0.0)
        if slots.has_cpu:
            model.row({done[node]: 1.0, int(x[node, 0]): -times[node, slots.kind_S[0]]}, low=0.0)
        for slot in range(1, num_slots):
            model.row({done[node]: 1.0, finish[slot]: -1.0, int(x[node, slot]): -limit}, low=-limit)
    for a, b in slots.edges():
        terms = {done[b]: 1.0, done[a]: -1.0}
        if slots.has_cpu:
            terms[int(x[b, 0])] = -float(times[b, slots.kind_S[0]])
        model.row(terms, low=0.0)
    _slots_of_model(model, slots, x, done, start, finish, limit, unit_ns)
    selected = {int(x[node, slot]): 1.0 for node, slot in enumerate(slots.known_N.tolist())}
    known = dict.fromkeys(x.ravel().tolist(), 0.0) | selected if selected else None
    solved = model.solve(start=known, gap=gap, time_limit_s=time_limit_s)
    values = None if solved.values is None else solved.values[x].argmax(axis=1)
    return values, solved.bound * unit_ns if math.isfinite(solved.bound) else 0.0


def _slots_of_model(
    model: Model,
    slots: _Slots,
    x: NDArray[Any],
    done: list[int],
    start: list[int],
    finish: list[int],
    limit: float,
    unit_ns: float,
) -> None:
    """Order, transfers, contiguity, memory and colors of the pieces."""
    problem, edges = slots.problem, slots.edges()
    readers: dict[int, list[int]] = {}
    for a, b in edges:
        readers.setdefault(a, []).append(b)
    for slot in range(1, len(slots.device_S)):
        kind = int(slots.kind_S[slot])
        scale = problem.types[kind].comm_scale
        takes = {int(x[node, slot]): float(problem.time_ns[node, kind]) / unit_ns for node in range(problem.num_nodes)}
        # z keeps a piece contiguous: it is 1 on the nodes of the slot, never rises along an edge, and is 0 behind an
        # edge that leaves the slot, so no path comes back into it
        z = [model.column(0.0, 1.0) for _ in range(problem.num_nodes)]
        for node, others in readers.items():
            enters, leaves = model.column(0.0, 1.0), model.column(0.0, 1.0)
            takes[enters] = takes[leaves] = scale * float(problem.cost_ns[node]) / unit_ns
            own = int(x[node, slot])
            for other in others:
                there = int(x[other, slot])
                model.row({enters: 1.0, there: -1.0, own: 1.0}, low=0.0)
                model.row({leaves: 1.0, own: -1.0, there: 1.0}, low=0.0)
                model.row({z[other]: 1.0, z[node]: -1.0}, high=0.0)
                model.row({z[other]: 1.0, there: -1.0, own: 1.0}, high=1.0)
            # start >= done if the node's result enters; otherwise the row says nothing, as no time is above `limit`
            model.row({start[slot]: 1.0, done[node]: -1.0, enters: -limit}, low=-limit)
        for node in range(problem.num_nodes):
            model.row({z[node]: 1.0, int(x[node, slot]): -1.0}, low=0.0)
        model.row({finish[slot]: 1.0, start[slot]: -1.0, **{key: -value for key, value in takes.items()}}, low=0.0)
        if slots.device_S[slot - 1] == slots.device_S[slot]:
            model.row({start[slot]: 1.0, finish[slot - 1]: -1.0}, low=0.0)
    for device in range(slots.num_devices):
        local = slots.slots_of(device)
        memory_bytes = problem.types[int(slots.kind_S[local[0]])].memory_bytes
        if math.isfinite(memory_bytes):
            sizes = (problem.size_bytes / memory_bytes).tolist()
            model.row({int(x[node, slot]): size for node, size in enumerate(sizes) for slot in local if size}, high=1.0)
    for color in slots.colors():
        for a, b in pairwise(color):
            # both on the CPUs (slot 0), or on the same device in whichever of its slots
            for group in [[0], *(slots.slots_of(device) for device in range(slots.num_devices))]:
                terms = dict.fromkeys(x[a, group].tolist(), 1.0) | dict.fromkeys(x[b, group].tolist(), -1.0)
                model.row(terms, low=0.0, high=0.0)


# --- CP-SAT -----------------------------------------------------------------------------------------------


def _by_cp_sat(slots: _Slots, gap: float, time_limit_s: float) -> tuple[Values | None, float]:
    """In a process of its own: OR-Tools brings a HiGHS whose symbols clash with those of highspy."""
    require("ortools", extra="plan")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_solve_by_cp_sat, slots, gap, time_limit_s).result()


def _solve_by_cp_sat(slots: _Slots, gap: float, time_limit_s: float) -> tuple[Values | None, float]:
    cp_model = require("ortools.sat.python.cp_model", extra="plan")
    problem, model = slots.problem, cp_model.CpModel()
    num, num_slots = problem.num_nodes, len(slots.device_S)

    # CP-SAT counts in whole numbers. Durations are rounded down, so that the optimum of the program is
    # never above the true one and its bound stays valid.
    tick_ns = (slots.limit_ns or 1.0) / _TICKS

    def down(value_ns: float) -> int:
        return math.floor(value_ns / tick_ns)

    limit = math.ceil(slots.limit_ns / tick_ns) + num
    #      x[node][slot]      the node runs in this slot           slot 0: the CPUs; each node its own time
    #      done[node]         when its output is ready
    #      start, finish      of a piece: one contiguous set of nodes of an accelerator, run as a whole
    x = [[model.new_bool_var("") for _ in range(num_slots)] for _ in range(num)]
    done = [model.new_int_var(down(slots.earliest_ns[node]), limit, "") for node in range(num)]
    start = [model.new_int_var(0, limit, "") for _ in range(num_slots)]
    finish = [model.new_int_var(0, limit, "") for _ in range(num_slots)]
    total = model.new_int_var(down(slots.earliest_ns.max(initial=0.0)), limit, "")
    model.minimize(total)
    readers: dict[int, list[int]] = {}
    for a, b in slots.edges():
        readers.setdefault(a, []).append(b)
        model.add(done[b] >= done[a])
        if slots.has_cpu:
            model.add(done[b] >= done[a] + down(problem.time_ns[b, slots.kind_S[0]])).only_enforce_if(x[b][0])
    for node in range(num):
        model.add_exactly_one(x[node])
        model.add(total >= done[node])
        if slots.has_cpu:
            model.add(done[node] >= down(problem.time_ns[node, slots.kind_S[0]])).only_enforce_if(x[node][0])
        for slot in range(num_slots):
            if not slots.may(node, slot):
                model.add(x[node][slot] == 0)
            elif slot:
                model.add(done[node] >= finish[slot]).only_enforce_if(x[node][slot])
    for slot in range(1, num_slots):
        kind = int(slots.kind_S[slot])
        scale = problem.types[kind].comm_scale
        # A piece takes its nodes, each tensor that enters it once and each that leaves it once, whatever the
        # number of readers.
        takes = [down(problem.time_ns[node, kind]) * x[node][slot] for node in range(num)]
        # Contiguity: z[node] holds if the node is in the slot or leads to one that is. If a node of the slot
        # feeds a reader that leads to the slot (z[other]), then that reader is in the slot as well: no path
        # may leave a piece and come back.
        z = [model.new_bool_var("") for _ in range(num)]
        for node in range(num):
            model.add_implication(x[node][slot], z[node])
        for node, others in readers.items():
            enters, leaves = model.new_bool_var(""), model.new_bool_var("")
            takes += [down(scale * problem.cost_ns[node]) * item for item in (enters, leaves)]
            for other in others:
                model.add_bool_or(enters, x[other][slot].negated(), x[node][slot])
                model.add_bool_or(leaves, x[node][slot].negated(), x[other][slot])
                model.add_implication(z[other], z[node])
                model.add_bool_or(z[other].negated(), x[other][slot], x[node][slot].negated())
            model.add(start[slot] >= done[node]).only_enforce_if(enters)
        model.add(finish[slot] >= start[slot] + sum(takes))
        # Pieces of one accelerator run one after the other, in the order of their slots.
        if slots.device_S[slot - 1] == slots.device_S[slot]:
            model.add(start[slot] >= finish[slot - 1])
    for device in range(slots.num_devices):
        local = slots.slots_of(device)
        memory_bytes = problem.types[int(slots.kind_S[local[0]])].memory_bytes
        if math.isfinite(memory_bytes):
            model.add(
                sum(math.ceil(problem.size_bytes[node]) * x[node][slot] for node in range(num) for slot in local)
                <= math.floor(memory_bytes)
            )
    # Nodes of one color have to lie on one device, in whichever of its pieces.
    for color in slots.colors():
        for a, b in pairwise(color):
            for group in [[0], *(slots.slots_of(device) for device in range(slots.num_devices))]:
                model.add(sum(x[a][slot] for slot in group) == sum(x[b][slot] for slot in group))
    # The known split is a hint: the search starts from a solution and spends its time on proving.
    for node, slot in enumerate(slots.known_N.tolist()):
        for other in range(num_slots):
            model.add_hint(x[node][other], int(other == slot))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.relative_gap_limit = gap
    solver.parameters.num_workers = 2
    status = solver.solve(model)
    has_values = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bound_ns = solver.best_objective_bound * tick_ns
    if not has_values:
        return None, bound_ns
    return np.array([[solver.boolean_value(item) for item in row] for row in x]).argmax(axis=1), bound_ns
