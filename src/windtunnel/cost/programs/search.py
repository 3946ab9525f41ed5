"""A good schedule for a task (room cost, programs): many drawn, ranked by a trained model, the best of them measured.

In: a ``Task``, a ``Target`` and its sheet, a ``Predictor``. Out: ``Candidate`` rows, the most promising first, with the
times of those that were measured. Not here: what is drawn (``sampling``), how a time is taken (``measure``).

Source: the use of a cost model in a schedule search: Ansor (OSDI 2020), CDMPP (EuroSys 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from windtunnel.cost.learned.program_set import ProgramSet
from windtunnel.cost.programs.batch import Measured, Member
from windtunnel.cost.programs.build import Target
from windtunnel.cost.programs.description import describe_device
from windtunnel.cost.programs.measure import BUDGET_S, MIN_QUIET, Canary, Look, Timing, undisturbed_s
from windtunnel.cost.programs.tasks import Task
from windtunnel.cost.programs.worker import Drawn, Worker, WorkerDiedError
from windtunnel.errors import FlightError, WindtunnelError

__all__ = ["Candidate", "build_candidate", "draw_candidates", "in_turn", "ranked", "search", "sheet_of"]

NUM_CANDIDATES, NUM_MEASURED = 64, 8
MAX_TRIES = 4  # draws per candidate that is wanted: small spaces repeat themselves
ROUNDS = 5


class Prices(Protocol):
    """What ranks: seconds of samples (program, device column)."""

    def predict(self, programs: ProgramSet, samples: Any) -> Any:
        """Seconds [M]."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A schedule of a task.

    Parameters
    ----------
    key : int
        Its number; a worker knows it by that.
    drawn : Drawn
        Its steps and what the model sees of it.
    predicted_s : float
    timing : Timing or None
        Where it was built and measured.
    """

    key: int
    drawn: Drawn
    predicted_s: float = float("nan")
    timing: Timing | None = None


def sheet_of(worker: Worker, target: Target) -> dict[str, Any]:
    """A target of this host as a device of a program set, with rates measured now (about two seconds)."""
    return describe_device(target, worker.ask("describe", target.isa, target.num_threads))


def draw_candidates(worker: Worker, task: Task, count: int = NUM_CANDIDATES, *, seed: int = 0) -> list[Candidate]:
    """Distinct schedules of a task that keep all limits; fewer where its space has no more.

    Raises
    ------
    FlightError
        Not one could be drawn.
    """
    found: dict[bytes, Candidate] = {}
    reason = ""
    for key in range(MAX_TRIES * count):
        if len(found) == count:
            break
        try:
            drawn = worker.ask("draw", key, task, int(np.random.default_rng([seed, key]).integers(2**62)))
            worker.ask("forget", [key])
            found.setdefault(drawn.sched.tobytes(), Candidate(key, drawn))
        except WorkerDiedError as error:
            reason = error.message
            worker.start()
        except WindtunnelError as error:
            reason = error.message
    if not found:
        raise FlightError(f"no schedule can be drawn: {reason}", where=task.name)
    return list(found.values())


def ranked(predictor: Prices, task: Task, candidates: Sequence[Candidate], sheet: Mapping[str, Any]) -> list[Candidate]:
    """Candidates with predicted times on a device of this sheet, the fastest first."""
    members = [(Member(one.key, 0, 0), one.drawn) for one in candidates]
    programs = Measured(members, [[None] for _ in members]).to_set([task], [], {})
    programs = replace(programs, devices=(dict(sheet),))
    samples = np.column_stack([np.arange(len(members)), np.zeros(len(members), np.int64)])
    seconds = predictor.predict(programs, samples).tolist()
    priced = [replace(one, predicted_s=float(value)) for one, value in zip(candidates, seconds, strict=True)]
    return sorted(priced, key=lambda one: one.predicted_s)


def build_candidate(worker: Worker, task: Task, candidate: Candidate, isa: str) -> bool:
    """Make code of a candidate; says whether that went well. A compiler that dies is started again, without code."""
    try:
        worker.ask("replay", candidate.key, task, candidate.drawn.sched)
        worker.ask("build", candidate.key, task, [isa])
    except WorkerDiedError:
        worker.start()
        return False
    except WindtunnelError:
        return False
    return True


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
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Candidate]:
    """Draw candidates, rank them by the model, build and measure the best.

    Returns
    -------
    list of Candidate
        Those that were measured, the fastest first, then all others as the model ranks them.

    Raises
    ------
    FlightError
        No schedule could be drawn, or none of the chosen ones could be built.
    """
    order = ranked(predictor, task, draw_candidates(worker, task, num_candidates, seed=seed), sheet)
    built: list[Candidate] = []
    for one in order:
        if len(built) == num_measured:
            break
        if progress is not None:
            progress("building", len(built), num_measured)
        if build_candidate(worker, task, one, target.isa):
            built.append(one)
    if not built:
        raise FlightError("no schedule of the task could be built", where=task.name)
    timings = in_turn(worker, [one.key for one in built], target)
    worker.ask("forget", list(timings))
    timed = [replace(one, timing=timings[one.key]) for one in built]
    timed.sort(key=lambda one: timings[one.key].mean_s)
    known = {one.key for one in timed}
    return [*timed, *(one for one in order if one.key not in known)]


def in_turn(worker: Worker, keys: Sequence[int], target: Target, rounds: int = ROUNDS) -> dict[int, Timing]:
    """Programs that are built, timed in turn, by the looks that others disturbed least.

    A choice among many noisy times flatters its winner: finalists should be timed again.
    """
    looks: dict[int, list[Look]] = {key: [] for key in keys}
    for _ in range(rounds):
        for key, values in looks.items():
            values += worker.ask("time", key, target.isa, target.num_threads, BUDGET_S)
    canary = Canary()
    canary.learn({"all": [look.canary_s for values in looks.values() for look in values]})
    return {key: _timing(values, canary.limit_s("all")) for key, values in looks.items()}


def _timing(looks: Sequence[Look], limit_s: float) -> Timing:
    """Of undisturbed looks; where there are too few, of those with the fastest canaries."""
    quiet = undisturbed_s(looks, limit_s)
    if len(quiet) < MIN_QUIET:
        quiet = [look.program_s for look in sorted(looks, key=lambda look: look.canary_s)[:MIN_QUIET]]
    return Timing(tuple(quiet))
