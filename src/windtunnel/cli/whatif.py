"""``windtunnel whatif``: what a change would buy, before it is built."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.progress import Stages
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, quote_word, show, suggest
from windtunnel.cli.files import database_of, derive_path, open_graph, prepare_reruns, require_free
from windtunnel.cli.options import (
    AlignChoice,
    AllowMissing,
    Force,
    Fresh,
    GraphPath,
    Json,
    KinetoPath,
    LedgerPath,
    Output,
    PricesChoice,
    ReadLimitSize,
)
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.units import format_duration, format_size

if TYPE_CHECKING:
    from windtunnel.whatifs import Answer
    from windtunnel.whatifs.by_layer import LayerGain

__all__ = ["whatif"]

NOT_APPLICABLE = 1


@registry.verb("whatif", source="windtunnel")
def whatif(
    graph: GraphPath,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="WHATIF", help="What-ifs, such as amp or data-parallel:num_ranks=4.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Predict all registered what-ifs.")] = False,
    pairs: Annotated[bool, typer.Option("--pairs", help="Also predict all compatible pairs.")] = False,
    why: Annotated[bool, typer.Option("--why", help="Show why the other what-ifs do not apply.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Number of answers to show.")] = 20,
    layers: Annotated[
        bool, typer.Option("--layers", help="Also predict each change for each layer separately.")
    ] = False,
    search: Annotated[
        bool,
        typer.Option(
            "--search", help="Search for the fastest strategy of a data-parallel job (captured with --nproc)."
        ),
    ] = False,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Search: also consider gradient compression, which changes the gradients.")
    ] = False,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Search: memory limit per rank, such as 16GiB.")] = "",
    max_plans: Annotated[
        int, typer.Option("--max-plans", min=1, metavar="N", help="Search: maximum number of plans to try.")
    ] = 2000,
    latency: Annotated[
        str,
        typer.Option(metavar="TIME", help="Search: latency of a gradient message (default: fitted to the capture)."),
    ] = "",
    bandwidth: Annotated[
        str,
        typer.Option(metavar="RATE", help="Search: bandwidth of gradient averaging (default: fitted to the capture)."),
    ] = "",
    output: Output = None,
    force: Force = False,
    prices: PricesChoice = "auto",
    fresh: Fresh = False,
    ledger: LedgerPath = None,
    kineto: KinetoPath = None,
    read_limit: ReadLimitSize = "",
    align: AlignChoice = "auto",
    allow_missing: AllowMissing = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel whatif train.wt --all --pairs

    Predict the speed-up of changes, best first, with intervals from past flights.

    windtunnel list whatifs shows the names. Parameters follow a colon (batch-size:factor=2); + combines changes.
    """
    from windtunnel.flights import with_intervals
    from windtunnel.sources.ranks.clocks import clock_lines
    from windtunnel.whatifs import whatif as ask
    from windtunnel.whatifs.by_layer import by_layer

    if search:
        limits = {"lossy": lossy, "memory": memory, "max_plans": max_plans, "latency": latency, "bandwidth": bandwidth}
        path = require_free(derive_path(graph, ".strategy.json", output), force=force)
        _search(graph, path, prices=prices, fresh=fresh, as_json=as_json, **limits)
        return
    if bool(names) == every:
        raise InputError("name what-ifs, or add --all", fix=f"{_all_of(graph)}")
    with Progress("predicting", heartbeat=True) as progress:
        stages = Stages(progress)
        opened = open_graph(
            graph,
            progress=stages.stage(0, 5),
            kineto=kineto,
            read_limit=read_limit,
            align=align,
            allow_missing=allow_missing,
        )
        prepare_reruns(opened, prices)
        result = ask(
            opened,
            "all" if every else ",".join(names or ()),
            pairs=pairs,
            prices=prices,
            database=database_of(fresh=fresh),
            progress=stages.stage(5, 100),
        )
    answers = with_intervals(result, ledger)
    usable = [answer for answer in answers if answer.is_applicable]
    by_answer = [by_layer(answer) if layers else [] for answer in answers]
    baseline = answers[0].baseline
    documents = [
        answer.to_dict() | ({"layers": [item.to_dict() for item in parts]} if layers else {})
        for answer, parts in zip(answers, by_answer, strict=True)
    ]
    document = {"schema": "windtunnel.answers/1", "num_tasks": baseline.graph.num_tasks,
                "num_played": baseline.num_played, "answers": documents}  # fmt: skip

    def lines() -> Iterator[str | Table]:
        if usable:
            yield from _answers(usable[:top], num_more=len(usable) - top)
        shown = [pair for pair in zip(answers, by_answer, strict=True) if pair[0].is_applicable][:top]
        yield from (line for answer, parts in shown if parts for line in _layers(answer, parts))
        yield from _refusals([answer for answer in answers if not answer.is_applicable], in_full=why or not every)
        yield from clock_lines(opened)

    show(document, lines(), as_json=as_json)
    if not usable and not every:
        raise NotApplicableError("none of these changes applies to this graph", fix=_all_of(graph))
    if not usable:
        raise typer.Exit(NOT_APPLICABLE)
    _advise_next(usable, graph)


def _search(graph: Path, path: Path, *, prices: str, fresh: bool, as_json: bool, **limits: Any) -> None:
    with Progress("searching", heartbeat=True) as progress:
        opened = open_graph(graph, progress=progress)
        prepare_reruns(opened, prices)
        given = {"prices": prices, "database": database_of(fresh=fresh), "as_json": as_json, "progress": progress}
        registry.get("page", "strategy-search").function(opened, path, captured=graph, **limits, **given)


