"""``windtunnel models train tile`` and ``models eval tile``: operators priced across GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json

if TYPE_CHECKING:
    from windtunnel.cost.operators.tile import TileModel

__all__ = ["eval_tile", "train_tile"]

Data = Annotated[
    Path, typer.Option("--data", metavar="FOLDER", help="With devices.csv and the published op sets (neusight/).")
]


@registry.verb("models train tile", source="NeuSight")
def train_tile(
    data: Data,
    output: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Model file to write (.safetensors).")],
    without: Annotated[str, typer.Option(metavar="DEVICE", help="Device whose rows are left out of training.")] = "",
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate/--no-calibrate", help="Hold out each device once to calibrate prediction intervals."),
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel models train tile --data cost --out tile.safetensors

    Train a model that prices operators on GPUs on which they were not measured.
    """
    from windtunnel.cost.operators.table import OpSplit, read_published
    from windtunnel.cost.operators.tile import train_tile as train
    from windtunnel.cost.operators.tile_file import save_tile

    path = require_free(output, force=force)
    table, sheet = read_published(data, "train")
    if without:
        table = OpSplit.without_device(table, without).train
    with Progress("training") as progress:
        model = train(table, sheet, seed=seed, is_calibrated=calibrate, progress=progress)
    save_tile(model, path, overwrite=force)
    show({"path": str(path), **_summary(model)}, _lines(model, len(table)), as_json=as_json)
    if not as_json:
        advise(f"wrote {path}")
        advise(f"next: windtunnel models eval tile {path} --data {data}")


def _summary(model: TileModel) -> dict[str, Any]:
    return {
        "schema": "windtunnel.cost.tile/1",
        "devices": list(model.devices),
        "split": model.digest,
        "validation": model.validation,
    }


def _lines(model: TileModel, num_operators: int) -> Iterator[str | Table]:
    yield f"trained on {num_operators:,} operators of {', '.join(model.devices)}"
    if model.validation:
        yield "errors on held-out devices (mean over devices):"
        columns = {"class": str, "MAPE": "{:.1f} %", "mean error": "{:+.1f} %", "geometric mean ratio": "{:.3f}x"}
        yield Table(columns, [(name, *_errors(item)) for name, item in model.validation.items()])


def _errors(errors: Any) -> tuple[float, float, float]:
    """Errors in percent, and their ratio."""
    return 100 * errors["mape"], 100 * errors["signed_mean"], errors["geometric_mean_ratio"]


@registry.verb("models eval tile", source="NeuSight")
def eval_tile(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model written by `models train tile`.")],
    data: Data,
    split: Annotated[str, typer.Option(help="Split to evaluate: test (large shapes) or train.")] = "test",
    as_json: Json = False,
) -> None:
    """Example: windtunnel models eval tile tile.safetensors --data cost

    Evaluate a tile model and the roofline on measured operators, by class and device.
    """
    import numpy as np

    from windtunnel.cost.operators.physics import roofline_ms
    from windtunnel.cost.operators.table import read_published
    from windtunnel.cost.operators.tile import errors_of_ratio
    from windtunnel.cost.operators.tile_file import load_tile

    result = load_tile(model)
    table, sheet = read_published(data, split)
    table = table.take(np.isin(table.op_class, list(result.classes)))
    ours = result.price(table, sheet).latency_ms / table.latency_ms
    plain = roofline_ms(table, sheet) / table.latency_ms
    rows: list[dict[str, Any]] = []
    for name in result.classes:
        for device in table.devices:
            local = (table.op_class == name) & (table.device == device)
            if local.any():
                head = {"class": name, "device": device, "is_seen": device in result.devices}
                rows.append({**head, **errors_of_ratio(ours[local]), "roofline": errors_of_ratio(plain[local])})
    columns = {"class": str, "device": str, "MAPE": "{:.1f} %", "mean error": "{:+.1f} %", "geo. mean": "{:.3f}x",
               "roofline MAPE": "{:.1f} %"}  # fmt: skip
    cells = [
        (row["class"], row["device"] + " (unseen)" * (not row["is_seen"]), *_errors(row), 100 * row["roofline"]["mape"])
        for row in rows
    ]
    show({**_summary(result), "errors": rows}, [Table(columns, cells, wraps="device")], as_json=as_json)
