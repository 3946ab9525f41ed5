"""Replay and what-ifs hold on the whole training suite, not only on the six small workloads.

Every workload of the suite at size tiny, each in a process of its own, one thread: captured, replayed and compared
with bare iterations that the correction never saw (as ``capture_replay_error``), then flown with a few what-ifs (as
``whatif_error``). Those bare iterations must be known themselves: where the standard error of their median is above
2 %, the workload is captured again with as many iterations as that asks for, up to 3000 or what 100 seconds allow.
The set of what-ifs is kept small: the fused
optimizer, and in turn one of autocast, a second thread and gradient accumulation: they apply nearly everywhere and
touch different parts. Every pair is reported; what does not apply is listed.

    python -m benchmarks.suite_fidelity --verbose
    python -m benchmarks.suite_fidelity --models resnet50,seq2seq --iterations 20
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import bar
from benchmarks.whatif_error import compared, fresh_prices
from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.flights import Ledger, verify
from windtunnel.graph import Graph
from windtunnel.measure import StopRule
from windtunnel.simulate import replay
from windtunnel.sources.targets import WorkloadName
from windtunnel.systems.suite.model import suite_plugins

REPLAY_MEDIAN, REPLAY_WORST, WHATIF_MEDIAN = 0.03, 0.08, 0.05
ITERATIONS, MOST_ITERATIONS, TIME_CAP_S = 20, 3000, 100.0
FEWEST = 6  # fewer say nothing of their own spread
STANDARD_ERROR, SPARE = 0.02, 1.25  # a pilot's own spread is known roughly
RULE = StopRule(rounds=20, precision=0.01, time_limit_s=5.0, turn_ns=50_000_000, warmup=2)
EVERYWHERE = "fused-optimizer"
IN_TURN = ("amp", "threads:threads=2", "gradient-accumulation:passes=2")


def arguments() -> argparse.Namespace:
    """What was asked on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="print every pair")
    parser.add_argument("--models", default="", help="names of workloads, with commas; the suite by default")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="captured iterations, at least")
    parser.add_argument("--json", default="", help="of one model: write its rows to this file")
    return parser.parse_args()


def changes(model: str) -> tuple[str, str]:
    """What is flown with a workload."""
    place = sorted(suite_plugins()).index(model)
    return EVERYWHERE, IN_TURN[place % len(IN_TURN)]


def rows_of(model: str, iterations: int) -> list[dict[str, object]]:
    """The replay's row and one per change."""
    torch.set_num_threads(1)
    subject = WorkloadName(model, {"size": "tiny"})
    try:
        graph, sampling = captured(subject, iterations)
    except (WindtunnelError, RuntimeError) as error:
        return [{"model": model, "failed": f"capture: {error}"}]
    rows = [replayed(model, graph) | sampling]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "receipts.db")
        return rows + [flown(subject, change, graph, ledger) for change in changes(model)]


def captured(subject: WorkloadName, iterations: int) -> tuple[Graph, dict[str, object]]:
    """A capture of so many iterations that the bare ones are known, and what the row says of that."""
    iterations = max(iterations, FEWEST)
    while True:
        begun_s = time.monotonic()
        graph = subject.capture(iterations, None)
        seconds = time.monotonic() - begun_s
        overhead = graph.meta.overhead
        affordable = min(MOST_ITERATIONS, int(iterations * TIME_CAP_S / seconds))
        wanted = min(affordable, max(iterations + 1, int(SPARE * overhead["iterations_wanted"])))
        if overhead["standard_error_ratio"] <= STANDARD_ERROR or wanted <= iterations:
            break
        iterations = wanted
    return graph, {
        "iterations": iterations,
        "standard_error": overhead["standard_error_ratio"],
        "capture_s": seconds,
        "time_cap_s": TIME_CAP_S,
        "is_capped": overhead["standard_error_ratio"] > STANDARD_ERROR,
    }


def replayed(model: str, graph: Graph) -> dict[str, object]:
    """How far the replay is off the bare iterations that were held out."""
    measured_ns = statistics.median(graph.meta.overhead["held_out_ns"])
    error = replay(graph).makespan_ns / measured_ns - 1
    return {"model": model, "replay_error": error, "measured_ms": measured_ns / 1e6, "tasks": graph.num_tasks}


def flown(subject: WorkloadName, change: str, graph: Graph, ledger: Ledger) -> dict[str, object]:
    """Predict, fly, compare."""
    row: dict[str, object] = {"model": subject.name, "change": change}
    try:
        receipt = verify(subject, change, graph=graph, rule=RULE, ledger=ledger, **fresh_prices(ledger))
        return row | compared(receipt)
    except NotApplicableError as error:
        return row | {"not applicable": error.message}
    except (WindtunnelError, RuntimeError) as error:
        return row | {"failed": str(error).partition("\n")[0]}


def apart(model: str, asked: argparse.Namespace) -> list[dict[str, object]]:
    """One workload in a process of its own; a crash is its row."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "rows.json"
        options = ["--models", model, "--iterations", str(asked.iterations), "--json", str(kept)]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.suite_fidelity", *options],
            cwd=bar.ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if not kept.exists():
            return [{"model": model, "failed": done.stderr[-300:]}]
        rows: list[dict[str, object]] = json.loads(kept.read_text())
        return rows


def main() -> None:
    """Print the bar, and with --verbose its table; of one model with ``--json``, write its rows."""
    asked = arguments()
    models = [name for name in asked.models.split(",") if name] or sorted(suite_plugins())
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows_of(models[0], asked.iterations)))
        return
    rows: list[dict[str, object]] = []
    for model in models:
        found = apart(model, asked)
        rows += found
        if asked.verbose:
            for row in found:
                print(json.dumps(row), flush=True)
    finish(rows)


def finish(rows: list[dict[str, object]]) -> None:
    """The line."""
    replays = {str(row["model"]): float(str(row["replay_error"])) for row in rows if "replay_error" in row}
    pairs = {f"{row['model']}/{row['change']}": float(str(row["error"])) for row in rows if "error" in row}
    failed = {f"{row['model']}/{row.get('change', 'capture')}": row["failed"] for row in rows if "failed" in row}
    replay_median = statistics.median(map(abs, replays.values())) if replays else float("inf")
    replay_worst = max(map(abs, replays.values()), default=float("inf"))
    whatif_median = statistics.median(map(abs, pairs.values())) if pairs else float("inf")
    bar.report(
        "suite_fidelity",
        replay_median,
        f"replay median <= {REPLAY_MEDIAN:.0%}, worst <= {REPLAY_WORST:.0%}; what-ifs median <= {WHATIF_MEDIAN:.0%}",
        replay_median <= REPLAY_MEDIAN
        and replay_worst <= REPLAY_WORST
        and whatif_median <= WHATIF_MEDIAN
        and not failed,
        replay_worst=replay_worst,
        whatif_median=whatif_median,
        num_workloads=len(replays),
        num_pairs=len(pairs),
        replay_errors=replays,
        standard_errors={str(row["model"]): row["standard_error"] for row in rows if "standard_error" in row},
        iterations={str(row["model"]): row["iterations"] for row in rows if "iterations" in row},
        time_cap_s=TIME_CAP_S,
        capped=[row["model"] for row in rows if row.get("is_capped")],
        whatif_errors=pairs,
        failed=failed,
        not_applicable=[f"{row['model']}/{row['change']}" for row in rows if "not applicable" in row],
    )


if __name__ == "__main__":
    main()
