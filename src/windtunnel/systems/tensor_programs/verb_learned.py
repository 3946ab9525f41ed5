"""``windtunnel models train programs`` and ``models eval programs``: CDMPP on measured tensor programs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json
from windtunnel.systems.tensor_programs.verb_search import require_predictor
from windtunnel.units import parse_duration

if TYPE_CHECKING:
    from windtunnel.cost.metrics import Errors
    from windtunnel.systems.tensor_programs.model.splits import Split
    from windtunnel.systems.tensor_programs.program_set import ProgramSet

__all__ = ["eval_programs", "train_programs"]

Data = Annotated[
    Path, typer.Option("--data", metavar="NPZ", help="Measured programs written by `models sample` (NPZ).")
]
By = Annotated[
    str,
    typer.Option(
        "--hold-out", metavar="WHAT", help="Test split: unseen tasks, networks, a device, or a host with its devices."
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Device of the set (default: its first), @HOST for the devices of a host, or all."
    ),
]


@registry.verb("models train programs", source="CDMPP")
def train_programs(
    data: Data,
    output: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Model file to write (.safetensors).")],
    recipe: Annotated[str, typer.Option(help="Training recipe: code, efficiency, paper-small or paper.")] = "code",
    start: Annotated[
        str, typer.Option("--from", metavar="MODEL", help="Model to fine-tune on the programs of --device, or shipped.")
    ] = "",
    device: Device = "",
    hold_out: By = "tasks",
    budget: Annotated[str, typer.Option("--time-limit", metavar="TIME", help="Time limit for training.")] = "5m",
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel models train programs --data programs.npz --out cdmpp.safetensors

    Train a cost model on measured tensor programs and evaluate it on held-out ones.
    """
    from windtunnel.errors import InputError
    from windtunnel.systems.tensor_programs.model.checkpoint import save_predictor
    from windtunnel.systems.tensor_programs.model.predictor import RECIPES, going_on, train, with_intervals
    from windtunnel.systems.tensor_programs.program_set import ProgramSet

    path = require_free(output, force=force)
    if recipe not in RECIPES:
        raise InputError(f"unknown recipe {recipe!r}", where="--recipe", fix=", ".join(RECIPES))
    programs = ProgramSet.load(data)
    selected, started = RECIPES[recipe], None
    if start:
        programs = _select_measured_on(programs, device)
        started = require_predictor(None if start == "shipped" else Path(start))
        selected = going_on(selected, started)
    split = _split(programs, device, hold_out, seed)
    training = replace(selected.training, budget_s=parse_duration(budget) / 1e9, seed=seed)
    with Progress("training") as progress:
        predictor, history = train(
            programs,
            split,
            replace(selected, training=training),
            start=started,
            on_epoch=lambda epoch, _: progress("epochs", epoch + 1, training.max_epochs),
        )
    errors = _errors(predictor, programs, split)
    judged = with_intervals(predictor, programs, split.test)
    judged.header["test"] = errors.row()
    save_predictor(judged, path, overwrite=force)
    trained = f"trained on {len(split.train):,} samples in {history.training_s:.0f} s ({history.reason})"
    document = {"path": str(path), **_summary(errors, split), "validation_mape": history.best_error}
    show(document, [trained, *_lines(errors, split)], as_json=as_json)
    if not as_json:
        advise(f"wrote {path}")
        advise(f"next: windtunnel models eval programs {path} --data {data} --hold-out {hold_out}")


