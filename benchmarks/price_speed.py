"""Price a graph of 100,000 nodes for another device: every registered cost model that knows it.

The graph is made of transformer layers of 16 sizes with their operators, shapes and types as a capture writes them;
equal work is found first and priced once. A second graph has no two equal nodes: what looking for equal work costs
where there is none. Times are CPU time of one core, best of the rounds, from the graph to the priced graph.
"""

import json
import time

import numpy as np

from benchmarks.bar import interleave, report
from windtunnel import registry
from windtunnel.cost.pricing import price, tiers_of
from windtunnel.cost.work import work_of
from windtunnel.errors import MissingExtraError, PriceError
from windtunnel.graph import Graph, Kind, ResourceKind, Strings
from windtunnel.hardware import device

NUM_TASKS = 100_000
ROUNDS = 7
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


def models() -> list[str]:
    """Registered models that can price the graph on the device without the roofline's help."""
    found = []
    for name in registry.all("cost_model"):
        try:
            pricer = tiers_of(name)[0][0]
        except MissingExtraError:
            continue
        if pricer.covers(work_of(repeated())[0], device(DEVICE)).any():
            found.append(name)
    return found


def main() -> None:
    chip, same, different = device(DEVICE), repeated(), all_different()
    known = models()

    def timed(model: str, graph: Graph) -> object:
        return lambda: price(graph, chip, model if model == "roofline" else f"{model},roofline")

    runs = {name: timed(name, same) for name in known} | {"roofline, all different": timed("roofline", different)}
    times = {}
    for name, run in runs.items():
        try:
            times |= interleave({name: run}, ROUNDS if "roofline" in name else 2, clock=time.process_time)
        except PriceError as error:
            print(f"# {name}: {error.message}")
    for name in known:
        if name in times:
            limit = LIMITS_S.get(name, 10.0)
            took = times[name].best
            report("price_speed" if name == "roofline" else f"price_speed_{name}", 1e3 * took, f"<= {1e3 * limit:g} ms",
                   took <= limit, num_tasks=NUM_TASKS, num_distinct=len(work_of(same)[0]), spread=times[name].spread,
                   all_different_ms=1e3 * times["roofline, all different"].best)  # fmt: skip


if __name__ == "__main__":
    main()
