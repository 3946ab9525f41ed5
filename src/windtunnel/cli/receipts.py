"""``windtunnel receipts``: what was predicted and what was then measured (room cli)."""

from __future__ import annotations

from typing import Annotated

import typer

from windtunnel.cli._console import advise, print_json, print_table, say
from windtunnel.cli._options import Json, LedgerPath

__all__ = ["receipts"]


def receipts(
    whatif: Annotated[str, typer.Option("--whatif", metavar="NAME", help="Only flights of this what-if.")] = "",
    top: Annotated[int, typer.Option(min=1, help="How many of the latest to show.")] = 20,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel receipts --whatif amp

    List past flights, the latest first: predicted speed-up beside the measured one.
    """
    from windtunnel.flights import Ledger

    book = Ledger(ledger)
    found = book.receipts(whatif or None)[::-1]
    if as_json:
        print_json(
            {"schema": "windtunnel.receipts/1", "ledger": str(book.path), "receipts": [r.to_dict() for r in found]}
        )
    elif not found:
        say(f"no receipts yet in {book.path}")
    else:
        rows = [
            (each.whatif, f"{each.predicted:.2f}x", f"{each.measured:.2f}x", f"{each.error_ratio:+.1%}", each.date[:10])
            for each in found[:top]
        ]
        print_table(("what if", "predicted", "measured", "error", "date"), rows, numbers=(1, 2, 3))
        if len(found) > top:
            say(f"and {len(found) - top:,} older; --top {len(found)} shows all")
    advise("next: windtunnel verify SCRIPT.py --whatif NAME adds one")
