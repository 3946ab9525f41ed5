"""Bar noise: predictions made on a quiet machine and beside other programs hold, or say how unsure they are.

Workloads are captured and their changes priced three times: on a quiet machine, beside a program that loads one core,
and beside programs that load all of them. Every change is then flown twice on the quiet machine. The interval of each
prediction is to hold what the first flight measured, and to be narrow; a disturbed capture is to say so, and a quiet
one not. After the first flight the corrected prediction is judged by the second flight, which corrected nothing.

    python -m benchmarks.noise --verbose                          # two workloads, about five minutes
    python -m benchmarks.noise --models mlp,cnn,lstm,transformer,gan,recommender
"""

import argparse
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks import bar
from windtunnel.cli.console import choose_wait_policy
from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.flights import Ledger, Receipt, verify, with_intervals
from windtunnel.graph import Graph
from windtunnel.hardware.host import usable_cores
from windtunnel.measure import ProfileDatabase, StopRule
from windtunnel.measure.disturbance import Neighbors
from windtunnel.sources.targets import WorkloadName
from windtunnel.whatifs import Answer, whatif

SHORT = ("mlp", "cnn")
CHANGES = ("amp", "fused-optimizer", "batch-size:factor=2", "gradient-accumulation:passes=4")
RULE = StopRule(rounds=16, precision=0.01, time_limit_s=4.0, turn_ns=50_000_000, warmup=2)
COVERAGE, REPEATED, QUIET_SPAN, DISTURBED_SPAN, NOTICED, FALSE_ALARMS = 0.85, 0.10, 1.3, 2.0, 0.95, 0.05
CAPTURED = 12
_BUSY = 0.02  # of all cores: on such a machine no capture counts as a quiet one
# ends with the benchmark, also where that was killed
BURN = """
import hashlib, os, sys
block = bytes(1 << 20)
while os.path.exists(f"/proc/{sys.argv[1]}"): hashlib.sha256(block)
"""
# the shell ends at once: children of the benchmark would count as its own, as a loader's workers do
START = '"$0" -c "$1" "$2" >/dev/null 2>&1 & echo $!'


@contextmanager
def load(num_programs: int) -> Iterator[None]:
    """So many other programs that compute all the time."""
    command = ["sh", "-c", START, sys.executable, BURN, str(os.getpid())]
    others = [int(subprocess.check_output(command, text=True)) for _ in range(num_programs)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGKILL)


def predictions(model: str, num_programs: int, folder: Path) -> tuple[Graph, list[Answer]]:
    """Captured and priced beside the load by a user who has flown nothing yet."""
    context = multiprocessing.get_context("spawn")
    # a fresh process decides before torch is loaded how its threads wait, as each command does
    with load(num_programs), ProcessPoolExecutor(1, context, initializer=choose_wait_policy) as fresh:
        graph, answers = fresh.submit(_priced, model, folder / f"profile-{num_programs}.db").result()
    return graph, with_intervals(answers, Ledger(folder / "none.db"))


def _priced(model: str, database: Path) -> tuple[Graph, list[Answer]]:
    graph = WorkloadName(model, {}).capture(CAPTURED, None)
    return graph, whatif(graph, list(CHANGES), prices="measured", database=ProfileDatabase(database))


def flights(model: str, request: object, graph: Graph, ledger: Ledger) -> tuple[Receipt, Receipt]:
    """The same change flown twice; only the first goes to the ledger."""
    prices = ProfileDatabase(":memory:")
    target = WorkloadName(model, {})
    with tempfile.TemporaryDirectory() as folder:
        first = verify(target, request, graph=graph, rule=RULE, ledger=ledger, database=prices)
        second = verify(target, request, graph=graph, rule=RULE, ledger=Path(folder) / "other.db", database=prices)
    return first, second


