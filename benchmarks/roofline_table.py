"""The plain roofline on published measurements, and utilization of published throughputs: both known numbers.

Roofline: mean absolute error of fp32 peaks and bandwidths on 19,859 kernels of six GPUs, class by class. Utilization:
quantiles over some 1,400 vision models on two GPUs, from their multiply-accumulates and images per second.
"""

import csv

import numpy as np
from tests.shared_data import find_shared

from benchmarks.bar import is_verbose, report, table
from windtunnel.cost.operators.physics import roofline_ms
from windtunnel.cost.operators.table import read_op_set, read_sheet

DEVICES = ("a100-40g-pcie", "a100-80g-pcie", "p100-16g-pcie", "p4", "t4", "v100-32g-pcie")
ROOFLINE = {
    "bmm": (0.3520, 0.2926, 0.3011, 0.5096, 0.5675, 0.2548),
    "linear": (0.2425, 0.1632, 0.4030, 0.3094, 0.5371, 0.0956),
    "elementwise": (0.1370, 0.1639, 0.2709, 0.2502, 0.2540, 0.1028),
    "ln": (0.3261, 0.3730, 0.5431, 0.4557, 0.4397, 0.4071),
    "softmax": (0.2966, 0.3349, 0.5459, 0.4275, 0.3695, 0.3761),
}
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHEETS = {  # file of throughputs, peak in TFLOP/s, models, quantiles
    "rtx3090 nchw": ("nchw-pt240-cu124-rtx3090", 71, 1442, (0.0740, 0.2021, 0.3319, 0.4677, 0.7595)),
    "rtx3090 nhwc": ("nhwc-pt240-cu124-rtx3090", 71, 1429, (0.0782, 0.2121, 0.3630, 0.5201, 0.7785)),
    "rtx4090 nchw": ("nchw-pt240-cu124-rtx4090", 165.2, 1444, (0.0406, 0.1122, 0.1980, 0.3003, 0.5780)),
}


def roofline_rows() -> list[dict[str, object]]:
    rows = read_op_set(find_shared("cost/neusight/test_ops.csv.gz"))
    error = np.abs(roofline_ms(rows, read_sheet(find_shared("cost/devices.csv"))) / rows.latency_ms - 1)
    return [
        {"class": name, "device": device, "published": known, "found": float(error[mine].mean())}
        for name, cells in ROOFLINE.items()
        for device, known in zip(DEVICES, cells, strict=True)
        for mine in [(rows.op_class == name) & (rows.device == device)]
    ]


def utilizations(file: str, peak_tflops: float) -> list[float]:
    folder = find_shared("cost/timm_benchmarks")
    path = next(one for one in sorted(folder.glob("*.csv")) if file in one.name)
    with path.open() as lines:
        found = [
            2 * float(row["infer_gmacs"]) * 1e9 * float(row["infer_samples_per_sec"]) / (peak_tflops * 1e12)
            for row in csv.DictReader(lines)
            if row.get("infer_gmacs") and float(row["infer_gmacs"]) > 0 and row.get("infer_samples_per_sec")
        ]
    return sorted(found)


def utilization_rows() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, (file, peak, count, known) in SHEETS.items():
        found = utilizations(file, peak)
        assert len(found) == count, f"{name}: {len(found)} models, published {count}"
        rows += [
            {"sheet": name, "share": share, "published": one, "found": found[int(share * len(found))]}
            for share, one in zip(SHARES, known, strict=True)
        ]
    return rows


def worst(rows: list[dict[str, object]]) -> float:
    return max(abs(float(row["found"]) - float(row["published"])) for row in rows)


def main() -> None:
    roofline, use = roofline_rows(), utilization_rows()
    if is_verbose():
        print(table(roofline), table(use), sep="\n\n")
    far = worst(roofline)
    report("roofline_table", far, "<= 0.001 off the published error", far <= 0.001, cells=len(roofline))
    far = worst(use)
    report("utilization_table", far, "<= 0.0005 off the published quantile", far <= 0.0005, quantiles=len(use))


if __name__ == "__main__":
    main()
