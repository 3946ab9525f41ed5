"""``place``: one call for every objective and solver.

In: a ``Problem``. Out: the best ``Plan`` found and a bound on all others; the plan after single moves, as long as they
help by what no sum over its nodes says, such as the replay of its pipeline on processes that share cores: the programs
over downsets are exact for the busiest device of a full pipeline; filling, draining and shared cores come on top. Not
here: the solvers, formats, graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.search.downsets import CAP
from windtunnel.search.minmax import Combine
from windtunnel.search.placement.baselines import plan_of_devices
from windtunnel.search.placement.explain import moves
from windtunnel.search.placement.latency import descend, greedy, of_plan, on_cpus, require_inference
from windtunnel.search.placement.latency_ilp import integer_latency
from windtunnel.search.placement.model import Problem
from windtunnel.search.placement.throughput import Plan, exact, solve_linearization
from windtunnel.search.placement.throughput_ilp import integer_plan

__all__ = ["OBJECTIVES", "Objective", "Solver", "place", "search_locally"]

Objective = Literal["throughput", "flush", "latency"]
Solver = Literal["auto", "dp", "dpl", "ilp", "ilp-any", "cp-sat", "greedy"]
OBJECTIVES = {
    "throughput": ("auto", "dp", "dpl", "ilp", "ilp-any"),
    "flush": ("auto", "ilp", "ilp-any"),
    "latency": ("auto", "ilp", "cp-sat", "greedy"),
}
"""Solvers of each objective: the busiest device; the busiest forward plus the busiest backward one; one sample."""

_MAX_MOVES, _MAX_STARTS = 100, 3


def place(
    problem: Problem,
    *,
    objective: Objective = "throughput",
    solver: Solver = "auto",
    combine: Combine = "sum",
    num_pieces: int = 1,
    gap: float = 0.01,
    time_limit_s: float = 120.0,
    max_downsets: int = CAP,
    progress: Progress | None = None,
) -> Plan:
    """Place every node.

    Parameters
    ----------
    problem : Problem
    objective : str
        ``throughput``: least load of the busiest device. ``flush``: of the busiest forward plus the busiest backward
        one. ``latency``: one sample's way, inference only.
    solver : str
        ``auto``: the exact program over downsets, and the integer one where those are too many; for latency, single
        moves from three quick splits, then both integer programs.
    combine : str
        How compute and transfers of a device add up; see ``minmax.solve``. Only of the programs over downsets.
    num_pieces : int
        Of latency: contiguous pieces per accelerator.
    gap, time_limit_s : float
        Of integer programs.
    max_downsets : int
        Of the program over downsets: the maximum number of downsets that are listed.
    progress : callable, optional
        Called with (what, done, total).

    Raises
    ------
    InputError
        The objective is unknown, or has no such solver.
    InfeasibleError
        Nothing fits.
    NotApplicableError
        Latency is asked of a graph with backward nodes.
    """
    if objective not in OBJECTIVES or solver not in OBJECTIVES[objective]:
        known = ", ".join(OBJECTIVES.get(objective, OBJECTIVES))
        raise InputError(f"{objective} is not solved by {solver!r}", where="solver", fix=f"one of {known}")
    if combine != "sum" and solver not in ("auto", "dp", "dpl"):
        raise InputError(f"{solver} adds compute and transfers up", where="combine", fix="--solver dp")
    _require_known(problem, objective, solver)
    if objective == "latency":
        return _for_latency(problem, solver, num_pieces, gap, time_limit_s)
    if objective == "flush" or solver in ("ilp", "ilp-any"):
        return integer_plan(
            problem, _initial_plan(problem), objective=objective, is_contiguous=solver != "ilp-any",
            gap=gap, time_limit_s=time_limit_s,
        )  # fmt: skip
    if solver == "dpl":
        return solve_linearization(problem, combine=combine)
    plan = exact(problem, combine=combine, cap=max_downsets, progress=progress)
    is_final = combine != "sum" or _has_replicas(problem) or plan.note.startswith("interrupted")
    if solver == "dp" or plan.is_optimal or is_final:
        return plan
    return replace(integer_plan(problem, plan, gap=gap, time_limit_s=time_limit_s), note=plan.note)


def _has_replicas(problem: Problem) -> bool:
    return any(type_.max_replicas > 1 for type_ in problem.types)


def _require_known(problem: Problem, objective: Objective, solver: Solver) -> None:
    """Refuse what a solver would not see."""
    is_integer = objective == "flush" or solver in ("ilp", "ilp-any")
    if _has_replicas(problem) and (is_integer or objective == "latency"):
        raise InputError(
            "integer programs do not support replicas of a stage", where=f"{objective}, {solver}",
            fix="--objective throughput --solver dp, or no --replicas",
        )  # fmt: skip
    if problem.link_scale is not None and objective == "latency":
        raise InputError("for latency, all devices have one link", where="links", fix="give --bandwidth alone")


def _initial_plan(problem: Problem) -> Plan | None:
    """A split to begin with; none where no chain fits."""
    try:
        return solve_linearization(problem)
    except InfeasibleError:
        return None


def _for_latency(problem: Problem, solver: Solver, num_pieces: int, gap: float, time_limit_s: float) -> Plan:
    """Single moves from three quick splits take a quarter of the time at most, the solvers share the rest."""
    require_inference(problem)
    began_s = time.monotonic()
    if solver == "greedy":
        return greedy(problem)
    quick = _quick_splits(problem)
    limit_s = time_limit_s / 4 / len(quick)
    best = min(
        (descend(entry, num_pieces=num_pieces, time_limit_s=limit_s) for entry in quick),
        key=lambda result: result.value_ns,
    )
    solvers = {"auto": ("cp-sat", "highs"), "ilp": ("highs",), "cp-sat": ("cp-sat",)}[solver]
    bound_ns = best.bound_ns
    for index, item in enumerate(solvers):
        left_s = (time_limit_s - (time.monotonic() - began_s)) / (len(solvers) - index)
        result = integer_latency(problem, best, solver=item, num_pieces=num_pieces, gap=gap, time_limit_s=left_s)  # type: ignore[arg-type]
        bound_ns = max(bound_ns, result.bound_ns)
        best = min(best, result, key=lambda plan: plan.value_ns)
        if 1 - bound_ns / best.value_ns <= gap:
            break
    return replace(best, bound_ns=min(bound_ns, best.value_ns), seconds=time.monotonic() - began_s)


def _quick_splits(problem: Problem) -> list[Plan]:
    """Greedy, a split for throughput, and all on CPUs, each where it fits; with their latency.

    Raises
    ------
    InfeasibleError
        None fits.
    """
    result, refused = [], None
    for make in (greedy, lambda target: of_plan(solve_linearization(target), solver="max-load split"), on_cpus):
        try:
            result.append(make(problem))
        except InfeasibleError as error:
            refused = error
    if not result:
        raise refused or InfeasibleError("nothing fits")
    return result


def search_locally(plan: Plan, price_ns: Callable[[Plan], float], starts: Sequence[Plan] = ()) -> Plan:
    """Move what cannot be parted to a neighboring stage, the best move first, until none is worth it.

    Parameters
    ----------
    plan : Plan
        Contiguous, without replicas. All its devices stay in use.
    price_ns : callable
        Of a plan; the same for the same plan.
    starts : sequence of Plan
        Of the same problem, with as many devices: moves also begin from the cheapest few of them, for those from the
        plan end where no single move helps.
    """
    cheapest = sorted((price_ns(start), index) for index, start in enumerate(starts))[:_MAX_STARTS]
    ends = [
        _descend(item, found_ns, price_ns)
        for item, found_ns in ((plan, price_ns(plan)), *((starts[index], found_ns) for found_ns, index in cheapest))
    ]
    _, best = min(ends, key=lambda end: end[0])
    return best if best is plan else replace(best, solver=f"{plan.solver}, improved", bound_ns=plan.bound_ns)


def _descend(plan: Plan, best_ns: float, price_ns: Callable[[Plan], float]) -> tuple[float, Plan]:
    best = plan
    for _ in range(_MAX_MOVES):
        tried = [(price_ns(neighbor), neighbor) for neighbor in _neighbors(best)]
        if not tried:
            break
        found_ns, result = min(tried, key=lambda pair: pair[0])
        if found_ns >= best_ns:
            break
        best, best_ns = result, found_ns
    return best_ns, best


def _neighbors(plan: Plan) -> Iterator[Plan]:
    """Plans one move away that keep every limit."""
    row = {name: index for index, name in enumerate(plan.problem.names)}
    for move in moves(plan):
        device = plan.device.copy()
        device[[row[name] for name in move.nodes]] = move.target
        if move.is_allowed and len(np.unique(device)) == len(plan.kind):
            yield plan_of_devices(plan.problem, device, plan.kind, plan.solver)
