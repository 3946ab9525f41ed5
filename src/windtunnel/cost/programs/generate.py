"""Draw, build and measure a whole set of programs (room cost, programs).

In: tasks, targets, a seed. Out: a ``ProgramSet`` file. Work goes in batches; each one that is done lies as a file of
its own beside the output, so that an interrupted run goes on where it was. Not here: how one program is built, timed.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.cost.learned.program_set import ProgramSet
from windtunnel.cost.programs.batch import Bench, Member
from windtunnel.cost.programs.bridge import Bridge, bridge
from windtunnel.cost.programs.build import Target
from windtunnel.cost.programs.description import describe_device, describe_run
from windtunnel.cost.programs.measure import MAX_MOVE, MAX_SPREAD, Canary
from windtunnel.cost.programs.tasks import Task
from windtunnel.errors import InputError

__all__ = ["Plan", "Sampled", "sample_programs"]

BATCH_SIZE = 48
MAX_NOISY_IN_TURN = 20
MAX_BATCHES_OVER = 4
_PLAN = "plan.json"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Parameters
    ----------
    tasks : tuple of Task
        Drawn from in turn, in shuffled rounds.
    targets : tuple of Target
        The devices.
    num_programs : int
        How many programs the set shall have.
    seed : int
        Of everything that is drawn.
    canary_tolerance : float
        By how much the canary beside a look may differ from its usual time, as a share.
    max_spread : float
        Standard deviation over mean above which a time is not kept.
    batch_size : int
        Programs between two looks at the canary.
    num_begun_tasks, num_begun_batches : int
        Of the set that is gone on with (``onto``): tasks that it does not have, the last ones, catch up first.
    """

    tasks: tuple[Task, ...]
    targets: tuple[Target, ...]
    num_programs: int
    seed: int = 0
    canary_tolerance: float = MAX_MOVE
    max_spread: float = MAX_SPREAD
    batch_size: int = BATCH_SIZE
    num_begun_tasks: int = 0
    num_begun_batches: int = 0

    def onto(self, begun: ProgramSet) -> Plan:
        """The plan that goes on with a set."""
        return replace(self, num_begun_tasks=len(begun.tasks), num_begun_batches=int(begun.meta["num_batches"]))

    def members(self, batch: int) -> list[Member]:
        """The programs of a batch: a task and a seed each; always the same ones."""
        first = batch * self.batch_size
        return [self._member(index) for index in range(first, first + self.batch_size)]

    def _member(self, index: int) -> Member:
        begun = self.num_begun_batches * self.batch_size
        num_turns = math.ceil(begun / max(1, self.num_begun_tasks))
        first, num_new = self.num_begun_tasks, len(self.tasks) - self.num_begun_tasks
        turn, place = divmod(index - begun, max(1, num_new))
        if num_new == 0 or turn >= num_turns:  # all have as many
            first, num_new = 0, len(self.tasks)
            turn, place = divmod(index - begun - num_turns * (len(self.tasks) - self.num_begun_tasks), num_new)
            turn += num_turns
        order = np.random.default_rng([self.seed, turn]).permutation(num_new)
        seed = int(np.random.default_rng([self.seed, turn, place]).integers(2**62))
        return Member(index, first + int(order[place]), seed)

    def to_dict(self) -> dict[str, Any]:
        """What must be equal for a run to go on with another one's batches."""
        return {
            "tasks": [task.name for task in self.tasks],
            "targets": [target.name for target in self.targets],
            "seed": self.seed,
            "canary_tolerance": self.canary_tolerance,
            "max_spread": self.max_spread,
            "batch_size": self.batch_size,
            "num_begun_tasks": self.num_begun_tasks,
            "num_begun_batches": self.num_begun_batches,
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
        Of this run.
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
    begun: ProgramSet | None = None,
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
        The set's file; batches lie in ``OUTPUT.parts`` beside it.
    begun : ProgramSet, optional
        A smaller set of the same plan or of its first tasks, measured on a host of this kind: its programs come
        first, and are not drawn again. Some are measured again, and what is added is brought to their clock.
    resume : bool
        Go on with batches that are there.
    budget_s : float or None
        No new batch is begun after so many seconds.
    progress : callable or None
        Called with (what, done, total).

    Raises
    ------
    InputError
        Batches of another plan, or of an earlier run without ``resume``, are there; ``begun`` is of another plan or
        host.
    MissingExtraError
        The extra ``tvm`` is not installed.
    """
    if begun is not None:
        _require_same(plan, begun)
        plan = plan.onto(begun)
    folder = _open_parts(plan, output, resume=resume)
    parts = _Parts.read(folder, begun)
    began = time.monotonic()
    sampled = Sampled()
    canary = Canary(plan.canary_tolerance, parts.usual_s())
    with Bench(plan.tasks, plan.targets, canary, plan.max_spread) as bench:
        bench.known |= parts.known()
        if begun is None or parts.num_programs >= plan.num_programs:
            bridged = Bridge((1.0,) * len(plan.targets))
        else:
            bridged = bridge(bench, begun, plan.seed)
        for batch in _batches(plan, parts, sampled):
            if budget_s is not None and time.monotonic() - began > budget_s:
                break
            if progress is not None:
                progress("programs", parts.num_programs, plan.num_programs)
            _measure_batch(plan, bench, parts, batch, sampled, bridged)
            parts.drop_outdated(canary)
        if parts.num_programs >= plan.num_programs:
            has_clock = begun is None or bridged.num_times
            rates = bridged.best_of(bench.rates(), parts.begun) if has_clock else parts.begun_rates()
            sampled.path = _assemble(plan, parts, rates, bench.facts()).save(output, overwrite=overwrite)
    sampled.num_programs = min(parts.num_programs, plan.num_programs)
    sampled.dropped = parts.dropped()
    sampled.elapsed_s = time.monotonic() - began
    return sampled


def _batches(plan: Plan, parts: _Parts, sampled: Sampled) -> Iterator[int]:
    """Numbers of batches that are not done, until there are enough programs or the machine is never quiet."""
    last = MAX_BATCHES_OVER * math.ceil(plan.num_programs / plan.batch_size) + MAX_NOISY_IN_TURN
    for batch in range(parts.num_batches_before, parts.num_batches_before + last):
        if parts.num_programs >= plan.num_programs or sampled.num_noisy_in_turn >= MAX_NOISY_IN_TURN:
            return
        if batch not in parts.sets:
            yield batch


def _measure_batch(plan: Plan, bench: Bench, parts: _Parts, batch: int, sampled: Sampled, bridged: Bridge) -> None:
    """Measure a batch and keep it, if the machine was quiet enough for that."""
    found = bench.measure(plan.members(batch), seed=plan.seed + batch)
    if found is None:
        sampled.num_noisy += 1
        sampled.num_noisy_in_turn += 1
        return
    sampled.num_noisy_in_turn = 0
    meta = {"batch": batch, "dropped": dict(found.dropped), "canary_usual_s": found.canary, "date": _now()}
    if found.programs:
        measured = found.to_set(plan.tasks, plan.targets, meta | {"clock": bridged.to_dict()})
        factor = np.array(bridged.factor, np.float32)
        parts.keep(batch, replace(measured, mean_s=measured.mean_s * factor, std_s=measured.std_s * factor))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _open_parts(plan: Plan, output: Path, *, resume: bool) -> Path:
    folder = output.with_name(f"{output.name}.parts")
    note = folder / _PLAN
    if note.exists():
        if not resume:
            raise InputError(
                f"{folder} holds batches of an earlier run", fix="go on with it by --resume, or remove the folder"
            )
        found = json.loads(note.read_text(encoding="utf-8"))
        differing = [name for name, value in plan.to_dict().items() if found.get(name) != value]
        if differing:
            raise InputError(
                f"{folder} was begun with other {', '.join(differing)}",
                fix="use the same options again, or another output",
            )
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    partial = note.with_name(f".{_PLAN}.{os.getpid()}")
    partial.write_text(json.dumps(plan.to_dict()), encoding="utf-8")
    partial.replace(note)
    return folder


def _require_same(plan: Plan, begun: ProgramSet) -> None:
    """Whether a set can be gone on with."""
    here = describe_run(plan.seed)
    wanted = {
        "tasks": [task.name for task in plan.tasks[: len(begun.tasks)]],
        "targets": [target.name for target in plan.targets],
        "processor, caches or memory": here["fingerprint"],
        "seed": plan.seed,
        "canary tolerance": plan.canary_tolerance,
        "greatest spread": plan.max_spread,
    }
    found = {
        "tasks": [Task.from_dict(task).name for task in begun.tasks],
        "targets": [device["name"] for device in begun.devices],
        "processor, caches or memory": begun.meta.get("fingerprint"),
        "seed": begun.meta.get("seed"),
        "canary tolerance": begun.meta.get("canary_tolerance"),
        "greatest spread": begun.meta.get("max_std_over_mean"),
    }
    differing = [name for name, value in wanted.items() if found[name] != value]
    if differing or not {"num_batches", "canary_usual_s"} <= begun.meta.keys():
        raise InputError(
            f"the set was measured with other {', '.join(differing) or 'versions of this package'}",
            where="begun", fix="begin a new set",
        )  # fmt: skip


@dataclass
class _Parts:
    """The batches that are done, by number."""

    folder: Path
    sets: dict[int, ProgramSet] = field(default_factory=dict)
    begun: ProgramSet | None = None

    @classmethod
    def read(cls, folder: Path, begun: ProgramSet | None = None) -> _Parts:
        paths = sorted(folder.glob("batch-*.npz"))
        return cls(folder, {int(path.stem.removeprefix("batch-")): ProgramSet.load(path) for path in paths}, begun)

    @property
    def num_batches_before(self) -> int:
        """Of the set that was begun."""
        return 0 if self.begun is None else int(self.begun.meta["num_batches"])

    @property
    def all_sets(self) -> list[ProgramSet]:
        """What was begun, and the batches in their order."""
        return [one for one in (self.begun,) if one is not None] + [self.sets[batch] for batch in sorted(self.sets)]

    @property
    def num_programs(self) -> int:
        return sum(part.num_programs for part in self.all_sets)

    def keep(self, batch: int, part: ProgramSet) -> None:
        part.save(self.folder / _file(batch), overwrite=True)
        self.sets[batch] = part

    def known(self) -> set[tuple[int, bytes]]:
        return {
            (int(task), sched.tobytes())
            for part in self.all_sets
            for task, sched in zip(part.task, part.sched, strict=True)
        }

    def usual_s(self) -> dict[str, float]:
        """By which times of the canary the batches were judged, by number of threads; not those of the begun set."""
        seen = [part.meta["canary_usual_s"] for part in self.sets.values()]
        names = {name for one in seen for name in one}
        return {name: min(one[name] for one in seen if name in one) for name in names}

    def begun_rates(self) -> list[dict[str, float]]:
        """Rates of the set that was begun."""
        names = (
            "peak_flops_per_s",
            "bandwidth_bytes_per_s",
            "cache_bandwidth_bytes_per_s",
            "cache_page_bandwidth_bytes_per_s",
            "page_bandwidth_bytes_per_s",
            "last_cache_bytes",
            "clock_hz",
        )
        devices = () if self.begun is None else self.begun.devices
        return [{name: device[name] for name in names if name in device} for device in devices]

    def drop_outdated(self, canary: Canary) -> None:
        """Batches that were judged by a canary which itself was disturbed, as is known by now, are measured again."""
        for batch in [one for one, part in self.sets.items() if canary.is_outdated(part.meta["canary_usual_s"])]:
            (self.folder / _file(batch)).unlink()
            del self.sets[batch]

    def clocks(self) -> list[dict[str, Any]]:
        """Every bridge between days, with the batches that crossed it."""
        found = [] if self.begun is None else list(self.begun.meta.get("clocks", []))
        for batch in sorted(self.sets):
            clock = self.sets[batch].meta["clock"]
            if clock["num_times"] and (not found or found[-1] | {"batches": 0} != clock | {"batches": 0}):
                found.append(clock | {"batches": [batch, batch]})
            elif clock["num_times"]:
                found[-1]["batches"][1] = batch
        return found

    def dropped(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for part in self.all_sets:
            total.update(part.meta["dropped"])
        return total


def _assemble(
    plan: Plan, parts: _Parts, rates: Sequence[dict[str, float]], facts: Sequence[dict[str, Any]]
) -> ProgramSet:
    """All batches in their order as one set of exactly the size that was asked for."""
    ordered = parts.all_sets
    whole = ProgramSet.concatenate(ordered).select(np.arange(plan.num_programs))
    dates = [date for part in ordered for date in part.meta.get("dates", [part.meta.get("date")])]
    meta = describe_run(plan.seed) | {
        "dates": [min(dates), max(dates)],
        "dropped": dict(parts.dropped()),
        "num_batches": max(parts.sets, default=parts.num_batches_before - 1) + 1,
        "canary_usual_s": parts.usual_s() if parts.begun is None else parts.begun.meta["canary_usual_s"],
        "canary_tolerance": plan.canary_tolerance,
        "max_std_over_mean": plan.max_spread,
        "clocks": parts.clocks(),
    }
    return replace(
        whole,
        tasks=tuple(task.to_dict() for task in plan.tasks),
        devices=tuple(describe_device(*row) for row in zip(plan.targets, rates, facts, strict=True)),
        meta=meta,
    )


def _file(batch: int) -> str:
    return f"batch-{batch:05d}.npz"
