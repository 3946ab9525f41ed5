"""``windtunnel db forget``: remove receipts and measurements."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import show
from windtunnel.cli.options import Json, LedgerPath, whole_numbers
from windtunnel.errors import InputError

__all__ = ["forget"]


@registry.verb("db forget", source="windtunnel")
def forget(
    receipts: Annotated[
        str,
        typer.Option(
            "--receipts",
            metavar="NUMBERS",
            help="Receipts to remove, by the numbers that `db receipts` lists, such as 12,14.",
        ),
    ] = "",
    prices: Annotated[
        str,
        typer.Option(
            "--prices",
            metavar="CHANGE",
            help="Measurements to remove, by (part of) the change that `db prices` lists; all: all of them.",
        ),
    ] = "",
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel db forget --receipts 12

    Remove receipts, or saved measurements that are to be repeated.
    """
    from windtunnel.flights import Ledger
    from windtunnel.measure import ProfileDatabase

    if not (receipts or prices):
        raise InputError("there is nothing to remove", fix="add --receipts NUMBERS or --prices CHANGE")
    removed: dict[str, Any] = {}
    lines = []
    if receipts:
        book = Ledger(ledger)
        removed |= {"num_receipts": book.drop(whole_numbers(receipts, "--receipts")), "ledger": str(book.path)}
        lines.append(f"removed {removed['num_receipts']:,} receipts from {removed['ledger']}")
    if prices:
        database = ProfileDatabase()
        num_prices = database.drop("" if prices == "all" else prices)
        removed |= {"num_prices": num_prices, "database": str(database.path)}
        lines.append(f"removed {num_prices:,} measurements from {removed['database']}")
    show({"schema": "windtunnel.forgotten/1", **removed}, lines, as_json=as_json)
