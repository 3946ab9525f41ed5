"""Simple placements: what a person or chance gives.

In: a ``Problem``. Out: ``Plan``s without a bound, evaluated like all others: a given assignment, as many layers on each
accelerator, a random cut. Not here: anything that proves something.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import NotApplicableError
from windtunnel.search.downsets import depth_first, random_order
from windtunnel.search.minmax import Stage
from windtunnel.search.placement.contraction import Contraction, contract
from windtunnel.search.placement.model import Problem
from windtunnel.search.placement.throughput import Plan, plan_of_stages

__all__ = ["accelerator_of", "even", "plan_of_devices", "random_cut"]

Ints = NDArray[np.int64]
_NO_BOUND = 0.0


def accelerator_of(problem: Problem) -> int:
    """The type that has communication, the first where there are several.

    Raises
    ------
    NotApplicableError
        There is none.
    """
    result = [kind for kind, type_ in enumerate(problem.types) if type_.comm_scale and type_.count]
    if not result:
        raise NotApplicableError("there is no accelerator", where="devices")
    return result[0]


def plan_of_devices(
    problem: Problem, device: NDArray[Any], kind: NDArray[Any], solver: str, seconds: float = 0.0
) -> Plan:
    """An assignment that comes from elsewhere; devices without nodes are left out."""
    plan = Plan.of(problem, device, kind, solver, seconds, bound_ns=_NO_BOUND)
    loads = plan.loads
    note = "" if loads.is_allowed else "does not fit: memory, support or colors"
    return replace(plan, value_ns=loads.max_load_ns(), note=note)


def even(problem: Problem) -> Plan:
    """As many layers on each accelerator: what people do by hand."""
    contraction = contract(problem)
    order = depth_first(contraction.num_nodes, contraction.src, contraction.dst)
    count = min(problem.types[accelerator_of(problem)].count, len(order))
    return _plan_of_cut(contraction, order, [len(order) * index // count for index in range(1, count)], "even")


def random_cut(problem: Problem, seed: int) -> Plan:
    """A random order that keeps the graph's, cut at random places, one stage per accelerator."""
    contraction = contract(problem)
    random = np.random.default_rng(seed)
    order = random_order(contraction.num_nodes, contraction.src, contraction.dst, random)
    count = min(problem.types[accelerator_of(problem)].count, len(order))
    indices = np.sort(random.choice(np.arange(1, len(order)), count - 1, replace=False))
    return _plan_of_cut(contraction, order, indices.tolist(), f"random {seed}")


def _plan_of_cut(contraction: Contraction, order: Ints, cuts: list[int], solver: str) -> Plan:
    kind = accelerator_of(contraction.problem)
    stages = [Stage(kind, 1, nodes) for nodes in np.split(order, cuts)]
    return plan_of_stages(contraction, stages, "sum", solver, 0.0, _NO_BOUND)
