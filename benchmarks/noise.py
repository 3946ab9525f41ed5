"""Bar noise: predictions measured beside other programs hold on the quiet machine, or say how unsure they are.

Six workloads. Each is captured, and its what-ifs are priced, while other processes load one core, then all of them;
then every change is flown on the quiet machine. The interval of the prediction is to hold what was flown; nothing that
was measured beside the load is to be kept as if it were true; and after one receipt the prediction, made once more
beside the load, is to be near what is flown.

    python -m benchmarks.noise --verbose
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import bar
from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.flights import Ledger, verify, with_intervals
from windtunnel.graph import Graph
from windtunnel.hardware.cores import allowed_cores
from windtunnel.measure import ProfileDatabase, StopRule
from windtunnel.sources.targets import WorkloadName
from windtunnel.whatifs import Answer, whatif

MODELS = ("mlp", "cnn", "lstm", "transformer", "gan", "recommender")
CHANGES = ("amp", "fused-optimizer", "batch-size:factor=2", "gradient-accumulation:passes=4")
RULE = StopRule(rounds=16, precision=0.01, time_limit_s=4.0, turn_ns=50_000_000, warmup=2)
COVERAGE, REPEATED = 0.85, 0.10
CAPTURED = 12
# ends with its parent, also where that was killed
BURN = """
import hashlib, os
parent, block = os.getppid(), bytes(1 << 20)
while os.getppid() == parent: hashlib.sha256(block)
"""


@contextmanager
def load(num_cores: int) -> Iterator[None]:
    """So many other programs that compute all the time."""
    others = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(num_cores)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def predictions(model: str, num_cores: int, folder: Path, database: ProfileDatabase) -> tuple[Graph, list[Answer]]:
    """Captured and priced beside the load, by one who has flown nothing yet."""
    with load(num_cores):
        graph = WorkloadName(model, {}).capture(CAPTURED, None)
        answers = whatif(graph, list(CHANGES), prices="measured", database=database)
    return graph, with_intervals(answers, Ledger(folder / "none.db"))


def flown(model: str, answer: Answer, graph: Graph, num_cores: int, folder: Path) -> dict[str, object]:
    """One prediction, its flight, and the prediction once more."""
    row: dict[str, object] = {"case": f"{model}/{answer.request}/{num_cores}", "predicted": answer.speedup}
    ledger, prices = Ledger(folder / "receipts.db"), ProfileDatabase(":memory:")
    try:
        receipt = verify(
            WorkloadName(model, {}), answer.request, graph=graph, rule=RULE, ledger=ledger, database=prices
        )
    except NotApplicableError:
        return {}
    except WindtunnelError as error:
        return row | {"failed": error.message}
    with load(num_cores):
        again = whatif(graph, [answer.request], prices="measured", database=ProfileDatabase(":memory:"))
    (after,) = with_intervals(again, ledger)
    low, high = answer.span or (answer.speedup, answer.speedup)
    return row | {
        "measured": receipt.measured,
        "low": low,
        "high": high,
        "waited": answer.price_waited_ratio,
        "reach": answer.reach,
        "is_inside": low <= receipt.measured <= high,
        "after": after.speedup,
        "off_after": abs(after.speedup / receipt.measured - 1),
    }


def case(model: str, num_cores: int, folder: Path) -> tuple[list[dict[str, object]], int]:
    """Rows of a workload, and how many disturbed measurements were kept."""
    database = ProfileDatabase(folder / "profile.db")
    graph, answers = predictions(model, num_cores, folder, database)
    is_disturbed = [answer for answer in answers if answer.is_applicable and answer.price_waited_ratio]
    kept = len(database) if len(is_disturbed) == sum(answer.is_applicable for answer in answers) else 0
    rows = []
    for place, answer in enumerate(answers):
        if answer.is_applicable:
            own = folder / str(place)
            own.mkdir()
            rows.append(flown(model, answer, graph, num_cores, own))
    return [row for row in rows if row], kept


def main() -> bool:
    """Print the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--models", default=",".join(MODELS))
    asked = parser.parse_args()
    rows, kept = [], 0
    for model in asked.models.split(","):
        for num_cores in sorted({1, len(allowed_cores())}):
            with tempfile.TemporaryDirectory() as made:
                found, more = case(model, num_cores, Path(made))
            rows, kept = rows + found, kept + more
    done = [row for row in rows if "failed" not in row]
    if asked.verbose:
        print(bar.table(rows), file=sys.stderr)
    inside = statistics.fmean(bool(row["is_inside"]) for row in done)
    off_after = sorted(float(row["off_after"]) for row in done)
    failed = {str(row["case"]): row["failed"] for row in rows if "failed" in row}
    return bar.report(
        "noise",
        inside,
        ">= 85 % of flown values in the interval, nothing disturbed kept, within 10 % after one receipt",
        inside >= COVERAGE and not kept and off_after[-1] <= REPEATED and not failed,
        num_cases=len(rows),
        kept=kept,
        off_after_median=statistics.median(off_after),
        off_after_worst=off_after[-1],
        width_median=statistics.median(float(row["high"]) / float(row["low"]) for row in done),
        noticed=sum(bool(row["waited"]) for row in done),
        failed=failed,
        rows={row["case"]: [row["predicted"], row["low"], row["high"], row["measured"]] for row in done},
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
