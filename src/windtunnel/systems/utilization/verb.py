"""``windtunnel utilization``: how much of its peak the machine reaches, and where the rest goes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import (
    Progress,
    advise,
    quote_word,
    show,
    suggest,
)
from windtunnel.cli.files import open_graph, require_free
from windtunnel.cli.options import Force, Json
from windtunnel.errors import InputError
from windtunnel.units import format_count, format_duration, format_ratio

if TYPE_CHECKING:
    from windtunnel.systems.utilization.cells.run import CellStudy
    from windtunnel.systems.utilization.inference import Survey
    from windtunnel.systems.utilization.run import FlownAdvice
    from windtunnel.systems.utilization.study import ModelUse

__all__ = ["utilization"]

_TOP_LAYERS = 8


@registry.verb("utilization", source="GPU-utilization study", default="run")
def _group() -> None:
    """Example: windtunnel utilization resnet50 --batch-sizes 1,4 --predict

    Measure the utilization of a model on this machine, and where the rest is lost.
    """


@registry.verb("utilization run", source="GPU-utilization study")
def utilization(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="Captured graph (.wt), vision model, cell-N, or workload."),
    ] = None,
    batch_sizes: Annotated[
        str, typer.Option("--batch-sizes", metavar="N,N", help="Inference batch sizes of a vision model, such as 1,4.")
    ] = "1",
    predict: Annotated[
        bool, typer.Option("--predict", help="Also predict the latency without running the model.")
    ] = False,
    try_advice: Annotated[
        bool, typer.Option("--advise", help="Propose other layer shapes and verify them by real runs.")
    ] = False,
    survey: Annotated[bool, typer.Option("--survey", help="Measure and predict all vision models.")] = False,
    search: Annotated[
        int, typer.Option("--search", min=0, metavar="N", help="Search 15,625 cells with N trials; 0: do not search.")
    ] = 0,
    image_size: Annotated[int, typer.Option("--image-size", min=16, help="Height and width of images in pixels.")] = 96,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Number of intra-op threads.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--html", metavar="PATH", help="Write a page with the utilization waterfall.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel utilization resnet50 --batch-sizes 1,4 --predict

    Measure the utilization of a model or a captured graph, and attribute the losses.

    A survey and a search take a few minutes.
    """
    from windtunnel.measure import ProfileDatabase

    if (target is not None) + survey + bool(search) != 1:
        raise InputError(
            "name one target, or add --survey or --search", fix="windtunnel utilization resnet18, or --survey"
        )
    sizes = _batch_sizes(batch_sizes)
    path = None if output is None else require_free(output, force=force)
    database = ProfileDatabase()
    if search:
        _search(search, sizes[0], threads, database, as_json=as_json)
        return
    if target is None:
        _survey(sizes, image_size, threads, database, as_json=as_json)
        return
    with Progress(f"utilization of {target}") as progress:
        result = _measure_use(target, sizes, image_size, threads, predict, database, progress)
        tried = _fly_advice(result[-1], image_size) if try_advice else []
    document = {"schema": "windtunnel.utilization/1", "jobs": [_as_dict(item) for item in result]}
    show(document, _lines(result, tried), as_json=as_json)
    if path is not None:
        from windtunnel.systems.utilization.page import utilization_page

        utilization_page(result, path, overwrite=force)
        advise(f"wrote {path}")
    _advise_next(target, result[-1], tried)


def _advise_next(target: str, found: ModelUse, tried: list[FlownAdvice]) -> None:
    from windtunnel.systems.utilization.study import is_model

    if is_model(found.name):
        again = f"--batch-sizes {4 * found.batch_size}" if tried else "--advise"
        advise(f"next: windtunnel utilization {quote_word(target)} {again}")
    elif Path(target).exists():
        suggest("windtunnel", "whatif", target, "--all")
    else:
        suggest("windtunnel", "verify", target, "--whatif", "amp")


def _batch_sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"batch sizes are whole numbers above 0, not {text!r}", fix="--batch-sizes 1,4,16")
    return [int(part) for part in parts]