def rows_of(model: str, folder: Path) -> tuple[list[dict[str, object]], dict[str, str], int]:
    """Every prediction of a workload beside its flights, what failed, and disturbed prices that were kept."""
    loads = sorted({0, 1, len(usable_cores())})
    made = {num_programs: predictions(model, num_programs, folder) for num_programs in loads}
    kept = sum(
        len(ProfileDatabase(folder / f"profile-{num_programs}.db"))
        for num_programs, (_, answers) in made.items()
        if num_programs and all(answer.price_waited_ratio for answer in answers if answer.is_applicable)
    )
    rows: list[dict[str, object]] = []
    failed: dict[str, str] = {}
    quiet_graph, quiet_answers = made[0]
    for number, request in enumerate(answer.request for answer in quiet_answers if answer.is_applicable):
        ledger = Ledger(folder / f"{number}.db")
        try:
            first, second = flights(model, request, quiet_graph, ledger)
        except NotApplicableError:
            continue
        except WindtunnelError as error:
            failed[f"{model}/{request}"] = error.message
            continue
        for num_programs, (_, answers) in made.items():
            answer = next((one for one in answers if str(one.request) == str(request) and one.is_applicable), None)
            if answer is not None:
                (corrected,) = with_intervals([answer], ledger)
                rows.append(_row(f"{model}/{request}/{num_programs}", num_programs, answer, corrected, first, second))
    return rows, failed, kept


def _row(
    case: str, num_programs: int, answer: Answer, corrected: Answer, first: Receipt, second: Receipt
) -> dict[str, object]:
    low, high = answer.span or (answer.speedup, answer.speedup)
    return {
        "case": case,
        "is_loaded": bool(num_programs),
        "is_noticed": answer.lost_ratio > 0,
        "predicted": answer.speedup,
        "low": low,
        "high": high,
        "measured": first.measured,
        "again": second.measured,
        "is_inside": low <= first.measured <= high,
        "off_after": abs(corrected.speedup / second.measured - 1),
    }


def main() -> bool:
    """Print the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--models", default=",".join(SHORT))
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    failed: dict[str, str] = {}
    kept, neighbors = 0, Neighbors()
    time.sleep(1.0)
    host_busy = neighbors.cores_ratio or 0.0
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found, errors, count = rows_of(model, Path(folder))
        rows, failed, kept = rows + found, failed | errors, kept + count
    if options.verbose:
        print(bar.table(rows), file=sys.stderr)
    quiet, loaded = ([row for row in rows if row["is_loaded"] is is_loaded] for is_loaded in (False, True))
    values = {
        "inside": _mean(rows, "is_inside"),
        "quiet_span": statistics.median(float(row["high"]) / float(row["low"]) for row in quiet),
        "disturbed_span": statistics.median(float(row["high"]) / float(row["low"]) for row in loaded),
        "noticed": _mean(loaded, "is_noticed"),
        "false_alarms": _mean(quiet, "is_noticed"),
        "off_after_worst": max(float(row["off_after"]) for row in rows),
    }
    checks = {
        "inside": values["inside"] >= COVERAGE,
        "quiet_span": values["quiet_span"] <= QUIET_SPAN,
        "disturbed_span": values["disturbed_span"] <= DISTURBED_SPAN,
        "noticed": values["noticed"] >= NOTICED,
        "false_alarms": values["false_alarms"] <= FALSE_ALARMS,
        "off_after_worst": values["off_after_worst"] <= REPEATED,
        "kept": not kept,
        "failed": not failed,
        "quiet_host": host_busy <= _BUSY,
    }
    return bar.report(
        "noise",
        values.pop("inside"),
        ">= 85 % inside; spans <= 1.3x quiet and <= 2x disturbed in the median; >= 95 % of loads noticed, <= 5 % false "
        "alarms; within 10 % of a second flight after the first; nothing disturbed kept",
        all(checks.values()),
        failing=[name for name, holds in checks.items() if not holds],
        num_cases=len(rows),
        **values,
        off_after_median=statistics.median(float(row["off_after"]) for row in rows),
        kept=kept,
        host_busy=host_busy,
        failed=failed,
        rows={row["case"]: [row[key] for key in ("predicted", "low", "high", "measured", "again")] for row in rows},
    )


def _mean(rows: list[dict[str, object]], name: str) -> float:
    return statistics.fmean(bool(row[name]) for row in rows)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
