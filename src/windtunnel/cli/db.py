"""``windtunnel db``: what windtunnel has stored on this machine (room cli)."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.cli.receipts import receipts

__all__ = ["HELP", "SUMMARY", "VERBS"]

SUMMARY = "List and remove what is stored: receipts of past flights."
HELP = f"""Example: windtunnel db receipts --drop 12

{SUMMARY}"""
VERBS: dict[str, Callable[..., None]] = {"receipts": receipts}
