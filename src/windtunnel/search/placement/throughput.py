"""Where does each operator go: a ``Problem`` in, a ``Plan`` with a proof of its quality out.

For throughput, the busiest device has least to do: exact over all contiguous cuts while downsets can be listed, by the
linearization heuristic with a lower bound where they cannot, and by ``solver``. Every plan is evaluated anew by the
definition of loads, whatever its solver thought. Not here: the solvers, latency (``latency``), files.

Source: Tarnawski et al., NeurIPS 2020.
"""

# N nodes, D devices

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import InfeasibleError
from windtunnel.search.downsets import CAP, ORDERS, Lattice, TooManyDownsets, chain, downsets
from windtunnel.search.minmax import Combine, Stage, Table, solve
from windtunnel.search.placement.contraction import Contraction, contract
from windtunnel.search.placement.model import Loads, Problem
from windtunnel.search.work import Work

__all__ = ["Plan", "exact", "lower_bound_ns", "plan_of_stages", "solve_linearization", "sync_ns", "value_ns"]

_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Plan:
    """An assignment and how good it is.

    Parameters
    ----------
    problem : Problem
    device : int64 [N]
        Row of ``kind`` for each node.
    kind : int64 [D]
        Row of ``problem.types`` for each device that is used.
    replicas : int64 [D]
        Devices that share each row's stage.
    value_ns : float
        By the objective.
    bound_ns : float
        No plan of this kind is below it.
    solver : str
    seconds : float
    note : str
        What is worth knowing about the answer.
    """

    problem: Problem
    device: NDArray[np.int64]
    kind: NDArray[np.int64]
    replicas: NDArray[np.int64]
    value_ns: float
    bound_ns: float
    solver: str
    seconds: float
    note: str = ""

    @classmethod
    def of(
        cls,
        problem: Problem,
        device: NDArray[Any],
        kind: NDArray[Any],
        solver: str,
        seconds: float,
        *,
        value_ns: float = 0.0,
        bound_ns: float = 0.0,
        note: str = "",
    ) -> Plan:
        """A plan without replicas, devices without nodes left out; ``kind`` may be of more than are used."""
        used, compact = np.unique(device, return_inverse=True)
        kinds = np.asarray(kind, np.int64)[used]
        ones = np.ones(len(used), np.int64)
        return cls(problem, compact, kinds, ones, value_ns, min(bound_ns, value_ns), solver, seconds, note)

    @property
    def gap(self) -> float:
        """How far the value may lie above the best one, as a share of it."""
        return max(0.0, 1.0 - self.bound_ns / self.value_ns) if self.value_ns > 0 else 0.0

    @property
    def is_optimal(self) -> bool:
        """Whether it is proven that no plan of this kind is better."""
        return self.gap <= _SLACK

    @property
    def searched(self) -> str:
        """The kind of plans that the bound is about: no such one is below it."""
        if self.solver.startswith("dp"):  # dpl's bound, too: what waits for each other counts as one
            return "plan whose stages follow one another"
        if self.solver == "ilp, contiguous":
            return "plan whose stages of one type follow one another"
        count = re.search(r"(\d+) pieces?", self.solver)
        return f"split with {count[0]} per accelerator" if count else "assignment"

    @property
    def loads(self) -> Loads:
        """What every device does."""
        return self.problem.loads(self.device, self.kind)


