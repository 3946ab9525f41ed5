"""``windtunnel verify``: run a what-if interleaved with the baseline and keep the receipt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, choose_wait_policy, print_lines, show, stdout_to_stderr
from windtunnel.cli.files import database_of, open_graph
from windtunnel.cli.options import (
    Bandwidth,
    Fresh,
    Json,
    Latency,
    LedgerPath,
    NumProcesses,
    PricesChoice,
    TimeLimit,
    ranks_of,
    seconds_of,
)
from windtunnel.cli.subjects import subject_of
from windtunnel.errors import InputError
from windtunnel.units import format_duration, parse_ratio

if TYPE_CHECKING:
    from windtunnel.flights import Outcome
    from windtunnel.graph import Graph
    from windtunnel.sources.targets import Script
    from windtunnel.sources.torch.launch import Ranks

__all__ = ["verify"]

PREDICTION_OFF = 1
DRIFT = 0.05  # of the baseline between capture and flight, beyond which it is told


@registry.verb("verify", source="windtunnel")
def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Script, its capture (.wt), workload (mlp:width=64), or strategy written by `whatif --search` "
            "(.json).",
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script, after --.")
    ] = None,
    whatif: Annotated[
        str, typer.Option("--whatif", metavar="NAMES", help="What-ifs to run, such as amp,fused-optimizer.")
    ] = "",
    graph: Annotated[
        Path | None, typer.Option(metavar="GRAPH", help="Capture of the baseline (default: captured now).")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=3, help="Maximum number of interleaved rounds.")] = None,
    time_limit: TimeLimit = "",
    fail_over: Annotated[
        str, typer.Option(metavar="RATIO", help="Exit with code 1 if the error of a prediction exceeds this ratio.")
    ] = "",
    scratch: Annotated[
        bool, typer.Option("--scratch", help="Redirect files that the script writes to temporary directories.")
    ] = False,
    nproc: NumProcesses = 1,
    bandwidth: Bandwidth = "",
    latency: Latency = "",
    prices: PricesChoice = "auto",
    fresh: Fresh = False,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel verify train.py --whatif fused-optimizer,amp

    Predict each change, run it interleaved with the baseline, and store the receipt.
    """
    from windtunnel.flights import verify_several
    from windtunnel.measure import StopRule
    from windtunnel.whatifs import parse_requests

    limit = parse_ratio(fail_over) if fail_over else None
    rule = StopRule() if rounds is None else StopRule(rounds=rounds)
    strategy = registry.get("page", "strategy").function(Path(target)) if target.endswith(".json") else None
    if not (whatif or strategy):
        raise InputError("no what-if is named", fix="add --whatif NAME; windtunnel list flights shows the names")
    requests = parse_requests(strategy[0] if strategy else whatif)
    choose_wait_policy()
    ranks = ranks_of(nproc, bandwidth, latency)
    subject: Any
    baseline = None if graph is None else open_graph(graph)
    if strategy is None:
        subject = _subject(target, arguments or (), ranks)
    elif arguments:  # another script than the captured one
        subject, baseline = subject_of(arguments[0], arguments[1:], ranks), baseline or strategy[1]
    else:
        subject = strategy[1]
    if scratch:
        subject, baseline = _with_scratch(subject, baseline)
    outcomes: list[Outcome] = []
    try:
        with Progress("flying") as progress, stdout_to_stderr():
            flights = verify_several(
                subject,
                requests,
                graph=baseline,
                rule=rule,
                time_limit_s=seconds_of(time_limit),
                prices=prices,
                database=database_of(fresh=fresh),
                ledger=ledger,
                progress=progress,
            )
            for outcome in flights:
                outcomes.append(outcome)
                if len(requests) > 1:
                    _announce(outcome)
    finally:  # an interrupted flight does not hide those before it
        if outcomes and (as_json or len(requests) > 1 or outcomes[0].receipt):
            show(_document(outcomes), _lines(outcomes), as_json=as_json)
    _conclude(outcomes, limit, fail_over, as_json=as_json)


