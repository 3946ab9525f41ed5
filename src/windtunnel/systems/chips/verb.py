"""``windtunnel chip plan``: the chip and the plan for a network, chosen together."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, suggest
from windtunnel.cli.files import open_graph, require_free, stem
from windtunnel.cli.options import Force, Json
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.systems.chips import verb_circulant, verb_zeros  # noqa: F401 - each registers its verbs
from windtunnel.units import format_size, parse_rate, parse_ratio, parse_size

if TYPE_CHECKING:
    from windtunnel.systems.chips.answer import Answer, Options, Shared
    from windtunnel.systems.chips.search import Choice

_SCHEMA = "windtunnel.codesign/1"
_TPU_V4 = "phaze:8x128x128+2x128+128MiB"
_WORDS = {
    "given": "baseline chip, published plan",
    "chip": "best chip for that plan",
    "plan": "best plan on that chip",
    "both": "best chip and plan",
    "smallest": "smallest chip at min. throughput",
    "frugal": "least energy at min. throughput",
}


@registry.verb("chip plan", source="PHAZE", default="model")
def _plan_group() -> None:
    """Example: windtunnel chip plan bert-large --microbatches 1,2

    Choose an accelerator for a model and its pipeline (default) or for block-circulant layers.
    """


@registry.verb("chip plan model", source="PHAZE")
def model(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Models: bert-large, opt-350m, gpt2-xl, megatron-gpt2-2.5b, megatron-gpt2-8.3b, gpt3, llama2-7b, "
            "or a captured graph (train.wt).",
        ),
    ],
    microbatches: Annotated[
        str, typer.Option(metavar="LIST", help="Microbatch sizes to consider, such as 1,2,4.")
    ] = "1",
    hbm: Annotated[
        str, typer.Option(metavar="LIST", help="Memory capacities per device to consider, such as 32GiB,80GiB.")
    ] = "80GiB",
    devices: Annotated[int, typer.Option(min=1, metavar="N", help="Number of accelerators.")] = 1024,
    bandwidth: Annotated[str, typer.Option(metavar="RATE", help="Bandwidth of the link between devices.")] = "4GiB/s",
    memory_bandwidth: Annotated[
        str, typer.Option("--memory-bandwidth", metavar="RATE", help="Bandwidth between an accelerator and its memory.")
    ] = "1.2TB/s",
    batch: Annotated[int, typer.Option("--batch-size", min=1, metavar="N", help="Global batch size.")] = 4096,
    samples: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Captured graph: number of samples in its step (default: as captured)."),
    ] = 0,
    at_least: Annotated[
        float,
        typer.Option(
            "--min-throughput",
            min=0.0,
            metavar="N",
            help="Also find the smallest and the most frugal chip with at least N samples per second.",
        ),
    ] = 0.0,
    chip: Annotated[
        str, typer.Option(metavar="NAME", help="Baseline chip (default: the units of a TPU v4).")
    ] = _TPU_V4,
    area_limit: Annotated[
        str,
        typer.Option("--max-area", metavar="MM2", help="Maximum chip area in square millimeters (default: 278.83)."),
    ] = "",
    fixed_plan: Annotated[
        bool, typer.Option("--fixed-plan", help="Choose only the chip, for the published plan of the model.")
    ] = False,
    fixed_chip: Annotated[
        bool, typer.Option("--fixed-chip", help="Choose only the plan, for the baseline chip.")
    ] = False,
    peak: Annotated[
        bool,
        typer.Option("--peak", help="Price matrix products at the peak of the multipliers, without memory stalls."),
    ] = False,
    adam: Annotated[
        bool, typer.Option("--adam", help="Hold two Adam states per parameter in addition to weight and gradient.")
    ] = False,
    memory_model: Annotated[
        str,
        typer.Option(
            "--memory-model",
            metavar="HOW",
            help="Memory of activations: alive (live tensors), or sum of all outputs as published.",
        ),
    ] = "alive",
    tolerance: Annotated[
        str,
        typer.Option(
            metavar="RATIO", help="Keep a chip on the Pareto front only if it is better by more than this ratio."
        ),
    ] = "1%",
    report: Annotated[
        Path | None, typer.Option("--html", metavar="HTML", help="Write the Pareto front as a page.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel chip plan bert-large --microbatches 1,2

    Choose the accelerator together with the training pipeline of a model.

    The search covers all 29,360 templates of tensor cores, vector cores and buffers, and proves how good its best is.
    """
    from windtunnel.systems.chips.answer import GOALS, find_shared_chip

    if report is not None:
        require_free(report, force=force)
    _require_networks(models)
    if fixed_plan and fixed_chip:
        raise InputError("with both fixed there is nothing to choose", where="--fixed-plan --fixed-chip")
    parts: tuple[str, ...] = (
        ("given", "chip") if fixed_plan else ("given", "plan") if fixed_chip else ("given", "chip", "plan", "both")
    )
    options = _options(
        microbatches, hbm, devices, bandwidth, memory_bandwidth, batch, chip, area_limit, tolerance,
        mode="peak" if peak else "tiled", copies=4 if adam else 2, memory_model=memory_model, at_least=at_least,
    )  # fmt: skip
    parts += tuple(GOALS) if at_least else ()
    with Progress("searching") as progress:
        try:
            answers = [_search(name, options, parts, samples, progress) for name in dict.fromkeys(models)]
        except InfeasibleError as error:  # the memory is an option: one that leaves no plan at all is a wrong one
            raise InputError(error.message, where=error.where, fix=error.fix) from error
        shared = find_shared_chip(answers) if len(answers) > 1 and "both" in parts else None
    if report is not None:
        from windtunnel.systems.chips.page import codesign_page

        codesign_page(answers, report, overwrite=force)
    show(_document(answers, shared), _lines(answers, shared), as_json=as_json)
    if report is not None:
        advise(f"wrote {report}")
    elif not as_json and "both" in parts:
        suggest("windtunnel", "chip", "plan", *models, "--html", "chip.html")


