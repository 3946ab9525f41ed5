"""Bar demo_under_load: what the demo prints on a busy machine holds on that machine, and says that it is busy.

Other programs compute all the time, twice as many as there are cores. Meanwhile workloads are captured, their best
changes predicted and flown, as ``windtunnel demo`` does it. Each printed interval is to hold the flown speed-up.

    python -m benchmarks.demo_under_load --verbose
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import bar
from benchmarks.noise import load
from windtunnel import registry
from windtunnel.errors import FlightError, NotApplicableError
from windtunnel.flights import fly, with_intervals
from windtunnel.hardware.host import usable_cores
from windtunnel.measure import ProfileDatabase, StopRule
from windtunnel.measure.disturbance import disturbance_line
from windtunnel.sources.targets import WorkloadName
from windtunnel.whatifs import whatif

# small ones: a step that takes long when nothing else runs takes ten times as long here
JOBS: dict[str, dict[str, object]] = {
    "mlp": {"width": 256},
    "mlp-deep": {"width": 64, "depth": 12},
    "mlp-narrow": {"width": 512, "depth": 2, "batch_size": 64},
    "transformer": {"length": 16, "depth": 2},
    "transformer-long": {"length": 48, "depth": 1},
    "transformer-thin": {"width": 64, "depth": 3, "length": 16},
}
CHANGES = ("fused-optimizer", "batch-size:factor=2", "gradient-accumulation:passes=4", "amp", "threads:threads=1")
RULE = StopRule(rounds=12, precision=0.02, time_limit_s=3.0, turn_ns=30_000_000, warmup=2)
COVERAGE, FEWEST, CAPTURED = 0.85, 20, 10


def flights(model: str, folder: Path) -> tuple[list[dict[str, object]], bool]:
    """Every change of a workload that was flown, and whether the capture reported the load."""
    target, database = WorkloadName(model.partition("-")[0], JOBS[model]), ProfileDatabase(":memory:")
    graph = target.capture(CAPTURED, None)
    found = whatif(graph, list(CHANGES), prices="measured", database=database, budget_s=1.5)
    answers = with_intervals(found, folder / "none.db")
    rows = []
    for answer in answers:
        if not answer.is_applicable or answer.name not in registry.all("flight"):
            continue
        row: dict[str, object] = {"case": f"{model}/{answer.request}", "predicted": answer.speedup}
        try:
            flown = fly(target, answer.request, rule=RULE)
        except (FlightError, NotApplicableError) as error:
            rows.append(row | {"failed": error.message})
            continue
        low, high = answer.span or (answer.speedup, answer.speedup)
        measured = answer.samples_ratio * flown.speedup.value
        rows.append(row | {"low": low, "high": high, "measured": measured, "is_inside": low <= measured <= high})
    return rows, bool(disturbance_line(graph.meta.disturbance))


def main() -> bool:
    """Print the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--models", nargs="+", default=list(JOBS), choices=JOBS)
    options = parser.parse_args()
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "passive"
    )  # what the demo chooses on a busy machine; torch is not loaded yet
    rows, reported = [], []
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder, load(2 * len(usable_cores())):
            found, is_reported = flights(model, Path(folder))
        rows, reported = rows + found, [*reported, is_reported]
    if options.verbose:
        print(bar.table(rows), file=sys.stderr)
    flown = [row for row in rows if "failed" not in row]
    inside = statistics.fmean(bool(row["is_inside"]) for row in flown)
    return bar.report(
        "demo_under_load",
        inside,
        ">= 85 % of >= 20 flights inside their intervals at twice as many programs as cores, every load reported",
        inside >= COVERAGE and len(flown) >= FEWEST and all(reported),
        num_flights=len(flown),
        num_reported=sum(reported),
        num_captures=len(reported),
        width_median=statistics.median(float(row["high"]) / float(row["low"]) for row in flown),
        failed={str(row["case"]): row["failed"] for row in rows if "failed" in row},
        rows={row["case"]: [row["predicted"], row["low"], row["high"], row["measured"]] for row in flown},
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
