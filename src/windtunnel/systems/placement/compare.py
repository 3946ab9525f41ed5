"""What simple rules reach on the same problem: and whether one of them is the better plan.

In: a ``Plan`` and its objective. Out: ``Comparison``: the best plan of all, those of the rules, why a rule has none.
Every rule is judged by the objective of the plan. Not here: the rules
(``search.placement.baselines``, ``search.placement.latency``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from windtunnel.errors import WindtunnelError
from windtunnel.search.minmax import Combine
from windtunnel.search.placement import baselines
from windtunnel.search.placement.contraction import by_color
from windtunnel.search.placement.latency import greedy, of_plan
from windtunnel.search.placement.model import Problem
from windtunnel.search.placement.throughput import Plan, exact, linearized, lower_bound_ns

__all__ = ["Comparison", "compare"]

_WORTH = 1e-9
Rule = Callable[[Problem], Plan]
_RULES: dict[str, Rule] = {
    "single": baselines.single,
    "even": baselines.even,
    "min-cut": baselines.min_cut,
    "local search": baselines.local_search,
    "pipedream": baselines.pipedream,
    "dpl": linearized,
}
_OF_LATENCY: dict[str, Rule] = {
    "greedy": greedy,
    "max-load split": lambda problem: of_plan(exact(problem), solver="max-load split"),
}


@dataclass(frozen=True)
class Comparison:
    """A plan beside what simple rules give.

    Parameters
    ----------
    plan : Plan
        The best of all that fit; its note says so where it is not the solver's.
    others : list of Plan
        What the rules gave, and the solver's plan where a rule's is better.
    refused : dict
        Why a rule gave none, by its name.
    """

    plan: Plan
    others: list[Plan]
    refused: dict[str, str]


def compare(plan: Plan, *, objective: str = "throughput", combine: Combine = "sum") -> Comparison:
    """Judge simple rules by the objective of a plan; where one of them fits and is better, it becomes the plan."""
    others: list[Plan] = []
    refused: dict[str, str] = {}
    for name, rule in (_OF_LATENCY if objective == "latency" else _RULES).items():
        try:
            others.append(_judged(rule(plan.problem), objective, combine))
        except WindtunnelError as error:
            refused[name] = error.message
    fitting = [one for one in others if one.loads.is_allowed]
    best = min(fitting, key=lambda one: one.value_ns, default=plan)
    if best.value_ns >= plan.value_ns * (1 - _WORTH):
        return Comparison(plan, others, refused)
    return Comparison(_chosen(best, plan, objective), [*(one for one in others if one is not best), plan], refused)


def _judged(found: Plan, objective: str, combine: Combine) -> Plan:
    """A rule's plan with the value that the objective gives it."""
    if objective == "latency" or (objective == "throughput" and combine == "sum"):
        return found
    loads = found.loads
    return replace(found, value_ns=loads.flush_load_ns() if objective == "flush" else loads.max_load_ns(combine))


def _chosen(best: Plan, plan: Plan, objective: str) -> Plan:
    """The better plan with a bound of all assignments: that of the solver may be one of fewer plans."""
    bound = best.bound_ns if objective == "latency" else lower_bound_ns(by_color(plan.problem))
    gain = 1 - best.value_ns / plan.value_ns
    note = f"found by {best.solver}, {100 * gain:.0f} % below what {plan.solver} gives, which searched less: every "
    note += plan.searched
    return replace(best, bound_ns=min(bound, best.value_ns), seconds=best.seconds + plan.seconds, note=note)
