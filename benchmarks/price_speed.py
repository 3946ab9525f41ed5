"""Price a graph of 100,000 nodes for another device: by the roofline, by the tile model, and by compact trees (A12).

The graph is made of transformer layers of 16 sizes with their operators, shapes and types as a capture writes them;
equal work is found first and priced once. A second graph has no two equal nodes: what looking for equal work costs
where there is none. Compact trees price a graph of the tasks of their library, each task by all programs that it has
there. Times are CPU time (of all threads together), best of the rounds, from the graph to the priced graph.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.shared_data import find_shared

from benchmarks.bar import interleave, report
from windtunnel.cost.pricing import price
from windtunnel.cost.work import work_of
from windtunnel.graph import Graph, Kind, ResourceKind, Strings
from windtunnel.hardware import Device, device
from windtunnel.systems.tensor_programs.model.shipped import PREDICTOR, load_shipped_programs
from windtunnel.systems.tensor_programs.run.captured import TENSOR
from windtunnel.systems.tensor_programs.run.tasks import Task

NUM_TASKS = 100_000
ROUNDS = 7
TRAINED_ROUNDS = 3
LIMITS_S = {"roofline": 0.05, "tile": 2.0, "ast": 10.0}
DEVICE = "a100-pcie-80g"


def layer(hidden: int, tokens: int) -> list[tuple[str, list[list[int]], int, int]]:
    """Operators of one layer: name, input shapes, flops, bytes."""
    sizes = [(hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)]
    products = [("aten::mm", [[tokens, n], [n, k]], 2 * tokens * n * k, 4 * (tokens * n + n * k + tokens * k))
                for n, k in sizes]  # fmt: skip
    wide, flat = [tokens, 4 * hidden], [tokens, hidden]
    others = [("aten::gelu", [wide]), ("aten::add", [flat, flat]), ("aten::native_layer_norm", [flat, [hidden]])]
    others += [("aten::_softmax", [[16, tokens, 128]]), ("aten::mul", [flat, flat]), ("aten::sum", [flat])]
    return products + [(name, shapes, int(np.prod(shapes[0])), 8 * int(np.prod(shapes[0]))) for name, shapes in others]


def graph_of(rows: list[tuple[str, list[list[int]], int, int]]) -> Graph:
    names, shapes, flops, moved = zip(*rows, strict=True)
    count = len(rows)
    tasks = {
        "name": Strings.of(names),
        "op": Strings.of(names),
        "kind": np.full(count, int(Kind.COMPUTE)),
        "resource": np.zeros(count),
        "duration_ns": np.zeros(count),
        "flops": np.array(flops),
        "bytes_read": np.array(moved),
        "bytes_written": np.zeros(count),
        "input_shapes": Strings.of(json.dumps(one) for one in shapes),
        "input_dtypes": Strings.of(json.dumps(["Tensor(float)"] * len(one)) for one in shapes),
        "input_strides": Strings.of(json.dumps([]) for _ in shapes),
        "input_args": Strings.of(json.dumps([None] * len(one)) for one in shapes),
    }
    chain = np.arange(count - 1)
    edges = {"src": chain, "dst": chain + 1, "kind": np.ones(count - 1)}
    resources = {"name": ["queue"], "kind": [int(ResourceKind.STREAM)], "discipline": [0], "slots": [1]}
    return Graph.from_columns(tasks, edges, resources)


def repeated() -> Graph:
    kinds = [layer(hidden, tokens) for hidden in (768, 1024, 2048, 4096) for tokens in (128, 512, 1024, 2048)]
    rows = [row for one in kinds for row in one]
    return graph_of((rows * (NUM_TASKS // len(rows) + 1))[:NUM_TASKS])


def all_different() -> Graph:
    rng = np.random.default_rng(0)
    sizes = rng.integers(64, 8192, (NUM_TASKS, 3)).tolist()
    return graph_of([("aten::mm", [[m, n], [n, k]], 2 * m * n * k + row, 4 * (m * n + n * k + m * k))
                     for row, (m, n, k) in enumerate(sizes)])  # fmt: skip


def compiled() -> tuple[Graph, Device] | None:
    """Tasks of the shipped programs, again and again, and the target that they are priced for."""
    programs = load_shipped_programs()
    if programs is None or not PREDICTOR.is_file():
        return None
    tasks = [Task.from_dict(one) for one in programs.tasks]
    rows = [(f"{TENSOR}{task.kind}", [], round(task.flops), task.size_bytes) for task in tasks]
    count = NUM_TASKS // len(tasks) + 1
    texts = [json.dumps(task.to_dict()) for task in tasks] * count
    graph = graph_of((rows * count)[:NUM_TASKS])
    graph = replace(graph, tasks=graph.tasks.replace(input_args=Strings.of(texts[:NUM_TASKS])))
    sheet = programs.devices[0]
    return graph, Device(sheet["name"], 2**34, sheet["bandwidth_bytes_per_s"], kind="cpu")


def trained_tile(folder: Path) -> str:
    """A tile model trained on the public measurements (half a minute); empty where they are not here."""
    data = find_shared("cost")
    if data is None:
        return ""
    file = folder / "tile.safetensors"
    arguments = ["models", "train", "tile", "--data", str(data), "--out", str(file), "--no-calibrate"]
    done = subprocess.run([sys.executable, "-m", "windtunnel", *arguments], capture_output=True, text=True, check=False)
    return f"tile={file},roofline" if done.returncode == 0 else ""


def main() -> None:
    chip, same, different = device(DEVICE), repeated(), all_different()
    clock = time.process_time
    plain = interleave({"same": lambda: price(same, chip, "roofline"),
                        "different": lambda: price(different, chip, "roofline")}, ROUNDS, clock=clock)  # fmt: skip
    sizes = {"num_tasks": NUM_TASKS, "num_distinct": len(work_of(same)[0])}
    took = plain["same"].best
    report("price_speed", 1e3 * took, f"<= {1e3 * LIMITS_S['roofline']:g} ms", took <= LIMITS_S["roofline"], **sizes,
           spread=plain["same"].spread, all_different_ms=1e3 * plain["different"].best)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model = trained_tile(Path(folder))
        if model:
            # from the file to the prices: reading the model counts
            tile = interleave({"tile": lambda: price(same, chip, model)}, TRAINED_ROUNDS, clock=clock)["tile"]
            report("price_speed_tile", 1e3 * tile.best, f"<= {1e3 * LIMITS_S['tile']:g} ms",
                   tile.best <= LIMITS_S["tile"], **sizes, spread=tile.spread)  # fmt: skip
    found = compiled()
    if found is not None:
        graph, target = found
        trees = interleave({"ast": lambda: price(graph, target, "ast")}, TRAINED_ROUNDS, clock=clock)["ast"]
        num_programs = load_shipped_programs().num_programs
        report("price_speed_ast", 1e3 * trees.best, f"<= {1e3 * LIMITS_S['ast']:g} ms", trees.best <= LIMITS_S["ast"],
               num_tasks=NUM_TASKS, num_distinct=len(work_of(graph)[0]), num_programs=num_programs,
               spread=trees.spread)  # fmt: skip


if __name__ == "__main__":
    main()
