"""Training steps are searched as kernels are: operators that loss and gradients do not need are found and flown.

Steps of small networks, forward and backward pass as torch's operators, are edited by the edits of kernels; a winner
keeps every bit of loss and gradients on batches and parameters that the search has not seen. Held, for at least three
steps: such an edit is found, the flight in a fresh process is surely faster, and the speed-up that the operators' own
times predict is within 10 % of what is measured.
"""

from __future__ import annotations

import sys

from benchmarks import bar
from windtunnel.systems.kernels.search import Options
from windtunnel.systems.kernels.steps.run import OPERATORS, evolve_step

STEPS = (
    ("mlp", {"batch_size": 8, "width": 32, "depth": 3}),
    ("mlp", {"batch_size": 4, "width": 64, "depth": 6}),
    ("mlp", {"batch_size": 16, "width": 16, "depth": 10}),
    ("relu-network", {"batch_size": 2}),
)
FEWEST, MOST_OFF, SEARCH_S = 3, 0.1, 15.0
TARGET = "a faithful edit found, flown and predicted within 10 % on >= 3 captured steps"


def main() -> int:
    """Search each, print the bar; 1 if it does not hold."""
    rows = []
    for name, parameters in STEPS:
        options = Options(8, 1000, operators=OPERATORS, time_limit_s=SEARCH_S)
        found = evolve_step(name, options, parameters=parameters)
        rows.append({
            "step": name, "parameters": str(parameters), "predicted": found.predicted,
            "measured": found.measured.value, "low": found.measured.low, "error_ratio": found.error_ratio,
            "operators": found.num_operators, "left": found.num_left, "edits": "; ".join(found.words),
        })  # fmt: skip
        print(rows[-1], file=sys.stderr)
    good = [row for row in rows if row["low"] > 1 and abs(row["error_ratio"]) <= MOST_OFF]
    holds = len(good) >= FEWEST
    bar.report("gevo_graph", len(good), TARGET, holds, steps=len(rows),
               speedups=[row["measured"] for row in rows], predicted=[row["predicted"] for row in rows],
               worst_error=max(abs(row["error_ratio"]) for row in rows))  # fmt: skip
    if bar.is_verbose():
        print(bar.table(rows))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
