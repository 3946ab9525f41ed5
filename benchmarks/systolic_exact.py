"""Cycles of systolic arrays in closed form: equal to every published row and to SCALE-Sim run here; how much faster.

Published: 1,597 products on three arrays, and the reports of three golden runs of the simulator (compute cycles without
stalls, words read and written; stationary outputs count 2,048 words of filler there). Run here: layers of known nets
on 16 x 16, 32 x 32 and 128 x 128 in three dataflows, as many as fit ``BUDGET`` elements of the simulator's own
matrices, drawn with a fixed seed, and two that are large. The peer runs in an environment of its own
(``pip install scalesim "numpy<2" "pandas<3"``): ``--peer-python PATH`` or ``WINDTUNNEL_PEER_SCALESIM``. Times are those
of a core on both sides: its simulation of a layer, our cycles and accesses of the same layer, one call each.
"""

import csv
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.systems.chips.accelerators.systolic import accesses, cycles

PEER = "scalesim"
LEAST_SPEEDUP = 1000
TARGET = f"every row equal, >= {LEAST_SPEEDUP} x faster than the peer"
BUDGET = 150_000_000
MOST_ELEMENTS = 8_000_000
LIMIT_S, LIMIT_GIB = 60, 3
FILLER = 2048
ROUNDS = 20
GOLDEN = {"golden_user_os": (256, 128, 256, "os"), "golden_user_ws": (256, 128, 256, "ws"),
          "golden_calc": (3025, 96, 363, "ws")}  # fmt: skip
LARGE = [
    {"name": "product of 4096", "kind": "gemm", "sizes": [4096, 4096, 4096], "rows": 32, "cols": 32, "dataflow": "os"},
    {
        "name": "product of 8192",
        "kind": "gemm",
        "sizes": [8192, 8192, 1024],
        "rows": 128,
        "cols": 128,
        "dataflow": "ws",
    },
]


def main() -> int:
    """Compare and print the bar; 1 if it does not hold."""
    arguments = bar.peer_arguments(PEER, __doc__)
    folder = find_shared("kernels_hw/scalesim")
    if folder is None:
        return _without("the public tables are not here")
    published, golden = _published(folder), [_golden(folder, name) for name in GOLDEN]
    python = arguments.peer_python or os.environ.get("WINDTUNNEL_PEER_SCALESIM")
    if python is None:
        return _without(f"{PEER} is not at hand: name its python with --peer-python")
    rows = _peer(python, [*_chosen(_cases(folder)), *LARGE])
    finished = [row for row in rows if "cycles" in row]
    ours = {id(row): _ours(row) for row in finished}
    different = [row for row in finished if not _is_equal(row, ours[id(row)][0])]
    spent = sum(seconds for _, seconds in ours.values())
    ratio = sum(row["seconds"] for row in finished) / spent
    pairs_s = _million_pairs()
    exact = published[0] == published[1] and all(golden) and not different
    holds = exact and bool(finished) and ratio >= LEAST_SPEEDUP and pairs_s <= 1
    bar.report(
        "systolic_exact",
        ratio,
        TARGET,
        holds,
        published_rows=published[1],
        published_equal=published[0],
        golden_runs_equal=f"{sum(golden)} of {len(golden)}",
        peer_layers=len(finished),
        peer_equal=len(finished) - len(different),
        peer_s=sum(row["seconds"] for row in finished),
        ours_s=spent,
        peer_ends_early=[f"{row['name']}: {row['failed']}" for row in rows if "failed" in row],
        million_pairs_s=pairs_s,
    )
    if bar.is_verbose():
        print(bar.table([{**row, "sizes": "x".join(map(str, row["sizes"]))} for row in finished]))
    return 0 if holds else 1


def _without(reason: str) -> int:
    bar.report("systolic_exact", float("nan"), TARGET, False, reason=reason)
    return 1


def _published(folder: Path) -> tuple[int, int]:
    """How many published rows are equal, of how many."""
    rows = list(csv.DictReader((folder / "os_cycles.csv").read_text().splitlines()))
    columns = [np.array([int(row[name]) for row in rows]) for name in ("m", "n", "k", "rows", "cols", "cycles")]
    equal = cycles(*columns[:5], "os") == columns[5]
    return int(equal.sum()), len(rows)