def _measure_use(
    target: str, sizes: list[int], image_size: int, threads: int, predict: bool, database: Any, progress: Progress
) -> list[ModelUse]:
    from windtunnel.systems.utilization.study import fly_model, fly_workload, is_model, use_of_graph
    from windtunnel.workloads.vision import vision_names

    if is_model(target):
        return [
            fly_model(
                target,
                size,
                image_size=image_size,
                num_threads=threads,
                predict=predict,
                database=database,
                progress=progress,
            )
            for size in sizes
        ]
    if target in registry.all("workload"):
        return [fly_workload(target, database=database, progress=progress)]
    if Path(target).exists() or "/" in target or target.endswith((".wt", ".json")):
        return [use_of_graph(open_graph(Path(target), progress=progress), name=target, database=database)]
    near = difflib.get_close_matches(target, [*vision_names(), *registry.all("workload")], n=3, cutoff=0.4)
    fix = f"did you mean {', '.join(near)}?" if near else "windtunnel list workloads, or a .wt folder"
    raise InputError(f"no model, workload or graph is called {target!r}", fix=fix)


def _fly_advice(found: ModelUse, image_size: int) -> list[FlownAdvice]:
    from windtunnel.systems.utilization.study import fly_model_advice, is_model

    if not is_model(found.name):
        raise InputError("advice is tried on vision models and cells", where=found.name, fix="leave out --advise")
    return fly_model_advice(found, image_size=image_size)


def _as_dict(found: ModelUse) -> dict[str, Any]:
    use, peak = found.use, found.peak
    return {
        "name": found.name,
        "batch_size": found.batch_size,
        "duration_ns": use.duration_ns,
        "predicted_ns": found.predicted_ns,
        "flops": use.flops,
        "elementwise_flops": use.elementwise_flops,
        "utilization": use.value,
        "all_utilization": use.all_value,
        "predicted_utilization": found.predicted_utilization,
        "peak_flops_per_s": peak.flops_per_s,
        "peak_spread": peak.spread,
        "isa": peak.isa,
        "num_threads": found.ceilings.num_threads,
        "waterfall": {loss.name: loss.percent for loss in use.waterfall},
        "layers": [
            {
                "layer": layer.layer,
                "flops": layer.flops,
                "duration_ns": layer.duration_ns,
                "utilization": layer.utilization,
                "intensity": layer.intensity,
                "bound": layer.bound,
            }
            for layer in use.layers
        ],
    }


def _lines(found: list[ModelUse], tried: list[FlownAdvice]) -> Iterator[str | Table]:
    from windtunnel.systems.utilization.page import by_batch_size

    peak, last = found[0].peak, found[-1].use
    yield (
        f"peak: {peak.flops_per_s / 1e9:.0f} GFLOP/s measured in {peak.dtype} on {peak.num_threads} "
        f"thread{'s' if peak.num_threads > 1 else ''} ({peak.isa})"
    )
    if peak.spread > 0.1:
        yield "warning: the peak varied between runs, and may be too low because other programs were running"
    yield by_batch_size(found)
    yield ""
    losses = [(loss.percent, loss.name, loss.meaning) for loss in last.waterfall if abs(loss.percent) >= 0.005]
    yield Table({"share": "{:.2f} %", "part": str, "meaning": str}, losses, wraps="meaning")
    if last.layers:
        columns = {"layer": str, "time": format_duration, "utilization": format_ratio, "roofline": format_ratio}
        layers = last.layers[:_TOP_LAYERS]
        yield ""
        yield Table(
            columns, [(item.layer or "(none)", item.duration_ns, item.utilization, item.bound) for item in layers]
        )
    if tried:
        columns = {"advice": str, "layers": str, "predicted": "{:.2f}x", "measured": "{:.2f}x"}
        rows = [
            (item.advice.text, ", ".join(item.advice.layers[:2]), item.advice.predicted_gain, item.measured_gain)
            for item in tried
        ]
        yield ""
        yield Table(columns, rows)
        yield "gains are FLOP per second: the network has to be trained with the added channels"


def _survey(sizes: list[int], image_size: int, threads: int, database: Any, *, as_json: bool) -> None:
    from windtunnel.systems.utilization.inference import survey
    from windtunnel.workloads.vision import vision_names

    with Progress("survey") as progress:
        result = survey(
            vision_names(), sizes, image_size=image_size, num_threads=threads, database=database, progress=progress
        )
    show(_survey_dict(result), _survey_lines(result), as_json=as_json)
    advise("next: windtunnel utilization resnet18 --predict")


