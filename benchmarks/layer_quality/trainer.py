"""One of several processes that train cases of a task.

In: all trainings to be done; this process does every n-th. Out: their scores so far, after each. Not here: trainings
(``tasks``), who waits for them (``run``).
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.layer_quality.tasks import TASKS, Score
from windtunnel.measure.threads import threads
from windtunnel.measure.workers import Place

__all__ = ["Trainings", "main", "trained"]


@dataclass(frozen=True)
class Trainings:
    """Trainings of one task.

    Parameters
    ----------
    task : str
    epochs, width : int
    p : float
    num_threads : int
        Of each process.
    jobs : tuple of (case, seed)
    """

    task: str
    epochs: int
    width: int
    p: float
    num_threads: int
    jobs: tuple[tuple[str, int], ...]


def trained(wanted: Trainings, job: tuple[str, int]) -> Score:
    """One training."""
    with threads(wanted.num_threads):
        return TASKS[wanted.task].train(*job, wanted.epochs, wanted.width, wanted.p)


def main(place: Place) -> None:
    """Train this process's part."""
    wanted: Trainings = place.config
    scores: list[Score] = []
    for job in wanted.jobs[place.rank :: place.num_ranks]:
        scores.append(trained(wanted, job))
        place.tell(scores)
