"""The golden commands. Later ones may read what earlier ones wrote."""

from __future__ import annotations

from pathlib import Path

PAIRS = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu" / "h200" / "pairs"
TRACE = str(PAIRS / "perceptron-rich.json.gz")
OTHER_TRACE = str(PAIRS / "streams_net-rich.json.gz")
LEDGER = ("--ledger", "none.db")
CLUSTER = ("jobs.csv", "--cluster", "cluster.json", "--speeds", "layers")

COMMANDS: dict[str, tuple[str, ...]] = {
    "explain": ("explain", "step.wt"),
    "explain-by-layer": ("explain", "step.wt", "--by", "layer"),
    "explain-trace": ("explain", TRACE),
    "explain-table-kernels": ("explain", TRACE, "--table", "kernels"),
    "explain-table-idle": ("explain", OTHER_TRACE, "--table", "idle"),
    "replay": ("explain", "step.wt", "--table", "resources"),
    "replay-trace": ("explain", OTHER_TRACE, "--table", "resources"),
    "whatif": ("whatif", "step.wt", "--all", "--prices", "paper", *LEDGER),
    "whatif-trace": ("whatif", TRACE, "--all", "--prices", "paper", *LEDGER),
    "whatif-pairs": ("whatif", "blocks.wt", "--all", "--pairs", "--prices", "paper", *LEDGER),
    "diff": ("diff", "step.wt", "slower.wt"),
    "slice": ("slice", "step.wt", "--phase", "forward", "--out", "forward.wt"),
    "convert": ("convert", "step.wt", "step.et"),
    "dry-run": ("capture", "--dry-run", "--ranks", "16", "--out", "dry.wt", "data_parallel.py"),
    "predict-dry-run": ("predict", "dry.wt", "--on", "h100,a100", "--model", "roofline"),
    "predict-one-device": ("predict", "dry.wt", "--on", "h100", "--model", "roofline", "--out", "priced.wt"),
    "whatif-dry-run": ("whatif", "priced.wt", "--all", "--prices", "paper", *LEDGER),
    "memory-fake": ("memory", "--fake", "--on", "h100", "--html", "page.html", "perceptron.py"),
    "memory-workload": ("memory", "--fake", "--on", "h100", "--html", "mlp.html", "mlp:batch_size=8,width=32"),
    "dry-run-one-rank": ("capture", "--dry-run", "--out", "one.wt", "perceptron.py"),
    "recommend": ("predict", "--cheapest", "one.wt", "--samples", "1281167", "--deadline", "24h", "--dtype", "bf16"),
    "cluster-simulate": ("cluster", "predict", *CLUSTER, "--policy", "dally-manual:rack_timer_h=0.5"),
    "cluster-compare": ("cluster", "plan", *CLUSTER, "--policies", "dally tiresias windtunnel"),
    "cluster-tune": ("cluster", "plan", "timers", *CLUSTER, "--timers", "0,2"),
    "serve-plan": ("serve", "plan", "served.csv", "--batch-size", "8,2"),
    "serve-size": (
        "serve",
        "plan",
        "threads",
        "served.csv",
        "--requests",
        "constant:rate=150,seconds=2",
        "--slo",
        "20ms",
    ),
    "place-split": ("place", "problem.json", "--on", "2", "--cpus", "0"),
    "pipeline-plan": ("pipeline", "plan", "blocks.wt", "--on", "4", "--batch-size", "16", "--samples", "4"),
    "pipeline-show": ("pipeline", "show", "1f1b", "--ranks", "3", "--microbatches", "4"),
    "train-predict": ("train", "predict", "fleet.toml", "--weights", "1MB", "--out", "bsp.wt"),
    "codesign-zeros": ("chip", "predict", "train.zeros.npz", "zeros.wt", "--check"),
    "codesign-circulant": ("chip", "plan", "circulant", "circulant.json"),
    "evolve-rank": ("kernel", "predict", "step.wt"),
    "suite-list": ("suite", "show", "workloads"),
    "list-whatifs": ("list", "whatifs"),
    "list-flights": ("list", "flights"),
    "list-workloads": ("list", "workloads"),
    "list-devices": ("list", "devices"),
    "receipts": ("db", "receipts", *LEDGER),
}
"""Name to words, without ``--json``."""
