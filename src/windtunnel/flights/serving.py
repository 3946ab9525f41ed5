"""Receipts of splits of a server that really answered batches (room flights).

In: what is served, splits as they ran in turns, the one instance with all threads among them. Out: a ``Receipt`` per
other split. Not here: processes (``serving``).
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.flights.receipt import Receipt
from windtunnel.measure.fingerprint import machine
from windtunnel.measure.stats import estimate_speedup
from windtunnel.serving.run import FlownSplit

__all__ = ["receipts_of_splits"]


def receipts_of_splits(job: str, flown: Sequence[FlownSplit], baseline: FlownSplit) -> list[Receipt]:
    """How much sooner each split answers than the baseline, predicted and measured, in the order given."""
    return [
        Receipt(
            whatif="serving-split",
            predicted_baseline_ns=baseline.split.latency_ns,
            predicted_ns=one.split.latency_ns,
            baseline=baseline.latency,
            changed=one.latency,
            speedup=estimate_speedup(baseline.latency_ns_R, one.latency_ns_R),
            parameters={"split": str(one.split), "over": str(baseline.split), "batch": one.split.batch},
            target=job,
            hardware_fingerprint=machine(),
            num_rounds=len(one.latency_ns_R),
        )
        for one in flown
        if one is not baseline
    ]
