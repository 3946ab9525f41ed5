"""``windtunnel models sample`` and ``models sample tasks``: measured tensor programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json
from windtunnel.units import parse_duration

if TYPE_CHECKING:
    from windtunnel.systems.tensor_programs.program_set import ProgramSet
    from windtunnel.systems.tensor_programs.run.generate import Sampled

__all__ = ["harvest", "sample"]

NUM_PROGRAMS = 8000


@registry.verb("models sample programs", source="CDMPP")
def sample(
    output: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Set of programs to write (NPZ).")],
    programs: Annotated[
        int | None, typer.Option(min=1, help="Number of programs (default: 8000, or all of --of).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the batches stored next to FILE.")] = False,
    of: Annotated[
        Path | None,
        typer.Option(metavar="NPZ", help="Set from another host whose programs are measured here, or shipped."),
    ] = None,
    profile: Annotated[
        int | None, typer.Option(min=1, metavar="TASKS", help="With --of: number of tasks to select by k-means.")
    ] = None,
    per_task: Annotated[
        int | None,
        typer.Option(min=1, help="With --of: number of programs per task (default: all, or 6 with --profile)."),
    ] = None,
    budget: Annotated[
        str, typer.Option("--time-limit", metavar="TIME", help="Time limit, such as 100min; no batch starts after it.")
    ] = "",
    targets: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Targets (instruction set and threads), such as avx2-1,avx2-2 (default: all of this host).",
        ),
    ] = "",
    tasks: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Task table written by `models sample tasks` (default: the shipped table)."),
    ] = None,
    max_spread: Annotated[
        float, typer.Option(min=0.0, help="Maximum coefficient of variation of a measured time.")
    ] = 0.05,
    canary_tolerance: Annotated[
        float,
        typer.Option(min=0.0, help="Maximum relative deviation of the canary program while a batch is measured."),
    ] = 0.05,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel models sample --programs 8000 --out programs.npz --time-limit 100min

    Sample, build and measure tensor programs on the processor of this host.

    With --of, the programs of a set are measured here too, and the devices of this host are added to the set.
    Requires the extra tvm and an idle machine. Each measured batch is stored next to FILE, so that --resume continues
    after an interruption.
    """
    from windtunnel.base.extras import require
    from windtunnel.systems.tensor_programs.model.sampling import rows_to_measure
    from windtunnel.systems.tensor_programs.program_set import parts_of
    from windtunnel.systems.tensor_programs.run.build import parse_target, require_targets, targets_here
    from windtunnel.systems.tensor_programs.run.description import name_after_host
    from windtunnel.systems.tensor_programs.run.generate import Plan, sample_programs
    from windtunnel.systems.tensor_programs.run.tasks import read_tasks

    path = require_free(output, force=force)
    _require_sense(of, {"--profile": profile, "--per-task": per_task}, {"--tasks": tasks})
    require("tvm", extra="tvm")
    here = targets_here()
    selected = tuple(parse_target(name) for name in targets.split(",")) if targets else here
    require_targets(selected, here)
    options: dict[str, Any] = {"seed": seed, "canary_tolerance": canary_tolerance, "max_spread": max_spread}
    if of is not None:
        known = _set_of(of)
        rows = rows_to_measure(known, profile, per_task, seed)[:programs]
        plan = Plan.of_programs(known, rows.tolist(), selected, **options)
    else:
        plan = Plan(read_tasks(tasks), selected, programs or NUM_PROGRAMS, **options)
    with Progress("measuring programs") as progress:
        sampled = sample_programs(
            plan,
            path,
            resume=resume,
            overwrite=force,
            budget_s=parse_duration(budget) / 1e9 if budget else None,
            progress=progress,
        )
    host = parts_of(name_after_host(selected[0].name))[1]
    more = "" if of is None else f" --from shipped --device @{host}"
    _show_sampled(
        sampled, plan.num_programs, path, f"windtunnel models train programs --data {path}{more}", as_json=as_json
    )


def _require_sense(of: Path | None, needing: dict[str, object], excluding: dict[str, object]) -> None:
    from windtunnel.errors import InputError

    wrong = [name for name, value in (needing if of is None else excluding).items() if value is not None]
    if wrong:
        names = ", ".join(wrong)
        reason = f"{names} applies to an existing set" if of is None else f"{names} applies to new programs"
        raise InputError(reason, where=wrong[0], fix="add --of FILE" if of is None else "leave out --of")


def _set_of(path: Path) -> ProgramSet:
    """The set of a file, or the shipped one by that word."""
    from windtunnel.systems.tensor_programs.model.shipped import load_shipped_programs
    from windtunnel.systems.tensor_programs.program_set import ProgramSet

    shipped = load_shipped_programs() if str(path) == "shipped" else None
    return ProgramSet.load(path) if shipped is None else shipped


def _show_sampled(sampled: Sampled, num_wanted: int, path: Path, then: str, *, as_json: bool) -> None:
    document = {
        "path": sampled.path,
        "num_programs": sampled.num_programs,
        "num_noisy_batches": sampled.num_noisy,
        "dropped": dict(sampled.dropped),
        "elapsed_s": round(sampled.elapsed_s, 3),
    }
    measured = f"{sampled.num_programs} of {num_wanted} programs measured, {sampled.elapsed_s:.0f} s"
    dropped = [Table({"dropped because": str, "programs": "{}"}, sampled.dropped.most_common())]
    show(document, [measured, *(dropped if sampled.dropped else [])], as_json=as_json)
    if sampled.num_noisy:
        advise(
            f"{sampled.num_noisy} batches were dropped, because the canary program changed: other programs are running"
        )
    if sampled.path is None:
        advise(f"repeat the command with --resume to continue from {path}.parts")
    else:
        advise(f"next: {then}")


@registry.verb("models sample tasks", source="CDMPP")
def harvest(
    output: Annotated[Path, typer.Option("--out", "-o", metavar="CSV", help="Task table to write (CSV).")],
    count: Annotated[int, typer.Option(min=1, help="Number of tasks over all kinds and networks.")] = 960,
    networks: Annotated[
        str, typer.Option(metavar="A,B", help="Networks, such as resnet50,bert:tiny (default: a fixed list).")
    ] = "",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel models sample tasks --out tasks.csv

    Run networks of the suite once and collect their tasks.
    """
    from windtunnel.systems.tensor_programs.run.harvest import NETWORKS, choose
    from windtunnel.systems.tensor_programs.run.harvest import harvest as collect
    from windtunnel.systems.tensor_programs.run.tasks import format_tasks

    path = require_free(output, force=force)
    with Progress("running networks") as progress:
        result = collect(networks.split(",") if networks else NETWORKS, progress)
    selected = choose(result.tasks, count)
    path.write_text(format_tasks(selected), encoding="utf-8")
    document = {
        "path": path,
        "num_tasks": len(selected),
        "num_found": len(result.tasks),
        "num_too_large": result.num_too_large,
        "num_too_small": result.num_too_small,
        "uncovered": dict(result.uncovered),
    }
    total = f"{len(selected)} of {len(result.tasks)} tasks"
    lines: list[str | Table] = [
        f"{total}; {result.num_too_large} are too large, {result.num_too_small} small",
        Table({"operator without a task": str, "calls": "{}"}, result.uncovered.most_common(8)),
    ]
    show(document, lines, as_json=as_json)
    if not as_json:
        advise(f"next: windtunnel models sample --tasks {path} --out programs.npz")