def _require_networks(names: list[str]) -> None:
    for ending, verb in ((".npz", "predict"), (".json", "plan circulant")):
        if any(name.endswith(ending) for name in names):
            fix = shlex.join(["windtunnel", "chip", *verb.split(), *names])
            raise InputError("that is no network and no graph", where=", ".join(names), fix=fix)


def _search(name: str, options: Options, parts: tuple[str, ...], samples: int, progress: Progress) -> Answer:
    """A published network, or the step of a captured one, whose makers' plan nobody knows."""
    from windtunnel.systems.chips.answer import codesign as search
    from windtunnel.systems.chips.answer import codesign_models
    from windtunnel.systems.chips.networks import EXPERTS

    path = Path(name)
    if name in EXPERTS or not (path.suffix or path.exists()):
        return search(name, options, parts, progress)
    from windtunnel.systems.chips.captured import models_of_graph
    from windtunnel.whatifs.another_batch import batch_of

    if "chip" in parts and "both" not in parts:
        raise InputError("there is no plan of its makers", where=name, fix="leave out --fixed-plan")
    graph = open_graph(path, progress=progress, needs_times=False)
    models = models_of_graph(stem(path), graph, samples or batch_of(graph), options.microbatches)
    return codesign_models(
        models, options, [part for part in parts if part not in ("given", "chip")], progress=progress
    )


def _options(
    microbatches: str,
    hbm: str,
    devices: int,
    bandwidth: str,
    memory_bandwidth: str,
    batch: int,
    chip: str,
    area_limit: str,
    tolerance: str,
    *,
    mode: str,
    copies: int,
    memory_model: str,
    at_least: float,
) -> Options:
    from windtunnel.systems.chips.answer import Options, template_of

    if memory_model not in ("alive", "sum"):
        raise InputError(f"memory cannot be counted by {memory_model!r}", where="--memory-model", fix="alive or sum")
    return Options(
        microbatches=tuple(_whole(part) for part in _parts(microbatches)),
        memories=tuple(float(parse_size(part)) for part in _parts(hbm)),
        num_devices=devices,
        bandwidth_bytes_per_s=parse_rate(bandwidth),
        memory_bandwidth_bytes_per_s=parse_rate(memory_bandwidth),
        batch_size=batch,
        chip=template_of(chip),
        area_limit_um2=_area_um2(area_limit) if area_limit else None,
        mode=mode,
        copies=copies,
        memory_model=memory_model,  # type: ignore[arg-type]
        tolerance=parse_ratio(tolerance),
        min_samples_per_s=at_least or None,
    )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise InputError(f"{text!r} is no microbatch", where="--microbatches", fix="whole numbers above 0: 1,2,4")
    return int(text)


