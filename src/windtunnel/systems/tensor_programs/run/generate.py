"""Draw, build and measure a whole set of programs.

In: tasks, targets, a seed; or a set of another host, whose programs are built again. Out: a ``ProgramSet`` file. Work
goes in batches; each finished one is a file of its own next to the output, so that an interrupted run goes on
where it was. Not here: how one program is built, timed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.program_set import ProgramSet
from windtunnel.systems.tensor_programs.run.batch import Bench, Member
from windtunnel.systems.tensor_programs.run.build import Target
from windtunnel.systems.tensor_programs.run.description import describe_device, describe_run, name_after_host
from windtunnel.systems.tensor_programs.run.measure import MAX_MOVE, MAX_SPREAD, Canary
from windtunnel.systems.tensor_programs.run.parts import Parts, open_parts
from windtunnel.systems.tensor_programs.run.tasks import Task

__all__ = ["Plan", "Sampled", "sample_programs"]

BATCH_SIZE = 48
MAX_NOISY_IN_TURN = 20
MAX_BATCHES_OVER = 4


@dataclass(frozen=True)
class Plan:
    """Plan of a measurement.

    Parameters
    ----------
    tasks : tuple of Task
        Drawn from in turn, in shuffled rounds.
    targets : tuple of Target
        The devices.
    num_programs : int
        How many programs the set shall have.
    seed : int
        Seed of all random choices.
    canary_tolerance : float
        Tolerated deviation of the canary of a look from its usual time, as a fraction.
    max_spread : float
        Standard deviation over mean above which a time is not kept.
    batch_size : int
        Programs between two looks at the canary.
    known, rows
        A set of another host, and which of its programs are measured here, in this order; new ones are not drawn.
    """

    tasks: tuple[Task, ...]
    targets: tuple[Target, ...]
    num_programs: int
    seed: int = 0
    canary_tolerance: float = MAX_MOVE
    max_spread: float = MAX_SPREAD
    batch_size: int = BATCH_SIZE
    known: ProgramSet | None = None
    rows: tuple[int, ...] = ()

    @classmethod
    def of_programs(cls, known: ProgramSet, rows: Sequence[int], targets: tuple[Target, ...], **options: Any) -> Plan:
        """The plan that measures some programs of a set."""
        tasks = tuple(Task.from_dict(task) for task in known.tasks)
        return cls(tasks, targets, len(rows), known=known, rows=tuple(map(int, rows)), **options)

    def members(self, batch: int) -> list[Member]:
        """The programs of a batch: a task and a seed each; always the same ones."""
        first = batch * self.batch_size
        if self.known is not None:
            rows = self.rows[first : first + self.batch_size]
            return [Member(row, int(self.known.task[row]), 0, self.known.sched[row]) for row in rows]
        return [self._member(index) for index in range(first, first + self.batch_size)]

    def _member(self, index: int) -> Member:
        turn, position = divmod(index, len(self.tasks))
        order = np.random.default_rng([self.seed, turn]).permutation(len(self.tasks))
        seed = int(np.random.default_rng([self.seed, turn, position]).integers(2**62))
        return Member(index, int(order[position]), seed)

    def is_done(self, parts: Parts) -> bool:
        """Whether nothing is left to measure."""
        if self.known is None:
            return parts.num_programs >= self.num_programs
        return parts.num_batches == math.ceil(len(self.rows) / self.batch_size)

    def to_dict(self) -> dict[str, Any]:
        """Return what must be equal for a run to continue with another one's batches."""
        return {
            "tasks": [task.name for task in self.tasks],
            "targets": [target.name for target in self.targets],
            "seed": self.seed,
            "canary_tolerance": self.canary_tolerance,
            "max_spread": self.max_spread,
            "batch_size": self.batch_size,
            "rows": list(self.rows),
        }


@dataclass
class Sampled:
    """What a run has done.

    Parameters
    ----------
    path : Path or None
        The set; None where it is not complete.
    num_programs : int
        Programs that are measured by now, by this run and earlier ones.
    num_noisy : int
        Batches of this run that were given up because the machine was not quiet; a later run measures them.
    num_noisy_in_turn : int
        Of these, the last ones without a good one between.
    dropped : Counter
        Programs, by the reason for which they are not in the set.
    elapsed_s : float
        Duration of this run.
    """

    path: Path | None = None
    num_programs: int = 0
    num_noisy: int = 0
    num_noisy_in_turn: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    elapsed_s: float = 0.0


