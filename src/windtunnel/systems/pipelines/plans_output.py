"""Plans of pipelines as people read them: every combination, stages, Piper's plan."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windtunnel.cli.console import advise, print_table, say, say_wrapped

if TYPE_CHECKING:
    from windtunnel.systems.pipelines.piper import PiperPlan
    from windtunnel.systems.pipelines.piper_format import PiperProblem
    from windtunnel.systems.pipelines.replayed import Played
    from windtunnel.systems.pipelines.two_bw import PlanRow, PlanTable

__all__ = ["piper_document", "print_piper", "print_plans", "table_document"]


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


def print_plans(
    table: PlanTable,
    played: Sequence[Played],
    stages: Sequence[Sequence[str]],
    note: str,
    batch: int,
    *,
    shows_all: bool,
) -> None:
    """The best, the quickest, and why others cannot be."""
    from windtunnel.units import format_duration, format_size

    best = played[0]
    say_wrapped(f"{format_duration(round(best.step_ns))} per batch of {batch}: {best.row}")
    peak = format_size(round(best.row.peak_bytes))
    say_wrapped(
        f"  {batch / best.step_ns * 1e9:,.1f} samples per s by replay, {peak} on the worker with the largest peak; "
        f"{len(table.feasible)} of {len(table.rows)} combinations fit"
    )
    if note:
        say_wrapped(f"  {note}")
    for index, names in enumerate(stages):
        say_wrapped(f"  stage {index}: {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else ""))
    say()
    replayed = {id(item.row) for item in played}
    rows = [_cells(item.row, item.step_ns) for item in played]
    rows += [_cells(row, None) for row in table.feasible if id(row) not in replayed] if shows_all else []
    head = ["schedule", "width", "depth", "micro", "again", "planner", "replay", "memory"]
    print_table(head, rows, numbers=range(1, 8))
    _print_reasons(table, shows_all=shows_all)
    left = len(table.feasible) - len(played)
    if left and not shows_all:
        advise(f"{left} more fit (--all shows them, --replay {len(table.feasible)} replays them)")


def _cells(row: PlanRow, replayed_ns: float | None) -> list[str]:
    from windtunnel.units import format_duration, format_size

    return [
        row.schedule, str(row.width), str(row.depth), f"{row.num_microbatches} x {row.microbatch}",
        "yes" if row.recomputes else "no", format_duration(round(row.step_ns)),
        "" if replayed_ns is None else format_duration(round(replayed_ns)), format_size(round(row.peak_bytes)),
    ]  # fmt: skip


def _print_reasons(table: PlanTable, *, shows_all: bool) -> None:
    """Why combinations cannot be: each, or how many of a kind."""
    barred = [row for row in table.rows if not row.is_feasible]
    if not barred:
        return
    say()
    if shows_all:
        print_table(["cannot be", "because"], [[str(row), row.reason] for row in barred], gives_way=1)
        return
    say("cannot be:")
    for reason, count in Counter("memory" if row.missing_bytes else row.reason for row in barred).most_common(6):
        if reason == "memory":
            nearest = min((row for row in barred if row.missing_bytes), key=lambda row: row.missing_bytes)
            say_wrapped(f"  {count} for memory, the nearest {nearest}: {nearest.reason}")
        else:
            say_wrapped(f"  {count}: {reason}")


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


def print_piper(problem: PiperProblem, plan: PiperPlan, equal: PiperPlan | None) -> None:
    """Stages, and how equal ones would do."""
    from windtunnel.units import format_duration, format_size

    say(f"{format_duration(round(1e9 * plan.time_s))} per microbatch in the slowest stage; no plan is faster")
    say_wrapped("  " + _versus(problem, plan, equal))
    say()
    rows = []
    for index, stage in enumerate(plan.stages):
        count: Mapping[str, int] = Counter(problem.variants[variant] for variant in stage.variants)
        kinds = ", ".join(f"{count[name]} {name}" for name in problem.variants if name in count)
        rows.append([
            str(index), str(stage.data), str(stage.tensor), str(len(stage.layers)),
                format_duration(round(1e9 * stage.time_s)),
            format_size(round(stage.memory_bytes)), kinds,
        ])  # fmt: skip
    head = ["stage", "replicas", "tensor", "layers", "time", "memory", "variants"]
    print_table(head, rows, numbers=range(1, 6), gives_way=6)


def _versus(problem: PiperProblem, plan: PiperPlan, equal: PiperPlan | None) -> str:
    from windtunnel.units import format_duration

    if equal is None:
        return "equal stages with one data and tensor degree for all do not fit into memory"
    stage = equal.stages[0]
    again = problem.variants[stage.variants[0]]
    replicas = f"{stage.data} replica{'s' if stage.data > 1 else ''}"
    return (
        f"{equal.time_s / plan.time_s:.2f}x as fast as the best equal stages: {len(equal.stages)} of them, "
        f"{replicas}, tensor degree {stage.tensor}, {again}, {format_duration(round(1e9 * equal.time_s))}"
    )
