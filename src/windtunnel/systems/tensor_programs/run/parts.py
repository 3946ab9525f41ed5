"""Batches of measured programs, each a file next to the set that they will form.

In: what a run is for, and its batches as they come. Out: those of an earlier run, if they are of the same plan, and
what is known from them. Not here: what is measured, when a set is complete (``generate``).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.base.outputs import whole
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.program_set import ProgramSet
from windtunnel.systems.tensor_programs.run.measure import Canary

__all__ = ["Parts", "open_parts"]

_PLAN = "plan.json"


def open_parts(plan: dict[str, Any], output: Path, *, resume: bool) -> Path:
    """The folder of a run's batches, with a note of its plan."""
    folder = output.with_name(f"{output.name}.parts")
    note = folder / _PLAN
    if note.exists():
        if not resume:
            raise InputError(
                f"{folder} holds batches of an earlier run", fix="go on with it by --resume, or remove the folder"
            )
        result = json.loads(note.read_text(encoding="utf-8"))
        differing = [name for name, value in plan.items() if result.get(name) != value]
        if differing:
            raise InputError(
                f"{folder} was begun with other {', '.join(differing)}",
                fix="repeat the same options, or choose another output",
            )
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with whole(note) as scratch:
        scratch.write_text(json.dumps(plan), encoding="utf-8")
    return folder


@dataclass
class Parts:
    """The batches that are done, by number."""

    folder: Path
    sets: dict[int, ProgramSet] = field(default_factory=dict)
    empty: set[int] = field(default_factory=set)
    """Batches of this run of which nothing could be measured."""

    @classmethod
    def read(cls, folder: Path) -> Parts:
        """The batches that lie in a folder."""
        paths = sorted(folder.glob("batch-*.npz"))
        return cls(folder, {int(path.stem.removeprefix("batch-")): ProgramSet.load(path) for path in paths})

    @property
    def num_batches(self) -> int:
        """Number of finished batches."""
        return len(self.sets) + len(self.empty)

    def has(self, batch: int) -> bool:
        """Return whether a batch is finished."""
        return batch in self.sets or batch in self.empty

    @property
    def num_programs(self) -> int:
        """Number of measured programs."""
        return sum(part.num_programs for part in self.sets.values())

    def keep(self, batch: int, part: ProgramSet) -> None:
        """Save a finished batch."""
        part.save(self.folder / _file(batch), overwrite=True)
        self.sets[batch] = part

    def list_sampled_schedules(self) -> set[tuple[int, bytes]]:
        """Tasks and schedules that need not be drawn again."""
        return {
            (int(task), sched.tobytes())
            for part in self.sets.values()
            for task, sched in zip(part.task, part.sched, strict=True)
        }

    def usual_s(self) -> dict[str, float]:
        """By which times of the canary the batches were judged, by number of threads."""
        seen = [part.meta["canary_usual_s"] for part in self.sets.values()]
        names = {name for item in seen for name in item}
        return {name: min(item[name] for item in seen if name in item) for name in names}

    def drop_outdated_batches(self, canary: Canary) -> None:
        """Batches that were judged by a canary which itself was disturbed, as is known by now, are measured again."""
        for batch in [key for key, part in self.sets.items() if canary.is_outdated(part.meta["canary_usual_s"])]:
            (self.folder / _file(batch)).unlink()
            del self.sets[batch]

    def count_dropped_programs(self) -> Counter[str]:
        """Programs that are not in the batches, by reason."""
        total: Counter[str] = Counter()
        for part in self.sets.values():
            total.update(part.meta["dropped"])
        return total


def _file(batch: int) -> str:
    return f"batch-{batch:05d}.npz"