def _golden(folder: Path, run: str) -> bool:
    """Whether a run's cycles without stalls and its words are ours."""
    m, n, k, dataflow = GOLDEN[run]
    report, access = (_report(folder / run / f"{name}_REPORT.csv") for name in ("COMPUTE", "DETAILED_ACCESS"))
    found = accesses(m, n, k, 32, 32, dataflow)
    theirs = [access[f"SRAM {name}"] for name in ("IFMAP Reads", "Filter Reads", "OFMAP Writes")]
    ours = [int(found.x), int(found.w), int(found.y) + (FILLER if dataflow == "os" else 0)]
    busy = report["Total Cycles"] - report["Stall Cycles"]
    return busy == int(cycles(m, n, k, 32, 32, dataflow)) and theirs == ours


def _report(path: Path) -> dict[str, float]:
    header, row = (line.split(",") for line in path.read_text().splitlines()[:2])
    return {key.strip(): float(value) for key, value in zip(header, row, strict=True) if value.strip()}


def _cases(folder: Path) -> list[dict[str, Any]]:
    """Every layer of every published net on every array in every dataflow."""
    layers = []
    for path in sorted((folder / "topologies").glob("*.csv")):
        lines = [line.split(",") for line in path.read_text().splitlines()[1:] if line.strip(", ")]
        for line in lines:
            sizes = [int(text) for text in line[1:] if text.strip()]
            layers.append((f"{path.stem} {line[0].strip()}", "gemm" if len(sizes) == 3 else "conv", sizes))
    return [
        {"name": name, "kind": kind, "sizes": sizes, "rows": side, "cols": side, "dataflow": dataflow}
        for name, kind, sizes in layers
        for side in (16, 32, 128)
        for dataflow in ("os", "ws", "is")
    ]


def _chosen(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cases in a fixed order of chance, as long as the simulator's matrices stay within the budget."""
    random.Random(0).shuffle(cases)
    left, found = BUDGET, []
    for case in cases:
        elements = int(_counts(case)[0]) * (case["rows"] + 2 * case["cols"])
        if elements <= min(left, MOST_ELEMENTS):
            left -= elements
            found.append(case)
    return found


def _counts(case: dict[str, Any]) -> tuple[Any, ...]:
    """Cycles and words, as a user would ask for them."""
    sizes = case["sizes"]
    if case["kind"] == "conv":
        height, width, window, window_wide, channels, filters, stride = sizes
        down, across = (-(-(size - side + stride) // stride) for size, side in ((height, window), (width, window_wide)))
        sizes = [down * across, filters, window * window_wide * channels]
    array = (case["rows"], case["cols"], case["dataflow"])
    found = accesses(*sizes, *array)
    return cycles(*sizes, *array), found.x, found.w, found.y


def _ours(case: dict[str, Any]) -> tuple[tuple[int, ...], float]:
    """The counts, and the least of a core's seconds over some rounds."""
    seconds = []
    for _ in range(ROUNDS):
        before = time.process_time()
        counts = _counts(case)
        seconds.append(time.process_time() - before)
    return tuple(int(one) for one in counts), float(np.median(seconds))


def _is_equal(row: dict[str, Any], ours: tuple[int, ...]) -> bool:
    """The simulator's writes of stationary outputs have filler, which only grows them."""
    theirs = (row["cycles"], row["x"], row["w"], row["y"])
    if row["dataflow"] == "os":
        return theirs[:3] == ours[:3] and theirs[3] >= ours[3]
    return theirs == ours


def _peer(python: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    script = Path(__file__).parent / "peers" / "scalesim_layers.py"
    done = subprocess.run(
        [python, "-I", "-W", "ignore", str(script), str(LIMIT_S), str(LIMIT_GIB)],
        input="\n".join(map(json.dumps, cases)),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _million_pairs() -> float:
    """A core's seconds for 1,000 layers on 1,000 arrays."""
    draw = np.random.default_rng(0)
    m, n, k = draw.integers(1, 5000, (3, 1000, 1))
    rows, cols = 2 ** draw.integers(1, 9, (2, 1, 1000))
    before = time.process_time()
    for dataflow in ("os", "ws", "is"):
        cycles(m, n, k, rows, cols, dataflow)
    return (time.process_time() - before) / 3


if __name__ == "__main__":
    sys.exit(main())
