"""Do what is asked of a graph, step by step.

In: a graph, a request, and who prices what a step needs. Out: the graph after all steps, each of them one recorded
edit. Not here: asking many (``ask``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel import registry
from windtunnel.base.progress import Progress
from windtunnel.cost.rerun import Need, price_needs
from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph
from windtunnel.measure import ProfileDatabase
from windtunnel.whatifs.request import Request, Step
from windtunnel.whatifs.unpriced import MEASURE, PUBLISHED, Pricer, Unpriced, check_prices, price_change

__all__ = ["Database", "apply", "apply_steps", "call_whatif", "needs_of", "pricer_of"]

Database = ProfileDatabase | str | None


def apply(
    graph: Graph,
    request: Request,
    *,
    prices: str = "auto",
    database: Database = None,
    budget_s: float | None = None,
    pricer: Pricer | None = None,
) -> Graph:
    """Do the steps of a request one after the other, and return the graph after the last.

    Parameters
    ----------
    graph : Graph
    request : Request
    prices : str
        ``auto``, ``measured`` or ``paper``; see :func:`windtunnel.whatif`.
    database : ProfileDatabase or path, optional
        The user's own by default.
    budget_s : float, optional
        Time to measure one need.
    pricer : callable, optional
        Who prices instead.

    Raises
    ------
    NotApplicableError
        A step has nothing to act on.
    PriceError
        What it needs cannot be priced.
    """
    return apply_steps(graph, request, check_prices(prices), pricer or pricer_of(database, budget_s))[-1]


def apply_steps(graph: Graph, request: Request, prices: str, pricer: Pricer) -> tuple[Graph, ...]:
    """The graphs after each step of a request; errors as of :func:`apply`."""
    graphs = [graph]
    for step in request.steps:
        change = call_whatif(graphs[-1], step)
        changed = price_change(change, prices, pricer) if isinstance(change, Unpriced) else change
        graphs.append(changed.as_one_edit(graphs[-1], step.name, step.parameters))
    return tuple(graphs[1:])


def call_whatif(graph: Graph, step: Step) -> Graph | Unpriced:
    """What a what-if makes of a graph: the changed one, or what it needs to make it.

    Raises
    ------
    NotApplicableError
        It has nothing to act on.
    """
    if not graph.num_tasks:
        raise NotApplicableError("the graph has no tasks", fix="capture at least one whole iteration")
    change: Graph | Unpriced = registry.get("whatif", step.name).function(graph, **step.parameters)
    return change


def needs_of(change: Graph | Unpriced, prices: str) -> tuple[Sequence[Need], bool]:
    """What must be priced for a change, and whether by measuring."""
    if not isinstance(change, Unpriced) or change.finish is None or change.way(prices) == PUBLISHED:
        return (), False
    return change.needs, change.way(prices) == MEASURE


def pricer_of(database: Database = None, budget_s: float | None = None, progress: Progress | None = None) -> Pricer:
    """A pricer that asks ``cost`` for each need once."""
    known: dict[tuple[Need, bool], Any] = {}

    def price(needs: Sequence[Need], is_run: bool) -> Mapping[Need, Any]:
        new = [need for need in needs if (need, is_run) not in known]
        if new:
            result = price_needs(new, database=database, budget_s=budget_s, is_run=is_run, progress=progress)
            known.update({(need, is_run): value for need, value in result.items()})
        return {need: known[need, is_run] for need in needs}

    return price
