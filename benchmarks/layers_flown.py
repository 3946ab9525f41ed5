"""What cheaper layers would buy training jobs, predicted from a capture and really flown.

Structured dropout in recurrent workloads, circulant blocks in those with wide linear layers, both also where they do
not pay. Held: the median error of the predicted speed-up, and that a change is predicted to pay where it does, and not
where it does not; what lies within the noise of nothing counts as neither.
``--only WORKLOAD``, ``--limit-s SECONDS`` of each flight.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks import bar
from benchmarks.whatif_error import fresh_prices
from windtunnel.flights import Ledger, verify
from windtunnel.measure import StopRule
from windtunnel.sources.targets import WorkloadName
from windtunnel.whatifs import parse_step

CASES = (
    ("lstm:width=650,length=35,batch_size=20", "structured-dropout:p=0.5"),
    ("lstm:width=1024,length=35,batch_size=20", "structured-dropout:p=0.65"),
    ("lstm:width=64", "structured-dropout:p=0.5"),
    ("seq2seq:size=tiny", "structured-dropout:p=0.5"),
    ("deep-speech-2:size=tiny", "structured-dropout:p=0.5"),
    ("mlp:width=2048", "block-circulant:k=64"),
    ("mlp:width=256", "block-circulant:k=8"),
    ("transformer", "block-circulant:k=16"),
    ("bert:size=tiny", "block-circulant:k=32"),
    ("vit:size=tiny", "block-circulant:k=32"),
)
MOST_MEDIAN, NOTHING, FEWEST_WORKLOADS = 0.07, 0.03, 4
TARGET = "median error <= 7 % on >= 4 workloads; where it does not pay, it says so"


def main() -> int:
    """Predict, fly, print the bar; 1 if it does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit-s", type=float, default=25.0)
    parser.add_argument("--verbose", action="store_true")
    options, _ = parser.parse_known_args()
    torch.set_num_threads(2)
    rows = [_flown(*case, options.limit_s) for case in CASES if options.only in case[0]]
    errors = [abs(row["error"]) for row in rows]
    wrong = [f"{row['workload']} {row['whatif']}" for row in rows if not _agrees(row["predicted"], row["measured"])]
    names = {str(row["workload"]).partition(":")[0] for row in rows}
    median = statistics.median(errors)
    checks = {
        "median": median <= MOST_MEDIAN,
        "says_where_it_pays": not wrong,
        "enough": len(names) >= FEWEST_WORKLOADS,
    }
    holds = all(checks.values())
    bar.report(
        "layers_flown",
        median,
        TARGET,
        holds,
        worst=max(errors),
        num_workloads=len(names),
        num_flights=len(rows),
        num_that_pay=sum(row["measured"] > 1 + NOTHING for row in rows),
        num_that_lose=sum(row["measured"] < 1 - NOTHING for row in rows),
        wrong=wrong,
        rows=rows,
        checks=checks,
    )
    if options.verbose:
        print(bar.table(rows))
    return 0 if holds else 1


def _agrees(predicted: float, measured: float) -> bool:
    """Both pay or neither does; within the noise of nothing either is right."""
    near = min(abs(predicted - 1), abs(measured - 1)) <= NOTHING
    return near or (predicted > 1) == (measured > 1)


def _flown(workload: str, request: str, limit_s: float) -> dict[str, object]:
    step = parse_step(workload, kind="workload")
    target = WorkloadName(step.name, step.parameters)
    rule = StopRule(rounds=16, precision=0.01, time_limit_s=limit_s, warmup=2)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "receipts.db")
        receipt = verify(target, request, rule=rule, ledger=ledger, **fresh_prices(ledger))
    low, high = receipt.measured_interval
    return {
        "workload": workload,
        "whatif": request,
        "predicted": receipt.predicted,
        "measured": receipt.measured,
        "low": low,
        "high": high,
        "error": receipt.error_ratio,
    }


if __name__ == "__main__":
    sys.exit(main())
