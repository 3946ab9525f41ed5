"""Throughput as an integer program: contiguous cuts, or any assignment at all.

In: a ``Problem``, a known ``Plan`` to begin with. Out: a ``Plan`` with the solver's bound; its value is that of the
assignment, evaluated anew. Colors are contracted first; of devices that are alike, the one whose first node comes
first has the smaller number. Not here: the exact program over downsets (``minmax``), HiGHS itself (``integer``).

Source: Tarnawski et al., NeurIPS 2020, section 5.3, strengthened.
"""

# N nodes, S supernodes, D devices, G groups

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InfeasibleError
from windtunnel.search.integer import Model
from windtunnel.search.placement.contraction import Contraction, by_color, contract
from windtunnel.search.placement.model import Problem
from windtunnel.search.placement.throughput import Plan, lower_bound_ns

__all__ = ["Objective", "integer_plan"]

GAP, TIME_LIMIT_S = 0.01, 1200.0
Objective = Literal["throughput", "flush"]


def integer_plan(
    problem: Problem,
    start: Plan | None = None,
    *,
    is_contiguous: bool = True,
    objective: Objective = "throughput",
    gap: float = GAP,
    time_limit_s: float = TIME_LIMIT_S,
) -> Plan:
    """The best assignment that the solver finds, and its bound.

    Parameters
    ----------
    problem : Problem
    start : Plan, optional
        Known; the answer is not worse.
    is_contiguous : bool
        Whether no data leaves a device and comes back to it, over forward nodes.
    objective : str
        ``throughput``: the busiest device; ``flush``: the busiest forward plus the busiest backward device.
    gap, time_limit_s : float

    Raises
    ------
    InfeasibleError
        It is proven that nothing fits.
    """
    began_s = time.monotonic()
    contraction = contract(problem) if is_contiguous else by_color(problem)
    upper_ns = _value_ns(start, objective) if start is not None else math.inf
    program = _IntegerProgram(contraction, objective, upper_ns, is_contiguous=is_contiguous)
    known = program.encode_plan(start) if start is not None else None
    if start is not None:
        program.bound(lower_bound_ns(contraction), upper_ns)
    solved = program.model.solve(start=known, gap=gap, time_limit_s=time_limit_s)
    name = f"ilp, {'contiguous' if is_contiguous else 'any'}"
    seconds = time.monotonic() - began_s
    bound_ns = max(solved.bound * program.unit_ns, lower_bound_ns(contraction))
    if solved.values is None and start is None:
        if solved.is_infeasible:
            raise InfeasibleError("no assignment fits", where=name, fix="more devices, more memory, or a CPU")
        raise InfeasibleError(f"no assignment was found in {seconds:.0f} s", where=name, fix="a longer --time-limit")
    device_N = program.decode_devices(solved.values) if solved.values is not None else None
    return _better(problem, device_N, program.kind_D, start, objective, bound_ns, name, seconds)


def _value_ns(plan: Plan, objective: Objective) -> float:
    return plan.loads.max_load_ns() if objective == "throughput" else plan.loads.flush_load_ns()


def _better(
    problem: Problem,
    device_N: NDArray[Any] | None,
    kind_D: NDArray[Any],
    start: Plan | None,
    objective: Objective,
    bound_ns: float,
    name: str,
    seconds: float,
) -> Plan:
    """What was found or what was known, whichever is better by its true loads."""
    result: list[tuple[float, NDArray[Any], NDArray[Any]]] = []
    if start is not None:
        result.append((_value_ns(start, objective), start.device, start.kind))
    if device_N is not None:
        loads = problem.loads(device_N, kind_D)
        if loads.is_allowed:
            value = loads.max_load_ns() if objective == "throughput" else loads.flush_load_ns()
            result.append((value, device_N, kind_D))
    value_ns, device, kind = min(result, key=lambda candidate: candidate[0])
    return Plan.of(problem, device, kind, name, seconds, value_ns=value_ns, bound_ns=bound_ns)


