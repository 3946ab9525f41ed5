"""``windtunnel verify``: really run a what-if beside the baseline and keep the receipt (room cli)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.cli._console import Progress, advise, clean, print_json, print_table, say
from windtunnel.cli._files import database_of, open_graph
from windtunnel.cli._options import Fresh, Json, LedgerPath, PricesChoice
from windtunnel.cli._ranks import Bandwidth, Latency, NumProcesses, ranks_of
from windtunnel.cli._stdout import stdout_to_stderr
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.flights import Receipt
    from windtunnel.graph import Graph
    from windtunnel.sources.torch.launch import Ranks

__all__ = ["print_receipts", "verify"]

PREDICTION_OFF = 1
_ITERATIONS = 20  # of a capture
DRIFT = 0.05  # of the baseline between capture and flight, beyond which it is told


def verify(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A script, a capture of one, or a workload: mlp:width=64.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The script's own, behind --.")] = None,
    whatif: Annotated[
        str, typer.Option("--whatif", metavar="NAMES", help="What to fly, such as amp,fused-optimizer.")
    ] = "",
    graph: Annotated[
        Path | None, typer.Option(metavar="GRAPH", help="A capture of the baseline, if there is one.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="At most so many interleaved rounds.")] = None,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Stop each flight after this time.")] = "60s",
    fail_over: Annotated[str, typer.Option(metavar="RATIO", help="Exit with 1 if a prediction is off by more.")] = "",
    nproc: NumProcesses = 1,
    bandwidth: Bandwidth = "",
    latency: Latency = "",
    prices: PricesChoice = "auto",
    fresh: Fresh = False,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel verify train.py --whatif fused-optimizer,amp

    Predict, then really run each change in turns with the baseline, and keep the error.
    """
    from windtunnel.flights import verify as fly
    from windtunnel.measure import StopRule
    from windtunnel.units import parse_duration, parse_ratio
    from windtunnel.whatifs import parse_requests

    if not whatif:
        raise InputError("say which what-if to fly", fix="--whatif NAME; windtunnel list flights shows them")
    limit = parse_ratio(fail_over) if fail_over else None
    rule = StopRule(time_limit_s=parse_duration(time_limit) / 1e9)
    requests = parse_requests(whatif)
    subject = _subject(target, arguments or (), ranks_of(nproc, bandwidth, latency))
    baseline = _baseline(subject, graph)
    database = database_of(fresh=fresh)
    receipts = []
    with Progress("flying") as progress, stdout_to_stderr():
        for request in requests:
            receipt = fly(
                subject,
                request,
                graph=baseline,
                rounds=rounds,
                rule=rule,
                prices=prices,
                database=database,
                ledger=ledger,
                progress=progress,
            )
            receipts.append(receipt)
    if as_json:
        print_json({"schema": "windtunnel.receipts/1", "receipts": [receipt.to_dict() for receipt in receipts]})
    else:
        print_receipts(receipts)
    advise("next: windtunnel receipts")
    if limit is not None and max(abs(receipt.error_ratio) for receipt in receipts) > limit:
        say(f"a prediction is off by more than {fail_over}") if not as_json else None
        raise typer.Exit(PREDICTION_OFF)


def _subject(target: str, arguments: Sequence[str], ranks: Ranks) -> Any:
    """What is flown: a captured graph, a workload such as ``mlp:width=64``, or a script in its processes."""
    from windtunnel.sources.targets import WorkloadName, target_of
    from windtunnel.whatifs.request import parse_step

    if Path(target).is_dir():
        return open_graph(Path(target))
    if ":" in target and not target.endswith(".py"):
        step = parse_step(target, kind="workload")
        return WorkloadName(step.name, step.parameters)
    return target_of(target, argv=arguments, ranks=ranks)


def _baseline(subject: Any, graph: Path | None) -> Graph | None:
    """One capture for all flights of a script: given, or made now."""
    from windtunnel.sources.targets import Script

    if graph is not None:
        return open_graph(graph)
    if not isinstance(subject, Script):
        return None
    with Progress(f"capturing {subject}") as progress, stdout_to_stderr():
        return subject.capture(_ITERATIONS, progress)


def print_receipts(receipts: list[Receipt]) -> None:
    """Predictions beside what was measured."""
    from windtunnel.units import format_duration

    rows = [
        (
            each.whatif,
            f"{each.predicted:.2f}x",
            f"{each.measured:.2f}x",
            "{:.2f}-{:.2f}".format(*each.measured_interval),
            f"{each.error_ratio:+.1%}",
            format_duration(each.changed.value),
        )
        for each in receipts
    ]
    print_table(("what if", "predicted", "measured", "90 %", "error", "iteration"), rows, numbers=(1, 2, 3, 4, 5))
    _print_drift(receipts)
    for receipt in receipts:
        for note in receipt.notes:
            say(clean(f"{receipt.whatif}: {note}", 400))


def _print_drift(receipts: list[Receipt]) -> None:
    """How the machine was when the job was captured, beside how it was when it was flown."""
    from windtunnel.units import format_duration

    worst = max(receipts, key=lambda each: abs(each.drift_ratio))
    if abs(worst.drift_ratio) > DRIFT:
        before, now = format_duration(worst.predicted_baseline_ns), format_duration(worst.baseline.value)
        say(
            f"the baseline took {before} when it was captured and {now} now ({worst.drift_ratio:+.0%}): "
            "ratios hold, times of that capture are off by as much"
        )