@registry.verb("models eval programs", source="CDMPP")
def eval_programs(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model written by `models train programs`.")],
    data: Data,
    device: Device = "",
    hold_out: By = "tasks",
    profile: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="TASKS", help="With --hold-out device or host: number of its tasks that may be measured."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Example: windtunnel models eval programs cdmpp.safetensors --data programs.npz

    Evaluate a cost model on held-out tensor programs.

    With --profile, the residuals on the other devices (of other hosts) are transferred to the held-out device.
    """
    from windtunnel.errors import InputError
    from windtunnel.systems.tensor_programs.model.checkpoint import load_predictor
    from windtunnel.systems.tensor_programs.program_set import ProgramSet

    if profile is not None and hold_out not in ("device", "host"):
        raise InputError("--profile applies to a held-out device", where="--profile", fix="--hold-out device")
    predictor = load_predictor(model)
    programs = ProgramSet.load(data)
    split = _split(programs, device, hold_out, seed)
    known = predictor.header.get("split", {}).get("digest")
    judged = predictor
    if profile is not None:
        judged = _predict_after_transfer(predictor, programs, split, profile, seed, of_other_hosts=hold_out == "host")
    errors = _errors(judged, programs, split)
    document = {"model": str(model), **_summary(errors, split), "is_split_of_training": known == split.digest()}
    document |= {} if profile is None else {"num_profiled_tasks": profile}
    show(document, _lines(errors, split), as_json=as_json)
    if known != split.digest() and not as_json:
        advise("warning: the model was trained on another split and may have seen some of these programs")


def _select_measured_on(programs: ProgramSet, device: str) -> ProgramSet:
    """The programs that have a time there."""
    import numpy as np

    columns = programs.columns(device or programs.device_names[0])
    return programs.select(np.isfinite(programs.mean_s[:, columns]).any(axis=1))


def _split(programs: ProgramSet, device: str, hold_out: str, seed: int) -> Split:
    from windtunnel.errors import InputError
    from windtunnel.systems.tensor_programs.model.splits import split_by_device, split_by_network, split_by_task

    splits: dict[str, Any] = {
        "tasks": split_by_task,
        "networks": split_by_network,
        "device": split_by_device,
        "host": functools.partial(split_by_device, of_other_hosts=True),
    }
    if hold_out not in splits:
        raise InputError(f"cannot hold out {hold_out!r}", where="--hold-out", fix=", ".join(splits))
    result: Split = splits[hold_out](programs, device or programs.device_names[0], seed=seed)
    return result


def _predict_after_transfer(
    predictor: Any, programs: ProgramSet, split: Split, num_tasks: int, seed: int, *, of_other_hosts: bool
) -> Any:
    """The predictor's prices on the held-out device, after so many of its tasks were measured."""
    import numpy as np

    from windtunnel.systems.tensor_programs.model.residual_transfer import fit_residual_transfer
    from windtunnel.systems.tensor_programs.model.sampling import rows_to_measure

    column, profiled = int(split.target[0, 1]), split.target[:0]
    if num_tasks:
        rows = rows_to_measure(programs, num_tasks, seed=seed, among=split.target[:, 0])
        profiled = np.column_stack([rows, np.full(len(rows), column)])
    return fit_residual_transfer(
        predictor, programs, programs.device_names[column], profiled, of_other_hosts=of_other_hosts
    )


def _errors(predictor: Any, programs: ProgramSet, split: Split) -> Errors:
    from windtunnel.cost.metrics import errors_of
    from windtunnel.systems.tensor_programs.model.samples import labels_of

    return errors_of(predictor.predict(programs, split.test), labels_of(programs, split.test))


def _summary(errors: Errors, split: Split) -> dict[str, Any]:
    return {"schema": "windtunnel.cost.programs/1", "split": split.kind, "digest": split.digest(), **errors.row()}


def _lines(errors: Errors, split: Split) -> Iterator[str | Table]:
    yield f"{errors.num_samples:,} held-out programs, {split.kind}:"
    rows = [
        ("MAPE", f"{100 * errors.mape:.1f} %"),
        ("median APE", f"{100 * errors.median_ape:.1f} %"),
        ("mean error", f"{100 * errors.signed_mean:+.1f} %"),
        ("geometric mean ratio", f"{errors.geometric_mean_ratio:.3f}x"),
        ("within 10 %", f"{100 * errors.within_10:.0f} %"),
    ]
    yield Table({"measure": str, "value": "{}"}, rows)
