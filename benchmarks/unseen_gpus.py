"""Every GPU priced by a model that has seen nothing of its chip: each chip of the public data is left out in turn.

Variants of one chip (the A100 with 40 and with 80 GB) are left out together. For each chip the tile model is trained
as ``windtunnel models train tile`` does, intervals included, on a sample of the published training kernels of the
others; an AMD chip also learns from the other AMD chip. Tested on the published large shapes, and on published whole
runs, replayed, beside NeuSight's published predictions of the same runs (NeuSight learned from the five trained
NVIDIA chips). An answer is kept under the digest of data and model, so that a run that was cut off goes on where it
was.
"""

import hashlib
import inspect
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bar import is_verbose, report, table
from benchmarks.unseen_gpu import Row, data, model_rows, published_runs
from windtunnel.cost import bounds, intervals
from windtunnel.cost.operators import physics, tile, tile_features, tile_lookup, tile_trees
from windtunnel.cost.operators.table import CLASSES, OpTable, read_op_set, read_sheet
from windtunnel.cost.operators.tile import TilePrices, errors_of_ratio, train_tile
from windtunnel.hardware import Device

MOST_MEDIAN, MOST_WORST = 0.09, 0.15
MOST_ABOVE_NEUSIGHT = 1.1
COVERED = (0.85, 0.95)
NUM_WORKERS = 2
MOST_ROWS = 2000
"""Of one class on one device to learn from; all of them take hours with intervals for every chip."""
MATRIX_TFLOPS = {"mi100": 46.1, "mi210": 45.3}
"""The sheet's note: products in fp32 run on matrix units there."""

Answer = dict[str, Any]


def chips(devices: tuple[str, ...], sheet: dict[str, Device]) -> dict[str, tuple[str, ...]]:
    """Devices by chip: those with the same architecture, units and peak."""
    found: dict[tuple[object, ...], list[str]] = {}
    for name in devices:
        one = sheet[name]
        found.setdefault((one.architecture, one.num_units, one.flops_per_s("fp32")), []).append(name)
    return {names[0]: tuple(names) for names in found.values()}


def read_all() -> tuple[OpTable, OpTable, dict[str, Device]]:
    """Kernels to learn from, kernels to test on, and the sheet; those of AMD are in both."""
    amd = read_op_set(data("neusight/amd_ops.csv.gz"))
    learned = read_op_set(data("neusight/train_matmul.csv.gz"), data("neusight/train_vector.csv.gz"))
    sheet = read_sheet(data("devices.csv"))
    for name, tflops in MATRIX_TFLOPS.items():
        sheet[name] = replace(sheet[name], peak_flops_per_s={"fp32": 1e12 * tflops})
    return some(learned.concat([amd])), read_op_set(data("neusight/test_ops.csv.gz")).concat([amd]), sheet