def _area_um2(text: str) -> float:
    try:
        return 1e6 * float(text.removesuffix("mm2"))
    except ValueError:
        raise InputError(f"{text!r} is no area", where="--max-area", fix="square millimeters: 278.83") from None


def _document(answers: list[Answer], shared: Shared | None) -> dict[str, Any]:
    from windtunnel.systems.chips.answer import chip_name, choice_dict, geometric_mean

    gains = [answer.gain() for answer in answers if answer.gain() == answer.gain()]
    document: dict[str, Any] = {
        "schema": _SCHEMA,
        "models": [answer.to_dict() for answer in answers],
        "gain_over_given": geometric_mean(gains),
    }
    if shared is not None:
        templates = answers[0].templates["both"]
        document["shared"] = {
            "chip": chip_name(templates, shared.chip),
            "share_of_own_best": shared.share,
            "models": {name: choice_dict(choice, templates) for name, choice in shared.choices.items()},
        }
    return document


def _answer_lines(answer: Answer) -> Iterator[str | Table]:
    from windtunnel.systems.chips.answer import chip_name

    yield f"{answer.name}: throughput, chip area and energy per sample"
    columns = {"choice": str, "samples/s": "{:,.1f}", "speed-up": "{:.2f}x", "mm2": "{:.1f}", "J/sample": "{:,.3g}",
               "chip": str}  # fmt: skip
    rows = []
    for part, choice in answer.choices.items():
        gain = answer.gain(part) if answer.base in answer.choices else None
        name = chip_name(answer.templates[part], choice.chip).removeprefix("phaze:")
        rows.append((_WORDS[part], choice.samples_per_s, gain, choice.area_um2 / 1e6, choice.energy_j, name))
    yield Table(columns, rows)
    yield from (f"  {_WORDS[part]}: {reason}" for part, reason in answer.refused.items())
    last = list(answer.choices)[-1]
    yield f"  plan of the last row: {_plan(answer.choices[last])}"
    for part, item in answer.cheapest.items():
        less = {"smallest": "smaller", "frugal": "more frugal"}[part]
        planned = f"{item.num_planned:,} of {item.num_possible:,} chips were planned for"
        yield f"  {_WORDS[part]}: no {less} chip reaches it; {planned}"
    result = answer.codesign
    if result is not None:
        above = result.bound_samples_per_s / result.best.samples_per_s - 1
        proof = (
            "optimal: no chip with any plan is better" if above < 1e-6 else f"no chip is more than {above:.1%} better"
        )
        planned = f"{result.num_planned:,} of {result.num_possible:,} were planned for, bounds rule out the rest"
        yield f"  {proof}; {planned}; {len(result.front)} chips on the Pareto front"
    yield ""


def _plan(choice: Choice) -> str:
    plan, setting = choice.plan, choice.setting
    degrees = sorted({stage.degree for stage in plan.stages})
    stages = f"{len(plan.stages)} stage{'s' if len(plan.stages) > 1 else ''}"
    recomputed = "recomputed" if setting.is_recomputed else "stashed"
    memory = max(stage.memory_bytes for stage in plan.stages)
    return (
        f"{plan.num_pipelines} pipelines of {stages}, tensor degree {', '.join(map(str, degrees))}, microbatch "
        f"{setting.microbatch}, {recomputed}, {format_size(memory)} of {format_size(setting.memory_bytes)}, "
        f"{plan.num_devices:,} devices"
    )


def _lines(answers: list[Answer], shared: Shared | None) -> Iterator[str | Table]:
    from windtunnel.systems.chips.answer import chip_name, geometric_mean

    for answer in answers:
        yield from _answer_lines(answer)
    gains = [answer.gain() for answer in answers if answer.gain() == answer.gain()]
    if len(answers) > 1 and gains:
        yield f"geometric mean over {len(gains)} models: {geometric_mean(gains):.2f}x over the baseline chip and plan"
    if shared is not None:
        name = chip_name(answers[0].templates["both"], shared.chip)
        yield f"one chip for all models: {name} reaches {shared.share:.0%} of the throughput of each model's best chip"


@registry.verb("chip", source="PHAZE")
def _group() -> None:
    """Example: windtunnel chip plan bert-large --microbatches 1,2

    Choose an accelerator together with its workload, or predict one that skips zeros.
    """
