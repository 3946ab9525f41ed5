"""Comparison of strategies by the time to a loss on a fleet.

In: a job by name, a fleet, strategies by name. Out: each one's run in virtual time, best first, and real runs of the
best. Not here: how a run is done (``model``, ``run``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from windtunnel import registry
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.systems.uneven.fleet import Fleet
from windtunnel.systems.uneven.goal import Goal, Run
from windtunnel.systems.uneven.jobs import train_job
from windtunnel.systems.uneven.model import train_virtually
from windtunnel.systems.uneven.run import links_of, train_really

__all__ = ["Candidate", "Comparison", "Outcome", "compare"]

_SLACK = 1.25


@dataclass(frozen=True)
class Candidate:
    """A strategy by name with its parameters."""

    name: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        numbers = ",".join(f"{key}={value}" for key, value in self.numbers.items())
        return f"{self.name}:{numbers}" if numbers else self.name


@dataclass(frozen=True)
class Outcome:
    """The predicted and the real runs of one strategy.

    Attributes
    ----------
    candidate : Candidate
    predicted : Run
        In virtual time.
    predicted_ns : float or None
        To the target; None if it was not reached.
    flown : tuple of Run
        Real runs, one a round.
    flown_ns : tuple of float or None
        Of each of them, to the target; None if it was not reached.
    """

    candidate: Candidate
    predicted: Run
    predicted_ns: float | None
    flown: tuple[Run, ...] = ()
    flown_ns: tuple[float | None, ...] = ()

    @property
    def reached_ns(self) -> list[float]:
        """Real times to the target, of the runs that reached it."""
        return [item for item in self.flown_ns if item is not None]

    @property
    def median_ns(self) -> float | None:
        """Median of real times to the target; None if a run did not reach it, or there was none."""
        reached = self.reached_ns
        return statistics.median(reached) if reached and len(reached) == len(self.flown_ns) else None


@dataclass(frozen=True)
class Comparison:
    """The outcomes of all strategies on one fleet, by the time to the target.

    Attributes
    ----------
    baseline : Candidate
        The first that was named; times are compared with its.
    target_loss : float
    links : str
        What shaped the links of real runs.
    """

    job: str
    fleet: Fleet
    baseline: Candidate
    target_loss: float
    outcomes: tuple[Outcome, ...]
    links: str

    @property
    def of_baseline(self) -> Outcome:
        """The outcome of the baseline."""
        return next(outcome for outcome in self.outcomes if outcome.candidate == self.baseline)


def compare(
    job: str,
    fleet: Fleet,
    candidates: Sequence[Candidate],
    goal: Goal,
    *,
    num_flown: int = 0,
    num_rounds: int = 1,
    is_in_kernel: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Train under each strategy in virtual time; run the best and the first one for real.

    Parameters
    ----------
    job : str
        As ``train_job`` reads it.
    candidates : sequence of Candidate
    goal : Goal
        Without a loss, the target is the final loss of the first strategy.
    num_flown : int
        Number of the best strategies that are run for real, in addition to the first one named; 0 for none.
    num_rounds : int
        Number of real runs of each strategy, interleaved.
    is_in_kernel : bool
        The kernel shapes the links of real runs, see ``train_really``.
    progress : callable, optional
        Of what is done, how much of it, and how much there is.

    Raises
    ------
    InputError
        No strategy, one twice, or the fleet lacks what one needs.
    """
    if not candidates:
        raise InputError("there is no strategy to compare", where="policies", fix="name one, such as bsp")
    if len({str(item) for item in candidates}) < len(candidates):
        raise InputError("one strategy is named twice", where="policies", fix="name each once")
    created = train_job(job)
    total = len(candidates)
    whole = replace(goal, loss=None)
    runs: list[tuple[Candidate, Run]] = []
    for index, candidate in enumerate(candidates):
        if progress is not None:
            progress(f"{candidate} in virtual time", index, total)
        policy = registry.get("strategy", candidate.name).function(**candidate.numbers)
        used = whole if index == 0 and goal.loss is None else goal
        run = train_virtually(created, fleet, str(candidate), policy, used, seed=seed)
        if goal.loss is None:
            goal = replace(goal, loss=run.points[-1].loss)
        runs.append((candidate, run))
    assert goal.loss is not None
    outcomes = [Outcome(item, run, run.time_to(loss=goal.loss)) for item, run in runs]
    outcomes.sort(key=_rank)
    selected = {
        position
        for position, outcome in enumerate(outcomes)
        if position < num_flown or (num_flown and outcome.candidate == candidates[0])
    }
    for number in range(num_rounds):
        for index in sorted(selected):
            if progress is not None:
                progress(f"{outcomes[index].candidate} really, round {number + 1}", index, total)
            outcomes[index] = _verify_outcome(job, fleet, outcomes[index], goal, seed, is_in_kernel=is_in_kernel)
    links = links_of(is_in_kernel=is_in_kernel)
    return Comparison(created.name, fleet, candidates[0], goal.loss, tuple(outcomes), links)


def _rank(outcome: Outcome) -> tuple[float, float]:
    time_ns = math.inf if outcome.predicted_ns is None else outcome.predicted_ns
    return time_ns, outcome.predicted.points[-1].loss


def _verify_outcome(job: str, fleet: Fleet, outcome: Outcome, goal: Goal, seed: int, *, is_in_kernel: bool) -> Outcome:
    """Add one real run to an outcome, with a quarter more time than predicted."""
    wanted_ns = goal.duration_ns if outcome.predicted_ns is None else round(_SLACK * outcome.predicted_ns)
    duration_ns = max(1, -(-wanted_ns // goal.every_ns)) * goal.every_ns
    candidate = outcome.candidate
    longer = replace(goal, duration_ns=duration_ns)
    run = train_really(job, fleet, candidate.name, candidate.numbers, longer, seed=seed, is_in_kernel=is_in_kernel)
    assert goal.loss is not None
    times_ns = (*outcome.flown_ns, run.time_to(loss=goal.loss))
    return replace(outcome, flown=(*outcome.flown, run), flown_ns=times_ns)
