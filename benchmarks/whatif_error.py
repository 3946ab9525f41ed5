"""What a what-if predicts from a capture of the baseline alone is what really comes out.

Six workloads, every flight that applies to each. A workload is captured once; then every change is predicted, really
run beside the baseline, and compared. Nothing of a flight enters a prediction. Every pair is reported, the bad ones
too; what does not apply is listed with its reason.

    python -m benchmarks.whatif_error --verbose
    python -m benchmarks.whatif_error --models mlp,cnn --whatifs amp,fused-optimizer --json pairs.json
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks import bar
from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.flights import Ledger, Receipt, verify
from windtunnel.graph import Graph
from windtunnel.measure import StopRule
from windtunnel.sources.targets import WorkloadName

MEDIAN_TARGET, P90_TARGET, RANK_TARGET = 0.05, 0.15, 0.9
CAPTURED_ITERATIONS = 20
RULE = StopRule(rounds=30, precision=0.008, time_limit_s=5.0, turn_ns=50_000_000, warmup=2)
# baselines run on one thread, so that "threads" can give them the second core
EVERYWHERE = (
    "fused-optimizer",
    "foreach-optimizer",
    "amp",
    "gradient-accumulation:passes=4",
    "activation-checkpointing",
    "batch-size:factor=2",
    "threads:threads=2",
    "gc-pauses",
    "channels-last",
    "reconstructed-batchnorm",
)
# slow to start (two processes, a compiler), or about one kind of model
ONLY = {
    "mlp": ("freeze-layers:layer=[0-2]", "data-parallel:num_ranks=2", "compile-block"),
    "cnn": ("freeze-layers:layer=[0-4]", "loader-workers:num_workers=1", "data-parallel:num_ranks=2"),
    "lstm": ("data-parallel:num_ranks=2,bandwidth_bytes_per_s=100000000",),
    "transformer": (
        "freeze-layers:layer=tokens|blocks.[01]",
        "compile-block",
        "data-parallel:num_ranks=2",
        "data-parallel:num_ranks=2,bandwidth_bytes_per_s=50000000",
        "data-parallel:num_ranks=2,bandwidth_bytes_per_s=50000000,bucket_bytes=1048576",
        "data-parallel:num_ranks=2,bandwidth_bytes_per_s=50000000+fp16-gradients",
        "data-parallel:num_ranks=2,bandwidth_bytes_per_s=50000000+powersgd",
    ),
    "gan": ("data-parallel:num_ranks=2",),
    "recommender": ("data-parallel:num_ranks=2",),
}


def arguments() -> argparse.Namespace:
    """What was asked on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="print every pair")
    parser.add_argument("--models", default=",".join(ONLY), help="names of workloads, with commas")
    parser.add_argument("--whatifs", default="", help="names of what-ifs, with commas; all by default")
    parser.add_argument("--json", default="", help="write every pair to this file")
    return parser.parse_args()


def changes(model: str, chosen: str) -> list[str]:
    """What is flown with a model."""
    wanted = set(filter(None, chosen.split(",")))
    return [text for text in (*EVERYWHERE, *ONLY[model]) if not wanted or text.partition(":")[0] in wanted]


def pair(model: str, change: str, graph: Graph, ledger: Ledger) -> dict[str, object]:
    """Predict, fly, compare."""
    begun_s = time.monotonic()
    row: dict[str, object] = {"model": model, "change": change}
    try:
        receipt = verify(WorkloadName(model), change, graph=graph, rule=RULE, ledger=ledger, **fresh_prices(ledger))
        row |= compared(receipt)
    except NotApplicableError as error:
        row["not applicable"] = error.message
    except WindtunnelError as error:
        row["failed"] = error.message
    return row | {"seconds": time.monotonic() - begun_s}


def fresh_prices(ledger: Ledger) -> dict[str, object]:
    """Prices measured in this run, and not those that the user's profile database knows."""
    return {"prices": "measured", "database": str(Path(ledger.path).with_name("profiles.db"))}


def compared(receipt: Receipt) -> dict[str, object]:
    """The numbers of a pair."""
    return {
        "predicted": receipt.predicted,
        "measured": receipt.measured,
        "low": receipt.samples_ratio * receipt.speedup.low,
        "high": receipt.samples_ratio * receipt.speedup.high,
        "error": receipt.error_ratio,
        "absolute": receipt.absolute_error_ratio,
        "baseline_ms": receipt.baseline.value / 1e6,
        "changed_ms": receipt.changed.value / 1e6,
        "rounds": receipt.num_rounds,
    }


def main() -> None:
    """Print the bar, and with --verbose its table."""
    asked = arguments()
    models = asked.models.split(",")
    finish(pairs_of(models[0], asked) if len(models) == 1 else apart(models, asked), asked)


def apart(models: list[str], asked: argparse.Namespace) -> list[dict[str, object]]:
    """Every model in a process of its own: what one leaves behind (compiled code, a grown heap) touches no other."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            kept = Path(folder) / f"{model}.json"
            options = ["--models", model, "--whatifs", asked.whatifs, "--json", str(kept)]
            command = [sys.executable, "-m", "benchmarks.whatif_error", *options, *(["--verbose"] * asked.verbose)]
            subprocess.run(
                command, cwd=bar.ROOT, check=True, stdout=sys.stderr if asked.verbose else subprocess.DEVNULL
            )
            rows += json.loads(kept.read_text())
    return rows


def pairs_of(model: str, asked: argparse.Namespace) -> list[dict[str, object]]:
    """Capture one model, then every change of it."""
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "receipts.db")
        graph = WorkloadName(model).capture(CAPTURED_ITERATIONS, None)
        for change in changes(model, asked.whatifs):
            rows.append(pair(model, change, graph, ledger))
            if asked.verbose:
                print(bar.table([rows[-1]]).partition("\n")[2], flush=True)
    return rows


def finish(rows: list[dict[str, object]], asked: argparse.Namespace) -> None:
    """The table, the file, the line."""
    flown = [row for row in rows if "error" in row]
    failed = [row for row in rows if "failed" in row]
    errors = sorted(abs(float(str(row["error"]))) for row in flown)
    gains = [[float(str(row[key])) for row in flown] for key in ("predicted", "measured")]
    median, p90 = statistics.median(errors), float(np.quantile(errors, 0.9))
    correlation = bar.rank_correlation(*gains) if len(gains[0]) > 2 else float("nan")
    if asked.verbose:
        print(bar.table(sorted(flown, key=lambda row: abs(float(str(row["error"]))))))
        for row in rows:
            if "error" not in row:
                print(row["model"], row["change"], row.get("not applicable") or f"FAILED: {row['failed']}")
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows, indent=1))
    bar.report(
        "whatif_error",
        median,
        f"median <= {MEDIAN_TARGET:.0%}, p90 <= {P90_TARGET:.0%}, rank correlation >= {RANK_TARGET}, none failed",
        median <= MEDIAN_TARGET and p90 <= P90_TARGET and correlation >= RANK_TARGET and not failed,
        p90=p90,
        rank_correlation=correlation,
        num_pairs=len(flown),
        num_models=len({row["model"] for row in flown}),
        absolute_median=statistics.median(abs(float(str(row["absolute"]))) for row in flown),
        errors={f"{row['model']}/{row['change']}": row["error"] for row in flown},
        failed={f"{row['model']}/{row['change']}": row["failed"] for row in failed},
        not_applicable=[f"{row['model']}/{row['change']}" for row in rows if "not applicable" in row],
    )


if __name__ == "__main__":
    main()
