"""Readers of workload files: the native table, and public traces.

In: CSV, packed or not. Out: jobs, and what was left out of them and why. Not here: checking columns (``jobs``),
inventing jobs (``generator``).

The format is known by its columns: ours (``job_id,arrival_s,gpus,model,iterations,s_per_iteration``), Philly
(``job,submit_s,duration_s,gpus,vc``), Helios (``job_id,gpu_num,submit_time,duration``), Alibaba's openb pods
(``name,num_gpu,gpu_milli,creation_time,scheduled_time,deletion_time``), Tiresias (``gpus,submit_s,duration_s,model``),
the 500 jobs of Dally (``total_iterations,time_per_iteration_s,arrival_s_...``), and what a Slurm cluster keeps of its
own jobs (``sacct -a -P -o JobID,Submit,Start,End,AllocTRES``).
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from windtunnel.base.columns import number, read_rows
from windtunnel.base.outputs import whole
from windtunnel.errors import InputError
from windtunnel.systems.cluster.jobs import Jobs

__all__ = ["Trace", "read_jobs", "write_jobs"]

Row = dict[str, str]
Values = dict[str, object]
_PLACED = "a run time of this trace holds what its placement cost then; it is taken as time without communication"


@dataclass(frozen=True)
class Trace:
    """The jobs of a file.

    Attributes
    ----------
    jobs : Jobs
    kind : str
        Format that it was read as.
    notes : tuple of str
        What was left out, by reason, and what its numbers mean.
    """

    jobs: Jobs
    kind: str
    notes: tuple[str, ...]


def read_jobs(path: Path, *, arrivals: str = "") -> Trace:
    """Read a workload of any format that is known.

    Parameters
    ----------
    path : Path
    arrivals : str
        Which of several columns of arrivals: the end of its name, such as ``p100day``.

    Raises
    ------
    InputError
        The columns are of no such format, or a value means nothing; names the line.
    """
    rows = read_rows(path, ())
    columns = set(rows[0])
    reader = next((item for item in _READERS if item.needs <= columns), None)
    if reader is None:
        known = "; ".join(f"{item.kind}: {', '.join(sorted(item.needs))}" for item in _READERS)
        raise InputError("the columns are of no workload that is known", where=str(path), fix=f"known: {known}")
    created: list[Values] = []
    left_out: Counter[str] = Counter()
    arrival_column = _arrival_column(columns, arrivals, path) if reader.kind == "dally" else ""
    for line, row in enumerate(rows, 2):
        if arrival_column:
            row["arrival_s"] = row[arrival_column]
        values = reader.read(row, path, line)
        if isinstance(values, str):
            left_out[values] += 1
        else:
            created.append(values)
    notes = [f"{count:,} rows were left out: {why}" for why, count in left_out.items()]
    if not created:
        raise InputError("no row is a job with GPUs that ran", where=f"{path}: {'; '.join(notes)}")
    names = list(created[0])
    jobs = Jobs.of(**{name: [item[name] for item in created] for name in names}, source=str(path))  # type: ignore[arg-type]
    return Trace(jobs, reader.kind, (*notes, *([reader.note] if reader.note else [])))


def write_jobs(jobs: Jobs, path: Path) -> Path:
    """Write jobs in our own format."""
    with whole(path) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(("job_id", "arrival_s", "gpus", "model", "batch", "iterations", "s_per_iteration"))
        iterations = jobs.work_ns * jobs.gpus / jobs.iteration_ns
        for row in zip(
            jobs.job_id.tolist(), (jobs.arrival_ns / 1e9).tolist(), jobs.gpus.tolist(), jobs.model.tolist(),
            jobs.batch.tolist(), iterations.tolist(), (jobs.iteration_ns / 1e9).tolist(), strict=True,
        ):  # fmt: skip
            out.writerow(row)
    return path


def _arrival_column(columns: set[str], arrivals: str, path: Path) -> str:
    known = sorted(column.removeprefix("arrival_s_") for column in columns if column.startswith("arrival_s_"))
    if not arrivals:
        arrivals = known[0]
    if arrivals not in known:
        raise InputError(
            f"there are no arrivals {arrivals!r}", where=str(path), fix=f"--arrivals is one of {', '.join(known)}"
        )
    return f"arrival_s_{arrivals}"


def _own(row: Row, path: Path, line: int) -> Values | str:
    gpus = number(row, "gpus", path, line, least=1)
    step = number(row, "s_per_iteration", path, line)
    work = number(row, "iterations", path, line) * step / gpus
    return {
        "job_id": row["job_id"], "arrival_s": number(row, "arrival_s", path, line), "gpus": gpus, "work_s": work,
        "model": row["model"], "iteration_s": step,
        "batch": int(number(row, "batch", path, line)) if row.get("batch") else 0,
    }  # fmt: skip


def _dally(row: Row, path: Path, line: int) -> Values | str:
    gpus = number(row, "gpus", path, line, least=1)
    step = number(row, "time_per_iteration_s", path, line)
    return {
        "job_id": row["job_id"], "arrival_s": number(row, "arrival_s", path, line), "gpus": gpus,
        "work_s": number(row, "total_iterations", path, line) * step / gpus, "model": row["model"],
        "batch": int(number(row, "batch_size", path, line)), "iteration_s": step,
    }  # fmt: skip


def _philly(row: Row, path: Path, line: int) -> Values | str:
    if not row["duration_s"]:
        return "they never ran"
    return {
        "job_id": row["job"], "arrival_s": number(row, "submit_s", path, line), "model": "",
        "gpus": number(row, "gpus", path, line, least=1), "work_s": number(row, "duration_s", path, line),
    }  # fmt: skip


def _tiresias(row: Row, path: Path, line: int) -> Values | str:
    return {
        "job_id": row["job_id"], "arrival_s": number(row, "submit_s", path, line), "model": row["model"],
        "gpus": number(row, "gpus", path, line, least=1), "work_s": number(row, "duration_s", path, line),
    }  # fmt: skip


def _helios(row: Row, path: Path, line: int) -> Values | str:
    gpus = number(row, "gpu_num", path, line)
    if not gpus:
        return "they use no GPU"
    if not row["duration"] or float(row["duration"] or 0) == 0:
        return "they never ran"
    arrival = _seconds(row, "submit_time", path, line)
    work = number(row, "duration", path, line)
    return {"job_id": row["job_id"], "arrival_s": arrival, "gpus": gpus, "work_s": work, "model": ""}


def _alibaba(row: Row, path: Path, line: int) -> Values | str:
    gpus = number(row, "num_gpu", path, line)
    if not gpus:
        return "they use no GPU"
    if number(row, "gpu_milli", path, line) < 1000:
        return "they share a GPU with others"
    if not row["scheduled_time"] or not row["deletion_time"]:
        return "they never ran, or had not ended"
    begin, end = (number(row, name, path, line) for name in ("scheduled_time", "deletion_time"))
    if end < begin:
        raise InputError(f"the pod ends {begin - end:g} s before it begins", where=f"{path}: line {line}")
    if end == begin:
        return "they never ran, or had not ended"
    arrival = number(row, "creation_time", path, line)
    return {"job_id": row["name"], "arrival_s": arrival, "gpus": gpus, "work_s": end - begin, "model": ""}


def _slurm(row: Row, path: Path, line: int) -> Values | str:
    if "." in row["JobID"]:
        return "they are steps of jobs that are listed themselves"
    result = re.search(r"(?:^|,)gres/gpu=(\d+)", row["AllocTRES"])
    if result is None or not int(result[1]):
        return "they use no GPU"
    submit, start, end = (_slurm_time(row, name, path, line) for name in ("Submit", "Start", "End"))
    if submit is None or start is None or end is None or end == start:
        return "they never ran, or had not ended"
    if end < start:
        raise InputError(f"the job ends {start - end:g} s before it begins", where=f"{path}: line {line}")
    return {"job_id": row["JobID"], "arrival_s": submit, "gpus": int(result[1]), "work_s": end - start, "model": ""}


def _slurm_time(row: Row, column: str, path: Path, line: int) -> float | None:
    """Return seconds; None if Slurm has no time."""
    if row[column] in ("", "Unknown", "None"):
        return None
    return _seconds(row, column, path, line)


def _seconds(row: Row, column: str, path: Path, line: int) -> float:
    try:
        return datetime.fromisoformat(row[column]).timestamp()
    except ValueError as cause:
        where = f"{path}: line {line}, column {column}"
        raise InputError(f"{row[column]!r} is no time", where=where, fix="2026-11-25T10:00:00") from cause


@dataclass(frozen=True)
class _Reader:
    kind: str
    needs: set[str]
    read: Callable[[Row, Path, int], Values | str]
    note: str = ""


_READERS: Sequence[_Reader] = (
    _Reader("windtunnel", {"job_id", "arrival_s", "gpus", "model", "iterations", "s_per_iteration"}, _own),
    _Reader("dally", {"job_id", "model", "batch_size", "gpus", "total_iterations", "time_per_iteration_s"}, _dally),
    _Reader("philly", {"job", "submit_s", "duration_s", "gpus", "vc"}, _philly, _PLACED),
    _Reader("tiresias", {"job_id", "gpus", "submit_s", "iterations", "model", "duration_s"}, _tiresias, _PLACED),
    _Reader("helios", {"job_id", "gpu_num", "submit_time", "duration"}, _helios, _PLACED),
    _Reader(
        "alibaba",
        {"name", "num_gpu", "gpu_milli", "creation_time", "scheduled_time", "deletion_time"},
        _alibaba,
        _PLACED,
    ),
    _Reader("slurm", {"JobID", "Submit", "Start", "End", "AllocTRES"}, _slurm, _PLACED),
)
