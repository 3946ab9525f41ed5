"""A change that lacks prices: what must be priced, and the graph that the prices make.

In: what a what-if returns where durations cannot be known from the graph alone. Out: the changed graph, once a pricer
has answered, which notes how sure these prices are. The pricer is handed in; nothing here measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.cost.rerun import Need
from windtunnel.errors import AbsentDeviceError, InputError, NotApplicableError, PriceError, WindtunnelError
from windtunnel.graph import Graph

__all__ = ["PRICES", "Pricer", "Unpriced", "check_prices", "price_change"]

# (needs, whether what is not known may be measured) -> price, error or None of each
Pricer = Callable[[Sequence[Need], bool], Mapping[Need, Any]]
PRICES = ("auto", "measured", "paper")
MEASURE, LOOK_UP, PUBLISHED = "measure", "look up", "published"
_WAYS = {"measured": MEASURE, "paper": PUBLISHED}


@dataclass(frozen=True)
class Unpriced:
    """A change of a graph that has to be priced before it can be made.

    A what-if returns it where the new durations cannot be derived from the graph. Constructing it runs nothing.

    Parameters
    ----------
    needs : tuple of Need
        What has to be priced; values of :mod:`windtunnel.cost.rerun`.
    finish : callable, optional
        ``finish(*prices) -> Graph`` with one price per need, in the order of ``needs``; a pure function. None where
        nothing can be measured because the graph does not know its operators.
    published : callable, optional
        ``published() -> Graph`` with published ratios or an estimate. None where there are none.
    by_default : str
        What ``prices="auto"`` does: ``"measure"``, ``"look up"`` (use what the profile database has, else what is
        published) or ``"published"``.

    Examples
    --------
    How much the optimizer's update gains is measured, and applied to the tasks of the update::

        need = update_need(graph, UpdateForm(options={"fused": True, "foreach": False}))
        return Unpriced((need,), lambda ratio: apply_update(graph, ratio))
    """

    needs: tuple[Need, ...]
    finish: Callable[..., Graph] | None
    published: Callable[[], Graph] | None = None
    by_default: str = MEASURE

    @classmethod
    def from_paper(cls, published: Callable[[], Graph]) -> Unpriced:
        """A change of a graph that does not know its operators."""
        return cls((), None, published, PUBLISHED)

    def way(self, prices: str) -> str:
        """How its prices are found: measured, looked up or published."""
        return _WAYS.get(prices, self.by_default)


def check_prices(prices: str) -> str:
    """The choice, if it is one.

    Raises
    ------
    InputError
        It is not known.
    """
    if prices not in PRICES:
        raise InputError(f"prices cannot be {prices!r}", fix=f"use one of {', '.join(PRICES)}")
    return prices


def price_change(change: Unpriced, prices: str, pricer: Pricer) -> Graph:
    """The changed graph, with measured or published prices.

    Raises
    ------
    NotApplicableError
        Published prices are requested, but none exist for this change.
    PriceError
        Measured prices are requested, but cannot be measured here.
    """
    way = change.way(prices)
    if way == PUBLISHED:
        return _apply_paper_ratios(change)
    if change.finish is None:
        raise PriceError(
            "this graph does not say which operators were called with which arguments",
            fix="capture the step with windtunnel, or take published ratios: prices='paper'",
        )
    result = pricer(change.needs, way == MEASURE)
    given = [result[need] for need in change.needs]
    # one price that is absent is enough: measured and published ratios are never mixed in one answer
    for price in given:
        if isinstance(price, AbsentDeviceError) and prices == "auto" and change.published is not None:
            return _apply_paper_ratios(change)
        if isinstance(price, WindtunnelError):
            raise price
    if any(price is None for price in given):
        return _apply_paper_ratios(change)
    return _as_sure_as(change.finish(*given), given)


def _as_sure_as(graph: Graph, prices: Sequence[Any]) -> Graph:
    """Note how sure the prices are, whatever was made of them; of several, the least sure counts."""
    known = {name: getattr(graph.meta, f"price_{name}") for name in ("spread_ratio", "waited_ratio")}
    result = {name: max([value, *(getattr(price, name, 0.0) for price in prices)]) for name, value in known.items()}
    return graph if result == known else graph.note({f"price_{name}": value for name, value in result.items()})


def _apply_paper_ratios(change: Unpriced) -> Graph:
    if change.published is None:
        raise NotApplicableError("there are no published ratios for this change", fix="measure it here: prices='auto'")
    return change.published()
