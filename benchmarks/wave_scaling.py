"""Kernels measured on some GPUs, priced for another by wave scaling (NeuSight's measurements, each GPU left out).

Large shapes on six GPUs. Vector operators run the same code everywhere and are scaled (Habitat's form, or by keeping
the efficiency); matrix products are scaled, too, and priced by a network as a ratio that has learned from small shapes
on the other GPUs. The roofline stands beside: it needs no measurement. ``--paper`` trains the published network (8
layers of 1024, 80 epochs) for one held-out GPU instead of the small one for all, which takes long without a GPU.
"""

import argparse
import gzip
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.csv
from tests.shared_data import find_shared

from benchmarks import bar
from benchmarks.peers.wave import Launches, keep_efficiency, pool, wave_scale
from benchmarks.peers.wave_network import (
    PRESETS,
    Operators,
    RatioNetwork,
    RatioSettings,
    device_features,
    fit_ratio_network,
)
from windtunnel.cost.bounds import Bounds, bounds_on
from windtunnel.cost.operators.physics import bytes_of, flops_of
from windtunnel.cost.operators.table import CLASSES, PRODUCTS, OpTable, read_op_set, read_sheet
from windtunnel.hardware import Device

VECTOR = tuple(name for name in CLASSES if name not in PRODUCTS)
MOST = 0.6
NUM_ROWS = 10_000

Errors = dict[tuple[str, str, str], float]


def bound(table: OpTable, device: Device) -> Bounds:
    return bounds_on(device, flops_of(table), bytes_of(table), overhead_ns=0.0, is_cached=False)


def launches(path: Path) -> Launches:
    """Blocks and threads of the rows of an op set."""
    with gzip.open(path) as file:
        columns = pyarrow.csv.read_csv(file)
    return Launches(columns["grid"].to_numpy(), columns["block"].to_numpy())


def pairs(table: OpTable, target: str, op_class: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(origin, rows there, rows of the same work on the target)."""
    keys = list(zip(table.op, table.B, table.M, table.N, table.K, table.H, strict=True))
    is_class = table.op_class == op_class
    wanted = {keys[row]: row for row in np.flatnonzero(is_class & (table.device == target)).tolist()}
    for origin in table.devices:
        if origin != target:
            here = np.flatnonzero(is_class & (table.device == origin)).tolist()
            matched = [(row, wanted[keys[row]]) for row in here if keys[row] in wanted]
            yield origin, *np.array(matched).T


def operators(table: OpTable, sheet: dict[str, Device]) -> Operators:
    sizes = np.column_stack([table.B, table.M, table.N, table.K])
    limits = np.zeros(len(table))
    for name in table.devices:
        rows = table.device == name
        limits[rows] = bound(table.take(rows), sheet[name]).bound_ns
    features = {name: device_features(sheet[name]) for name in table.devices}
    return Operators(sizes, np.array([features[name] for name in table.device]), limits, 1e6 * table.latency_ms)


def network(table: OpTable, sheet: dict[str, Device], settings: RatioSettings, num_rows: int) -> RatioNetwork:
    rows = np.random.default_rng(0).permutation(len(table))[:num_rows]
    return fit_ratio_network(operators(table.take(rows), sheet), settings)


def errors(
    table: OpTable, counts: Launches, sheet: dict[str, Device], target: str, op_class: str, net: RatioNetwork | None
) -> Errors:
    """Mean relative error by method, from one origin (mean over origins) and pooled."""
    alone, together = defaultdict(list), defaultdict(dict)
    for origin, here, there in pairs(table, target, op_class):
        truth_ns, here_ns = 1e6 * table.latency_ms[there], 1e6 * table.latency_ms[here]
        flops, moved = flops_of(table.take(here)), bytes_of(table.take(here))
        launched = Launches(counts.num_blocks[here], counts.threads_per_block[here])
        on_origin, on_target = bound(table.take(here), sheet[origin]), bound(table.take(there), sheet[target])
        devices = sheet[origin], sheet[target]
        known = {"flops": flops, "bytes_moved": moved, "launches": launched}
        found = {
            "roofline": on_target.bound_ns,
            "keep efficiency": keep_efficiency(here_ns, on_origin, on_target),
            "wave": wave_scale(here_ns, *devices, **known),
            "wave, paper's form": wave_scale(here_ns, *devices, **known, form="paper"),
        }
        if net is not None:
            rows = operators(table.take(here), sheet), operators(table.take(there), sheet)
            found["network as ratio"] = net.transfer_ns(here_ns, *rows)
            found["network"] = net.duration_ns(rows[1])
        for method, predicted in found.items():
            alone[method].append(float(np.abs(predicted / truth_ns - 1).mean()))
            for row, value in zip(there.tolist(), predicted.tolist(), strict=True):
                together[method].setdefault(row, []).append(value)
    result: Errors = {(op_class, method, "one"): statistics.mean(values) for method, values in alone.items()}
    for method, values in together.items():
        most = max(map(len, values.values()))
        padded = np.array([[*one, *[np.nan] * (most - len(one))] for one in values.values()]).T
        truth_ns = 1e6 * table.latency_ms[list(values)]
        result[op_class, method, "pooled"] = float(np.abs(pool(padded)[0] / truth_ns - 1).mean())
    return result


def main() -> None:
    """Print the bar, and with --verbose its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="print the table, not only the line")
    parser.add_argument("--paper", metavar="GPU", help="the published network, for this held-out GPU only")
    parser.add_argument("--rows", type=int, default=NUM_ROWS, help="training rows per class")
    options = parser.parse_args()
    folder = find_shared("cost/neusight")
    if folder is None:
        bar.report("wave_scaling", 1.0, f"<= {MOST} x roofline", holds=False, reason="public data is not here")
        return
    sheet = read_sheet(folder.parent / "devices.csv")
    test, counts = read_op_set(folder / "test_ops.csv.gz"), launches(folder / "test_ops.csv.gz")
    small = read_op_set(folder / "train_matmul.csv.gz")
    preset = "paper" if options.paper else "small"
    by_device: dict[str, Errors] = {}
    for target in [options.paper] if options.paper else test.devices:
        by_device[target] = {}
        for op_class in CLASSES:
            seen = small.of_class(op_class).take(small.of_class(op_class).device != target)
            net = network(seen, sheet, PRESETS[preset], options.rows) if op_class in PRODUCTS else None
            by_device[target] |= errors(test, counts, sheet, target, op_class, net)
    mean = {key: statistics.mean(found[key] for found in by_device.values()) for key in next(iter(by_device.values()))}
    if bar.is_verbose():
        shown = {**by_device, "mean": mean}
        print(bar.table([dict(zip(("class", "method", "origins"), key, strict=True)) | {
            device: round(found[key], 3) for device, found in shown.items()} for key in mean]))  # fmt: skip
    ratios = {name: mean[name, "wave", "pooled"] / mean[name, "roofline", "pooled"] for name in CLASSES}
    value = max(ratios[name] for name in VECTOR)
    bar.report(
        "wave_scaling",
        value,
        f"<= {MOST} x the roofline's error in every vector class, below it for products",
        value <= MOST and all(ratios[name] < 1 for name in PRODUCTS),
        ratios=ratios,
        num_devices=len(by_device),
        network=preset,
        mape={f"{name}, {method}, {origins}": error for (name, method, origins), error in mean.items()},
    )


if __name__ == "__main__":
    main()