def some(rows: OpTable) -> OpTable:
    """At most ``MOST_ROWS`` of each class on each device, by chance."""
    cells = np.unique(np.char.add(rows.device.astype(str), rows.op_class.astype(str)), return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(len(rows))
    kept = [order[cells[order] == cell][:MOST_ROWS] for cell in range(cells.max() + 1)]
    return rows.take(np.sort(np.concatenate(kept)))


def may_learn(chip: str, device: str, left_out: tuple[str, ...]) -> bool:
    """Whether the model of a chip may see a device; AMD's kernels are offered to AMD's chips alone."""
    return device not in left_out and (device not in MATRIX_TFLOPS or chip in MATRIX_TFLOPS)


def coverage(prices: TilePrices, measured_ms: np.ndarray, rows: np.ndarray) -> float:
    inside = (prices.low_ms <= measured_ms) & (measured_ms <= prices.high_ms)
    return float(inside[rows].mean())


def answer_of(chip: str, left_out: tuple[str, ...]) -> Answer:
    """Train without a chip and test on it; every number that the bar needs."""
    learned, test, sheet = read_all()
    devices = [name for name in learned.devices if may_learn(chip, name, left_out)]
    model = train_tile(learned.on(*devices), sheet)
    rows = test.on(*left_out)
    prices = model.price(rows, sheet)
    cells = []
    for device in rows.devices:
        for name in CLASSES:
            mine = (rows.op_class == name) & (rows.device == device)
            errors = errors_of_ratio(prices.latency_ms[mine] / rows.latency_ms[mine])
            inside = coverage(prices, rows.latency_ms, mine)
            cells.append({"device": device, "class": name, "rows": int(mine.sum()), **errors, "covered": inside})
    covered = {name: coverage(prices, rows.latency_ms, rows.device == name) for name in rows.devices}
    runs = [run for run in published_runs(is_amd=chip in MATRIX_TFLOPS) if run["device"] in left_out]
    return {"learned": devices, "cells": cells, "covered": covered, "runs": model_rows(model, sheet, runs)}


def kept_answer(chip: str, left_out: tuple[str, ...], version: str) -> Answer:
    """The answer of an earlier run on the same data with the same model, or a new one, which is kept."""
    path = Path(tempfile.gettempdir()) / f"windtunnel-unseen-gpus-{os.getuid()}" / f"{chip}-{version}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(answer_of(chip, left_out)))
        scratch.replace(path)
    found: Answer = json.loads(path.read_text())
    return found


def digest() -> str:
    """Hash of the code that learns and prices, of this script, and of the data."""
    modules = (bounds, intervals, physics, tile, tile_features, tile_lookup, tile_trees)
    found = hashlib.sha256(Path(__file__).read_bytes())
    for module in modules:
        found.update(inspect.getsource(module).encode())
    for path in sorted(data("neusight").iterdir()):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def end_to_end(answers: dict[str, Answer], is_fused: bool) -> dict[str, dict[str, dict[str, float]]]:
    """Errors by device, ours and NeuSight's."""
    runs = [run for answer in answers.values() for run in answer["runs"] if bool(run["option"]) == is_fused]
    return {
        device: {
            name: errors_of_ratio(np.array([run[name] for run in runs if run["device"] == device]))
            for name in ("ours", "neusight")
        }
        for device in sorted({run["device"] for run in runs})
    }


def report_models(answers: dict[str, Answer]) -> None:
    plain, fused = (end_to_end(answers, is_fused) for is_fused in (False, True))
    ours, neusight = ({device: one[name]["mape"] for device, one in plain.items()} for name in ("ours", "neusight"))
    median, worst = float(np.median(list(ours.values()))), max(ours.values())
    above = [device for device in ours if ours[device] > MOST_ABOVE_NEUSIGHT * neusight[device]]
    report(
        "unseen_gpus_models",
        100 * median,
        "median over left-out GPUs <= 9 %, worst <= 15 %, none above 1.1 x NeuSight's published",
        median <= MOST_MEDIAN and worst <= MOST_WORST and not above,
        worst_percent=100 * worst,
        above_neusight=above,
        by_device=plain,
        fused=fused,
    )


def report_operators(answers: dict[str, Answer]) -> None:
    cells = [cell for answer in answers.values() for cell in answer["cells"]]
    covered = {device: share for answer in answers.values() for device, share in answer["covered"].items()}
    least, most = COVERED
    report(
        "unseen_gpus_intervals",
        100 * min(covered.values()),
        "of nominal 90 % intervals, 85 to 95 % of the kernels inside on every left-out GPU",
        all(least <= share <= most for share in covered.values()),
        covered_percent={device: 100 * share for device, share in covered.items()},
        by_class_percent={f"{one['device']} {one['class']}": 100 * one["covered"] for one in cells},
        operators_mape={f"{one['device']} {one['class']}": one["mape"] for one in cells},
        operators_signed={f"{one['device']} {one['class']}": one["signed_mean"] for one in cells},
    )


def rows_of(answers: dict[str, Answer], kind: str) -> Iterator[Row]:
    for answer in answers.values():
        yield from answer[kind]


def main() -> None:
    _, test, sheet = read_all()
    groups = chips(test.devices, sheet)
    with ProcessPoolExecutor(NUM_WORKERS, mp_context=get_context("spawn")) as pool:
        found = pool.map(kept_answer, groups, groups.values(), [digest()] * len(groups))
        answers = dict(zip(groups, found, strict=True))
    if is_verbose():
        print(table(list(rows_of(answers, "cells"))), table(list(rows_of(answers, "runs"))), sep="\n\n")
    report_models(answers)
    report_operators(answers)


if __name__ == "__main__":
    main()
