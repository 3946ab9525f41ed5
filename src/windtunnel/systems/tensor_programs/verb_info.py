"""``windtunnel models show``: the available cost models, or the contents of a model or a set of programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import advise, show
from windtunnel.cli.options import Json

__all__ = ["show_models"]

_SCHEMA = "windtunnel.cost.info/1"


@registry.verb("models show", source="CDMPP")
def show_models(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Cost model or set of programs (default: list all cost models)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel models show cdmpp.safetensors

    Show the available cost models, or the training data and accuracy of a model file.
    """
    if file is None:
        document = _of_package()
    else:
        document = {"path": str(file), **(_of_programs(file) if file.suffix == ".npz" else _of_model(file))}
    lines = _package_lines(document) if file is None else _file_lines(document)
    show({"schema": _SCHEMA, **document}, lines, as_json=as_json)
    if file is None and document["shipped"]["predictor"] and not as_json:
        advise(f"next: windtunnel models show {document['shipped']['predictor']}")


def _of_package() -> dict[str, Any]:
    from windtunnel.systems.tensor_programs.model.shipped import DATA_SHEET, PREDICTOR, PROGRAMS

    models = [
        {"name": name, "source": item.source, "about": item.summary}
        for name, item in sorted(registry.all("cost_model").items())
    ]
    shipped = {"programs": PROGRAMS, "predictor": PREDICTOR, "data_sheet": DATA_SHEET}
    return {
        "models": models,
        "shipped": {name: str(path) if path.is_file() else None for name, path in shipped.items()},
    }


def _package_lines(document: dict[str, Any]) -> Iterator[str | Table]:
    rows = [(item["name"], item["about"], item["source"]) for item in document["models"]]
    yield Table({"model": str, "description": str, "source": str}, rows, wraps="description")
    yield ""
    for name, path in document["shipped"].items():
        yield f"shipped {name.replace('_', ' ')}: {path or 'none in this build'}"


def _of_programs(path: Path) -> dict[str, Any]:
    import numpy as np

    from windtunnel.systems.tensor_programs.program_set import ProgramSet

    programs = ProgramSet.load(path)
    kinds = Counter(str(programs.tasks[task].get("kind", "")) for task in programs.task.tolist())
    return {
        "kind": "programs",
        "num_programs": programs.num_programs,
        "num_tasks": len({*programs.task.tolist()}),
        "num_networks": len(programs.networks()),
        "devices": list(programs.device_names),
        "measured_ratio": float(np.isfinite(programs.mean_s).mean()) if programs.num_programs else 0.0,
        "programs_by_kind": dict(kinds.most_common()),
        "meta": programs.meta,
    }


def _of_model(path: Path) -> dict[str, Any]:
    from windtunnel.cost.model_file import header_of

    header = header_of(path)
    return {name: value for name, value in header.items() if name not in ("features", "device_sheets", "intervals")}


def _file_lines(document: dict[str, Any]) -> Iterator[str | Table]:
    flat = {name: value for name, value in document.items() if not isinstance(value, dict)}
    for name, value in flat.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"{name.replace('_', ' ')}: {text}"
    for name, value in document.items():
        if isinstance(value, dict) and value:
            rows = [(key.replace("_", " "), _short(item)) for key, item in value.items()]
            yield ""
            yield Table({name.replace("_", " "): str, "": str}, rows, wraps="")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items())
    return ", ".join(map(_short, value)) if isinstance(value, list) else str(value)
