"""Training steps priced and replayed against the same steps really run, on this host with one thread.

Each workload is captured twice, in a process of its own. Measured prices: the operators of the first capture price
the second. Learned prices only: samples of operators that ``calibrate`` drew and the captures of all *other* workloads;
of the workload itself no operator was ever seen. Python's time is the captured one in both. The truth is the median of
bare iterations of the second capture that nothing else used.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import bar
from benchmarks.jobs import build
from windtunnel.cost.calibration import calibrate
from windtunnel.cost.database import ProfileDatabase
from windtunnel.cost.host import host_device
from windtunnel.cost.measured import CalibratedPricer, MeasuredPricer, remember
from windtunnel.cost.pricing import price
from windtunnel.cost.roofline import RooflinePricer
from windtunnel.errors import WindtunnelError
from windtunnel.graph import Graph, load, save
from windtunnel.hardware import Device
from windtunnel.simulate import replay

WORKLOADS = ("mlp", "cnn", "lstm", "transformer", "recommender", "gan", "vit", "convnext", "bert", "ncf")
LEARNED_TARGET, MEASURED_TARGET, SHARE = 0.10, 0.05, 0.75
ITERATIONS, TIMEOUT_S, BUDGET_S = 12, 400, 90.0


def record(name: str, folder: Path) -> None:
    """Capture twice, in this process."""
    import torch

    from windtunnel.sources.torch_step import capture

    torch.set_num_threads(1)
    workload = build(name)
    for turn in ("first", "second"):
        graph = capture(workload.step, iterations=ITERATIONS, model=workload.models, optimizer=workload.optimizers)
        save(graph, folder / f"{name}.{turn}.wt")


def recorded(names: list[str], folder: Path) -> list[str]:
    """Names of workloads that could be captured."""
    found = []
    for name in names:
        command = [sys.executable, "-m", "benchmarks.priced_suite", "--record", name, str(folder)]
        try:
            done = subprocess.run(command, cwd=bar.ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(f"# {name}: no answer within {TIMEOUT_S} s", file=sys.stderr)
            continue
        if done.returncode == 0:
            found.append(name)
        else:
            print(f"# {name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return found


def off(graph: Graph, device: Device, *pricers: object) -> float:
    """Replayed over really run, minus 1."""
    truth = statistics.median(graph.meta["overhead"].get("kept_aside_ns") or graph.meta["iteration_ns"]["samples"])
    return replay(price(graph, device, pricers)).makespan_ns / truth - 1.0


def without(name: str, names: list[str], samples: ProfileDatabase, folder: Path) -> ProfileDatabase:
    """Calibration samples and what the other workloads taught."""
    kept = ProfileDatabase(":memory:")
    kept.add(samples)
    for other in names:
        if other != name:
            remember(load(folder / f"{other}.first.wt"), kept)
    return kept


def rows_of(names: list[str], folder: Path) -> list[dict[str, object]]:
    samples = ProfileDatabase(folder / "profile.db")
    calibrate(BUDGET_S, num_threads=1, database=samples)
    device = host_device(1, database=samples)
    rows = []
    for name in names:
        graph = load(folder / f"{name}.second.wt")
        own = ProfileDatabase(":memory:")
        remember(load(folder / f"{name}.first.wt"), own)
        others = CalibratedPricer(without(name, names, samples, folder))
        try:
            rows.append(
                {
                    "workload": name,
                    "tasks": graph.num_tasks,
                    "measured": off(graph, device, MeasuredPricer(own), others, RooflinePricer()),
                    "learned": off(graph, device, others, RooflinePricer()),
                    "bound": off(graph, device, RooflinePricer()),
                    "replay": replay(graph).makespan_ns / statistics.median(graph.meta["iteration_ns"]["samples"]) - 1,
                }
            )
        except WindtunnelError as error:
            print(f"# {name}: {error}", file=sys.stderr)
    return rows


def main() -> None:
    if "--record" in sys.argv:
        name, folder = sys.argv[sys.argv.index("--record") + 1 :][:2]
        record(name, Path(folder))
        return
    asked = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else list(WORKLOADS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = rows_of(recorded(asked, folder), folder)
    if bar.is_verbose():
        print(bar.table(rows))
    limits = {"learned": LEARNED_TARGET, "measured": MEASURED_TARGET}
    for kind, limit in limits.items():
        errors = [abs(float(str(row[kind]))) for row in rows]
        share = sum(error <= limit for error in errors) / max(len(errors), 1)
        bar.report(
            f"priced_suite_{kind}",
            share,
            f">= {SHARE:.0%} of >= 8 workloads within {limit:.0%}",
            share >= SHARE and len(errors) >= 8,
            median_error=statistics.median(errors) if errors else float("nan"),
            errors={str(row["workload"]): row[kind] for row in rows},
            bound_alone={str(row["workload"]): row["bound"] for row in rows},
        )


if __name__ == "__main__":
    main()
