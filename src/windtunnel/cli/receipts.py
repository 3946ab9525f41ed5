"""``windtunnel db receipts``: what was predicted and what was then measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import advise, show
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
    documents = [{"number": number, **receipt.to_dict()} for number, receipt in result.items()]
    document = {"schema": "windtunnel.receipts/1", "ledger": str(book.path), "receipts": documents}
    show(document, _lines(result, top, book.path), as_json=as_json)
    advise("next: windtunnel verify SCRIPT.py --whatif NAME adds one")


def _lines(receipts: dict[int, Receipt], top: int, ledger: Path) -> Iterator[str | Table]:
    if not receipts:
        yield f"no receipts yet in {ledger}"
        return
    columns = {"#": "{}", "what-if": str, "predicted": "{:.2f}x", "measured": "{:.2f}x", "error": "{:+.1%}",
               "date": str}  # fmt: skip
    rows = [
        (number, _format_request(receipt), receipt.predicted, receipt.measured, receipt.error_ratio, receipt.date[:10])
        for number, receipt in list(receipts.items())[:top]
    ]
    yield Table(columns, rows)
    if len(receipts) > top:
        yield f"and {len(receipts) - top:,} older receipts; --top {len(receipts)} shows all"


def _format_request(receipt: Receipt) -> str:
    """The what-if with the parameters that were flown."""
    given = ",".join(f"{key}={value}" for key, value in sorted(receipt.parameters.items()))
    return f"{receipt.whatif}:{given}" if given else receipt.whatif


def _require_known(whatif: str) -> None:
    """Refuse a name that no what-if and no flight has; one that was only never flown is fine."""
    for name in whatif.split("+"):
        if name != _PIPELINES:
            registry.get("whatif", name.partition(":")[0])
