"""Every workload of the suite really trains: what it minimizes falls.

Each at size tiny, in a process of its own, on one thread (the other core is left to loaders and actors), for some
seconds and at least 15 steps (``suite run``, as a user does). Falls: the mean of the last third of the steps lies below
that of the first third by more than twice the standard error of their difference. A reinforcement learner's objective
is minus the mean return.

    python -m benchmarks.suite_trains --verbose
"""

import tempfile
import time

import numpy as np

from benchmarks import bar
from windtunnel.systems.suite.results import Result
from windtunnel.systems.suite.run import run_suite

NUM_TARGET, SECONDS_TARGET = 14, 480
BUDGET_S, FEWEST = 6.0, 15


def row(result: Result) -> dict[str, object]:
    """One workload."""
    shown: dict[str, object] = {"workload": result.cell.workload, "status": result.status, "falls": False}
    if not result.is_measured:
        return shown | {"message": f"{result.message}; {result.fix}"[-400:], "seconds": result.seconds}
    values = np.asarray([value for value in result.objective if value is not None])
    third = max(1, len(values) // 3)
    first, last = values[:third], values[-third:]
    error = float(np.sqrt((first.var() + last.var()) / third))
    return shown | {
        "falls": bool(len(values) >= 6 and last.mean() < first.mean() - 2 * error),
        "steps": len(result.objective),
        "step_ms": result.median_ns[0] / 1e6,
        "first": float(first.mean()),
        "last": float(last.mean()),
        "seconds": result.seconds,
    }


def main() -> None:
    """Print the bar, and with --verbose its table."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = run_suite(
            output=folder, budget_s=BUDGET_S, precision=0.0, fewest=FEWEST, num_threads=[1], graph_iterations=0
        )
    elapsed_s = time.monotonic() - begun_s
    rows = [row(result) for result in run.results]
    if bar.is_verbose():
        print(bar.table(rows))
    falling = [entry for entry in rows if entry["falls"]]
    bar.report(
        "suite_trains",
        len(falling),
        f"all, and at least {NUM_TARGET}, with a falling objective in < {SECONDS_TARGET} s together",
        len(falling) == len(rows) >= NUM_TARGET and elapsed_s < SECONDS_TARGET,
        num_workloads=len(rows),
        elapsed_s=elapsed_s,
        longest_step_ms=max(float(str(entry.get("step_ms", 0))) for entry in rows),
        objectives={str(entry["workload"]): [entry["first"], entry["last"]] for entry in rows if "first" in entry},
        not_falling={str(entry["workload"]): entry.get("message", "") for entry in rows if not entry["falls"]},
    )


if __name__ == "__main__":
    main()
