"""Receipts of strategies that were really trained with (room flights).

In: a comparison. Out: a ``Receipt`` per strategy that was really run and came to the target. Not here: processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.flights.receipt import Receipt
from windtunnel.measure.fingerprint import machine
from windtunnel.measure.stats import Estimate

if TYPE_CHECKING:
    from windtunnel.training.uneven.search import Comparison

__all__ = ["receipts_of_comparison"]


def receipts_of_comparison(found: Comparison) -> list[Receipt]:
    """Times to the target, with those of the comparison's first strategy as the baseline.

    A strategy is flown once, so that no interval is known.
    """
    base = found.of_baseline
    if base.predicted_ns is None or base.flown_ns is None:
        return []
    return [
        Receipt(
            whatif="synchronization",
            predicted_baseline_ns=base.predicted_ns,
            predicted_ns=one.predicted_ns,
            baseline=_once(base.flown_ns),
            changed=_once(one.flown_ns),
            speedup=_once(base.flown_ns / one.flown_ns),
            parameters={
                "strategy": str(one.candidate),
                "baseline": str(base.candidate),
                "cluster": found.fleet.name,
                "loss": round(found.target_loss, 6),
            },
            target=found.job,
            hardware_fingerprint=machine(),
            num_rounds=1,
            notes=("time to a loss, flown once",),
        )
        for one in found.outcomes
        if one.predicted_ns is not None and one.flown_ns is not None
    ]


def _once(value: float) -> Estimate:
    return Estimate(value, value, value)
