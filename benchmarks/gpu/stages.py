"""How a stage is run: unit after unit until its time is spent, every answer a file of its own, nothing done twice.

In: the name of a stage and a ``Job``. Out: rows in ``FOLDER/STAGE/UNIT.json``, written whole, and a summary. A unit
that lacks a package or its time is ``pending`` and is tried again by the next call; one that failed stays as it is
unless asked ``--again``. Not here: what a unit measures.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.bar import ROOT
from windtunnel.base.outputs import whole
from windtunnel.measure.workers import run_to_end

Row = dict[str, Any]
JUDGING = ("numba", "pyarrow", "msgspec")
STAGES = (
    "check",
    "peaks",
    "pairs",
    "cli",
    "memory",
    "steps",
    "whatifs",
    "kernels",
    "operators",
)  # the last takes what is left
LEAST_S = 20.0
START_S, UNIT_S = 60.0, 20.0


@dataclass(frozen=True)
class Job:
    """What was asked: where to compute, where results lie, until when, and how much."""

    device: str
    folder: Path
    until_s: float
    is_small: bool = False
    is_again: bool = False
    first_unit: str = ""  # what comes before is on record elsewhere

    @property
    def left_s(self) -> float:
        """Seconds until it has to end."""
        return self.until_s - time.monotonic()

    @property
    def options(self) -> list[str]:
        """The same for a process of its own."""
        flags = ["--small"] * self.is_small
        return ["--device", self.device, "--out", str(self.folder), "--budget-s", f"{self.left_s:.0f}", *flags]


class Stage(Protocol):
    """A module of this folder."""

    IS_APART: bool

    def units(self, job: Job) -> Sequence[str]:
        """Names of what is measured one by one."""

    def run(self, unit: str, job: Job) -> Row:
        """Measure one of them; a row with ``pending`` is not done."""

    def summary(self, rows: Mapping[str, Row], job: Job) -> Row:
        """What all of them say; may write tables."""


def stage_of(name: str) -> Any:
    return importlib.import_module(f"benchmarks.gpu.{name}")


def lacking(modules: Sequence[str] = JUDGING) -> list[str]:
    """Which of these packages are not installed here."""
    return [name for name in modules if (name in sys.modules and sys.modules[name] is None) or not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # taken out by hand
        return False


def path_of(name: str, unit: str, job: Job) -> Path:
    return job.folder / name / f"{unit}.json"


def read(path: Path) -> Row | None:
    try:
        row: Row = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return row


def write(path: Path, row: Row) -> None:
    with whole(path) as scratch:
        scratch.write_text(json.dumps(row, indent=1) + "\n")


def is_done(row: Row | None, *, is_again: bool) -> bool:
    """Whether a unit need not be measured any more."""
    return row is not None and "pending" not in row and not (is_again and "failed" in row)


def run_stage(name: str, job: Job) -> Row:
    """Measure what is not measured yet; returns the stage's line."""
    stage, rows, begun_s = stage_of(name), {}, time.monotonic()
    units = units_of(stage, job)
    for unit in units:
        path = path_of(name, unit, job)
        row = read(path)
        if not is_done(row, is_again=job.is_again) and job.left_s > (0 if job.is_small else LEAST_S):
            row = apart(name, unit, job) if stage.IS_APART else stage.run(unit, job)
            write(path, row)
        if row is not None:
            rows[unit] = row
    pending = {
        unit: str(rows[unit]["pending"]) if unit in rows else "not begun" for unit in units if _waits(rows, unit)
    }
    return {
        "stage": name,
        "num_done": len(units) - len(pending),
        "num_units": len(units),
        "is_complete": not pending,
        "seconds": round(time.monotonic() - begun_s, 1),
        "pending": dict(list(pending.items())[:5]),
        "failed": {unit: row["failed"] for unit, row in rows.items() if "failed" in row},
        **stage.summary({unit: row for unit, row in rows.items() if not _waits(rows, unit)}, job),
    }


def units_of(stage: Stage, job: Job) -> list[str]:
    """Units of a stage from the first one that is asked for."""
    units = list(stage.units(job))
    return units[units.index(job.first_unit) :] if job.first_unit in units else units


def plan_lines(names: Sequence[str], job: Job) -> list[str]:
    """Which units of which stages fit into the job's time, in their order, by what units took on an H200."""
    left_s, lines = job.left_s - START_S, [f"{START_S:g} s to install and start"]
    for name in names:
        stage = stage_of(name)
        seconds = getattr(stage, "UNIT_S", UNIT_S)
        waiting = [unit for unit in units_of(stage, job) if not is_done(read(path_of(name, unit, job)), is_again=False)]
        count = min(len(waiting), max(0, int(left_s // seconds)))
        left_s -= count * seconds
        shown = f"{waiting[0]} to {waiting[count - 1]}" if count > 1 else "".join(waiting[:count])
        lines.append(f"{name}: {count} of {len(waiting)} units, {count * seconds:g} s  {shown}".rstrip())
    return lines


def _waits(rows: Mapping[str, Row], unit: str) -> bool:
    return unit not in rows or "pending" in rows[unit]


def apart(name: str, unit: str, job: Job) -> Row:
    """One unit in a process of its own, so that what it leaves behind or breaks touches no other."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--unit", f"{name}/{unit}", *job.options]
    begun_s = time.monotonic()
    search = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    limit_s = getattr(stage_of(name), "LIMIT_S", math.inf)
    timeout_s = max(1.0, min(limit_s, job.left_s))
    done = run_to_end(command, environment={"PYTHONPATH": search}, folder=ROOT, timeout_s=timeout_s)
    seconds = round(time.monotonic() - begun_s, 1)
    if done is None and timeout_s == limit_s:
        return {"failed": f"cut off after {seconds} s, the limit of a unit", "seconds": seconds}
    if done is None:
        return {"pending": f"cut off after {seconds} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"row"')]
    if done.code or not lines:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.code} and said nothing"]
        return {"failed": last[0][:400], "seconds": seconds}
    return {**json.loads(lines[-1])["row"], "seconds": seconds}