def _all_of(graph: Path) -> str:
    return f"windtunnel whatif {quote_word(graph)} --all"


def _answers(answers: list[Answer], num_more: int) -> Iterator[str | Table]:
    from windtunnel.whatifs.speed import speed_of_measurement

    baseline = answers[0]
    speed = str(speed_of_measurement(baseline.baseline.graph, baseline.baseline_ns))
    yield f"baseline: {format_duration(baseline.baseline_ns)} per iteration{', ' * bool(speed)}{speed}"
    columns = {"what-if": str, "speed-up": "{:.2f}x", "90 % interval": "{}", "iteration": format_duration,
               "peak memory": format_size}  # fmt: skip
    rows = [
        (answer.request, answer.speedup, "{:.2f}-{:.2f}".format(*answer.span) if answer.span else "no receipt",
         answer.predicted_ns, answer.peak_bytes)
        for answer in answers
    ]  # fmt: skip
    yield Table(columns, rows)
    yield from _parameters(answers)
    missing = max(answer.price_waited_ratio for answer in answers)
    if missing:
        yield (
            f"other programs took up to {missing:.0%} of the cores during some measurements, which are "
            "imprecise and not saved"
        )
    if any(answer.interval is not None and answer.interval.scope == "shipped" for answer in answers):
        yield "some intervals come from shipped receipts; windtunnel verify adds your own"
    flown = [f"{answer.request} (predicted {answer.graph_speedup:.2f}x)" for answer in answers if answer.is_flown]
    if flown:
        yield f"measured on this job by past flights: {', '.join(flown)}"
    for answer in answers:
        if answer.peak_violation:
            yield f"{answer.request}: the predicted peak is implausible and not shown: {answer.peak_violation}"
    if large := [str(answer.request) for answer in answers if answer.exceeds_memory]:
        yield f"exceeds the memory of {baseline.baseline.graph.meta.priced_for}: {', '.join(large)}"
    if any(answer.samples_ratio != 1 for answer in answers):
        yield "speed-ups are per sample, because some of these changes alter the batch size"
    if num_more > 0:
        yield f"and {num_more:,} more with smaller speed-ups; --top {len(answers) + num_more} shows all"


def _layers(answer: Answer, parts: Sequence[LayerGain]) -> Iterator[str | Table]:
    """Where a change pays, if each layer is changed alone, and where it is better left."""
    from windtunnel.whatifs.by_layer import worth_it

    yield ""
    yield f"{answer.request}, applied to one layer at a time:"
    columns = {"layer": str, "speed-up": "{:.2f}x", "now": format_duration, "predicted": format_duration, "": str}
    yield Table(columns, [
        (item.layer, item.speedup, item.now_ns, item.predicted_ns, "" if item.pays else "no gain") for item in parts
    ])  # fmt: skip
    paying = worth_it(parts)
    if paying:
        sign = "," if ":" in str(answer.request) else ":"
        yield f"only on layers that gain: '{answer.request}{sign}layer={paying}'"
    elif not any(item.pays for item in parts):
        yield "no layer gains"


def _parameters(answers: list[Answer]) -> Iterator[str]:
    """What each what-if was asked with, defaults too: a speed-up on two ranks says nothing about eight."""
    used = {name: given for answer in answers for name, given in answer.used.items() if given}
    if not used:
        return
    yield ""
    yield "parameters (set with NAME:key=value):"
    for name, given in used.items():
        yield f"  {name}: {', '.join(f'{key}={_format_value(key, value)}' for key, value in given.items())}"


def _format_value(key: str, value: object) -> str:
    """A value in the unit of its parameter."""
    if isinstance(value, int) and key.endswith("_ns"):
        return format_duration(value)
    return format_size(value) if isinstance(value, int) and key.endswith("_bytes") else f"{value}"


def _refusals(answers: list[Answer], *, in_full: bool) -> Iterator[str]:
    """What is in effect already, and our own mistakes, are always shown; what has nothing to act on if asked for."""
    from windtunnel.whatifs.answer import Status

    shown = [answer for answer in answers if in_full or answer.status is not Status.NOT_APPLICABLE]
    for answer in shown:
        yield f"{answer.request}  {answer.status}: {answer.reason}" + _advice_of(answer)
    if len(shown) < len(answers):
        yield f"{len(answers) - len(shown)} more do not apply; --why shows why"


def _advice_of(answer: Answer) -> str:
    from windtunnel.whatifs.answer import Status

    return "" if answer.status is Status.NOT_APPLICABLE or not answer.advice else f"; {answer.advice}"


def _advise_next(answers: list[Answer], path: Path) -> None:
    """The best that fits and can be flown; a capture knows the script that it is of."""
    flights = registry.all("flight")
    flown = [
        answer
        for answer in answers
        if not answer.exceeds_memory and all(step.name in flights for step in answer.request.steps)
    ]
    graph = answers[0].baseline.graph
    target = path if graph.meta.origin else "SCRIPT.py"
    if flown and graph.has_streams:
        words = ("windtunnel", "verify", target, "--whatif", flown[0].request)
        advise(f"on a machine with the GPU: {shlex.join(map(str, words))}")
    elif flown:
        suggest("windtunnel", "verify", target, "--whatif", flown[0].request)
    else:
        advise("next: windtunnel list flights")
