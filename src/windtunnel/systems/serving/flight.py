"""Receipts of real servers that answered batches or requests.

In: a job, measured splits or servers from interleaved rounds, including one instance with all threads. Out: a
``Receipt`` per other one. Not here: processes (``serving``).
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.flights.receipt import Receipt
from windtunnel.measure.fingerprint import machine
from windtunnel.measure.stats import estimate_median, estimate_speedup
from windtunnel.systems.serving.run import FlownSplit
from windtunnel.systems.serving.sizing import Sized
from windtunnel.systems.serving.tail import Answered

__all__ = ["receipt_of_requests", "receipts_of_splits"]


def receipts_of_splits(job: str, flown: Sequence[FlownSplit], baseline: FlownSplit) -> list[Receipt]:
    """Return the speedup of each split over the baseline, predicted and measured, in order."""
    return [
        Receipt(
            whatif="serving-split",
            predicted_baseline_ns=baseline.split.latency_ns,
            predicted_ns=item.split.latency_ns,
            baseline=baseline.latency,
            changed=item.latency,
            speedup=estimate_speedup(baseline.latency_ns_R, item.latency_ns_R),
            parameters={"split": str(item.split), "over": str(baseline.split), "batch": item.split.batch},
            target=job,
            hardware_fingerprint=machine(),
            num_rounds=len(item.latency_ns_R),
        )
        for item in flown
        if item is not baseline
    ]


def receipt_of_requests(
    job: str,
    requests: str,
    share: float,
    baseline: tuple[Sized, Sequence[Answered]],
    changed: tuple[Sized, Sequence[Answered]],
) -> Receipt:
    """Return the speedup of a latency percentile over the baseline, from rounds of both."""
    (base, base_flown), (split, flown) = baseline, changed
    base_ns, taken_ns = ([it.latency_ns(share) for it in rounds] for rounds in (base_flown, flown))
    return Receipt(
        whatif="serving-requests",
        predicted_baseline_ns=base.latency_ns,
        predicted_ns=split.latency_ns,
        baseline=estimate_median(base_ns),
        changed=estimate_median(taken_ns),
        speedup=estimate_speedup(base_ns, taken_ns),
        parameters={"server": str(split.server), "over": str(base.server), "requests": requests, "share": share},
        target=job,
        hardware_fingerprint=machine(),
        num_rounds=len(flown),
        notes=("flown once: no interval is known",) if len(flown) == 1 else (),
    )
