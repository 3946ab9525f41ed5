"""Schedules as files: the CSV form that ``torch.distributed.pipelining`` loads and dumps.

In: a ``Schedule``, or such a file. Out: the other one. A line per rank, a cell per slot: ``0F3``, nothing, or
``(0F3;1B0)OVERLAP_F_B``. The form has the actions alone: batch boundaries and weight versions are given in addition
it. Not here: whether a schedule can run (``verify``).

Source: PyTorch 2.13, torch/distributed/pipelining/schedules.py, the compute-only format.
"""

# R ranks, S stages

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Literal, cast

from windtunnel.base.outputs import whole
from windtunnel.errors import InputError
from windtunnel.systems.pipelines.schedules import Action, Schedule, ScheduleKind
from windtunnel.systems.pipelines.verify import require_valid

__all__ = ["read_schedule", "schedule_csv", "schedule_of_csv", "write_schedule"]

_ACTION = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})", re.ASCII)
_BOTH = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_MESSAGES = re.compile(r"\d+(SEND|RECV|UNSHARD|RESHARD|REDUCE)")
_MAX_BYTES = 1 << 28


def schedule_csv(schedule: Schedule) -> str:
    """Return a schedule as CSV text."""
    text = io.StringIO()
    writer = csv.writer(text)
    for rank in range(schedule.num_ranks):
        writer.writerow([_cell(shared) for shared in schedule.slots(rank)])
    return text.getvalue()


def write_schedule(schedule: Schedule, path: Path) -> None:
    """Write the file.

    Raises
    ------
    InputError
        It cannot be written.
    """
    with whole(path) as scratch:
        scratch.write_text(schedule_csv(schedule), newline="")


def read_schedule(
    path: Path, *, num_batches: int = 1, versions: Literal["flush", "2bw", "stash"] = "flush"
) -> Schedule:
    """Read a file and check that its schedule can run.

    Parameters
    ----------
    path : Path
    num_batches : int
        Batches that the microbatches form.
    versions : str
        See ``Schedule.versions``.

    Raises
    ------
    InputError
        The file cannot be read, or something is missing or wrong in it; says line or rank, and slot.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} is larger than 256 MiB", where="schedule")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}", where="schedule", fix="a CSV file of actions") from error
    schedule = schedule_of_csv(text, path.stem, num_batches=num_batches, versions=versions)
    require_valid(schedule)
    return schedule


def schedule_of_csv(
    text: str, name: str, *, num_batches: int = 1, versions: Literal["flush", "2bw", "stash"] = "flush"
) -> Schedule:
    """The schedule of a text, unchecked; arguments and errors as of ``read_schedule``."""
    overlaps: set[Action] = set()
    rows = []
    try:
        cells = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise InputError(f"no CSV: {error}", where=f"schedule {name}") from error
    for rank, line in enumerate(cells):
        row: list[Action | None] = []
        for slot, cell in enumerate(line):
            result = _parse_cell(cell.strip(), f"rank {rank}, slot {slot}", name)
            overlaps.update(result[:1] if len(result) > 1 else ())
            row += result or [None]
        rows.append(tuple(row))
    return _schedule(name, rows, frozenset(overlaps), num_batches, versions)


def _cell(shared: tuple[Action, ...]) -> str:
    return f"({shared[0]};{shared[1]})OVERLAP_F_B" if len(shared) > 1 else "".join(map(str, shared))


def _parse_cell(cell: str, where: str, name: str) -> list[Action]:
    both = _BOTH.fullmatch(cell)
    result = []
    for token in both.groups() if both else [cell] * bool(cell):
        match = _ACTION.fullmatch(token.strip())
        if match is None:
            fix = "a stage, one of F, B, I, W, and a microbatch, such as 0F3"
            if _MESSAGES.match(token):
                fix = "the form without messages: in torch, format='compute_only'"
            raise InputError(f"{where}: {token[:40]!r} is no action", where=f"schedule {name}", fix=fix)
        stage, kind, microbatch = match.groups()
        result.append(Action(int(stage), cast("ScheduleKind", kind), int(microbatch)))
    return result


def _schedule(
    name: str,
    rows: list[tuple[Action | None, ...]],
    overlaps: frozenset[Action],
    num_batches: int,
    versions: Literal["flush", "2bw", "stash"],
) -> Schedule:
    """The table with the ranks of its stages, as they are found in it."""
    num_stages = 1 + max((item.stage for row in rows for item in row if item is not None), default=-1)
    num_passes = 1 + max((item.microbatch for row in rows for item in row if item is not None), default=-1)
    where = f"schedule {name}"
    if not num_stages:
        raise InputError("there are no actions", where=where, fix="a line per rank, such as 0F0,0B0")
    num_actions = sum(len(row) for row in rows)
    if num_stages * num_passes > num_actions:
        raise InputError(
            f"{num_actions} actions are too few for {num_stages} stages and {num_passes} microbatches", where=where,
            fix="every microbatch passes every stage; both are counted from 0",
        )  # fmt: skip
    if num_batches < 1 or num_passes % num_batches:
        raise InputError(f"{num_passes} microbatches are no {num_batches} equal batches", where=where)
    replicas = _replicas(rows, num_stages)
    if missing := [stage for stage, replica in enumerate(replicas) if not replica]:
        raise InputError(f"stage {missing[0]} has no actions", where=where, fix="stages are counted from 0")
    return Schedule(
        name, tuple(rows), tuple(replica[0] for replica in replicas), num_passes // num_batches, num_batches, versions,
        tuple(replicas) if any(len(replica) > 1 for replica in replicas) else (), overlaps=overlaps,
    )  # fmt: skip


def _replicas(rows: list[tuple[Action | None, ...]], num_stages: int) -> list[tuple[int, ...]]:
    """Ranks of each stage, in the order in which they take microbatches; the usual one where there is no such order."""
    where: list[dict[int, list[int]]] = [{} for _ in range(num_stages)]
    for rank, row in enumerate(rows):
        for item in row:
            if item is not None:
                where[item.stage].setdefault(rank, []).append(item.microbatch)
    result = []
    for used in where:
        ranks = sorted(used, key=lambda rank, stages=used: min(stages[rank]))  # type: ignore[misc]
        in_turns = all(index % len(ranks) == turn for turn, rank in enumerate(ranks) for index in used[rank])
        usual = sorted(ranks, key=lambda rank, stages=used: -len(stages[rank]))[:1]  # type: ignore[misc]
        result.append(tuple(ranks if in_turns else usual))
    return result