def _survey_dict(found: Survey) -> dict[str, Any]:
    return {
        "schema": "windtunnel.survey/1",
        "image_size": found.image_size,
        "num_threads": found.num_threads,
        "peak_flops_per_s": found.peak.flops_per_s,
        "per_call_ns": found.overhead.per_call_ns,
        "failures": found.failures,
        "models": [
            {
                "name": row.net.name,
                "batch_size": row.net.batch_size,
                "measured_ns": row.net.measured_ns,
                "predicted_ns": row.predicted_ns,
                "flops": row.net.flops,
                "parameters": row.net.num_parameters,
                "utilization": row.utilization,
                "predicted_utilization": row.predicted_utilization,
                "is_fitted": row.is_fitted,
            }
            for row in found.rows
        ],
    }


def _survey_lines(found: Survey) -> Iterator[str | Table]:
    columns = [("model", str), ("batch size", "{}"), ("measured", format_duration), ("predicted", "{}"),
               ("FLOP", format_count), ("utilization", format_ratio), ("predicted", format_ratio)]  # fmt: skip
    rows = [
        (row.net.name, row.net.batch_size, row.net.measured_ns,
         format_duration(row.predicted_ns) + (" *" if row.is_fitted else ""), row.net.flops, row.utilization,
         row.predicted_utilization)
        for row in sorted(found.rows, key=lambda row: -row.utilization)
    ]  # fmt: skip
    yield Table(columns, rows)
    yield (
        f"images of {found.image_size} pixels, {found.num_threads} threads, peak {found.peak.flops_per_s / 1e9:.0f} "
        "GFLOP/s measured; *: used to fit the framework overhead"
    )
    yield from (f"{name}: {reason}" for name, reason in found.failures.items())


def _search(num_trials: int, batch_size: int, threads: int, database: Any, *, as_json: bool) -> None:
    from windtunnel.systems.utilization.cells.run import cell_prices, fly_searches

    with Progress("searching cells", heartbeat=True) as progress:
        prices = cell_prices(batch_size=batch_size, num_threads=threads, database=database)
        study = fly_searches(prices, num_trials=num_trials, num_threads=threads, progress=progress)
    document = {"schema": "windtunnel.cells/1", "num_trials": num_trials, "searches": _fronts(study)}
    show(document, _front_lines(study), as_json=as_json)
    best = max(study.fronts, key=lambda front: front.area_ratio)
    advise(f"next: windtunnel utilization cell-{best.flown[-1][0].cell.index} --predict")


def _fronts(study: CellStudy) -> dict[str, Any]:
    return {
        front.name: {
            "objectives": front.search.objectives,
            "num_tried": len(front.search.tried),
            "num_front": len(front.search.front),
            "area_ratio": front.area_ratio,
            "flown": [
                {
                    "cell": item.cell.index,
                    "name": item.cell.name,
                    "parameters": item.parameters,
                    "flops": item.flops,
                    "predicted_ns": item.latency_ns,
                    "measured_ns": measured_ns,
                    "predicted_utilization": item.utilization,
                }
                for item, measured_ns in front.flown
            ],
        }
        for front in study.fronts
    }


def _front_lines(study: CellStudy) -> Iterator[str | Table]:
    rows = [
        (front.name, ", ".join(front.search.objectives), len(front.search.tried), front.area_ratio)
        for front in study.fronts
    ]
    columns = {"search": str, "objectives": str, "cells tried": "{}", "hypervolume": "{:.3f}"}
    yield Table(columns, rows, wraps="objectives")
    yield "hypervolume: of parameters and measured latency, relative to the best search"
    for front in study.fronts:
        columns = {f"best by {front.name}": str, "parameters": format_count, "predicted": format_duration,
                   "measured": format_duration, "utilization": format_ratio}  # fmt: skip
        yield ""
        yield Table(columns, [
            (f"cell-{item.cell.index}", item.parameters, item.latency_ns, measured_ns, item.utilization)
            for item, measured_ns in front.flown
        ])  # fmt: skip
