"""Requests that really come to servers of two threads, beside what is foretold: ResNet-50, BERT-base, GPT-2-small.

Requests come at random, at 30, 60 and 85 % of what the server can answer, to one instance with both threads and to two
with one each; before each load one instance is profiled alone, and what a busy neighbor costs is flown. Compared are
the time in which half of them are answered, and 99 %. ``--seconds``, ``--models``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

from benchmarks import bar
from benchmarks.packrat_flown import JOBS
from windtunnel.systems.serving.drive import fly_requests
from windtunnel.systems.serving.model import fit_slowdown
from windtunnel.systems.serving.requests import requests_of
from windtunnel.systems.serving.run import fly_splits, measure_cells
from windtunnel.systems.serving.search import equal_split
from windtunnel.systems.serving.tail import Server, answer, batch_latencies

MOST = 8
BATCHES = (1, 2, 4, 8)
LOADS = (0.3, 0.6, 0.85)
SHARES = {"half": 0.5, "tail": 0.99}


def fly(name: str, seconds: float, rounds: int, budget_s: float) -> list[dict[str, object]]:
    """In turns: the machine moves by tens of percent within minutes, so each load has a profile of its own."""
    job, _ = JOBS[name]
    rows = []
    for load in LOADS:
        cells = [(t, b) for t in (1, 2) for b in BATCHES]
        alone = measure_cells(job, cells, rounds=rounds, budget_s=budget_s)
        splits = [one for count in (1, 2) if (one := equal_split(alone, 2, count, MOST)) is not None]
        seen = fly_splits(job, splits, rounds=rounds, budget_s=budget_s)
        slowdown = fit_slowdown(alone, [row for one in seen for row in one.cells_ns])
        for split in splits:
            latencies = batch_latencies(alone, split, slowdown)
            full_s = latencies[-1] / 1e9
            arrivals = requests_of(f"poisson:rate={load * split.batch / full_s:.4g},seconds={seconds}")
            server = Server(split, wait_ns=round(full_s / 4 * 1e9))
            told = answer(arrivals, server, latencies)
            measured = fly_requests(job, server, arrivals)
            row: dict[str, object] = {"model": name, "split": str(split), "load": load, "requests": len(arrivals),
                                      "batches": [told.num_batches, measured.num_batches]}  # fmt: skip
            for words, share in SHARES.items():
                row[f"{words}_ms"] = [one.latency_ns(share) / 1e6 for one in (told, measured)]
                row[f"{words}_error"] = told.latency_ns(share) / measured.latency_ns(share) - 1
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=8.0, help="seconds of each profile, and of its splits")
    parser.add_argument("--seconds", type=float, default=20.0, help="in which requests come")
    parser.add_argument("--models", default=",".join(JOBS))
    options = parser.parse_args()
    rows = [
        row for name in options.models.split(",") for row in fly(name, options.seconds, options.rounds, options.budget)
    ]
    errors = {words: [abs(float(row[f"{words}_error"])) for row in rows] for words in SHARES}  # type: ignore[arg-type]
    middle = statistics.median(errors["half"] + errors["tail"])
    bar.report(
        "packrat_requests",
        middle,
        "median and 99th percentile foretold: within 10 % in the median of all cases, 25 % at worst",
        middle <= 0.1 and max(errors["half"] + errors["tail"]) <= 0.25 and len({row["model"] for row in rows}) == 3,
        worst_half=max(errors["half"]),
        worst_tail=max(errors["tail"]),
        num_cases=len(rows),
        rows=rows,
    )


if __name__ == "__main__":
    main()
