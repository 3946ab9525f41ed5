"""The smallest chip, or the most frugal one, that yields so much: the search asked the other way round.

In: a ``Search``, samples per second. Out: a ``Choice`` and how many plans were searched for it. Chips are tried from
the cheapest on. One is left out where its bound is below what is asked for: no plan is quicker than all devices busy
all the time, nor than what the plans of chips that are no slower say. So no chip that is cheaper yields as much. Not
here: the bounds between chips (``search``).

What a plan takes of energy hangs on its degrees; a chip counts with its fastest plan.
"""

# P chips, U distinct layers, T tensor degrees

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InfeasibleError, InputError
from windtunnel.systems.chips.search import Case, Choice, Search

__all__ = ["Cheapest", "Goal", "cheapest"]

Floats = NDArray[np.float64]
Goal = Literal["area", "energy"]
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Cheapest:
    """Result of a search for the cheapest chip.

    Parameters
    ----------
    choice : Choice
    num_planned, num_possible : int
        Chips with settings for which plans were searched, of all.
    """

    choice: Choice
    num_planned: int
    num_possible: int


def cheapest(search: Search, samples_per_s: float, goal: Goal = "area") -> Cheapest:
    """The chip of the least area, or energy per sample, whose fastest plan yields so much.

    Raises
    ------
    InfeasibleError
        None does; says what no chip exceeds.
    InputError
        The goal is no rate above zero.
    """
    if not (np.isfinite(samples_per_s) and samples_per_s > 0):
        raise InputError(f"{samples_per_s} samples per s", where="goal", fix="above 0")
    least = samples_per_s * (1 - _ROUNDING)
    bounds = [np.minimum(item.upper_P, _busy_bound(search, item)) for item in search.cases]
    costs = [search.space.area_um2 if goal == "area" else _min_energy_j(item) for item in search.cases]
    best, best_cost, planned = None, np.inf, 0
    for index in np.argsort(np.concatenate(costs), kind="stable").tolist():
        number, chip = divmod(index, len(search.space))
        case = search.cases[number]
        if costs[number][chip] >= best_cost:
            break
        if min(case.upper_P[chip], bounds[number][chip]) < least:
            continue
        planned += 1
        case.open = np.arange(len(search.space))  # all chips are bounded by what comes out
        plan = case.plan(chip, search.batch_size, least)
        if plan is not None:
            choice = search.choice(case, chip, plan)
            cost = choice.area_um2 if goal == "area" else choice.energy_j
            best, best_cost = (choice, cost) if cost < best_cost else (best, best_cost)
        if search.progress is not None:
            search.progress("planning for chips", planned, planned + 1)
    if best is None:
        most = max(float(bound.max()) for bound in bounds)
        raise InfeasibleError(
            f"no chip yields {samples_per_s:,.6g} samples per s", where=f"no plan yields over {most:,.6g}",
            fix="ask for less, or more devices (--devices), area (--max-area) or memory (--hbm)",
        )  # fmt: skip
    return Cheapest(best, planned, len(search.space) * len(search.cases))


def _busy_bound(search: Search, case: Case) -> Floats:
    """Samples per second if all devices computed all the time [P]."""
    times = case.times
    busy_s = _over_layers(case, times.forward_PUT + times.backward_PUT)
    job = case.stages.job
    result: Floats = search.batch_size * job.num_devices / np.maximum(busy_s * job.num_microbatches, 1e-300)
    return result


def _min_energy_j(case: Case) -> Floats:
    """Joules of a sample that no plan is below [P]."""
    forward, backward = case.joules
    return _over_layers(case, forward + backward) / case.setting.microbatch


def _over_layers(case: Case, values_PUT: Floats) -> Floats:
    """Sum over all layers, each at the degree at which its ranks together take the minimum, [P]."""
    counts_U = np.bincount(case.distinct, minlength=values_PUT.shape[1])
    result: Floats = (values_PUT * np.array(case.stages.network.degrees)).min(axis=2) @ counts_U
    return result
