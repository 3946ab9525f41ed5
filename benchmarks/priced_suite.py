"""Training steps priced and replayed against the same steps really run, on this host with one thread.

Each workload is captured in pairs. Measured prices: the operators of a pair's first capture price its second. Learned
prices only: samples of operators that ``calibrate`` drew and the first captures of all *other* workloads; of the
workload itself no operator was ever seen. Python's time is the captured one in both. The truth is the median of bare
iterations of the second capture that nothing else used. The machine is not the same from one minute to the next: all
workloads and a part of the calibration take turns, and a workload's error is the median of its pairs, their range
beside it.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import bar
from benchmarks.jobs import build
from windtunnel.cost.calibration import calibrate
from windtunnel.cost.host import host_device
from windtunnel.cost.measured import CalibratedPricer, MeasuredPricer, remember
from windtunnel.cost.pricing import price
from windtunnel.cost.roofline import RooflinePricer
from windtunnel.errors import WindtunnelError
from windtunnel.graph import Graph, load, save
from windtunnel.hardware import Device
from windtunnel.measure.database import ProfileDatabase
from windtunnel.simulate import replay

WORKLOADS = ("mlp", "cnn", "lstm", "transformer", "recommender", "gan", "vit", "convnext", "bert", "ncf")
LEARNED_TARGET, MEASURED_TARGET, SHARE = 0.10, 0.05, 0.75
PAIRS, ITERATIONS, TIMEOUT_S, BUDGET_S = 5, 12, 200, 60.0
TURNS = ("first", "second")


def record(name: str, pair: int, folder: Path) -> None:
    """Capture a pair, in this process."""
    import torch

    from windtunnel.sources.torch.step import capture

    torch.set_num_threads(1)
    workload = build(name)
    for turn in TURNS:
        graph = capture(workload.step, iterations=ITERATIONS, model=workload.models, optimizer=workload.optimizers)
        save(graph, folder / f"{name}.{pair}.{turn}.wt")


def recorded(names: list[str], folder: Path, samples: ProfileDatabase) -> list[str]:
    """Names of workloads of which all pairs could be captured; operators are sampled between the rounds."""
    found = list(names)
    for pair in range(PAIRS):
        calibrate(BUDGET_S, num_threads=1, database=samples, seed=pair)
        found = [name for name in found if is_recorded(name, pair, folder)]
    return found


def is_recorded(name: str, pair: int, folder: Path) -> bool:
    command = [sys.executable, "-m", "benchmarks.priced_suite", "--record", name, str(pair), str(folder)]
    try:
        done = subprocess.run(command, cwd=bar.ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"# {name}: no answer within {TIMEOUT_S} s", file=sys.stderr)
        return False
    if done.returncode:
        print(f"# {name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return not done.returncode


def off(graph: Graph, device: Device, *pricers: object) -> float:
    """Replayed over really run, minus 1."""
    truth = statistics.median(graph.meta.overhead.get("held_out_ns") or graph.meta.iteration_ns["samples"])
    return replay(price(graph, device, pricers)).makespan_ns / truth - 1.0


def without(name: str, names: list[str], samples: ProfileDatabase, folder: Path) -> ProfileDatabase:
    """Calibration samples and what the other workloads taught."""
    kept = ProfileDatabase(":memory:")
    kept.add(samples)
    for other in names:
        if other != name:
            remember(load(folder / f"{other}.0.first.wt"), kept)
    return kept


def rows_of(names: list[str], folder: Path, samples: ProfileDatabase) -> list[dict[str, object]]:
    device = host_device(1, database=samples)
    rows = []
    for name in names:
        others = CalibratedPricer(without(name, names, samples, folder))
        try:
            pairs = [pair_errors(name, pair, others, device, folder) for pair in range(PAIRS)]
        except WindtunnelError as error:
            print(f"# {name}: {error}", file=sys.stderr)
            continue
        rows.append({"workload": name} | {kind: statistics.median(one[kind] for one in pairs) for kind in pairs[0]}
                    | {f"{kind}, least and most": [round(end([one[kind] for one in pairs]), 3) for end in (min, max)]
                       for kind in ("measured", "learned")})  # fmt: skip
    return rows


def pair_errors(name: str, pair: int, others: CalibratedPricer, device: Device, folder: Path) -> dict[str, float]:
    """Errors on one pair of captures, by where prices come from."""
    first, graph = (load(folder / f"{name}.{pair}.{turn}.wt") for turn in TURNS)
    own = ProfileDatabase(":memory:")
    remember(first, own)
    return {
        "measured": off(graph, device, MeasuredPricer(own), others, RooflinePricer()),
        "learned": off(graph, device, others, RooflinePricer()),
        "bound": off(graph, device, RooflinePricer()),
        "replay": replay(graph).makespan_ns / statistics.median(graph.meta.iteration_ns["samples"]) - 1,
    }


def main() -> None:
    if "--record" in sys.argv:
        name, pair, folder = sys.argv[sys.argv.index("--record") + 1 :][:3]
        record(name, int(pair), Path(folder))
        return
    asked = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else list(WORKLOADS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        samples = ProfileDatabase(folder / "profile.db")
        rows = rows_of(recorded(asked, folder, samples), folder, samples)
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
            ranges={str(row["workload"]): row[f"{kind}, least and most"] for row in rows},
            bound_alone={str(row["workload"]): row["bound"] for row in rows},
        )


if __name__ == "__main__":
    main()