def exact(problem: Problem, *, combine: Combine = "sum", cap: int = CAP, progress: Progress | None = None) -> Plan:
    """The best contiguous cut for throughput; with too many downsets, or Ctrl-C, the best found with a bound.

    Raises
    ------
    InfeasibleError
        Nothing fits: names the largest set of nodes that cannot be parted and the memory it needs.
    """
    began_s = time.monotonic()
    contraction = contract(problem)
    # quick, and used twice: its value prunes the dynamic program, and it is the answer if that takes too long
    table, order = _best_chain(contraction, combine)
    try:
        lattice = downsets(contraction.num_nodes, contraction.src, contraction.dst, cap=cap, progress=progress)
        result = [solve(lattice, contraction.work, combine=combine, upper=table.value, progress=progress)]
        if not _is_exact(lattice, contraction.work):
            result.append(solve(lattice, _over_best_links(contraction.work), combine=combine, progress=progress))
    except TooManyDownsets as error:
        note = error.message
    except KeyboardInterrupt:
        note = "interrupted: the best found until then"
    else:
        plans = [_of_table(contraction, item, "dp", began_s, result[-1].value) for item in result]
        return min(plans, key=lambda plan: plan.value_ns)
    return _of_table(contraction, table, f"dpl ({order})", began_s, lower_bound_ns(contraction), note=note)


def _is_exact(lattice: Lattice, work: Work) -> bool:
    """Whether the program's loads are the true ones: links are alike, or all is sent to a neighboring stage."""
    if work.link_scale is None or sum(type_.count > 0 for type_ in work.types) == 1:
        return True
    if lattice.num_downsets > lattice.num_nodes + 1:
        return False
    place_N = np.argsort(lattice.added_I[1:])  # of a chain
    own = np.repeat(work.groups.own_G, work.groups.num_targets)
    return bool((np.abs(place_N[own] - place_N[work.groups.targets]) == 1).all())


def _over_best_links(work: Work) -> Work:
    """Every transfer over the best link that its device has: no plan is below what this gives."""
    assert work.link_scale is not None
    types = []
    for kind, type_ in enumerate(work.types):
        others = [index for index, other in enumerate(work.types) if other.count > (index == kind)]
        links = [*work.link_scale[kind, others].tolist(), *work.link_scale[others, kind].tolist()]
        types.append(replace(type_, comm_scale=type_.comm_scale * min(links, default=0.0)))
    return replace(work, types=tuple(types), link_scale=None)


def solve_linearization(problem: Problem, *, combine: Combine = "sum", orders: Sequence[str] = tuple(ORDERS)) -> Plan:
    """The best cut of a few chains that keep the order of the graph (DPL).

    Raises
    ------
    InfeasibleError
        As of :func:`exact`; another order might fit.
    """
    began_s = time.monotonic()
    contraction = contract(problem)
    table, order = _best_chain(contraction, combine, orders)
    return _of_table(contraction, table, f"dpl ({order})", began_s, lower_bound_ns(contraction))


def _best_chain(contraction: Contraction, combine: Combine, orders: Sequence[str] = tuple(ORDERS)) -> tuple[Table, str]:
    work = contraction.work
    result = []
    for name in orders:
        order = ORDERS[name](contraction.num_nodes, contraction.src, contraction.dst, work.groups)
        result.append((solve(chain(order), work, combine=combine), name))
    return min(result, key=lambda entry: entry[0].value)


def _of_table(
    contraction: Contraction, table: Table, solver: str, began_s: float, bound_ns: float, note: str = ""
) -> Plan:
    stages = table.stages()
    if not stages:
        raise _nothing_fits(contraction)
    return plan_of_stages(contraction, stages, table.combine, solver, time.monotonic() - began_s, bound_ns, note)


def plan_of_stages(
    contraction: Contraction,
    stages: Sequence[Stage],
    combine: Combine,
    solver: str,
    seconds: float,
    bound_ns: float,
    note: str = "",
) -> Plan:
    """Stages of supernodes as a plan for the nodes, evaluated anew."""
    problem = contraction.problem
    device_N = np.full(problem.num_nodes, -1)
    for device, stage in enumerate(stages):
        device_N[contraction.members(stage.nodes)] = device
    kind_D = np.array([stage.kind for stage in stages], np.int64)
    replicas_D = np.array([stage.replicas for stage in stages], np.int64)
    value = value_ns(problem, device_N, kind_D, replicas_D, combine)
    return Plan(problem, device_N, kind_D, replicas_D, value, min(bound_ns, value), solver, seconds, note)


