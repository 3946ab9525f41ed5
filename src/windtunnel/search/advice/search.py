"""The cheapest offer that is in time.

In: quotes, a deadline, a budget. Out: ``Advice``: the choice, the offers that no other beats in time and money, why
each cheaper one is not taken, and, where none will do, the least that would have to give. Source: Stash, ICDCS 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.base.pareto import is_best
from windtunnel.errors import InputError
from windtunnel.search.advice.model import Quote

__all__ = ["Advice", "advise_on"]


@dataclass(frozen=True)
class Advice:
    """What to rent.

    Attributes
    ----------
    best : Quote or None
        None where nothing is in time and within the budget.
    front : tuple of Quote
        Those that no other beats in both time and money, cheapest first.
    cheaper : tuple of (Quote, str)
        Every offer that costs less than the best one, with why it is not taken, dearest first.
    relaxed : str
        Where there is no best: the least change that would give one.
    """

    best: Quote | None
    front: tuple[Quote, ...]
    cheaper: tuple[tuple[Quote, str], ...]
    relaxed: str = ""


def advise_on(quotes: Sequence[Quote], *, deadline_s: float = math.inf, budget_usd: float = math.inf) -> Advice:
    """Take the cheapest quote in time and within the budget; of equal costs the fastest, then the fewest machines.

    Raises
    ------
    InputError
        There is no offer, or a limit is not above 0.
    """
    if not quotes or not deadline_s > 0 or not budget_usd > 0:
        raise InputError(
            f"nothing can be chosen of {len(quotes)} offers in {deadline_s} s for {budget_usd} USD", where="offers",
            fix="give offers, and a deadline and a budget above 0",
        )  # fmt: skip
    runs = [quote for quote in quotes if not quote.reason]
    front: tuple[Quote, ...] = ()
    if runs:
        kept = is_best(np.array([(run.time_s, run.cost_usd) for run in runs]))
        front = tuple(sorted((run for run, is_kept in zip(runs, kept, strict=True) if is_kept), key=_order))
    good = [run for run in runs if run.time_s <= deadline_s and run.cost_usd <= budget_usd]
    if not good:
        return Advice(None, front, (), _suggest_relaxation(runs, quotes, deadline_s, budget_usd))
    best = min(good, key=_order)
    cheaper = [
        quote for quote in quotes if quote.offer.usd_per_h < best.offer.usd_per_h or quote.cost_usd < best.cost_usd
    ]
    cheaper.sort(key=lambda item: (-min(item.cost_usd, 1e300), -item.offer.usd_per_h))
    return Advice(best, front, tuple((item, _why_not(item, best, deadline_s)) for item in cheaper if item is not best))


def _order(quote: Quote) -> tuple[float, float, int, str]:
    cost_usd = float(f"{quote.cost_usd:.12g}")  # equal costs of two and three machines are not the last bit apart
    return cost_usd, quote.time_s, quote.offer.count, quote.offer.instance.name


def _why_not(quote: Quote, best: Quote, deadline_s: float) -> str:
    if quote.reason:
        return quote.reason
    if quote.time_s > deadline_s:
        return f"{quote.time_s / deadline_s:.2f} x too slow: {quote.bound_by}"
    return f"costs {quote.cost_usd / best.cost_usd:.2f} x as much in the end: {quote.bound_by}"


def _suggest_relaxation(runs: Sequence[Quote], quotes: Sequence[Quote], deadline_s: float, budget_usd: float) -> str:
    if not runs:
        return f"no machine runs it: {min(quotes, key=lambda quote: quote.offer.usd_per_h).reason}"
    reported = []
    paid = [run for run in runs if run.cost_usd <= budget_usd]
    if paid:
        fastest = min(paid, key=lambda quote: (quote.time_s, *_order(quote)))
        reported.append(f"a deadline of {fastest.time_s / 3600:.1f} h ({fastest.offer})")
    timely = [run for run in runs if run.time_s <= deadline_s]
    if timely:
        cheapest = min(timely, key=_order)
        reported.append(f"a budget of {cheapest.cost_usd:,.2f} USD ({cheapest.offer})")
    if not reported:
        both = min(runs, key=lambda quote: max(quote.time_s / deadline_s, quote.cost_usd / budget_usd))
        reported.append(
            f"a deadline of {both.time_s / 3600:.1f} h with a budget of {both.cost_usd:,.2f} USD ({both.offer})"
        )
    return f"it would take {' or '.join(reported)}"
