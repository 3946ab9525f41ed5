"""Needs in, prices out: looked up in the profile database, else measured here.

In: needs of what-ifs. Out: a price, or the reason why there is none, for each. A need is measured once however many
what-ifs have it. Not here: what is done with a price (``whatifs``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windtunnel.base.progress import Progress
from windtunnel.cost.rerun.averaging import averaging_ns, reducing_ns
from windtunnel.cost.rerun.carrying import carrying_ratio
from windtunnel.cost.rerun.form import BASELINE
from windtunnel.cost.rerun.memory import program_peaks, update_extra_bytes
from windtunnel.cost.rerun.needs import (
    AveragingNeed,
    CarryingNeed,
    Need,
    OperatorsNeed,
    PeakNeed,
    ReducingNeed,
    UpdateNeed,
    UpdatePeakNeed,
)
from windtunnel.cost.rerun.optimizer import UpdateForm, measure_update
from windtunnel.cost.rerun.partial import measure_ratios
from windtunnel.cost.rerun.ratios import look_up_ratios
from windtunnel.errors import WindtunnelError
from windtunnel.measure import ProfileDatabase

__all__ = ["price_needs"]

_OPERATORS_S, _UPDATE_S = 6.0, 2.0


def price_needs(
    needs: Iterable[Need],
    *,
    database: ProfileDatabase | str | None = None,
    budget_s: float | None = None,
    is_run: bool = True,
    progress: Progress | None = None,
) -> dict[Need, Any]:
    """Price each need once.

    Parameters
    ----------
    needs : iterable of Need
    database : ProfileDatabase or path, optional
        The user's own by default.
    budget_s : float, optional
        Time for the interleaved rounds of one need; 6 s for operators and 2 s for updates by default.
    is_run : bool
        Whether to measure what the database does not know; else its price is None.
    progress : callable, optional
        Called with (what, done, total).

    Returns
    -------
    dict of Need to price
        As the class of the need says; a ``WindtunnelError`` where it cannot be priced.
    """
    requested = list(dict.fromkeys(needs))
    prices: dict[Need, Any] = {}
    for done, need in enumerate(requested):
        if progress is not None:
            progress(f"measuring {need}", done, len(requested))
        try:
            if isinstance(need, PeakNeed | UpdatePeakNeed):
                prices[need] = _peak(need)  # counted, not timed: nothing to keep
            else:
                known = database if isinstance(database, ProfileDatabase) else ProfileDatabase(database or None)
                prices[need] = _price(need, known, budget_s) if is_run else _look_up(need, known)
        except WindtunnelError as error:
            prices[need] = error
    return prices


def _look_up(need: Need, database: ProfileDatabase) -> Any:
    if isinstance(need, OperatorsNeed):
        return look_up_ratios(need.program, need.form, BASELINE, database=database)
    return None


def _price(need: Need, database: ProfileDatabase, budget_s: float | None) -> Any:
    if isinstance(need, OperatorsNeed):
        return measure_ratios(need.program, need.form, database=database, budget_s=budget_s or _OPERATORS_S)
    if isinstance(need, UpdateNeed):
        return measure_update(
            [dict(optimizer) for optimizer in need.optimizers],
            need.form,
            threads=need.threads,
            touched=need.touched,
            database=database,
            budget_s=budget_s or _UPDATE_S,
            device=need.device,
            captured_on=need.captured_on,
        )
    if isinstance(need, AveragingNeed):
        return averaging_ns(need.size_bytes, need.num_ranks, database=database)
    if isinstance(need, CarryingNeed):
        return carrying_ratio(need.num_ranks, need.bandwidth_bytes_per_s, need.latency_ns, database=database)
    assert isinstance(need, ReducingNeed)
    return reducing_ns(
        need.shapes,
        need.num_ranks,
        sender=need.sender,
        options=need.options,
        bucket_bytes=need.bucket_bytes,
        first_bucket_bytes=need.first_bucket_bytes,
        database=database,
    )


def _peak(need: PeakNeed | UpdatePeakNeed) -> Any:
    if isinstance(need, PeakNeed):
        return tuple(program_peaks(need.program, BASELINE, need.form))
    before, after = (update_extra_bytes(need.optimizers, UpdateForm(options=item)) for item in ({}, need.options))
    return after - before
