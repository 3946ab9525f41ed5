"""Statement features, places, serialization and CMD equal the published vectors; Box-Cox equals scipy (A1, A2).

The vectors, the printed programs that are featurized for time, and the latencies are public data beside the project.
"""

import csv
import gzip
import io
import json
import sys
import time

import numpy as np
from tests.shared_data import find_shared
from tests.systems.tensor_programs.model.golden_nests import GOLDEN, statement_features

from benchmarks.bar import interleave, report
from benchmarks.peers.nest_text import nest_from_printed
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.distance import central_moment_discrepancy
from windtunnel.systems.tensor_programs.model.encoding import encode, positional_encoding, serialize
from windtunnel.systems.tensor_programs.model.nest import Buffer, For, Nest, Store
from windtunnel.systems.tensor_programs.model.transforms import LabelTransform

SPEED = 1500


def equal_rows() -> tuple[int, int]:
    golden = json.loads(find_shared("cost/golden/per_statement_features.json").read_text())
    num_equal = num_rows = 0
    for case in golden["cases"]:
        expected = np.array(case["leaves"])
        rows = statement_features(GOLDEN[case["name"]](), mode="compat", collect="buffer")
        num_rows += len(expected)
        num_equal += int(np.isclose(rows, expected, rtol=1e-5, atol=1e-5).all(axis=1).sum())
    return num_equal, num_rows


def small_goldens() -> bool:
    angles = positional_encoding(np.array(3))[:6]
    published = [0.141120, -0.895910, 0.678109, -0.540480, 0.941596, -0.139623]
    store = Store("x", (0,), 1.0)
    nest = Nest((For("i", 2, (store, For("j", 2, (store,)))),), {"x": Buffer("x", (1,))})
    tree, leaves = serialize(nest)
    distance = central_moment_discrepancy(np.array([[0, 0], [1, 0.0]]), np.array([[0, 0], [0, 1], [0, 0.5]]))
    return (
        bool(np.allclose(angles, published, atol=1e-6))
        and tree.tolist() == [0, 1, 2, -1, 3, 4, -1, -1, -1, -1]
        and leaves.tolist() == [2, 4]
        and encode(nest).positions.tolist() == [2, 5]
        and bool(abs(distance - 1.0826850) < 1e-6)
    )


def programs_per_s() -> tuple[float, int]:
    """Programs of a real network and the published ones, features and serialization, on one core."""
    functions = json.loads(gzip.decompress(find_shared("cost/cdmpp/resnet50_tir_cpu_ast.json.gz").read_bytes()))
    nests = [make() for make in GOLDEN.values()]
    for function in functions.values():
        nest = nest_from_printed(function)
        try:
            encode(nest)
        except InputError:  # more than 16 stores, or none
            continue
        nests.append(nest)
    timing = interleave(
        {"encode": lambda: [encode(nest) for nest in nests]}, rounds=15, warmup=2, clock=time.process_time
    )
    return len(nests) / timing["encode"].median, len(nests)


def box_cox() -> dict[str, float]:
    from scipy import stats

    text = gzip.decompress(find_shared("cost/neusight/train_matmul.csv.gz").read_bytes()).decode()
    seconds = np.array([float(row["latency_ms"]) for row in csv.DictReader(io.StringIO(text))]) * 1e-3
    bent, power = stats.boxcox(seconds)
    transform = LabelTransform.fit("box-cox", seconds)
    ours = transform.forward(seconds) * transform.scale + transform.shift
    back, num_clamped = transform.inverse(transform.forward(seconds))
    return {
        "lambda_error": float(abs(transform.power - power)),
        "transform_error": float(np.abs(ours / bent - 1).max()),
        "round_trip_error": float(np.abs(back / seconds - 1).max()),
        "num_clamped": num_clamped,
        "num_latencies": seconds.size,
    }


def main() -> int:
    if find_shared("cost/golden/per_statement_features.json") is None:
        report("golden_features", float("nan"), "7 of 7 rows", holds=False, reason="the public data is not here")
        return 1
    (num_equal, num_rows), others = equal_rows(), small_goldens()
    speed, num_programs = programs_per_s()
    errors = box_cox()
    exact = errors["lambda_error"] <= 1e-6 and errors["transform_error"] <= 1e-6 and errors["round_trip_error"] <= 1e-9
    holds = num_equal == num_rows == 7 and others and speed >= SPEED and exact
    report(
        "golden_features",
        num_equal,
        f"7 of 7 rows to 1e-5, >= {SPEED} programs/s on one core, Box-Cox as scipy to 1e-6",
        holds,
        num_rows=num_rows,
        places_trees_cmd_equal=others,
        programs_per_s=speed,
        num_programs=num_programs,
        **errors,
    )
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
