"""Chip and plan chosen together, over all candidates, beat the given ones and each chosen alone (room benchmarks).

Claims: for every published model the search over 29,360 chips with all their plans takes at most a minute on two
cores; what it finds yields, in the geometric mean over models, at least 1.5 times what a TPU v4's cores yield with
the plan of the model's makers, and for each model more than the best chip for that plan and the best plan on that
chip. Every model is one run of the command, as a user runs it.
"""

import json
import subprocess
import sys
import time

from benchmarks.bar import is_verbose, report, table
from windtunnel.systems.chips.answer import geometric_mean
from windtunnel.systems.chips.networks import EXPERTS

LEAST_GAIN, MOST_SECONDS = 1.5, 60.0
TARGET = f">= {LEAST_GAIN}x in the geometric mean, more than chip or plan alone for each, <= {MOST_SECONDS:.0f} s each"


def run(model: str) -> dict[str, object]:
    """One command; its numbers and its seconds."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "windtunnel", "chip", "plan", model, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    (answer,) = json.loads(done.stdout)["models"]
    yields = {part: one["samples_per_s"] for part, one in answer["searches"].items()}
    return {
        "model": model,
        "gain": yields["both"] / yields["given"],
        "over_chip": yields["both"] / yields["chip"],
        "over_plan": yields["both"] / yields["plan"],
        "bound_over_best": answer["bound_samples_per_s"] / yields["both"],
        "chip": answer["searches"]["both"]["chip"],
        "planned": answer["num_planned"],
        "possible": answer["num_possible"],
        "front": len(answer["front"]),
        "seconds": seconds,
    }


def main() -> int:
    """All models."""
    run("bert-large")  # compiles
    rows = [run(model) for model in EXPERTS]
    if is_verbose():
        print(table(rows))
    gain = geometric_mean([float(row["gain"]) for row in rows])
    seconds = max(float(row["seconds"]) for row in rows)
    is_better = all(min(float(row["over_chip"]), float(row["over_plan"])) > 1 for row in rows)
    holds = gain >= LEAST_GAIN and is_better and seconds <= MOST_SECONDS
    report(
        "phaze_search",
        gain,
        TARGET,
        holds,
        slowest_s=seconds,
        over_chip=geometric_mean([float(row["over_chip"]) for row in rows]),
        over_plan=geometric_mean([float(row["over_plan"]) for row in rows]),
        bound_over_best=max(float(row["bound_over_best"]) for row in rows),
        num_models=len(rows),
        rows=rows,
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