def _announce(outcome: Outcome) -> None:
    """One of several, as soon as it is known."""
    advise(str(outcome.receipt) if outcome.receipt else f"{outcome.request} {outcome.status}")


def _conclude(outcomes: Sequence[Outcome], limit: float | None, fail_over: str, *, as_json: bool) -> None:
    """Say what failed, what to do next, and end with the code of the worst."""
    from windtunnel.cli.errors import show_error

    errors = [outcome for outcome in outcomes if outcome.error is not None]
    if len(outcomes) == 1 and errors:
        raise errors[0].error  # type: ignore[misc]
    for error in dict.fromkeys(outcome.error for outcome in errors):  # several may have the same
        advise(f"{', '.join(str(outcome.request) for outcome in errors if outcome.error is error)}:")
        show_error(error, is_debug=False)  # type: ignore[arg-type]
    receipts = [outcome.receipt for outcome in outcomes if outcome.receipt]
    if receipts:
        advise("next: windtunnel db receipts")
    code = max(outcome.exit_code for outcome in outcomes)
    if limit is not None and any(abs(receipt.error_ratio) > limit for receipt in receipts):
        if not as_json:
            print_lines([f"the error of a prediction exceeds {fail_over}"])
        code = max(code, PREDICTION_OFF)
    if code:
        raise typer.Exit(code)


def _document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "schema": "windtunnel.receipts/1",
        "receipts": [outcome.receipt.to_dict() for outcome in outcomes if outcome.receipt],
        "failures": [outcome.to_dict() for outcome in outcomes if outcome.error is not None],
    }


def _subject(target: str, arguments: Sequence[str], ranks: Ranks) -> Any:
    """What is flown: a captured graph, a workload such as ``mlp:width=64``, or a script in its processes."""
    if Path(target).is_dir():
        return open_graph(Path(target))
    return subject_of(target, arguments, ranks)


def _with_scratch(subject: Any, baseline: Graph | None) -> tuple[Script, Graph | None]:
    """The script whose files are kept away, and the graph that named it as the baseline."""
    from windtunnel.graph import Graph
    from windtunnel.sources.targets import Script, target_of

    if isinstance(subject, Graph):
        subject, baseline = target_of(subject), baseline or subject
    if not isinstance(subject, Script) or subject.ranks.num_ranks > 1:
        raise InputError("--scratch applies to a script in one process", where="--scratch", fix="leave out --scratch")
    return replace(subject, keeps_files=True), baseline


def _lines(outcomes: Sequence[Outcome]) -> Iterator[str | Table]:
    """Predictions beside what was measured, and which flights have no measurement."""
    columns = {"what-if": str, "predicted": "{:.2f}x", "measured": "{:.2f}x", "90 %": "{0[0]:.2f}-{0[1]:.2f}",
               "error": _error, "iteration": format_duration}  # fmt: skip
    yield Table(columns, [_row(outcome) for outcome in outcomes])
    receipts = [outcome.receipt for outcome in outcomes if outcome.receipt]
    worst = max(receipts, key=lambda receipt: abs(receipt.drift_ratio), default=None)
    if worst is not None and abs(worst.drift_ratio) > DRIFT:
        before, now = format_duration(worst.predicted_baseline_ns), format_duration(worst.baseline.value)
        yield (
            f"the baseline took {before} at capture and {now} now ({worst.drift_ratio:+.0%}): "
            "speed-ups remain valid, absolute times of the capture do not"
        )
    yield from (f"{receipt.whatif}: {note}" for receipt in receipts for note in receipt.notes)


def _row(outcome: Outcome) -> tuple[Any, ...]:
    receipt = outcome.receipt
    if receipt is None:
        return outcome.request, None, None, None, outcome.status, None
    measured = receipt.measured, receipt.measured_interval
    return receipt.whatif, receipt.predicted, *measured, receipt.error_ratio, receipt.changed.value


def _error(value: float | str) -> str:
    """The error of a prediction, or why there is none."""
    return value if isinstance(value, str) else f"{value:+.1%}"