def sample_programs(
    plan: Plan,
    output: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    budget_s: float | None = None,
    progress: Progress | None = None,
) -> Sampled:
    """Measure until the set is full or the time is over.

    Parameters
    ----------
    plan : Plan
        What to measure.
    output : Path
        The set's file; batches lie in ``OUTPUT.parts`` next to it.
    resume : bool
        Go on with batches that are there.
    budget_s : float or None
        Time limit after which no new batch is started.
    progress : callable or None
        Called with (what, done, total).
    """
    if plan.known is not None:
        _require_new(plan, plan.known)
    folder = open_parts(plan.to_dict(), output, resume=resume)
    parts = Parts.read(folder)
    began = time.monotonic()
    sampled = Sampled()
    canary = Canary(plan.canary_tolerance, parts.usual_s())
    with Bench(plan.tasks, plan.targets, canary, plan.max_spread) as bench:
        bench.known |= parts.list_sampled_schedules()
        for batch in _batches(plan, parts, sampled):
            if budget_s is not None and time.monotonic() - began > budget_s:
                break
            if progress is not None:
                progress("programs", parts.num_programs, plan.num_programs)
            _measure_batch(plan, bench, parts, batch, sampled)
            parts.drop_outdated_batches(canary)
        if plan.is_done(parts):
            whole = _assemble(plan, parts, bench.rates())
            whole = whole if plan.known is None else plan.known.merge_devices(_name_devices_after_host(whole))
            sampled.path = whole.save(output, overwrite=overwrite)
    sampled.num_programs = min(parts.num_programs, plan.num_programs)
    sampled.dropped = parts.count_dropped_programs()
    sampled.elapsed_s = time.monotonic() - began
    return sampled


def _batches(plan: Plan, parts: Parts, sampled: Sampled) -> Iterator[int]:
    """Numbers of batches that are not done, until there are enough programs or the machine is never quiet."""
    count = math.ceil(plan.num_programs / plan.batch_size)
    last = MAX_BATCHES_OVER * count + MAX_NOISY_IN_TURN
    numbers = itertools.cycle(range(count)) if plan.known is not None else itertools.count()
    for batch in itertools.islice(numbers, last):
        if plan.is_done(parts) or sampled.num_noisy_in_turn >= MAX_NOISY_IN_TURN:
            return
        if not parts.has(batch):
            yield batch


def _measure_batch(plan: Plan, bench: Bench, parts: Parts, batch: int, sampled: Sampled) -> None:
    """Measure a batch and keep it, if the machine was quiet enough for that."""
    result = bench.measure(plan.members(batch), seed=plan.seed + batch)
    if result is None:
        sampled.num_noisy += 1
        sampled.num_noisy_in_turn += 1
        return
    sampled.num_noisy_in_turn = 0
    meta = {
        "batch": batch,
        "dropped": dict(result.dropped),
        "canary_usual_s": result.canary,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if result.programs:
        parts.keep(batch, result.to_set(plan.tasks, plan.targets, meta))
    else:
        parts.empty.add(batch)


def _name_devices_after_host(measured: ProgramSet) -> ProgramSet:
    """Return the measured set with devices named after the host."""
    names = [name_after_host(name) for name in measured.device_names]
    return replace(
        measured, devices=tuple(device | {"name": name} for device, name in zip(measured.devices, names, strict=True))
    )


def _require_new(plan: Plan, known: ProgramSet) -> None:
    """Whether this host is none of a set's."""
    names = [name_after_host(target.name) for target in plan.targets]
    if known.meta.get("fingerprint") == describe_run(plan.seed)["fingerprint"] or set(names) & set(known.device_names):
        raise InputError("the set was measured on this host", where="of", fix="measure it on another one")


def _assemble(plan: Plan, parts: Parts, rates: Sequence[dict[str, float]]) -> ProgramSet:
    """Return all batches in order as one set of exactly the requested size."""
    ordered = [parts.sets[batch] for batch in sorted(parts.sets)]
    whole = ProgramSet.concatenate(ordered)
    whole = whole.select(np.arange(min(plan.num_programs, whole.num_programs)))
    dates = [part.meta["date"] for part in ordered]
    meta = describe_run(plan.seed) | {
        "dates": [min(dates), max(dates)],
        "dropped": dict(parts.count_dropped_programs()),
        "canary_usual_s": parts.usual_s(),
        "canary_tolerance": plan.canary_tolerance,
        "max_std_over_mean": plan.max_spread,
    }
    return replace(
        whole,
        tasks=tuple(task.to_dict() for task in plan.tasks),
        devices=tuple(describe_device(*row) for row in zip(plan.targets, rates, strict=True)),
        meta=meta,
    )
