"""A good schedule for a task: many drawn, ranked by a trained model, the best of them measured.

In: a ``Task``, a ``Target`` and its sheet, a ``Predictor``. Out: ``Candidate`` rows, the most promising first, with the
times of those that were measured. Not here: what is drawn (``run.sampling``), how a time is taken (``measure``).

Source: the use of a cost model in a schedule search: Ansor (OSDI 2020), CDMPP (EuroSys 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import FlightError, WindtunnelError
from windtunnel.measure.workers import WorkerError
from windtunnel.systems.tensor_programs.program_set import ProgramSet
from windtunnel.systems.tensor_programs.run.batch import Measured, Member
from windtunnel.systems.tensor_programs.run.build import Target
from windtunnel.systems.tensor_programs.run.description import describe_device
from windtunnel.systems.tensor_programs.run.measure import MIN_QUIET, Band, Canary, Look, Timing, select_undisturbed_s
from windtunnel.systems.tensor_programs.run.tasks import Task
from windtunnel.systems.tensor_programs.run.worker import SampledProgram, Worker

__all__ = [
    "Candidate",
    "build_candidates",
    "draw_candidates",
    "in_turn",
    "make_unmeasured_set",
    "rank_candidates",
    "search",
    "sheet_of",
]

NUM_CANDIDATES, NUM_MEASURED = 64, 8
MAX_TRIES = 4  # draws per candidate that is wanted: small spaces repeat themselves
ROUNDS = 5


class Prices(Protocol):
    """Predictor that returns seconds of samples (program, device column)."""

    def predict(self, programs: ProgramSet, samples: Any) -> Any:
        """Predict times in seconds, [M]."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A schedule of a task.

    Parameters
    ----------
    key : int
        Its number; a worker knows it by that.
    sampled : SampledProgram
        Its steps and what the model sees of it.
    predicted_s : float
    timing : Timing or None
        Where it was built and measured.
    """

    key: int
    sampled: SampledProgram
    predicted_s: float = float("nan")
    timing: Timing | None = None


def sheet_of(worker: Worker, target: Target) -> dict[str, Any]:
    """A target of this host as a device of a program set, with rates measured now (about two seconds)."""
    rates = worker.ask("describe", target.isa, target.num_threads)
    return describe_device(target, rates)


def draw_candidates(worker: Worker, task: Task, count: int = NUM_CANDIDATES, *, seed: int = 0) -> list[Candidate]:
    """Distinct schedules of a task that keep all limits; fewer where its space has no more."""
    result: dict[bytes, Candidate] = {}
    reason = ""
    for key in range(MAX_TRIES * count):
        if len(result) == count:
            break
        try:
            sampled = worker.ask("draw", key, task, int(np.random.default_rng([seed, key]).integers(2**62)))
            # only the schedule is kept: it is replayed where it is needed
            worker.ask("forget", [key])
            result.setdefault(sampled.sched.tobytes(), Candidate(key, sampled))
        except WorkerError as error:
            reason = error.message
            worker.start()
        except WindtunnelError as error:
            reason = error.message
    if not result:
        raise FlightError(f"no schedule can be drawn: {reason}", where=task.name)
    return list(result.values())


def make_unmeasured_set(tasks: Sequence[Task], programs: Sequence[tuple[int, SampledProgram]]) -> ProgramSet:
    """Programs (row of their task, what was drawn) as a set without times, for one device that is to be named."""
    members = [(Member(key, task, 0), sampled) for key, (task, sampled) in enumerate(programs)]
    return Measured(members, [[None] for _ in members]).to_set(tasks, [], {})


def rank_candidates(
    predictor: Prices, task: Task, candidates: Sequence[Candidate], sheet: Mapping[str, Any]
) -> list[Candidate]:
    """Candidates with predicted times on a device of this sheet, the fastest first."""
    programs = replace(
        make_unmeasured_set([task], [(0, candidate.sampled) for candidate in candidates]), devices=(dict(sheet),)
    )
    samples = np.column_stack([np.arange(len(candidates)), np.zeros(len(candidates), np.int64)])
    seconds = predictor.predict(programs, samples).tolist()
    priced = [
        replace(candidate, predicted_s=float(value)) for candidate, value in zip(candidates, seconds, strict=True)
    ]
    return sorted(priced, key=lambda candidate: candidate.predicted_s)


def build_candidates(
    worker: Worker,
    task: Task,
    order: Sequence[Candidate],
    isa: str,
    count: int,
    progress: Progress | None = None,
) -> list[Candidate]:
    """Return the first ``count`` candidates that can be built; after a compiler crash, the others are built again."""
    built: list[Candidate] = []
    for item in order:
        if len(built) == count:
            break
        if progress is not None:
            progress("building", len(built), count)
        try:
            worker.ask("replay", item.key, task, item.sampled.sched)
            worker.ask("build", item.key, task, [isa])
        except WorkerError:
            worker.start()
            built = build_candidates(worker, task, built, isa, len(built))
        except WindtunnelError:
            continue
        else:
            built.append(item)
    return built


def search(
    worker: Worker,
    task: Task,
    target: Target,
    predictor: Prices,
    sheet: Mapping[str, Any],
    *,
    num_candidates: int = NUM_CANDIDATES,
    num_measured: int = NUM_MEASURED,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Candidate]:
    """Draw candidates, rank them by the model, build and measure the best.

    Returns
    -------
    list of Candidate
        Those that were measured, the fastest first, then all others as the model ranks them.
    """
    order = rank_candidates(predictor, task, draw_candidates(worker, task, num_candidates, seed=seed), sheet)
    built = build_candidates(worker, task, order, target.isa, num_measured, progress)
    if not built:
        raise FlightError("no schedule of the task could be built", where=task.name)
    timings = in_turn(worker, [item.key for item in built], target)
    worker.ask("forget", list(timings))
    timed = [replace(item, timing=timings[item.key]) for item in built]
    timed.sort(key=lambda candidate: timings[candidate.key].mean_s)
    known = {item.key for item in timed}
    return [*timed, *(item for item in order if item.key not in known)]


def in_turn(worker: Worker, keys: Sequence[int], target: Target, rounds: int = ROUNDS) -> dict[int, Timing]:
    """Programs that are built, timed in turn, by the looks that others disturbed least.

    A choice among many noisy times flatters its winner: finalists should be timed again.
    """
    looks: dict[int, list[Look]] = {key: [] for key in keys}
    for _ in range(rounds):
        for key, values in looks.items():
            values += worker.ask("time", key, target.isa, target.num_threads)
    canary = Canary()
    canary.learn({"all": [time_s for values in looks.values() for look in values for time_s in look.canary_s]})
    return {key: _timing(values, canary.band_s("all")) for key, values in looks.items()}


def _timing(looks: Sequence[Look], band_s: Band) -> Timing:
    """Return the timing of undisturbed looks or, where these are too few, of those with the fastest canaries."""
    quiet = select_undisturbed_s(looks, band_s)
    if len(quiet) < MIN_QUIET:
        quiet = [look.program_s for look in sorted(looks, key=lambda look: look.canary_s[1])[:MIN_QUIET]]
    return Timing(tuple(quiet))
