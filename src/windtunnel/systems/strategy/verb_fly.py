"""``windtunnel fly``: really run a strategy beside the job as it is, and keep the receipt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, print_json
from windtunnel.cli.files import database_of
from windtunnel.cli.options import Fresh, Json, LedgerPath, PricesChoice, TimeLimit, seconds_of
from windtunnel.cli.ranks import Bandwidth, Latency, NumProcesses, ranks_of
from windtunnel.cli.stdout import stdout_to_stderr
from windtunnel.cli.verify import print_outcomes
from windtunnel.cli.waiting import choose_wait_policy
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.systems.strategy.optimizer import Strategy

__all__ = ["fly"]


@registry.verb("fly", source="windtunnel")
def fly(
    strategy: Annotated[Path, typer.Argument(metavar="STRATEGY.json", help="What windtunnel optimize wrote.")],
    script: Annotated[
        Path | None, typer.Argument(metavar="SCRIPT.py", help="Another script; by default the one captured.")
    ] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The script's own.")] = None,
    nproc: NumProcesses = 1,
    bandwidth: Bandwidth = "",
    latency: Latency = "",
    time_limit: TimeLimit = "",
    prices: PricesChoice = "auto",
    fresh: Fresh = False,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel fly train.strategy.json

    Really run a job under a strategy, in turns with the job as it is, and keep the error of the prediction.

    The script is not changed: it runs in its processes with the strategy applied from outside.
    """
    from windtunnel.flights import Outcome, verify
    from windtunnel.systems.strategy.optimizer import load_strategy
    from windtunnel.whatifs import parse_request

    choose_wait_policy()
    found = load_strategy(strategy)
    if not found.request:
        raise InputError("this strategy changes nothing", where=str(strategy), fix="fly one that does")
    graph = _captured(found) if script is None else None
    subject = graph if script is None else _script(script, arguments or [], nproc, bandwidth, latency)
    with Progress("flying") as progress, stdout_to_stderr():
        receipt = verify(
            subject,
            found.request,
            graph=graph,
            time_limit_s=seconds_of(time_limit),
            prices=prices,
            database=database_of(fresh=fresh),
            ledger=ledger,
            progress=progress,
        )
    if as_json:
        print_json({"schema": "windtunnel.receipts/1", "receipts": [receipt.to_dict()]})
    else:
        print_outcomes([Outcome(parse_request(found.request), receipt)])
    advise("next: windtunnel db receipts")


def _captured(found: Strategy) -> Graph:
    """The capture that the strategy was made from."""
    from windtunnel.graph import load

    if not found.graph:
        raise InputError("this strategy does not say where its capture lies", fix="name the script behind it")
    return load(found.graph)


def _script(script: Path, arguments: list[str], nproc: int, bandwidth: str, latency: str) -> Any:
    from windtunnel.sources.targets import target_of

    return target_of(script, argv=arguments, ranks=ranks_of(nproc, bandwidth, latency))
