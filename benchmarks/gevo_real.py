"""Kernels as one would write them become faster than the compiler makes them, without any answer changing.

Each kernel is searched twice: for faithful edits only (the same bits on all tests and on drawn inputs), and with
promises of callers and rules of floats (at most 1 % error). Winners are judged on inputs that the search has not seen
and timed anew in a fresh process beside what the compiler makes of numba's untouched module at its highest level; the
lower end of the 95 % interval counts. Held, for faithful ones: geometric mean over all kernels at least 1.03, none
below 1 (the original is then kept), and the lists of edits that are left at most a quarter of what they were. Beside
it: what promises add, and what numba's own fastmath gives in the same kind of run.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from benchmarks import bar
from windtunnel.systems.kernels.cases import FITNESS
from windtunnel.systems.kernels.evolving import evolve_kernel
from windtunnel.systems.kernels.from_numba import module_of
from windtunnel.systems.kernels.run import Bench
from windtunnel.systems.kernels.search import Options
from windtunnel.systems.kernels.shelf import NAMES, shelf_entry, shelf_kernel

FEWEST_MEAN, FEWEST, MOST_LEFT = 1.03, 1.0, 0.25
TARGET = "faithful, held-out verified, lower ends: geometric mean >= 1.03, none < 1, minimized lists <= 25 %"


def main() -> int:
    """Search all kernels twice, print the bar; 1 if it does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--search-s", type=float, default=90.0, help="per kernel and kind of search")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    rows = [_row(name, given.search_s) for name in NAMES]
    lows, promised = ([row[kind] for row in rows] for kind in ("low", "promises_low"))
    raw, left = (sum(row[kind] for row in rows) for kind in ("raw", "left"))
    mean = _mean(lows)
    checks = {"mean": mean >= FEWEST_MEAN, "none_slower": min(lows) >= FEWEST, "minimized": left <= MOST_LEFT * raw}
    holds = all(checks.values())
    bar.report(
        "gevo_real", mean, TARGET, holds, faster=sum(row["left"] > 0 for row in rows), kernels=len(rows),
        left_of_raw=left / max(raw, 1), promises_mean=_mean(promised),
        fastmath_mean=_mean([row["fastmath"] for row in rows]),
        discarded=sum(row["discarded"] for row in rows), faithful={row["kernel"]: row["low"] for row in rows},
        promises={row["kernel"]: row["promises_low"] for row in rows}, checks=checks,
    )  # fmt: skip
    if given.verbose:
        print(bar.table(rows))
    return 0 if holds else 1


def _mean(values: list[float]) -> float:
    return float(np.exp(np.log(values).mean()))


def _row(name: str, search_s: float) -> dict[str, object]:
    kernel = shelf_kernel(name)
    found = {}
    for allowed, operators in (("faithful", "crismph"), ("promises", "crismpha")):
        options = Options(24, 1000, operators=operators, time_limit_s=search_s)
        found[allowed] = evolve_kernel(kernel, options, allowed=allowed, num_workers=2).verdict
    faithful, promises = found["faithful"], found["promises"]
    entry = shelf_entry(name)
    fast = module_of(entry.function, next(iter(entry.inputs(FITNESS).values())), fastmath=True)
    with Bench(kernel, tolerance=0.01, num_workers=1) as bench:
        timed = bench.time_module(fast, 41)
    if timed.evaluation.kind not in ("ok", "wrong"):
        raise SystemExit(f"{name} with fastmath was not timed: {timed.evaluation.detail}")
    row = {
        "kernel": name,
        "low": faithful.speedup.low,
        "speedup": faithful.speedup.value,
        "label": faithful.label,
        "raw": faithful.num_raw,
        "left": len(faithful.edits),
        "discarded": faithful.num_discarded,
        "promises_low": promises.speedup.low,
        "promises_error": promises.error,
        "fastmath": timed.speedup.value if timed.evaluation.kind == "ok" else 1.0,  # wrong: it may not be used
        "edits": "; ".join(f"{gene.words} [{gene.rests_on}]" for gene in faithful.genes),
        "assumes": "; ".join(f"{gene.words} [{gene.rests_on}]" for gene in promises.genes),
    }
    print(row, file=sys.stderr)
    return row


if __name__ == "__main__":
    sys.exit(main())
