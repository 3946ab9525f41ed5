"""``windtunnel db receipts``: what was predicted and what was then measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.cli.console import advise, print_json, print_table, say
from windtunnel.cli.options import Json, LedgerPath

if TYPE_CHECKING:
    from windtunnel.flights import Receipt

__all__ = ["receipts"]

_PIPELINES = "pipeline"  # what windtunnel place verify keeps


@registry.verb("db receipts", source="windtunnel")
def receipts(
    whatif: Annotated[str, typer.Option("--whatif", metavar="NAME", help="Show only receipts of this what-if.")] = "",
    top: Annotated[int, typer.Option(min=1, help="Number of receipts to show, latest first.")] = 20,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel db receipts --whatif amp

    List receipts, latest first: predicted speed-up, measured speed-up and prediction error.

    Intervals of later predictions are based on these. Remove a receipt with windtunnel db forget.
    """
    from windtunnel.flights import Ledger

    book = Ledger(ledger)
    result = dict(reversed(book.receipts_by_number(whatif or None).items()))
    if whatif and not result:
        _require_known(whatif)
    if as_json:
        documents = [{"number": number, **receipt.to_dict()} for number, receipt in result.items()]
        print_json({"schema": "windtunnel.receipts/1", "ledger": str(book.path), "receipts": documents})
    elif not result:
        say(f"no receipts yet in {book.path}")
    else:
        rows = [(f"{number}", *_cells(receipt)) for number, receipt in list(result.items())[:top]]
        print_table(("number", "what-if", "predicted", "measured", "error", "date"), rows, numbers=(0, 2, 3, 4))
        if len(result) > top:
            say(f"and {len(result) - top:,} older receipts; --top {len(result)} shows all")
    advise("next: windtunnel verify SCRIPT.py --whatif NAME adds one")


def _cells(receipt: Receipt) -> tuple[str, ...]:
    speedups = (f"{receipt.predicted:.2f}x", f"{receipt.measured:.2f}x")
    return _format_request(receipt), *speedups, f"{receipt.error_ratio:+.1%}", receipt.date[:10]


def _format_request(receipt: Receipt) -> str:
    """The what-if with the parameters that were flown."""
    given = ",".join(f"{key}={value}" for key, value in sorted(receipt.parameters.items()))
    return f"{receipt.whatif}:{given}" if given else receipt.whatif


def _require_known(whatif: str) -> None:
    """Refuse a name that no what-if and no flight has; one that was only never flown is fine."""
    for name in whatif.split("+"):
        if name != _PIPELINES:
            registry.get("whatif", name.partition(":")[0])
