"""Single moves from a plan, as long as they help by what no sum over its nodes says.

In: a ``Plan``, and what prices one, such as the replay of its pipeline on processes that share cores. Out: the plan
after the moves. The programs over downsets are exact for the busiest device of a full pipeline; filling, draining and
shared cores come on top. Not here: the price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from windtunnel.search.placement.baselines import plan_of_devices
from windtunnel.search.placement.explain import moves
from windtunnel.search.placement.throughput import Plan

__all__ = ["search_locally"]

_MAX_MOVES, _MAX_STARTS = 100, 3


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
