"""``windtunnel whatif``: what a change would buy, before it is built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, print_json, print_table, quote_word, say, say_wrapped, suggest
from windtunnel.cli.files import database_of, derive_path, open_graph, require_free
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

if TYPE_CHECKING:
    from windtunnel.whatifs import Answer

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

    if search:
        limits = {"lossy": lossy, "memory": memory, "max_plans": max_plans, "latency": latency, "bandwidth": bandwidth}
        path = require_free(derive_path(graph, ".strategy.json", output), force=force)
        _search(graph, path, prices=prices, fresh=fresh, as_json=as_json, **limits)
        return
    if bool(names) == every:
        raise InputError("name what-ifs, or add --all", fix=f"{_all_of(graph)}")
    with Progress("predicting", heartbeat=True) as progress:
        opened = open_graph(
            graph,
            progress=progress,
            kineto=kineto,
            read_limit=read_limit,
            align=align,
            allow_missing=allow_missing,
        )
        result = ask(
            opened,
            "all" if every else ",".join(names or ()),
            pairs=pairs,
            prices=prices,
            database=database_of(fresh=fresh),
            progress=progress,
        )
    answers = with_intervals(result, ledger)
    usable = [answer for answer in answers if answer.is_applicable]
    if as_json:
        baseline = answers[0].baseline
        counts = {"num_tasks": baseline.graph.num_tasks, "num_played": baseline.num_played}
        documents = [answer.to_dict() | (_layers_of(answer) if layers else {}) for answer in answers]
        print_json({"schema": "windtunnel.answers/1", **counts, "answers": documents})
    else:
        _print_answers(usable, top)
        if layers:
            _print_layers(usable[:top])
        _print_refusals([answer for answer in answers if not answer.is_applicable], in_full=why or not every)
        for line in clock_lines(opened):
            say_wrapped(line)
    if not usable and not every:
        raise NotApplicableError("none of these changes applies to this graph", fix=_all_of(graph))
    if not usable:
        raise typer.Exit(NOT_APPLICABLE)
    _advise_next(usable, graph)


def _search(graph: Path, path: Path, *, prices: str, fresh: bool, as_json: bool, **limits: Any) -> None:
    with Progress("searching", heartbeat=True) as progress:
        opened = open_graph(graph, progress=progress)
        given = {"prices": prices, "database": database_of(fresh=fresh), "as_json": as_json, "progress": progress}
        registry.get("page", "strategy-search").function(opened, path, captured=graph, **limits, **given)


def _all_of(graph: Path) -> str:
    return f"windtunnel whatif {quote_word(graph)} --all"


def _print_answers(answers: list[Answer], top: int) -> None:
    from windtunnel.units import format_duration, format_size
    from windtunnel.whatifs.speed import speed_of_measurement

    if not answers:
        return
    baseline = answers[0]
    speed = str(speed_of_measurement(baseline.baseline.graph, baseline.baseline_ns))
    say_wrapped(f"baseline: {format_duration(baseline.baseline_ns)} per iteration{', ' * bool(speed)}{speed}")
    rows = []
    for answer in answers[:top]:
        span = "no receipt" if answer.span is None else "{:.2f}-{:.2f}".format(*answer.span)
        memory = "" if answer.peak_bytes is None else format_size(answer.peak_bytes)
        rows.append((str(answer.request), f"{answer.speedup:.2f}x", span, format_duration(answer.predicted_ns), memory))
    print_table(("what-if", "speed-up", "90 % interval", "iteration", "peak memory"), rows, numbers=(1, 2, 3, 4))
    _print_parameters(answers[:top])
    missing = max(answer.price_waited_ratio for answer in answers[:top])
    if missing:
        say(
            f"other programs took up to {missing:.0%} of the cores during some measurements, which are "
            "imprecise and not saved"
        )
    if any(answer.interval is not None and answer.interval.scope == "shipped" for answer in answers[:top]):
        say("some intervals come from shipped receipts; windtunnel verify adds your own")
    flown = [f"{answer.request} (predicted {answer.graph_speedup:.2f}x)" for answer in answers[:top] if answer.is_flown]
    if flown:
        say_wrapped(f"measured on this job by past flights: {', '.join(flown)}")
    for answer in answers[:top]:
        if answer.peak_violation:
            say_wrapped(f"{answer.request}: the predicted peak is implausible and not shown: {answer.peak_violation}")
    if large := [str(answer.request) for answer in answers[:top] if answer.exceeds_memory]:
        device = baseline.baseline.graph.meta.priced_for
        say_wrapped(f"exceeds the memory of {device}: {', '.join(large)}")
    if any(answer.samples_ratio != 1 for answer in answers[:top]):
        say("speed-ups are per sample, because some of these changes alter the batch size")
    if len(answers) > top:
        say(f"and {len(answers) - top:,} more with smaller speed-ups; --top {len(answers)} shows all")


def _layers_of(answer: Answer) -> dict[str, Any]:
    from windtunnel.whatifs.by_layer import by_layer

    return {"layers": [item.to_dict() for item in by_layer(answer)]}


def _print_layers(answers: list[Answer]) -> None:
    """Where a change pays, if each layer is changed alone, and where it is better left."""
    from windtunnel.units import format_duration
    from windtunnel.whatifs.by_layer import by_layer, worth_it

    for answer in answers:
        result = by_layer(answer)
        if not result:
            continue
        say()
        say(f"{answer.request}, applied to one layer at a time:")
        rows = [
            (
                item.layer,
                f"{item.speedup:.2f}x",
                format_duration(item.now_ns),
                format_duration(item.predicted_ns),
                "" if item.pays else "no gain",
            )
            for item in result
        ]
        print_table(("layer", "speed-up", "now", "predicted", ""), rows, numbers=(1, 2, 3), gives_way=0)
        paying = worth_it(result)
        if paying:
            sign = "," if ":" in str(answer.request) else ":"
            say_wrapped(f"only on layers that gain: '{answer.request}{sign}layer={paying}'")
        elif not any(item.pays for item in result):
            say("no layer gains")


def _print_parameters(answers: list[Answer]) -> None:
    """What each what-if was asked with, defaults too: a speed-up on two ranks says nothing about eight."""
    used = {name: given for answer in answers for name, given in answer.used.items() if given}
    if not used:
        return
    say()
    say("parameters (set with NAME:key=value):")
    for name, given in used.items():
        say_wrapped(f"  {name}: {', '.join(f'{key}={_format_value(key, value)}' for key, value in given.items())}")


def _format_value(key: str, value: object) -> str:
    """A value in the unit of its parameter."""
    from windtunnel.units import format_duration, format_size

    if isinstance(value, int) and key.endswith("_ns"):
        return format_duration(value)
    return format_size(value) if isinstance(value, int) and key.endswith("_bytes") else f"{value}"


def _print_refusals(answers: list[Answer], *, in_full: bool) -> None:
    """What is in effect already, and our own mistakes, are always shown; what has nothing to act on if asked for."""
    from windtunnel.whatifs.answer import Status

    shown = [answer for answer in answers if in_full or answer.status is not Status.NOT_APPLICABLE]
    for answer in shown:
        say_wrapped(f"{answer.request}  {answer.status}: {answer.reason}" + _advice_of(answer))
    if len(shown) < len(answers):
        say(f"{len(answers) - len(shown)} more do not apply; --why shows why")


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
    target = path if answers[0].baseline.graph.meta.origin else "SCRIPT.py"
    if flown:
        suggest("windtunnel", "verify", target, "--whatif", flown[0].request)
    else:
        advise("next: windtunnel list flights")
