"""One task trained with each kind of layers, several seeds each.

In: a task by name, cases, seeds. Out: ``Qualities``: the metric of each case beside the first one's. Not here:
trainings (``tasks``).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.layer_quality import trainer
from benchmarks.layer_quality.tasks import TASKS, Score, Task
from benchmarks.layer_quality.trainer import Trainings, trained
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.measure.workers import Workers

__all__ = ["Qualities", "Quality", "compare_layers"]

_PATIENCE_S = 7200.0  # of one training


@dataclass(frozen=True)
class Quality:
    """What trainings with one kind of layers are worth.

    Attributes
    ----------
    case : str
    scores : tuple of Score
        One for each seed.
    """

    case: str
    scores: tuple[Score, ...]

    def mean(self, metric: str) -> float:
        """Mean over seeds."""
        return statistics.fmean(score.metrics[metric] for score in self.scores)

    def spread(self, metric: str) -> float:
        """Largest less smallest over seeds."""
        values = [score.metrics[metric] for score in self.scores]
        return max(values) - min(values)


@dataclass(frozen=True)
class Qualities:
    """All cases of a task.

    Attributes
    ----------
    task : str
    metric : str
    cases : tuple of Quality
        The first one is what the others are compared with.
    settings : dict
    """

    task: str
    metric: str
    cases: tuple[Quality, ...]
    settings: dict[str, Any]

    def of(self, case: str) -> Quality:
        """One case."""
        return next(one for one in self.cases if one.case == case)

    def ratio(self, case: str) -> float:
        """Mean metric over that of the first case."""
        return self.of(case).mean(self.metric) / self.cases[0].mean(self.metric)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "task": self.task,
            "metric": self.metric,
            "data": self.cases[0].scores[0].data,
            **self.settings,
            "cases": [
                {
                    "case": one.case,
                    "num_weights": one.scores[0].num_weights,
                    "mean": {name: one.mean(name) for name in one.scores[0].metrics},
                    "by_seed": [dict(score.metrics) for score in one.scores],
                    "by_epoch": [list(score.by_epoch) for score in one.scores],
                }
                for one in self.cases
            ],
        }


def compare_layers(
    name: str,
    cases: Sequence[str] = (),
    *,
    num_seeds: int = 1,
    epochs: int | None = None,
    width: int | None = None,
    p: float | None = None,
    processes: int = 1,
    progress: Progress | None = None,
) -> Qualities:
    """Train a task with each kind of layers, with the same seeds.

    Parameters
    ----------
    name : str
        A task: ``word-lm``, ``mnist``, ``cifar10``.
    cases : sequence of str
        Kinds of layers, the first to compare with; the task's own by default.
    num_seeds : int
    epochs, width, p : optional
        The task's own by default.
    processes : int
        Trainings at once; each has its part of torch's threads.
    progress : callable, optional
        Called with (what, done, total).

    Raises
    ------
    InputError
        There is no such task or case, or a number is none that can be trained with.
    """
    task = _task(name)
    epochs, width, p = epochs or task.epochs, width or task.width, task.p if p is None else p
    if min(num_seeds, epochs, width) < 1 or not 0 <= p < 1:
        raise InputError(
            f"{name} cannot be trained with {num_seeds} seeds, {epochs} epochs, {width} units and a share of {p}",
            fix="take 1 and more, and a share below 1",
        )
    cases = tuple(cases) or task.cases
    for case in cases:
        task.check(case)
    jobs = tuple((case, seed) for seed in range(num_seeds) for case in cases)
    wanted = Trainings(name, epochs, width, p, max(1, torch.get_num_threads() // processes), jobs)
    found: dict[str, list[Score]] = {case: [] for case in cases}
    for (case, _), score in zip(jobs, _all(wanted, min(processes, len(jobs)), progress), strict=True):
        found[case].append(score)
    settings = {"epochs": epochs, "width": width, "p": p, "num_seeds": num_seeds}
    rows = tuple(Quality(case, tuple(scores)) for case, scores in found.items())
    return Qualities(name, task.metric, rows, settings)


def _task(name: str) -> Task:
    if name not in TASKS:
        raise InputError(f"no task is called {name!r}", where="task", fix=f"known: {', '.join(TASKS)}")
    return TASKS[name]


def _all(wanted: Trainings, processes: int, progress: Progress | None) -> list[Score]:
    """Scores in the order of the jobs."""
    num, done = len(wanted.jobs), 0

    def heard(count: int) -> None:
        if progress is not None:
            progress("training", count, num)

    if processes == 1:
        scores = []
        for done, job in enumerate(wanted.jobs, start=1):
            scores.append(trained(wanted, job))
            heard(done)
        return scores
    with Workers(trainer.__name__, wanted, num_ranks=processes, title="training", patience_s=_PATIENCE_S) as workers:
        parts = workers.gather(lambda scores: heard(min(num, len(scores) * processes)))
    return [parts[row % processes][row // processes] for row in range(num)]
