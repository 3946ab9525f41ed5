"""Plans of pipelines as people read them: every combination, stages, Piper's plan."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windtunnel.base.tables import Table
from windtunnel.units import format_duration, format_size

if TYPE_CHECKING:
    from windtunnel.systems.pipelines.piper import PiperPlan
    from windtunnel.systems.pipelines.piper_format import PiperProblem
    from windtunnel.systems.pipelines.replayed import Played
    from windtunnel.systems.pipelines.two_bw import PlanRow, PlanTable

__all__ = ["lines_of_piper", "lines_of_plans", "piper_document", "table_document", "table_of_plans"]


def table_document(
    table: PlanTable, played: Sequence[Played], stages: Sequence[Sequence[str]], note: str, batch: int
) -> dict[str, Any]:
    """Return all rows as plain values in raw units; replayed rows have the times of their replays."""
    from windtunnel.systems.pipelines.training.plan_file import PLAN_SCHEMA

    replayed = {id(item.row): item.step_ns for item in played}
    return {
        "schema": PLAN_SCHEMA,
        "batch": batch,
        "note": note,
        "best": _row(played[0].row, played[0].step_ns),
        "stages": [list(names) for names in stages],
        "rows": [_row(row, replayed.get(id(row))) for row in table.rows],
    }


def _row(row: PlanRow, replayed_ns: float | None) -> dict[str, Any]:
    known = dataclasses.asdict(row)
    times = {name: known.pop(name) if row.num_microbatches and row.memory else None
             for name in ("microbatch_ns", "step_ns")}  # fmt: skip
    del known["memory"]
    memory = [{**dataclasses.asdict(item), "total": item.total} for item in row.memory]
    return {**{name: value for name, value in known.items() if name not in times}, **times,
            "replayed_ns": replayed_ns, "is_feasible": row.is_feasible, "memory_bytes": memory}  # fmt: skip


def lines_of_plans(
    table: PlanTable,
    played: Sequence[Played],
    stages: Sequence[Sequence[str]],
    note: str,
    batch: int,
    *,
    shows_all: bool,
) -> Iterator[str | Table]:
    """The best, the quickest, and why others cannot be."""
    best = played[0]
    yield f"{_time(best.step_ns)} per batch of {batch}: {best.row}"
    peak = _size(best.row.peak_bytes)
    yield (
        f"  {batch / best.step_ns * 1e9:,.1f} samples per s by replay, {peak} on the worker with the largest peak; "
        f"{len(table.feasible)} of {len(table.rows)} combinations fit"
    )
    if note:
        yield f"  {note}"
    for index, names in enumerate(stages):
        yield f"  stage {index}: {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "")
    yield ""
    yield table_of_plans(table, played, shows_all=shows_all)
    yield from _reasons([row for row in table.rows if not row.is_feasible], shows_all=shows_all)


def table_of_plans(table: PlanTable, played: Sequence[Played], *, shows_all: bool) -> Table:
    """Return the replayed plans, and all others that fit if asked for."""
    columns = {"schedule": str, "width": "{}", "depth": "{}", "micro": "{}", "again": "{}", "planner": _time,
               "replay": _time, "memory": _size}  # fmt: skip
    replayed = {id(item.row): item.step_ns for item in played}
    others = [row for row in table.feasible if id(row) not in replayed] if shows_all else []
    rows = [
        (row.schedule, row.width, row.depth, f"{row.num_microbatches} x {row.microbatch}",
         "yes" if row.recomputes else "no", row.step_ns, replayed.get(id(row)), row.peak_bytes)
        for row in [*(item.row for item in played), *others]
    ]  # fmt: skip
    return Table(columns, rows)


def _reasons(barred: Sequence[PlanRow], *, shows_all: bool) -> Iterator[str | Table]:
    """Why combinations cannot be: each, or how many of a kind."""
    if not barred:
        return
    yield ""
    if shows_all:
        yield Table({"cannot be": str, "because": str}, [(row, row.reason) for row in barred], wraps="because")
        return
    yield "cannot be:"
    for reason, count in Counter("memory" if row.missing_bytes else row.reason for row in barred).most_common(6):
        if reason == "memory":
            nearest = min((row for row in barred if row.missing_bytes), key=lambda row: row.missing_bytes)
            yield f"  {count} for memory, the nearest {nearest}: {nearest.reason}"
        else:
            yield f"  {count}: {reason}"


def piper_document(problem: PiperProblem, plan: PiperPlan, equal: PiperPlan | None) -> dict[str, Any]:
    """Piper's plan and the best equal stages, in raw units."""
    return {
        "schema": "windtunnel.piper-plan/1",
        **_plan(problem, plan),
        "num_downsets": plan.num_downsets,
        "num_pairs": plan.num_pairs,
        "equal_stages": None if equal is None else _plan(problem, equal),
    }


def _plan(problem: PiperProblem, plan: PiperPlan) -> dict[str, Any]:
    stages = [
        {
            "layers": [problem.names[row] for row in stage.layers],
            "rows": stage.layers,
            "data": stage.data,
            "tensor": stage.tensor,
            "variants": [problem.variants[variant] for variant in stage.variants],
            "microbatches_kept": stage.num_kept,
            "time_s": stage.time_s,
            "memory_bytes": stage.memory_bytes,
        }
        for stage in plan.stages
    ]
    return {"time_s": plan.time_s, "stages": stages}


def lines_of_piper(problem: PiperProblem, plan: PiperPlan, equal: PiperPlan | None) -> Iterator[str | Table]:
    """Stages, and how equal ones would do."""
    yield f"{_time(1e9 * plan.time_s)} per microbatch in the slowest stage; no plan is faster"
    yield "  " + _versus(problem, plan, equal)
    yield ""
    rows = []
    for index, stage in enumerate(plan.stages):
        count: Mapping[str, int] = Counter(problem.variants[variant] for variant in stage.variants)
        kinds = ", ".join(f"{count[name]} {name}" for name in problem.variants if name in count)
        sizes = stage.data, stage.tensor, len(stage.layers)
        rows.append((index, *sizes, 1e9 * stage.time_s, stage.memory_bytes, kinds))
    columns = {"stage": str, "replicas": "{}", "tensor": "{}", "layers": "{}", "time": _time, "memory": _size,
               "variants": str}  # fmt: skip
    yield Table(columns, rows, wraps="variants")


def _versus(problem: PiperProblem, plan: PiperPlan, equal: PiperPlan | None) -> str:
    if equal is None:
        return "equal stages with one data and tensor degree for all do not fit into memory"
    stage = equal.stages[0]
    again = problem.variants[stage.variants[0]]
    replicas = f"{stage.data} replica{'s' if stage.data > 1 else ''}"
    return (
        f"{equal.time_s / plan.time_s:.2f}x as fast as the best equal stages: {len(equal.stages)} of them, "
        f"{replicas}, tensor degree {stage.tensor}, {again}, {_time(1e9 * equal.time_s)}"
    )


def _time(time_ns: float) -> str:
    return format_duration(round(time_ns))


def _size(size_bytes: float) -> str:
    return format_size(round(size_bytes))
