"""What a prediction of the package as it is shipped is worth: its bounds against published measurements on GPUs.

No learned model is shipped, so a device that is not at hand is priced by the bound of its data sheet in the catalog.
Operators: 19,859 kernels in fp32 on six GPUs. Models: 48 whole runs, every operator by its bound, replayed. The answer
of ``windtunnel predict`` states both errors; this bar holds while it states what is measured here.
"""

import numpy as np
from tests.shared_data import find_shared

from benchmarks.bar import is_verbose, report, table
from benchmarks.peers.opgraphs import end_to_end_ms, price_op_graph, read_op_graphs
from benchmarks.unseen_gpu import data, num_layers, published_runs, run_name
from windtunnel.cost.bounds import bounds_on
from windtunnel.cost.operators.physics import bytes_of, flops_of
from windtunnel.cost.operators.table import OpTable, read_op_set
from windtunnel.cost.operators.tile import errors_of_ratio
from windtunnel.cost.roofline import BOUND_ERROR
from windtunnel.hardware import Device, device

NEAR = 0.001


def bound_ms(rows: OpTable, chip: Device) -> np.ndarray:
    """The shipped price of rows of work on one device of the catalog."""
    return bounds_on(chip, flops_of(rows), bytes_of(rows)).bound_ns / 1e6


def operator_ratios() -> tuple[OpTable, np.ndarray]:
    """Published kernels, and predicted over measured time of each."""
    rows = read_op_set(data("neusight/test_ops.csv.gz"))
    ratios = np.zeros(len(rows))
    for name in rows.devices:
        mine = rows.device == name
        ratios[mine] = bound_ms(rows.take(mine), device(name)) / rows.latency_ms[mine]
    return rows, ratios


def model_ratios() -> np.ndarray:
    """Predicted over measured time of each published run on one device without fusion."""
    graphs = read_op_graphs(data("neusight/opgraphs.json.gz"))
    graphs |= read_op_graphs(data("neusight/opgraphs_switch.json.gz"))
    layers, found = num_layers(), []
    for run in published_runs():
        if run["option"]:
            continue
        chip = device(run["device"])
        repeats = 1 if run["model"].startswith("switch") else layers[run["model"]]
        priced = price_op_graph(
            graphs[run_name(run)], chip, lambda rows, chip=chip: bound_ms(rows, chip), num_layers=repeats
        )
        found.append(end_to_end_ms(priced) / float(run["label_e2e_ms"]))
    return np.array(found)


def main() -> None:
    """Print the bar, and with --verbose its table."""
    target = f"within {NEAR} of what the answer states: {BOUND_ERROR}"
    if find_shared("cost/neusight") is None:
        report("predict_accuracy", 1.0, target, holds=False, reason="public data is not here")
        return
    rows, ratios = operator_ratios()
    found = {"operators": errors_of_ratio(ratios), "models": errors_of_ratio(model_ratios())}
    if is_verbose():
        cells = [
            (name, chip, (rows.op_class == name) & (rows.device == chip))
            for name in sorted(set(rows.op_class))
            for chip in rows.devices
        ]
        print(table([{"class": name, "device": chip, **errors_of_ratio(ratios[mine])} for name, chip, mine in cells]))
    off = max(abs(found[name]["mape"] - stated) for name, stated in BOUND_ERROR.items())
    report(
        "predict_accuracy",
        100 * found["models"]["mape"],
        target,
        off <= NEAR,
        errors=found,
        share_under_bound=float((ratios > 1).mean()),
        num_operators=len(rows),
    )


if __name__ == "__main__":
    main()
