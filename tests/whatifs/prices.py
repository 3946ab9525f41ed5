"""Changes with their prices, for tests."""

from __future__ import annotations

from windtunnel.graph import Graph
from windtunnel.whatifs.ask import pricer_of
from windtunnel.whatifs.measured import Unpriced, price_change

MEMORY = ":memory:"


def published(change: Graph | Unpriced) -> Graph:
    """With ratios as published, or the formula."""
    return price_change(change, "paper", pricer_of(MEMORY)) if isinstance(change, Unpriced) else change


def measured(change: Graph | Unpriced, budget_s: float = 0.01, database: object = MEMORY) -> Graph:
    """With operators that really run, for a moment."""
    return price_change(change, "measured", pricer_of(database, budget_s)) if isinstance(change, Unpriced) else change
