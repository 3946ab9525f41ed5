"""``windtunnel models search``: a good schedule for a tensor program, found with the learned model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show
from windtunnel.cli.options import Json
from windtunnel.units import format_duration

if TYPE_CHECKING:
    from windtunnel.systems.tensor_programs.model.predictor import Predictor
    from windtunnel.systems.tensor_programs.run.tasks import Task
    from windtunnel.systems.tensor_programs.search import Candidate

__all__ = ["require_predictor", "search"]

_SHOWN = 10


@registry.verb("models search", source="CDMPP")
def search(
    task: Annotated[str, typer.Argument(metavar="TASK", help='Task, such as "matmul m=128 n=256 k=64 bias+relu".')],
    target: Annotated[
        str, typer.Option(metavar="NAME", help="Target: instruction set and threads of this host.")
    ] = "avx2-1",
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Model written by `models train programs` (default: the shipped model)."),
    ] = None,
    candidates: Annotated[int, typer.Option(min=1, help="Number of schedules to sample and rank.")] = 64,
    measured: Annotated[
        int, typer.Option("--measure", min=1, help="Number of best-ranked schedules to build and run.")
    ] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Example: windtunnel models search "matmul m=128 n=256 k=64" --target avx2-1

    Search for a fast schedule of a tensor program with a trained cost model.

    Sampled schedules are ranked by the model, and the best are measured. Requires the extras tvm and learn. A task is
    written as in the table of windtunnel models sample tasks: operator, extents by name, and elementwise epilogue.
    """
    from windtunnel.base.extras import require
    from windtunnel.systems.tensor_programs.run.build import parse_target, require_targets, targets_here
    from windtunnel.systems.tensor_programs.run.tasks import parse_task
    from windtunnel.systems.tensor_programs.run.worker import Worker
    from windtunnel.systems.tensor_programs.search import search as find
    from windtunnel.systems.tensor_programs.search import sheet_of

    requested = parse_task(task)
    require("tvm", extra="tvm")
    predictor = require_predictor(model)
    selected = parse_target(target)
    require_targets([selected], targets_here())
    with Progress("searching") as progress, Worker() as worker:
        result = find(
            worker,
            requested,
            selected,
            predictor,
            sheet_of(worker, selected),
            num_candidates=candidates,
            num_measured=measured,
            seed=seed,
            progress=progress,
        )
    document = {"schema": "windtunnel.cost.search/1", "task": requested.name, "target": target, **_as_dict(result)}
    show(document, _lines(requested, result), as_json=as_json)
    if not as_json:
        advise(
            "in Python: windtunnel.systems.tensor_programs.run.schedules.replay(task, steps) builds it; "
            "--json prints the steps"
        )


def require_predictor(model: Path | None) -> Predictor:
    """The predictor of a file, or the shipped one."""
    from windtunnel.errors import InputError
    from windtunnel.systems.tensor_programs.model.shipped import predictor_of

    result = predictor_of(model or "")
    if result is None:
        raise InputError(
            "this build of the package has no trained model",
            where="--model",
            fix="train one: windtunnel models train programs",
        )
    return result


def _as_dict(found: list[Candidate]) -> dict[str, Any]:
    return {
        "candidates": [
            {
                "predicted_s": item.predicted_s,
                "measured_s": item.timing.mean_s if item.timing else None,
                "spread_s": item.timing.std_s if item.timing else None,
            }
            for item in found
        ],
        "steps": found[0].sampled.sched.tolist(),
    }


def _lines(task: Task, found: list[Candidate]) -> Iterator[str | Table]:
    best = found[0]
    assert best.timing is not None
    rate = task.flops / best.timing.mean_s / 1e9
    yield f"{task.name}: {_time(best.timing.mean_s)}, {rate:.1f} Gflop/s"
    rows = [
        (
            index,
            item.predicted_s,
            item.timing.mean_s if item.timing else None,
            int(item.sampled.sched.any(axis=1).sum()),
        )
        for index, item in enumerate(found[:_SHOWN], start=1)
    ]
    yield Table({"": str, "predicted": _time, "measured": _time, "steps": "{}"}, rows)
    if len(found) > _SHOWN:
        yield f"and {len(found) - _SHOWN} more, not measured"


def _time(time_s: float) -> str:
    return format_duration(round(1e9 * time_s))
