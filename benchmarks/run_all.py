"""Run every bar, print a table, keep the results (``make bars``).

Each bar is a script of its own that prints JSON lines; a bar that fails or crashes stays in the table as what it is.
The results go to ``docs/receipts/bars.json``, from which ``benchmarks.tables`` writes the tables of the docs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "receipts" / "bars.json"
BARS = (
    "style",
    "house",
    "words",
    "ways",
    "import_time",
    "replay_exact",
    "replay_speed",
    "identity",
    "pure_whatifs",
    "plausible",
    "noise",
    "demo_under_load",
    "ranks_build",
    "fold_exact",
    "fold_speed",
    "dlrm_8_ranks",
    "clock_alignment",
    "hta_exact",
    "hta_tables",
    "chakra_exact",
    "chakra_round_trip",
    "trace_load",
    "json_parsers",
    "fuzz",
    "mutations",
    "overhead",
    "capture_replay_error",
    "whatif_error",
    "whatif_bias",
    "shipped_intervals",
    "stable_phase",
    "suite_trains",
    "suite_fidelity",
    "held_out_style",
    "strangers",
    "observations",
    "demo_time",
    "docs_run",
    "utilization",
    "memory_adds_up",
    "memory_fake",
    "dry_run_true",
    "torchtitan_published",
    "megatron_times",
    "feature_maps",
    "price_speed",
    "intervals_cover",
    "intervals_cover_kernels",
    "priced_suite",
    "wave_scaling",
    "golden_features",
    "cost_train_speed",
    "cdmpp_cross_model",
    "cdmpp_cross_device",
    "cdmpp_cross_host",
    "cdmpp_ablations",
    "schedule_search",
    "compiled_networks",
    "roofline_table",
    "predict_accuracy",
    "predict_sane",
    "unseen_gpu",
    "unseen_gpus",
    "gpu_h100",
    "gpu_capture",
    "gpu_operators",
    "gpu_whatifs",
    "gpu_flights",
    "gpu_predict",
    "dpro_replay_error",
    "ddp_from_one",
    "optimizer_flown",
    "placement_exact",
    "placement_property",
    "placement_speed",
    "placement_ilp",
    "placement_latency",
    "placement_flown",
    "semantics_2bw",
    "quality_2bw",
    "policies_exact",
    "adsp",
    "overlap",
    "dlion",
    "skewscout",
    "coconet_published",
    "coconet_scale",
    "coconet_tuned",
    "coconet_user",
    "coconet_predicted",
    "async_tensor_parallel",
    "coconet_ring",
    "flower_side_by_side",
    "virtual_true",
    "systolic_exact",
    "phaze_space",
    "phaze_search",
    "accelerator_ops",
    "sparse_training",
    "structured_dropout",
    "block_circulant",
    "layers_flown",
    "packrat",
    "packrat_flown",
    "packrat_requests",
    "packrat_server",
    "gevo_search",
    "gevo_planted",
    "gevo_real",
    "gevo_graph",
    "piper_exact",
    "planner_true",
    "schedules_valid",
    "pipeline_error",
    "cluster_exact",
    "cluster_modes",
    "cluster_speed",
    "cluster_published",
    "cluster_tuner",
    "placement_model",
    "cluster_flown",
    "slurm_driven",
    "stash_flown",
    "au_predicted",
    "dlio_compatible",
    "dlio_side_by_side",
    "io_advice_flown",
    "stall_features",
    "recommender",
)


def run(name: str, timeout_s: float) -> list[dict[str, object]]:
    """Run one bar; a crash or a time-out is a result too."""
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
        )
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"bar"')]
        tail = done.stderr[-2000:]
    except subprocess.TimeoutExpired:
        rows, tail = [], f"no answer within {timeout_s:.0f} s"
    seconds = round(time.monotonic() - begin, 1)
    rows = rows or [{"bar": name, "value": "no result", "target": "", "holds": False, "log_tail": tail}]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return [{**row, "script": name, "seconds": seconds, "date": today, "machine": machine()} for row in rows]


def machine() -> str:
    """Processor and number of cores, as the docs name it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0]}, {len(models)} cores" if models else platform.processor()


def kept() -> dict[str, dict[str, object]]:
    return {row["bar"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bars", nargs="*", default=list(BARS), help="names of bars (all)")
    parser.add_argument("--timeout", type=float, default=5400, help="seconds per bar")
    options = parser.parse_args()
    results = kept()
    failed = 0
    for name in options.bars:
        for row in run(name, options.timeout):
            results[str(row["bar"])] = row
            failed += not row["holds"]
            mark = "holds" if row["holds"] else "FAILS"
            print(f"{mark:6} {row['bar']:22} {row['value']}   [{row['target']}]  {row['seconds']} s", flush=True)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        scratch = RESULTS.with_suffix(".tmp")
        scratch.write_text(json.dumps(list(results.values()), indent=1, ensure_ascii=False) + "\n")
        scratch.replace(RESULTS)
    print(f"{failed} of {len(options.bars)} bars fail" if failed else "every bar holds")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
