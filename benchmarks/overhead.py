"""What profiling costs, and how well it is taken out.

The profiled step is at most 1.5 times the bare one (worst of six models), and the sum of the corrected slices is
within 2 % (median) of bare steps that lay between and that the correction never saw. ``events_only`` is the harder
question: how far the sum is off when only the cost per event is taken out, before the residual of each stretch
(caches, memory) is put right.
"""

import statistics

import torch

from benchmarks import bar
from benchmarks.capture_replay_error import own_workloads
from windtunnel import registry
from windtunnel.sources.torch.step import capture

RATIO_TARGET, SUM_TARGET = 1.5, 0.02
ITERATIONS = 40


def row(name: str) -> dict[str, object]:
    """Capture one workload."""
    workload = registry.get("workload", name).function()
    graph = capture(workload.step, iterations=ITERATIONS, model=workload.models, optimizer=workload.optimizers)
    overhead = graph.meta.overhead
    return {
        "model": name,
        "bare_ms": graph.meta.iteration_ns["median"] / 1e6,
        "profiled_ratio": overhead["profiled_ratio"],
        "event_ns": overhead["event_enter_ns"] + overhead["event_leave_ns"],
        "sum_error": overhead["held_out_error_ratio"],
        "events_only": 1 / overhead["residual_ratio"] - 1,
    }


def main() -> None:
    """Print the bar, and with --verbose its table."""
    torch.set_num_threads(1)
    rows = [row(name) for name in own_workloads()]
    ratio = max(float(str(entry["profiled_ratio"])) for entry in rows)
    error = statistics.median(abs(float(str(entry["sum_error"]))) for entry in rows)
    if bar.is_verbose():
        print(bar.table(rows))
    bar.report(
        "overhead",
        ratio,
        f"profiled <= {RATIO_TARGET} x bare, corrected sum within {SUM_TARGET:.0%} (median)",
        ratio <= RATIO_TARGET and error <= SUM_TARGET,
        sum_error=error,
        sum_errors={str(entry["model"]): entry["sum_error"] for entry in rows},
        events_only={str(entry["model"]): entry["events_only"] for entry in rows},
        profiled_ratios={str(entry["model"]): entry["profiled_ratio"] for entry in rows},
    )


if __name__ == "__main__":
    main()
