"""How far a plan can be trusted where the bandwidth is not what was said.

In: a ``Problem`` and an interval of bandwidths, as factors on the stated one. Out: where the plan for the stated one
stays best, and the plan that loses least over the whole interval. A too high bandwidth is the input that people get
wrong most often: then nearly all goes where it is computed fastest.
"""

# P plans, B bandwidths

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.search.placement.model import Problem
from windtunnel.search.placement.throughput import Plan, exact, value_ns

__all__ = ["Robust", "robust_plan", "slower_links"]

NUM_STEPS = 9
STILL_BEST = 1e-3  # a plan this near the best one is as good


@dataclass(frozen=True, eq=False)
class Robust:
    """What bandwidth does to the best plan.

    Parameters
    ----------
    factor_B : float64 [B]
        Bandwidths as factors on the stated one, 1 among them.
    best_ns : float64 [B]
        Of the best plan for each.
    plans : tuple of Plan
        The distinct ones, evaluated at the stated bandwidth.
    value_PB : float64 [P, B]
        Of each plan at each bandwidth.
    stated, chosen : int
        Rows of ``plans``: best for the stated bandwidth, and least regret over the interval.
    """

    factor_B: NDArray[np.float64]
    best_ns: NDArray[np.float64]
    plans: tuple[Plan, ...]
    value_PB: NDArray[np.float64]
    stated: int
    chosen: int

    @property
    def regrets(self) -> NDArray[np.float64]:
        """By how much each plan is worse than the best, at its worst bandwidth, as a share."""
        regret: NDArray[np.float64] = (self.value_PB / self.best_ns - 1).max(axis=1)
        return regret

    def range_of(self, plan: int) -> tuple[float, float]:
        """Between which of the bandwidths, around the stated one, a plan is as good as the best; NaN where nowhere."""
        is_best = self.value_PB[plan] <= self.best_ns * (1 + STILL_BEST)
        middle = int(np.abs(self.factor_B - 1).argmin())
        if not is_best[middle]:
            return float("nan"), float("nan")
        low = high = middle
        while low > 0 and is_best[low - 1]:
            low -= 1
        while high + 1 < len(is_best) and is_best[high + 1]:
            high += 1
        return float(self.factor_B[low]), float(self.factor_B[high])


def _key(plan: Plan) -> tuple[bytes, ...]:
    return tuple(values.tobytes() for values in (plan.device, plan.kind, plan.replicas))


def slower_links(problem: Problem, factor: float) -> Problem:
    """The same problem where every link has ``factor`` times the bandwidth."""
    return replace(problem, cost_ns=problem.cost_ns / factor)


def robust_plan(
    problem: Problem,
    low: float = 0.25,
    high: float = 4.0,
    *,
    num_steps: int = NUM_STEPS,
    progress: Progress | None = None,
) -> Robust:
    """Solve for bandwidths from ``low`` to ``high`` times the stated one, and compare the plans on all of them.

    Raises
    ------
    InputError
        The interval does not hold 1, or there are fewer than three steps.
    InfeasibleError
        Nothing fits.
    """
    if not 0 < low <= 1 <= high:
        raise InputError(f"the interval {low:g} to {high:g} does not hold the stated bandwidth, 1", where="interval")
    if num_steps < 3:
        raise InputError(f"{num_steps} bandwidths tell nothing", where="num_steps", fix="three or more")
    factors = np.unique(np.concatenate([np.geomspace(low, high, num_steps), [1.0]]))
    found, best = [], []
    for at, factor in enumerate(factors.tolist()):
        plan = exact(slower_links(problem, factor))
        found.append(plan)
        best.append(plan.value_ns)
        if progress is not None:
            progress("bandwidths", at + 1, len(factors))
    distinct = {_key(plan): plan for plan in found}
    values = np.array(
        [
            [
                value_ns(slower_links(problem, factor), plan.device, plan.kind, plan.replicas)
                for factor in factors.tolist()
            ]
            for plan in distinct.values()
        ]
    )
    best_B = np.minimum(np.array(best), values.min(axis=0))
    middle = int(np.abs(factors - 1).argmin())
    stated = list(distinct).index(_key(found[middle]))
    plans = tuple(
        replace(plan, problem=problem, value_ns=float(values[row, middle]), bound_ns=float(best_B[middle]))
        for row, plan in enumerate(distinct.values())
    )
    chosen = int((values / best_B).max(axis=1).argmin())
    return Robust(factors, best_B, plans, values, stated, chosen)
