"""What DLIO publishes, recomputed: checkpoints to the byte, workloads equal, the shipped run to 0.01 points.

Throughput and AU by DLIO's formulas are also compared with the formulas written out, on random times of steps.
"""

import json
import sys

import numpy as np
from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.systems.dataio.checkpoint_sizes import checkpoint_layout, num_parameters
from windtunnel.systems.dataio.config_file import load_config, parse_config, to_mapping, workload_names
from windtunnel.systems.dataio.metrics import BlockTimes
from windtunnel.systems.dataio.results import read_results

TARGET = "AU of the shipped run within 0.01 points, formulas within 1e-9, checkpoint sizes and workloads equal"


def checkpoint_errors(path) -> dict[str, int]:
    """Bytes and parameters by which published checkpoints differ."""
    errors = {}
    for name, entry in json.loads(path.read_text())["checkpoints"].items():
        shape = dict(entry["transformer"])
        model = {"num_layers": shape.pop("num_layers"), "transformer": shape, "parallelism": entry["parallelism"]}
        config = parse_config({"model": model})
        layout = checkpoint_layout(config, entry["num_ranks"])
        errors[name] = abs(entry["num_parameters"] - num_parameters(config.model)) + sum(
            abs(round(entry[f"{kind}_state_gib"] * 2**30) - layout.num_bytes(kind)) for kind in ("model", "optimizer")
        )
    return errors


def formula_error(rounds: int = 2000) -> float:
    """Largest relative difference of AU and throughput from the formulas written out."""
    random, worst = np.random.default_rng(0), 0.0
    for _ in range(rounds):
        n, batch, start, end = int(random.integers(4, 60)), int(random.integers(1, 64)), 1, int(random.integers(0, 2))
        load, compute = random.random(n), random.random(n)
        wall = float((load + compute).sum() + random.random())
        block = BlockTimes(load, compute, wall, batch)
        time = wall - sum((load + compute)[:start]) - sum((load + compute)[n - end :])
        expected = (sum(compute[start : n - end]) / time, (n - 2) * batch / time)
        found = (block.au_ratio(start, end), block.samples_per_s(start, end, is_dlio=True))
        worst = max(worst, *(abs(a / b - 1) for a, b in zip(found, expected, strict=True)))
    return worst


def main() -> bool:
    folder = find_shared("serve/dlio")
    if folder is None:
        return bar.report("dlio_compatible", float("nan"), TARGET, False, reason="public data are not here")
    run = read_results(folder / "reference_run")
    found = run.metrics().au_ratios  # the version that wrote it left out the first step
    points = max(100.0 * abs(a - b) for a, b in zip(found, run.reported_au_ratios, strict=True))
    workloads = json.loads((folder / "workloads.json").read_text())["workloads"]
    unequal = [
        name
        for name, sections in workloads.items()
        if to_mapping(parse_config(sections)) != to_mapping(load_config(name))
    ]
    checks = {
        "run": bool(points <= 0.01),
        "formulas": bool((worst := float(formula_error())) <= 1e-9),
        "checkpoints": not any((sizes := checkpoint_errors(folder / "checkpoint_sizes.json")).values()),
        "workloads": not unequal,
        "shipped": all(not load_config(name).warnings for name in workload_names()),
    }
    return bar.report(
        "dlio_compatible", points, TARGET, all(checks.values()), checks=checks, formula_error=worst,
        checkpoint_errors=sizes, num_workloads=len(workloads), unequal=unequal,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
