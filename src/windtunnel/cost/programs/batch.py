"""Measure a batch of programs on every target, interleaved (room cost, programs).

In: tasks and seeds. Out: ``Measured``, or nothing where the machine was not quiet. All programs are built first, by as
many processes as there are cores; then one is timed at a time, programs and targets shuffled, in two passes, in short
stretches between two looks at the canary: where it moved, the stretch is timed again. Not here: how many batches, and
where they are kept.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windtunnel.cost.learned.program_set import ProgramSet
from windtunnel.cost.programs.build import Target
from windtunnel.cost.programs.measure import BUDGET_S, MAX_SPREAD, Canary, Timing
from windtunnel.cost.programs.tasks import Task
from windtunnel.cost.programs.worker import Drawn, Worker, WorkerDiedError
from windtunnel.errors import WindtunnelError

__all__ = ["Bench", "Measured", "Member"]

MAX_ATTEMPTS = 6  # of a stretch, in the mean over a batch
STRETCH = 24
NUM_PASSES = 2
MAX_RETIMES = 2
_CANARY_KEY = -1
_CANARY_TIMES = 3
_CANARY_BUDGET_S = 0.004

Samples = dict[tuple[int, str], list[float]]


@dataclass(frozen=True)
class Member:
    """A program of a batch: which one it is, of which task, drawn from which seed."""

    key: int
    task: int
    seed: int


@dataclass
class Measured:
    """Programs of a batch with the time of each on each target, in seconds."""

    programs: list[tuple[Member, Drawn]] = field(default_factory=list)
    timings: list[list[Timing | None]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    canary: list[dict[str, float]] = field(default_factory=list)

    def to_set(self, tasks: Sequence[Task], targets: Sequence[Target], meta: dict[str, Any]) -> ProgramSet:
        """The batch as a program set."""
        drawn = [one for _, one in self.programs]
        rows = [member.task for member, _ in self.programs]
        return ProgramSet(
            features=np.concatenate([one.features for one in drawn]),
            leaf_offset=_offsets([len(one.leaf_pos) for one in drawn]),
            leaf_pos=np.concatenate([one.leaf_pos for one in drawn]).astype(np.int16),
            tree=np.concatenate([one.tree for one in drawn]).astype(np.int16),
            tree_offset=_offsets([len(one.tree) for one in drawn]),
            task=np.array(rows, np.int32),
            sched=np.stack([one.sched for one in drawn]),
            mean_s=_table(self.timings, "mean_s"),
            std_s=_table(self.timings, "std_s"),
            flops=np.array([tasks[row].flops for row in rows], np.float64),
            devices=tuple({"name": target.name} for target in targets),
            tasks=tuple(task.to_dict() for task in tasks),
            meta=meta,
        )


def _key(pair: tuple[Member, Target]) -> tuple[int, str]:
    return pair[0].key, pair[1].name


def _offsets(sizes: Sequence[int]) -> Any:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def _table(timings: Sequence[Sequence[Timing | None]], name: str) -> Any:
    return np.array([[np.nan if one is None else getattr(one, name) for one in row] for row in timings], np.float32)


class Bench:
    """The processes and what they hold. Use as a context manager: leaving it ends the processes.

    Parameters
    ----------
    tasks, targets : sequence
        What is measured on what.
    canary : Canary
        Judges whether a batch may be kept.
    max_spread : float
        Standard deviation over mean above which a time is not kept.
    """

    def __init__(
        self, tasks: Sequence[Task], targets: Sequence[Target], canary: Canary, max_spread: float = MAX_SPREAD
    ) -> None:
        self._max_spread = max_spread
        self.known: set[tuple[int, bytes]] = set()
        self._tasks, self._targets, self._canary = tasks, targets, canary
        self._isas = list(dict.fromkeys(target.isa for target in targets))
        most = max(target.num_threads for target in targets)
        self._workers = [Worker(most) for _ in range(min(2, os.cpu_count() or 1))]

    def __enter__(self) -> Bench:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()

    def measure(self, members: Sequence[Member], *, seed: int) -> Measured | None:
        """Build and time a batch; None where the canary moved every time."""
        found = Measured()
        with ThreadPoolExecutor(len(self._workers)) as pool:
            halves = list(pool.map(lambda at: self._build_part(at, members), range(len(self._workers))))
        for programs, dropped in halves:
            found.programs += programs
            found.dropped += dropped
        found.programs.sort(key=lambda program: program[0].key)
        samples = self._time_all(found, seed)
        if samples is None:
            self._forget(members, found.programs)
            return None
        self._forget(members, ())
        self._judge(found, samples)
        return found

    def rates(self) -> list[dict[str, float]]:
        """Peak and bandwidth of each target, measured now."""
        return [self._workers[0].ask("describe", target.isa, target.num_threads) for target in self._targets]

    def _owner(self, task: int) -> Worker:
        """Programs of one task are all drawn by one process, so that twins meet."""
        return self._workers[task % len(self._workers)]

    def _build_part(self, at: int, members: Sequence[Member]) -> tuple[list[tuple[Member, Drawn]], Counter[str]]:
        worker, dropped = self._workers[at], Counter[str]()
        kept: list[tuple[Member, Drawn]] = []
        for member in members:
            if self._owner(member.task) is not worker:
                continue
            try:
                drawn = worker.ask("draw", member.key, self._tasks[member.task], member.seed)
                twin = (member.task, drawn.sched.tobytes())
                if twin in self.known:
                    dropped["drawn before"] += 1
                    continue
                self.known.add(twin)
                worker.ask("build", member.key, self._tasks[member.task], self._isas)
                kept.append((member, drawn))
            except WorkerDiedError:
                dropped["compiler died"] += 1
                kept = self._revive(worker, kept, dropped)
            except WindtunnelError as error:
                dropped[_reason(error)] += 1
        return kept, dropped

    def _revive(
        self, worker: Worker, programs: Sequence[tuple[Member, Drawn]], dropped: Counter[str]
    ) -> list[tuple[Member, Drawn]]:
        """A new process that holds the same code as the one that died; gives what could be built again.

        Where it dies once more, its programs are given up.
        """
        worker.start()
        alive = []
        for member, drawn in programs:
            try:
                if self._owner(member.task) is worker:
                    worker.ask("replay", member.key, self._tasks[member.task], drawn.sched)
                    worker.ask("build", member.key, self._tasks[member.task], self._isas)
                alive.append((member, drawn))
            except WorkerDiedError:
                worker.start()
                others = [pair for pair in programs if self._owner(pair[0].task) is not worker]
                dropped["compiler died"] += len(programs) - len(others)
                return others
            except WindtunnelError as error:
                dropped[_reason(error)] += 1
        return alive

    def _time_all(self, found: Measured, seed: int) -> Samples | None:
        """Samples of every program on every target, in shuffled order, in several passes; None where it was not quiet.

        What is slow fills its time in the first pass; what was not steady is timed anew, and longer.
        """
        samples: Samples = defaultdict(list)
        pairs = [(member, target) for member, _ in found.programs for target in self._targets]
        generator = np.random.default_rng(seed)
        for _ in range(NUM_PASSES):
            order = [pairs[place] for place in generator.permutation(len(pairs))]
            open_pairs = [pair for pair in order if sum(samples[_key(pair)]) < BUDGET_S]
            taken = self._between_looks(found, open_pairs, BUDGET_S / NUM_PASSES)
            if taken is None:
                return None
            for key, values in taken.items():
                samples[key] += values
        for _ in range(MAX_RETIMES):
            unsteady = [pair for pair in pairs if not self._is_steady(samples[_key(pair)])]
            taken = self._between_looks(found, unsteady, BUDGET_S)
            if taken is None:
                return None
            samples |= taken
        return samples

    def _is_steady(self, samples_s: Sequence[float]) -> bool:
        return not samples_s or Timing(tuple(samples_s)).is_steady(self._max_spread)

    def _between_looks(
        self, found: Measured, pairs: Sequence[tuple[Member, Target]], budget_s: float
    ) -> Samples | None:
        """Samples of pairs, stretch by stretch; None where the canary moved too often."""
        samples: Samples = {}
        waiting = deque(pairs[first : first + STRETCH] for first in range(0, len(pairs), STRETCH))
        patience = MAX_ATTEMPTS * len(waiting)
        before_s = self._look() if waiting else {}
        while waiting:
            stretch = waiting.popleft()
            taken = {_key(pair): list(self._time(found, *pair, budget_s)) for pair in stretch}
            after_s = self._look()
            if self._canary.is_quiet(before_s, after_s):
                samples |= taken
                found.canary += [before_s, after_s]
            else:
                waiting.append(stretch)
                patience -= 1
                if patience < 0:
                    return None
            before_s = after_s
        return samples

    def _time(self, found: Measured, member: Member, target: Target, budget_s: float) -> tuple[float, ...]:
        if all(member is not other for other, _ in found.programs):
            return ()
        worker = self._owner(member.task)
        try:
            samples: tuple[float, ...] = worker.ask("time", member.key, target.isa, target.num_threads, budget_s)
        except WorkerDiedError:
            found.dropped["program died"] += 1
            others = [program for program in found.programs if program[0] is not member]
            found.programs = self._revive(worker, others, found.dropped)
            return ()
        return samples

    def _judge(self, found: Measured, samples: Samples) -> None:
        """Keep what was steady; a program without any steady time is dropped."""
        kept = []
        for member, drawn in found.programs:
            row = [Timing(tuple(samples[member.key, target.name])) for target in self._targets]
            steady = [timing if timing.samples_s and timing.is_steady(self._max_spread) else None for timing in row]
            if any(steady):
                kept.append((member, drawn))
                found.timings.append(steady)
            else:
                found.dropped["never steady"] += 1
        found.programs = kept

    def _look(self) -> dict[str, float]:
        """The canary's time now, by target: the first instruction set, each number of threads."""
        worker, isa = self._workers[0], self._isas[0]
        seen = {}
        for target in self._targets:
            if target.isa == isa:
                worker.ask("canary", _CANARY_KEY, isa)
                times = [
                    statistics.median(worker.ask("time", _CANARY_KEY, isa, target.num_threads, _CANARY_BUDGET_S))
                    for _ in range(_CANARY_TIMES)
                ]
                seen[target.name] = statistics.median(times)
        return seen

    def _forget(self, members: Sequence[Member], given_up: Sequence[tuple[Member, Drawn]]) -> None:
        """Let go of the code; programs that were given up may be drawn again."""
        self.known -= {(member.task, drawn.sched.tobytes()) for member, drawn in given_up}
        for worker in self._workers:
            worker.ask("forget", [member.key for member in members])


def _reason(error: WindtunnelError) -> str:
    """Why a program is not kept, without its numbers."""
    text = error.message
    known = ("computes something else", "one run takes", "keeps the limits")
    return next((reason for reason in known if reason in text), text.partition(":")[0][:60])
