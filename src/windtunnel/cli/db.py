"""``windtunnel db``: what windtunnel has stored on this machine."""

from __future__ import annotations

from windtunnel import registry
from windtunnel.cli import forget, prices, receipts  # noqa: F401 - each registers its verbs


@registry.verb("db", source="windtunnel")
def _group() -> None:
    """Example: windtunnel db receipts

    List and remove what is stored on this host: receipts of past flights and measured prices.
    """
