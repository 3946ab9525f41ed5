"""Fusion of neighbors: dPRO's scan, an exact dynamic program for gradients, and other searches on one budget.

In: a ``Chain``. Out: a ``Plan``: groups of operators and of gradients. All searches make the same moves and count how
often they ask what a plan is worth. Not here: the graph (``optimizer``), running anything.

Source: Hu et al., dPRO, MLSys 2022, theorems 1 to 3 and algorithm 1.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from windtunnel.base.extras import require
from windtunnel.systems.strategy.model import Chain, Groups, best_parts, groups_of, schedule

__all__ = ["SEARCHES", "Plan", "Worth", "beam", "exact", "mcmc", "neighbors", "scan", "tpe", "worth_of"]

_EXACT_FUSION = 12  # operators up to which all fusions are tried


@dataclass(frozen=True)
class Plan:
    """Groups of neighbors.

    Parameters
    ----------
    operators, gradients : Groups
        First member of each group; a group of operators that are one kernel, of gradients that are one message.
    """

    operators: Groups
    gradients: Groups

    @classmethod
    def apart(cls, count: int) -> Plan:
        """Return the plan without fusion."""
        return cls(tuple(range(count)), tuple(range(count)))

    @classmethod
    def together(cls, count: int) -> Plan:
        """Return the plan with a single message at the end."""
        return cls(tuple(range(count)), (0,))


class Worth:
    """The cost of plans, with a cache and a budget of evaluations.

    Parameters
    ----------
    value : callable
        Of a plan, in ns; less is better.
    budget : int
        Plans that may be asked for; more are infinite.
    """

    def __init__(self, value: Callable[[Plan], float], budget: int = 10_000) -> None:
        self._value, self.budget = value, budget
        self._known: dict[Plan, float] = {}

    @property
    def num_asked(self) -> int:
        """Number of distinct plans so far."""
        return len(self._known)

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up."""
        return self.num_asked >= self.budget

    def __call__(self, plan: Plan) -> float:
        """Return the time of a plan in ns."""
        if plan not in self._known:
            if self.is_spent:
                return math.inf
            self._known[plan] = self._value(plan)
        return self._known[plan]

    def best(self) -> Plan:
        """The best plan that was evaluated."""
        return min(self._known, key=lambda plan: (self._known[plan], len(plan.gradients), plan.operators))


def worth_of(chain: Chain, budget: int = 10_000) -> Worth:
    """Create an oracle that evaluates the recurrences of the chain."""
    return Worth(lambda plan: schedule(chain, plan.operators, plan.gradients).makespan_ns, budget)


# --- dPRO -------------------------------------------------------------------------------------------------


def scan(chain: Chain, worth: Worth) -> Plan:
    """DPRO's scan: T1 decides on operators, T3 carries that over to their gradients, T2 decides on gradients.

    Repeated until a scan of what is fused already changes nothing; a decision stands if the plan is worth it.

    Parameters
    ----------
    chain : Chain
    worth : Worth

    Returns
    -------
    Plan
    """
    plan = Plan.apart(chain.num_operators)
    best = worth(plan)
    while not worth.is_spent:
        changed = _scan_once(chain, plan)
        value = worth(changed)
        if changed == plan or value >= best:
            break
        plan, best = changed, value
    return plan


def _scan_once(chain: Chain, plan: Plan) -> Plan:
    """Make one pass over the groups, with the state (p^e, p^d, q^e, q^d, s) of the last group of each kind."""
    count = chain.num_operators
    operators, gradients = [0], [0]
    compute_end = chain.begin_ns
    before_end = 0.0  # when the gradients before the open group were synchronized
    first, last = groups_of(plan.operators, count)[0]
    op_first, op_ns = first, chain.operator_ns(first, last)
    compute_end += op_ns
    size = int(chain.size_bytes[first : last + 1].sum())
    sync_end, sync_ns = _sync_times(chain, compute_end, before_end, size)
    for first, last in groups_of(plan.operators, count)[1:]:
        own_ns, own_size = chain.operator_ns(first, last), int(chain.size_bytes[first : last + 1].sum())
        fused_ns = chain.operator_ns(op_first, last)
        if sync_ns <= op_ns + own_ns - fused_ns:  # T1: saves more than the overlap that is lost
            compute_end += fused_ns - op_ns
            op_ns, size = fused_ns, size + own_size  # T3: their gradients are fused, too
            sync_end, sync_ns = _sync_times(chain, compute_end, before_end, size)
            continue
        operators.append(first)
        op_first, op_ns = first, own_ns
        compute_end += own_ns
        together_ns, alone_ns = _sync(chain, size + own_size), _sync(chain, own_size)
        if own_size and size and sync_end > compute_end + together_ns - alone_ns:  # T2
            size += own_size
            sync_end, sync_ns = max(compute_end, before_end) + together_ns, together_ns
            continue
        gradients.append(first)
        before_end, size = sync_end, own_size
        sync_end, sync_ns = _sync_times(chain, compute_end, before_end, size)
    return Plan(tuple(operators), tuple(gradients))


def _sync_times(chain: Chain, ready_ns: float, before_ns: float, size_bytes: int) -> tuple[float, float]:
    taken_ns = _sync(chain, size_bytes)
    return (max(ready_ns, before_ns) + taken_ns if size_bytes else before_ns), taken_ns


def _sync(chain: Chain, size_bytes: int) -> float:
    return chain.sync_ns(size_bytes, best_parts(chain, size_bytes)) if size_bytes else 0.0


# --- exact ------------------------------------------------------------------------------------------------


