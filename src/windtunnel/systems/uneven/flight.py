"""Receipts of strategies that were really trained with.

In: a comparison. Out: a ``Receipt`` per strategy that was really run and came to the target. Not here: processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.flights.receipt import Receipt
from windtunnel.measure.fingerprint import machine
from windtunnel.measure.stats import estimate_median, estimate_speedup

if TYPE_CHECKING:
    from windtunnel.systems.uneven.search import Comparison, Outcome

__all__ = ["receipts_of_comparison"]


def receipts_of_comparison(comparison: Comparison) -> list[Receipt]:
    """Receipts of the times to the target; the first strategy of the comparison, interleaved, is the baseline.

    A strategy that came to the target in some of its rounds only has no receipt: a median of the others would say too
    little.
    """
    base = comparison.of_baseline
    base_ns = _times_to_target(base)
    if base.predicted_ns is None or not base_ns:
        return []
    once = ("flown once: no interval is known",) if len(base_ns) == 1 else ()
    return [
        Receipt(
            whatif="synchronization",
            predicted_baseline_ns=base.predicted_ns,
            predicted_ns=outcome.predicted_ns,
            baseline=estimate_median(base_ns),
            changed=estimate_median(times_ns),
            speedup=estimate_speedup(base_ns, times_ns),
            parameters={
                "strategy": str(outcome.candidate),
                "baseline": str(base.candidate),
                "cluster": comparison.fleet.name,
                "loss": round(comparison.target_loss, 6),
            },
            target=comparison.job,
            hardware_fingerprint=machine(),
            num_rounds=len(times_ns),
            notes=("time to a loss", f"links: {comparison.links}", *once),
        )
        for outcome in comparison.outcomes
        if outcome.predicted_ns is not None and (times_ns := _times_to_target(outcome))
    ]


def _times_to_target(outcome: Outcome) -> list[float]:
    """Return the times of all rounds, or an empty list if a round did not reach the target."""
    return [] if outcome.median_ns is None else outcome.reached_ns
