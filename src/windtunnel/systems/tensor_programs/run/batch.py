"""Measure a batch of programs on every target, interleaved.

In: tasks and seeds. Out: ``Measured``, or nothing where it was never quiet. All programs are built first, by as many
processes as there are cores; then one is timed at a time, in passes over all programs and targets, shuffled, until
there are looks enough of each that nothing disturbed. Not here: how many batches, and where they are kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windtunnel.errors import WindtunnelError
from windtunnel.measure.workers import WorkerError
from windtunnel.systems.tensor_programs.program_set import ProgramSet
from windtunnel.systems.tensor_programs.run.build import Target
from windtunnel.systems.tensor_programs.run.measure import (
    MAX_PASSES,
    MAX_SPENT_S,
    MAX_SPREAD,
    Canary,
    Look,
    Timing,
    select_undisturbed_s,
)
from windtunnel.systems.tensor_programs.run.tasks import Task
from windtunnel.systems.tensor_programs.run.worker import SampledProgram, Worker

__all__ = ["Bench", "Measured", "Member"]

MIN_TIMED_RATIO = 0.3  # of all times; where fewer are known, the machine was not quiet
NUM_WATCHED = 20_000

Pair = tuple[int, Target]
Looks = dict[Pair, list[Look]]


@dataclass(frozen=True)
class Member:
    """A program of a batch: which one it is, of which task, drawn from which seed or done again from its rows."""

    key: int
    task: int
    seed: int
    rows: Any = None


@dataclass
class Measured:
    """Programs of a batch with the time of each on each target, in seconds."""

    programs: list[tuple[Member, SampledProgram]] = field(default_factory=list)
    timings: list[list[Timing | None]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    canary: dict[str, float] = field(default_factory=dict)

    def to_set(self, tasks: Sequence[Task], targets: Sequence[Target], meta: dict[str, Any]) -> ProgramSet:
        """Return the batch as a program set."""
        sampled = [item for _, item in self.programs]
        rows = [member.task for member, _ in self.programs]
        return ProgramSet(
            features=np.concatenate([item.features for item in sampled]),
            code=np.concatenate([item.code for item in sampled]),
            leaf_offset=_offsets([len(item.leaf_pos) for item in sampled]),
            leaf_pos=np.concatenate([item.leaf_pos for item in sampled]).astype(np.int16),
            tree=np.concatenate([item.tree for item in sampled]).astype(np.int16),
            tree_offset=_offsets([len(item.tree) for item in sampled]),
            task=np.array(rows, np.int32),
            sched=np.stack([item.sched for item in sampled]),
            mean_s=_table(self.timings, "mean_s"),
            std_s=_table(self.timings, "std_s"),
            flops=np.array([tasks[row].flops for row in rows], np.float64),
            devices=tuple({"name": target.name} for target in targets),
            tasks=tuple(task.to_dict() for task in tasks),
            meta=meta,
        )


def _offsets(sizes: Sequence[int]) -> Any:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def _table(timings: Sequence[Sequence[Timing | None]], name: str) -> Any:
    return np.array([[np.nan if item is None else getattr(item, name) for item in row] for row in timings], np.float32)


class Bench:
    """The processes and what they hold. Use as a context manager: leaving it ends the processes.

    Parameters
    ----------
    tasks, targets : sequence
        What is measured on what.
    canary : Canary
        Judges which looks count.
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
        """Build and time a batch; None where too few looks were undisturbed."""
        result = Measured()
        with ThreadPoolExecutor(len(self._workers)) as pool:
            halves = list(pool.map(lambda index: self._build_part(index, members), range(len(self._workers))))
        for programs, dropped in halves:
            result.programs += programs
            result.dropped += dropped
        result.programs.sort(key=lambda program: program[0].key)
        looks = self._time_all(result, seed)
        known = [self._is_known(pair, values) for pair, values in looks.items() if values]
        if known and sum(known) < MIN_TIMED_RATIO * len(known):
            self._forget(members, result.programs)
            return None
        result.canary = dict(self._canary.usual_s)
        self._forget(members, ())
        self._judge(result, looks)
        return result

    def rates(self) -> list[dict[str, float]]:
        """Peak and bandwidth of each target, measured now."""
        return [self._workers[0].ask("describe", target.isa, target.num_threads) for target in self._targets]

    def _owner(self, task: int) -> Worker:
        """Programs of one task are all drawn by one process, so that twins meet."""
        return self._workers[task % len(self._workers)]

    def _build_part(
        self, index: int, members: Sequence[Member]
    ) -> tuple[list[tuple[Member, SampledProgram]], Counter[str]]:
        worker, dropped = self._workers[index], Counter[str]()
        kept: list[tuple[Member, SampledProgram]] = []
        for member in members:
            if self._owner(member.task) is not worker:
                continue
            try:
                if member.rows is not None:
                    sampled = worker.ask("replay", member.key, self._tasks[member.task], member.rows)
                else:
                    sampled = worker.ask("draw", member.key, self._tasks[member.task], member.seed)
                    twin = (member.task, sampled.sched.tobytes())
                    if twin in self.known:
                        dropped["drawn before"] += 1
                        continue
                    self.known.add(twin)
                worker.ask("build", member.key, self._tasks[member.task], self._isas)
                kept.append((member, sampled))
            except WorkerError:
                dropped["compiler died"] += 1
                kept = self._revive(worker, kept, dropped)
            except WindtunnelError as error:
                dropped[_reason(error)] += 1
        return kept, dropped

    def _revive(
        self, worker: Worker, programs: Sequence[tuple[Member, SampledProgram]], dropped: Counter[str]
    ) -> list[tuple[Member, SampledProgram]]:
        """A new process that holds the same code as the one that died; gives what could be built again.

        Where it dies once more, its programs are given up.
        """
        worker.start()
        alive = []
        for member, sampled in programs:
            try:
                if self._owner(member.task) is worker:
                    worker.ask("replay", member.key, self._tasks[member.task], sampled.sched)
                    worker.ask("build", member.key, self._tasks[member.task], self._isas)
                alive.append((member, sampled))
            except WorkerError:
                worker.start()
                others = [pair for pair in programs if self._owner(pair[0].task) is not worker]
                dropped["compiler died"] += len(programs) - len(others)
                return others
            except WindtunnelError as error:
                dropped[_reason(error)] += 1
        return alive

    def _time_all(self, measured: Measured, seed: int) -> Looks:
        """Passes over every program on every target, in shuffled order, until enough looks of each are undisturbed."""
        tasks = {member.key: member.task for member, _ in measured.programs}
        pairs: list[Pair] = [(key, target) for key in tasks for target in self._targets]
        looks: Looks = {pair: [] for pair in pairs}
        generator = np.random.default_rng(seed)
        self._watch()
        for _ in range(MAX_PASSES):
            waiting = [
                pair
                for pair in pairs
                if not self._is_known(pair, looks[pair]) and sum(look.program_s for look in looks[pair]) < MAX_SPENT_S
            ]
            if not waiting:
                break
            for index in generator.permutation(len(waiting)):
                key, target = waiting[index]
                looks[key, target] += self._time(measured, self._owner(tasks[key]), key, target)
            self._learn(looks)
        return looks

    def _watch(self) -> None:
        """Learn the canary's usual time before the first batch."""
        missing = {target.num_threads for target in self._targets} - set(map(int, self._canary.usual_s))
        for count in missing:
            self._canary.learn({str(count): self._workers[0].ask("watch", count, NUM_WATCHED)})

    def _learn(self, looks: Looks) -> None:
        seen: dict[str, list[float]] = {}
        for (_, target), values in looks.items():
            seen.setdefault(str(target.num_threads), []).extend(time_s for look in values for time_s in look.canary_s)
        self._canary.learn({name: values for name, values in seen.items() if values})

    def _timing(self, pair: Pair, looks: Sequence[Look]) -> Timing:
        return Timing(tuple(select_undisturbed_s(looks, self._canary.band_s(str(pair[1].num_threads)))))

    def _is_known(self, pair: Pair, looks: Sequence[Look]) -> bool:
        return self._timing(pair, looks).is_steady(self._max_spread)

    def _time(self, measured: Measured, worker: Worker, key: int, target: Target) -> Sequence[Look]:
        """Measure one program once; return nothing where it crashed its process."""
        if all(key != member.key for member, _ in measured.programs):
            return ()
        try:
            band_s = self._canary.band_s(str(target.num_threads))
            looks: Sequence[Look] = worker.ask("time", key, target.isa, target.num_threads, band_s)
        except WorkerError:
            measured.dropped["program died"] += 1
            others = [program for program in measured.programs if program[0].key != key]
            measured.programs = self._revive(worker, others, measured.dropped)
            return ()
        return looks

    def _judge(self, measured: Measured, looks: Looks) -> None:
        """Keep what was steady; a program without any steady time is dropped."""
        kept = []
        for member, sampled in measured.programs:
            pairs = [(member.key, target) for target in self._targets]
            row = [self._timing(pair, looks[pair]) for pair in pairs]
            steady = [timing if timing.is_steady(self._max_spread) else None for timing in row]
            if any(steady):
                kept.append((member, sampled))
                measured.timings.append(steady)
            else:
                measured.dropped["never steady"] += 1
        measured.programs = kept

    def _forget(self, members: Sequence[Member], given_up: Sequence[tuple[Member, SampledProgram]]) -> None:
        """Free the code; programs that were given up may be sampled again."""
        self.known -= {(member.task, sampled.sched.tobytes()) for member, sampled in given_up}
        for worker in self._workers:
            worker.ask("forget", [member.key for member in members])


def _reason(error: WindtunnelError) -> str:
    """Why a program is not kept, without its numbers."""
    text = error.message
    known = ("computes something else", "one run takes", "keeps the limits")
    return next((reason for reason in known if reason in text), text.partition(":")[0][:60])