def exact(chain: Chain, worth: Worth) -> Plan:
    """Return the best gradient groups, for every operator fusion if there are few, else for that of ``scan``.

    Sooner is never worse for what follows, so that the best end of the first n gradients is built from the best ends
    of fewer: N² steps. Not in the paper, whose scan looks one gradient back.
    """
    count = chain.num_operators
    fusions = [Plan.apart(count).operators]
    if chain.fused_ns is not None:
        fusions = _all_groups(count) if count <= _EXACT_FUSION else [*fusions, scan(chain, worth).operators]
    plans = [Plan(operators, _best_gradients(chain, operators)) for operators in fusions]
    return min(plans, key=worth)


def _best_gradients(chain: Chain, operators: Groups) -> Groups:
    count = chain.num_operators
    ready = [0.0] * count
    time_ns = chain.begin_ns
    for first, last in groups_of(operators, count):
        time_ns += chain.operator_ns(first, last)
        ready[first : last + 1] = [time_ns] * (last + 1 - first)
    sizes = [0, *itertools.accumulate(chain.size_bytes.tolist())]
    # best[end] = min over begin of max(ready[end - 1], best[begin]) + sync(begin .. end): messages share one link and
    # go in order, and one may go once its last gradient is there
    best, origin = [0.0] + [math.inf] * count, [0] * (count + 1)
    for end in range(1, count + 1):
        for begin in range(end):
            size = sizes[end] - sizes[begin]
            value = max(ready[end - 1], best[begin]) + _sync(chain, size) if size else best[begin]
            if value < best[end]:
                best[end], origin[end] = value, begin
    starts, end = [], count
    while end:
        end = origin[end]
        starts.append(end)
    return tuple(reversed(starts))


def _all_groups(count: int) -> list[Groups]:
    cuts = itertools.product((False, True), repeat=count - 1)
    return [(0, *(index + 1 for index, is_cut in enumerate(cut) if is_cut)) for cut in cuts]


# --- rivals -----------------------------------------------------------------------------------------------


def neighbors(plan: Plan, count: int, *, fuses_operators: bool) -> Iterator[Plan]:
    """Yield plans one move away: a border between groups removed or added; fused operators keep fused gradients."""
    for index in range(1, count):
        yield replace(plan, gradients=_toggle_group(plan.gradients, index))
        if fuses_operators:
            operators = _toggle_group(plan.operators, index)
            is_fused = index not in operators
            gradients = (
                tuple(gradient for gradient in plan.gradients if gradient != index) if is_fused else plan.gradients
            )
            yield Plan(operators, gradients)


def _toggle_group(groups: Groups, group: int) -> Groups:
    return tuple(sorted({*groups} ^ {group}))


def beam(chain: Chain, worth: Worth, width: int = 4) -> Plan:
    """Beam search: keep the best few of all neighbors until none is better."""
    count, fuses = chain.num_operators, chain.fused_ns is not None
    front = [Plan.apart(count), Plan.together(count)]
    best = min(front, key=worth)
    while not worth.is_spent:
        every = {neighbor for plan in front for neighbor in neighbors(plan, count, fuses_operators=fuses)}
        front = sorted(every, key=lambda plan: (worth(plan), plan.gradients, plan.operators))[:width]
        if not front or worth(front[0]) >= worth(best):
            break
        best = front[0]
    return best


def mcmc(chain: Chain, worth: Worth, heat: float = 20.0, num_steps: int = 2000, seed: int = 0) -> Plan:
    """Simulated annealing: accept every better neighbor, and a worse one with ``exp(heat * gain)``, a relative gain."""
    rng, count, fuses = random.Random(seed), chain.num_operators, chain.fused_ns is not None
    plan = best = Plan.apart(count)
    for _ in range(num_steps if count > 1 else 0):
        if worth.is_spent:
            break
        other = rng.choice(list(neighbors(plan, count, fuses_operators=fuses)))
        gain = 1 - worth(other) / max(worth(plan), 1.0)
        if gain >= 0 or rng.random() < math.exp(heat * gain):
            plan = other
        best = min(best, plan, key=worth)
    return best


def tpe(chain: Chain, worth: Worth, num_trials: int = 200, seed: int = 0) -> Plan:
    """Optuna's tree-structured Parzen estimator over the borders between groups."""
    optuna = require("optuna", extra="search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    count, fuses = chain.num_operators, chain.fused_ns is not None

    def value(trial: object) -> float:
        return worth(_suggest_plan(trial, count, fuses))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial({f"gradient {index}": True for index in range(1, count)})
    study.enqueue_trial({f"gradient {index}": False for index in range(1, count)})
    study.optimize(value, n_trials=min(num_trials, worth.budget))
    return _suggest_plan(study.best_trial, count, fuses)


def _suggest_plan(trial: object, count: int, fuses: bool) -> Plan:
    def is_selected(name: str) -> bool:
        if hasattr(trial, "suggest_categorical"):
            return bool(trial.suggest_categorical(name, [True, False]))
        return bool(trial.params[name])  # type: ignore[attr-defined]

    operators = (0, *(index for index in range(1, count) if not fuses or not is_selected(f"fuse {index}")))
    borders = [index for index in range(1, count) if is_selected(f"gradient {index}")]
    return Plan(operators, (0, *(border for border in borders if border in operators)))


SEARCHES: dict[str, Callable[[Chain, Worth], Plan]] = {
    "scan": scan,
    "exact": exact,
    "beam": beam,
    "mcmc": mcmc,
    "tpe": tpe,
}
