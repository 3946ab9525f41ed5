"""Tuning of a strategy's parameter on forks of one training.

In: a job, a fleet, a strategy, values of its tunable parameter. Out: the best value of each period, and the run that
used these values. In every period the training is forked: each fork continues from the same weights, with the same
samples, under another value, so that differences come from the value alone. The forks are compared on the same training
samples, and the best one continues. Published searches try one value after another instead (``rewards``), so that their
losses also differ by the time of the trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel import registry
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.systems.uneven.fleet import Fleet
from windtunnel.systems.uneven.goal import Goal, Run
from windtunnel.systems.uneven.job import TrainJob
from windtunnel.systems.uneven.model import VirtualTraining
from windtunnel.systems.uneven.search import Candidate

__all__ = ["Period", "Tuned", "tune"]

_JUDGED = 500


@dataclass(frozen=True)
class Period:
    """The values that were tried in one period.

    Attributes
    ----------
    begin_ns, end_ns : int
    losses : tuple of (value, loss)
        Training losses at ``end_ns``, in the order of the trials.
    selected : float
    """

    begin_ns: int
    end_ns: int
    losses: tuple[tuple[float, float], ...]
    selected: float


@dataclass(frozen=True)
class Tuned:
    """A training whose parameter was tuned.

    Attributes
    ----------
    candidate : Candidate
        The strategy with the value that most periods selected; of two, the later one.
    number : str
        Name of the tuned parameter.
    periods : tuple of Period
    run : Run
        The run along the selected forks.
    """

    candidate: Candidate
    number: str
    periods: tuple[Period, ...]
    run: Run


def tune(
    job: TrainJob,
    fleet: Fleet,
    candidate: Candidate,
    values: Sequence[float],
    goal: Goal,
    period_ns: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tuned:
    """Train in virtual time; after each period continue with the best of the current value and its neighbors.

    Parameters
    ----------
    candidate : Candidate
        Its value of the tuned parameter is the initial one; default: the first of ``values``.
    values : sequence of float
        Distinct; they are tried in order of size.
    period_ns : int
        For ADSP a multiple of its own period, as a value takes effect with the next period.
    progress : callable, optional

    Raises
    ------
    InputError
        The strategy has no tunable parameter, or there are too few values, or the run is shorter than a period.
    """
    plugin = registry.get("strategy", candidate.name)
    number = plugin.function(**candidate.numbers).tuned
    if not number:
        able = [name for name, item in registry.all("strategy").items() if item.function().tuned]
        raise InputError(
            f"{candidate.name} has no parameter that may change during training",
            where=str(candidate),
            fix=f"these have: {', '.join(able)}",
        )
    grid = sorted(set(values) | ({candidate.numbers[number]} if number in candidate.numbers else set()))
    if len(grid) < 2 or not 0 < period_ns <= goal.duration_ns:
        raise InputError(
            f"nothing to tune: {len(grid)} values, periods of {period_ns / 1e9:g} s in {goal.duration_ns / 1e9:g} s",
            where=number,
            fix="give two values or more, and a period within the run",
        )
    current = grid.index(candidate.numbers.get(number, values[0]))
    policy = plugin.function(**{**candidate.numbers, number: grid[current]})
    training = VirtualTraining(job, fleet, str(candidate), policy, goal, seed=seed)
    periods: list[Period] = []
    while not training.is_over and training.now_ns < goal.duration_ns:
        if progress is not None:
            progress(f"{number}={grid[current]:g}", training.now_ns // period_ns, -(-goal.duration_ns // period_ns))
        begin_ns = training.now_ns
        training, current, losses = _best(training, grid, current, begin_ns + period_ns)
        periods.append(Period(begin_ns, training.now_ns, losses, grid[current]))
    selected = [period.selected for period in periods]
    # the value of most periods; of several the one that was used last
    most = max(reversed(selected), key=selected.count)
    result = Candidate(candidate.name, {**candidate.numbers, number: most})
    return Tuned(result, number, tuple(periods), training.result_so_far())


def _best(
    training: VirtualTraining, grid: Sequence[float], current: int, until_ns: int
) -> tuple[VirtualTraining, int, tuple[tuple[float, float], ...]]:
    """Return the best fork at the end of the period, by hill climbing from the current value."""
    tried: dict[int, tuple[float, VirtualTraining]] = {}

    def loss_of(index: int) -> float:
        if index not in tried:
            fork = training.fork()
            fork.retune(grid[index])
            fork.advance(until_ns)
            tried[index] = fork.training_loss(_JUDGED), fork
        return tried[index][0]

    best = current
    loss_of(current)
    for step in (1, -1):
        while 0 <= best + step < len(grid) and loss_of(best + step) < loss_of(best):
            best += step
        if best != current:
            break
    return tried[best][1], best, tuple((grid[key], loss) for key, (loss, _) in tried.items())