def sync_ns(
    problem: Problem, device_N: NDArray[Any], kind_D: NDArray[Any], replicas_D: NDArray[Any]
) -> NDArray[np.float64]:
    """What the replicas of each stage take to agree on their weights, per sample [D]."""
    weights = problem.size_bytes if problem.weight_bytes is None else problem.weight_bytes
    of_stage: Any = np.bincount(device_N, weights, len(kind_D))
    stages = zip(kind_D.tolist(), replicas_D.tolist(), strict=True)
    result: NDArray[np.float64] = (
        np.array([problem.types[kind].agree_ns_per_byte(num) for kind, num in stages]) * of_stage
    )
    return result


def value_ns(
    problem: Problem,
    device_N: NDArray[Any],
    kind_D: NDArray[Any],
    replicas_D: NDArray[Any],
    combine: Combine = "sum",
) -> float:
    """Time per sample of a full pipeline: the busiest stage, shared by its replicas."""
    total_D = problem.loads(device_N, kind_D).total_ns(combine) / replicas_D
    return float((total_D + sync_ns(problem, device_N, kind_D, replicas_D)).max(initial=0.0))


def lower_bound_ns(contraction: Contraction) -> float:
    """What no assignment is below: the busiest node alone, and all work shared out evenly in fractions.

    Communication counts nothing here, nor does memory.
    """
    work = contraction.work
    counts = np.array([type_.count for type_ in work.types], float)
    times_ST = np.where((work.barred_NT > 0) | (counts == 0), math.inf, work.compute_NT)
    replicas_T = np.array([max(1, min(type_.max_replicas, type_.count)) for type_ in work.types])
    alone = (times_ST / replicas_T).min(axis=1).max(initial=0.0)
    return float(max(alone, _fractional_bound(times_ST, counts)))


def _fractional_bound(times_ST: NDArray[np.float64], counts_T: NDArray[np.float64]) -> float:
    """Least T such that fractions of all nodes fit into T on every device: a dual price per type, best by subgradient.

    For prices p of sum p_t count_t = 1, sum over nodes of min_t p_t time_t is a bound; two types need one price.
    """
    used = np.flatnonzero(counts_T > 0)
    if used.size == 1:
        return float(times_ST[:, used[0]].sum() / counts_T[used[0]])
    best = 0.0
    prices = np.full(used.size, 1.0 / counts_T[used].sum())
    for turn in range(200):
        weighed_ST = prices * times_ST[:, used]
        chosen_S = np.nanargmin(np.where(np.isfinite(times_ST[:, used]), weighed_ST, np.inf), axis=1)
        best = max(best, float(weighed_ST[np.arange(len(chosen_S)), chosen_S].sum()))
        filled_T = np.bincount(chosen_S, times_ST[np.arange(len(chosen_S)), used[chosen_S]], used.size) / counts_T[used]
        prices *= np.exp((filled_T / max(filled_T.max(), 1e-300) - 0.5) / (1 + turn) ** 0.7)
        prices /= (prices * counts_T[used]).sum()
    return best


def _nothing_fits(contraction: Contraction) -> InfeasibleError:
    work, problem = contraction.work, contraction.problem
    largest = int(work.memory_N.argmax())
    names = [problem.names[row] for row in contraction.members(np.array([largest]))[:5].tolist()]
    limit = max((type_.memory_bytes for type_ in work.types if type_.count), default=0.0)
    room = sum(type_.memory_bytes * type_.count for type_ in work.types if type_.count)
    return InfeasibleError(
        f"no contiguous cut fits: the nodes need {work.memory_N.sum():,.0f} bytes of {room:,.0f}, the largest set that "
        f"cannot be parted {work.memory_N[largest]:,.0f} of {limit:,.0f}",
        where=f"nodes {', '.join(names)}",
        fix="more devices, more memory, or a CPU",
    )
