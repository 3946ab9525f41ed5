"""Layers' operators scheduled by a constraint solver.

In: ``Operations``, cycles, cores. Out: a ``Schedule`` with the solver's bound. It answers what the published integer
programme (``operator_ilp``) answers, with intervals in place of orders: two that may not overlap share one, and a
spread operator takes the place of all others. It starts from the best list schedule (``operator_schedules``).

Source: PHAZE (Wang et al., ICML 2024), section 4.2; the form is ours.
"""

# N operators

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.operator_schedules import (
    GAP,
    TIME_LIMIT_S,
    Cores,
    Schedule,
    Task,
    checked_cycles,
    list_schedule,
    replayed,
)
from windtunnel.base.extras import require
from windtunnel.systems.chips.operations import FUSED, TENSOR, VECTOR, Operations

__all__ = ["constraint_schedules"]

Ints = NDArray[np.int64]


def constraint_schedules(
    tasks: Sequence[Task], *, gap: float = GAP, time_limit_s: float = TIME_LIMIT_S
) -> list[Schedule]:
    """Several at once, in a process of their own: OR-Tools brings a HiGHS whose symbols clash with those of highspy.

    Raises
    ------
    InputError
        Cycles are no whole numbers from 0 on.
    MissingExtraError
        OR-Tools is not installed (extra ``plan``).
    """
    known = [list_schedule(*task) for task in tasks]
    waiting = [at for at, one in enumerate(known) if not one.is_optimal]
    if waiting:
        require("ortools", extra="plan")
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            chosen = [(tasks[at], known[at]) for at in waiting]
            for at, found in zip(waiting, pool.submit(_solved, chosen, gap, time_limit_s).result(), strict=True):
                known[at] = found
    return known


def _solved(chosen: list[tuple[Task, Schedule]], gap: float, time_limit_s: float) -> list[Schedule]:
    return [_solved_one(task, known, gap, time_limit_s) for task, known in chosen]


def _solved_one(task: Task, known: Schedule, gap: float, time_limit_s: float) -> Schedule:
    cp_model = require("ortools.sat.python.cp_model", extra="plan")
    operations, single_N, spread_N, cores = task
    single_N, spread_N = checked_cycles(operations, single_N, spread_N)
    model, num, limit = cp_model.CpModel(), len(operations), known.cycles
    start = [model.new_int_var(0, limit, "") for _ in range(num)]
    end = [model.new_int_var(0, limit, "") for _ in range(num)]
    spread = [model.new_bool_var("") for _ in range(num)]
    total = model.new_int_var(known.bound_cycles, limit, "")
    every = []
    for node in range(num):
        time = int(single_N[node]) + (int(spread_N[node]) - int(single_N[node])) * spread[node]
        every.append(model.new_interval_var(start[node], time, end[node], ""))
        model.add(total >= end[node])
        model.add_hint(start[node], int(known.start_N[node]))
        model.add_hint(spread[node], int(known.is_spread_N[node]))
    for a, b in zip(operations.src.tolist(), operations.dst.tolist(), strict=True):
        model.add(start[b] >= end[a])
    model.add_cumulative(every, [1 + (num - 1) * one for one in spread], num)
    core = _on_cores(model, operations, single_N, cores, start, end, spread)
    model.minimize(total)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.relative_gap_limit = gap
    solver.parameters.num_workers = 2
    status = solver.solve(model)
    bound = max(known.bound_cycles, int(np.ceil(solver.best_objective_bound - 1e-6)))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return replace(known, bound_cycles=bound)
    is_spread_N = np.array([solver.boolean_value(one) for one in spread], np.bool_)
    core_N = np.full(num, -1, np.int64)
    for (node, number), is_here in core.items():
        if solver.boolean_value(is_here):
            core_N[node] = number
    depth_N = operations.is_before.sum(axis=0)
    order = sorted(range(num), key=lambda node: (solver.value(start[node]), depth_N[node]))
    found = replayed(operations, single_N, spread_N, cores, order, is_spread_N, core_N)
    return replace(min(known, found, key=lambda one: one.cycles), bound_cycles=bound)


def _on_cores(model: Any, operations: Operations, single_N: Ints, cores: Cores, start: list[Any], end: list[Any],
              spread: list[Any]) -> dict[tuple[int, int], Any]:  # fmt: skip
    """Give every operator that is not spread a core, where there could be too few of them."""
    kinds = operations.kind_N.tolist()
    num_T, num_V = (sum(kind in (one, FUSED) for kind in kinds) for one in (TENSOR, VECTOR))
    if num_T <= cores.num_tensor and num_V <= cores.num_vector:
        return {}
    core: dict[tuple[int, int], Any] = {}
    taken: dict[tuple[int, int], list[Any]] = {}
    for node, kind in enumerate(kinds):
        numbers = range(min(cores.of(kind), len(kinds)))
        for number in numbers:
            is_here = core[node, number] = model.new_bool_var("")
            interval = model.new_optional_interval_var(start[node], int(single_N[node]), end[node], is_here, "")
            for one in (TENSOR, VECTOR):
                if kind in (one, FUSED):
                    taken.setdefault((one, number), []).append(interval)
        model.add_exactly_one([spread[node], *(core[node, number] for number in numbers)])
    for intervals in taken.values():
        model.add_no_overlap(intervals)
    return core