class _IntegerProgram:
    """Columns and rows of one problem."""

    def __init__(self, contraction: Contraction, objective: Objective, upper_ns: float, *, is_contiguous: bool) -> None:
        self.contraction = contraction
        self.problem = contraction.problem
        self.work = contraction.work
        self.kind_D = np.repeat(np.arange(len(self.work.types)), [type_.count for type_ in self.work.types])
        self.unit_ns = lower_bound_ns(contraction) or 1.0  # the solver's tolerances suit numbers around one
        self.model = Model()
        num, num_devices = contraction.num_nodes, len(self.kind_D)
        barred = self.work.barred_NT[:, self.kind_D] > 0
        if is_contiguous and math.isfinite(upper_ns):
            # A known solution bounds how much can lie before or behind a node on a device, which rules out pairs.
            barred |= _outside_windows(contraction, self.kind_D, upper_ns * (1 + 1e-9))
        self.x = np.array(
            [[self.model.choice(float(not barred[node, index])) for index in range(num_devices)] for node in range(num)]
        ).reshape(num, num_devices)
        self.most = self.model.column(cost=1.0)
        # Every node lies on exactly one device.
        for row in self.x.tolist():
            self.model.row(dict.fromkeys(row, 1.0), low=1.0, high=1.0)
        self._remember()
        self.is_contiguous = is_contiguous
        if is_contiguous:
            self._keep_together()
            self._follow_edges()
        else:
            self._order_alike()
        self._load(objective)

    def bound(self, low_ns: float, high_ns: float) -> None:
        """What the objective lies between."""
        self.model.row(
            {self.most: 1.0}, low=low_ns / self.unit_ns * (1 - 1e-9), high=high_ns / self.unit_ns * (1 + 1e-7)
        )

    def _remember(self) -> None:
        """Memory of each device, in units of its limit."""
        for index, kind in enumerate(self.kind_D.tolist()):
            limit = self.work.types[kind].memory_bytes
            if math.isfinite(limit):
                terms = dict(zip(self.x[:, index].tolist(), (self.work.memory_N / limit).tolist(), strict=True))
                self.model.row(terms, high=1.0)

    def _keep_together(self) -> None:
        """z: here, or still on the way here; once left, nothing behind is here."""
        edges = list(zip(self.contraction.src.tolist(), self.contraction.dst.tolist(), strict=True))
        for index in range(len(self.kind_D)):
            z = [self.model.column(0.0, 1.0) for _ in range(self.contraction.num_nodes)]
            for node, column in enumerate(z):
                self.model.row({column: 1.0, int(self.x[node, index]): -1.0}, low=0.0)
            for a, b in edges:
                self.model.row({z[b]: 1.0, z[a]: -1.0}, high=0.0)
                here, there = int(self.x[a, index]), int(self.x[b, index])
                self.model.row({z[b]: 1.0, there: -1.0, here: 1.0}, high=1.0)

    def _follow_edges(self) -> None:
        """Devices that are alike are numbered as stages: what a node reads lies no later, or on another type."""
        edges = list(zip(self.contraction.src.tolist(), self.contraction.dst.tolist(), strict=True))
        for kind in range(len(self.work.types)):
            alike = np.flatnonzero(self.kind_D == kind)
            others = np.flatnonzero(self.kind_D != kind)
            for number in range(1, len(alike)):
                for a, b in edges:
                    before = dict.fromkeys(self.x[a, alike[:number]].tolist(), -1.0)
                    elsewhere = dict.fromkeys(self.x[a, others].tolist(), -1.0)
                    self.model.row(
                        {**dict.fromkeys(self.x[b, alike[:number]].tolist(), 1.0), **before, **elsewhere}, high=0.0
                    )

    def _order_alike(self) -> None:
        """A node is on a device only if one before it is on the device before, of those that are alike."""
        for kind in range(len(self.work.types)):
            alike = np.flatnonzero(self.kind_D == kind).tolist()
            for item, other in pairwise(alike):
                for node in range(self.contraction.num_nodes):
                    terms = dict.fromkeys(self.x[:node, item].tolist(), -1.0)
                    self.model.row({**terms, int(self.x[node, other]): 1.0}, high=0.0)

    def _load(self, objective: Objective) -> None:
        phases = self._phases(objective)
        tops = [self.most] if objective == "throughput" else [self.model.column() for _ in phases]
        if objective != "throughput":
            self.model.row({self.most: 1.0, **dict.fromkeys(tops, -1.0)}, low=0.0)
        for index, kind in enumerate(self.kind_D.tolist()):
            scale = self.work.types[kind].comm_scale
            for top, (time_NT, is_counted_G) in zip(tops, phases, strict=True):
                terms = {
                    int(self.x[node, index]): float(time_NT[node, kind]) / self.unit_ns
                    for node in np.flatnonzero(time_NT[:, kind])
                }
                if scale:
                    terms |= self._transfers(index, scale, is_counted_G)
                self.model.row({**terms, top: -1.0}, high=0.0)

    def _phases(self, objective: Objective) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
        """Times of supernodes and which groups count, together or forward and backward apart."""
        groups = self.work.groups
        if objective == "throughput":
            return [(self.work.compute_NT, np.ones(len(groups.own_G), bool))]
        result = []
        for phase in (False, True):
            times = np.zeros_like(self.work.compute_NT)
            rows = self.problem.is_backward == phase
            np.add.at(times, self.contraction.super_N[rows], self.problem.time_ns[rows])
            result.append((times, groups.is_backward_G == phase))
        return result

    def _transfers(self, device: int, scale: float, is_counted_G: NDArray[np.bool_]) -> dict[int, float]:
        """Columns of what enters and leaves a device, with what each costs."""
        groups, result = self.work.groups, {}
        if self.work.link_scale is not None:
            return self._transfers_by_link(device, scale, is_counted_G, self.work.link_scale)
        for group in np.flatnonzero(is_counted_G).tolist():
            cost = scale * float(groups.cost_G[group]) / self.unit_ns
            enters, leaves = self.model.column(), self.model.column()
            own = int(self.x[groups.own_G[group], device])
            for target in groups.targets[groups.target_ptr[group] : groups.target_ptr[group + 1]].tolist():
                there = int(self.x[target, device])
                self.model.row({enters: 1.0, there: -1.0, own: 1.0}, low=0.0)
                self.model.row({leaves: 1.0, own: -1.0, there: 1.0}, low=0.0)
            result[enters] = result[leaves] = cost
        return result

    def _transfers_by_link(
        self, device: int, scale: float, is_counted_G: NDArray[np.bool_], link_scale: NDArray[np.float64]
    ) -> dict[int, float]:
        """The same where it matters on which type the other end is: a column is the factor of the link, 0 for none."""
        groups, result, kind = self.work.groups, {}, int(self.kind_D[device])
        others = {
            index: [position for position in np.flatnonzero(self.kind_D == index).tolist() if position != device]
            for index in range(len(self.work.types))
        }
        others = {item: entry for item, entry in others.items() if entry}
        for group in np.flatnonzero(is_counted_G).tolist():
            cost = scale * float(groups.cost_G[group]) / self.unit_ns
            own = int(groups.own_G[group])
            targets = groups.targets[groups.target_ptr[group] : groups.target_ptr[group + 1]].tolist()
            for is_entering in (True, False):
                column = self.model.column()
                result[column] = cost
                for target in targets:
                    here, away = (target, own) if is_entering else (own, target)
                    links = {
                        item: float(link_scale[item, kind] if is_entering else link_scale[kind, item])
                        for item in others
                    }
                    # column >= link * (target here + other end on a device of that type - 1)
                    for key, indices in others.items():
                        terms = dict.fromkeys(self.x[away, indices].tolist(), -links[key])
                        self.model.row({column: 1.0, int(self.x[here, device]): -links[key], **terms}, low=-links[key])
                    # wherever the other end is, no link is quicker than the quickest: implied, and tightens the
                    # relaxation
                    least = min(links.values(), default=0.0)
                    here_at, away_at = int(self.x[here, device]), int(self.x[away, device])
                    self.model.row({column: 1.0, here_at: -least, away_at: least}, low=0.0)
        return result

    def encode_plan(self, plan: Plan) -> dict[int, float]:
        """A plan as values of the choices: its devices in the order that alike ones have here."""
        first = list(range(len(plan.kind)))  # a contiguous plan's devices are its stages
        if not self.is_contiguous:
            first = [int(self.contraction.super_N[plan.device == position].min()) for position in first]
        index = np.empty(len(plan.kind), np.int64)
        for kind in range(len(self.work.types)):
            local = sorted(np.flatnonzero(plan.kind == kind).tolist(), key=first.__getitem__)
            index[local] = np.flatnonzero(self.kind_D == kind)[: len(local)]
        device_S = np.zeros(self.contraction.num_nodes, np.int64)
        device_S[self.contraction.super_N] = index[plan.device]
        selected = np.zeros(self.x.shape)
        selected[np.arange(len(device_S)), device_S] = 1.0
        return dict(zip(self.x.ravel().tolist(), selected.ravel().tolist(), strict=True))

    def decode_devices(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Device of every node."""
        result: NDArray[np.int64] = values[self.x].argmax(axis=1)[self.contraction.super_N]
        return result


def _outside_windows(contraction: Contraction, kind_D: NDArray[np.int64], upper_ns: float) -> NDArray[np.bool_]:
    """Where a node cannot be in a plan that is no worse than a known one, bool [S, D].

    Stages of one type come in order: all that a node waits for, and itself, must fit onto its stage, those before it
    and other types; and what waits for it onto its stage, those behind and other types. Transfers count nothing here.
    """
    work, num = contraction.work, contraction.num_nodes
    before = np.eye(num, dtype=bool)
    readers: list[list[int]] = [[] for _ in range(num)]
    for a, b in zip(contraction.src.tolist(), contraction.dst.tolist(), strict=True):
        readers[a].append(b)
    for node in contraction.order.tolist():
        for other in readers[node]:
            before[other] |= before[node]
    result = np.zeros((num, len(kind_D)), bool)
    for kind in range(len(work.types)):
        alike = np.flatnonzero(kind_D == kind)
        times = work.compute_NT[:, kind]
        # at most so much of this type's time can be saved by other types, each busy up to the limit
        elsewhere = sum(
            _fractional_knapsack(times, work.compute_NT[:, other], type_.count * upper_ns)
            for other, type_ in enumerate(work.types)
            if other != kind
        )
        for number, device in enumerate(alike.tolist()):
            result[:, device] = before @ times > (number + 1) * upper_ns + elsewhere
            result[:, device] |= before.T @ times > (len(alike) - number) * upper_ns + elsewhere
    return result


def _fractional_knapsack(gain: NDArray[np.float64], spent: NDArray[np.float64], room: float) -> float:
    """The most that can be gained within a room, taking fractions: what is free first, then by gain per unit."""
    order = np.argsort(-gain / np.maximum(spent, 1e-300), kind="stable")
    used = np.cumsum(spent[order])
    whole = int(np.searchsorted(used, room, side="right"))
    total = float(gain[order[:whole]].sum())
    if whole < len(order) and spent[order[whole]] > 0:
        left = room - (used[whole - 1] if whole else 0.0)
        total += float(gain[order[whole]] * left / spent[order[whole]])
    return total
