"""The replayed step takes as long as the step without any profiler.

Six models, one and two threads. Bare and profiled iterations alternate; every second bare iteration is held out:
the correction never sees it, and the replay is judged by it. ``residual`` is what the per-event correction alone
leaves.
"""

import statistics

import torch

from benchmarks import bar
from windtunnel import registry
from windtunnel.simulate import replay
from windtunnel.sources.torch.step import capture

MEDIAN_TARGET, WORST_TARGET = 0.03, 0.06
ITERATIONS = 40


def own_workloads() -> list[str]:
    """The six small workloads; those of the suite, which have a domain, have their own bar (suite_fidelity)."""
    return sorted(name for name, plugin in registry.all("workload").items() if not plugin.domain)


def row(name: str, num_threads: int) -> dict[str, object]:
    """Capture one workload and compare."""
    torch.set_num_threads(num_threads)
    workload = registry.get("workload", name).function()
    graph = capture(workload.step, iterations=ITERATIONS, model=workload.models, optimizer=workload.optimizers)
    overhead = graph.meta.overhead
    held_out_ns = overhead["held_out_ns"]
    measured_ns = statistics.median(held_out_ns)
    replayed_ns = replay(graph).makespan_ns
    low, _, high = statistics.quantiles(held_out_ns, n=4)
    return {
        "model": name,
        "threads": num_threads,
        "tasks": graph.num_tasks,
        "measured_ms": measured_ns / 1e6,
        "spread_ms": (high - low) / 1e6,
        "replayed_ms": replayed_ns / 1e6,
        "error": replayed_ns / measured_ns - 1,
        "profiled_ratio": overhead["profiled_ratio"],
        "residual": overhead["residual_ratio"] - 1,
    }


def main() -> None:
    """Print the bar, and with --verbose its table."""
    rows = [row(name, threads) for threads in (1, 2) for name in own_workloads()]
    errors = [abs(float(str(entry["error"]))) for entry in rows]
    median, worst = statistics.median(errors), max(errors)
    if bar.is_verbose():
        print(bar.table(rows))
    bar.report(
        "capture_replay_error",
        median,
        f"median <= {MEDIAN_TARGET:.0%}, worst <= {WORST_TARGET:.0%}",
        median <= MEDIAN_TARGET and worst <= WORST_TARGET,
        worst=worst,
        errors={f"{entry['model']}/{entry['threads']}": entry["error"] for entry in rows},
    )


if __name__ == "__main__":
    main()
