"""Small captured programs, written down by hand."""

from __future__ import annotations

import itertools
from typing import Any

from windtunnel.cost.rerun import Call, Program
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind

FLOAT, LONG = "Tensor(float)", "Tensor(long int)"


def tensor(identity: int, shape: list[int], kind: str = FLOAT) -> tuple[Any, Any, str, Any]:
    """A recorded tensor: value, shape, type, stride."""
    count, stride = 1, []
    for size in reversed(shape):
        stride.insert(0, count)
        count *= size
    return [identity, identity, 0, count, 4, "cpu"], shape, kind, stride


def number(value: Any, kind: str = "Int") -> tuple[Any, Any, str, Any]:
    """A recorded argument that is no tensor."""
    return value, [], kind, []


def call_row(schema: str, inputs: list[Any], outputs: list[Any], grad: bool = True) -> dict[str, Any]:
    """One call as a capture keeps it."""
    return {
        "schema": schema,
        "inputs": [one[0] for one in inputs],
        "shapes": [one[1] for one in inputs],
        "types": [one[2] for one in inputs],
        "strides": [one[3] for one in inputs],
        "outputs": [one[0] for one in outputs],
        "output_shapes": [one[1] for one in outputs],
        "output_types": [one[2] for one in outputs],
        "grad": grad,
    }


LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
RELU = "aten::relu(Tensor self) -> Tensor"
LOSS = (
    "aten::cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, "
    "SymInt ignore_index=-100, float label_smoothing=0.) -> Tensor"
)


def perceptron_rows(batch: int = 16, width: int = 32, classes: int = 4) -> list[dict[str, Any]]:
    """Two layers, a loss, its backward pass, an update."""
    return [
        call_row(
            LINEAR,
            [tensor(1, [batch, width]), tensor(2, [width, width]), tensor(3, [width])],
            [tensor(4, [batch, width])],
        ),
        call_row(RELU, [tensor(4, [batch, width])], [tensor(5, [batch, width])]),
        call_row(
            LINEAR,
            [tensor(5, [batch, width]), tensor(6, [classes, width]), tensor(7, [classes])],
            [tensor(8, [batch, classes])],
        ),
        call_row(
            LOSS,
            [
                tensor(8, [batch, classes]),
                tensor(9, [batch], LONG),
                number("<None>", "None"),
                number(1),
                number(-100),
                number(0.0, "Double"),
            ],
            [tensor(10, [])],
        ),
        {"mark": "backward"},
        {"mark": "update"},
    ]


PARAMETERS = {2: "0.weight", 3: "0.bias", 6: "2.weight", 7: "2.bias"}
LAYERS = ["0", "1", "2", ""]


def perceptron(**sizes: int) -> Program:
    """The program of the rows."""
    calls = [
        Call(**row, layer=layer, phase=Phase.FORWARD)
        for row, layer in zip(perceptron_rows(**sizes), [*LAYERS, "", ""], strict=True)
    ]
    return Program(tuple(calls), dict(PARAMETERS), frozenset(), 1)


def perceptron_graph(**sizes: int) -> Graph:
    """A graph as a capture makes it: the perceptron's operators, 100 ns each, Python between them."""
    builder = GraphBuilder()
    cpu = builder.resource("main thread", ResourceKind.HOST_THREAD)
    rows = []

    def task(name: str, phase: Phase, call: int, layer: str = "", kind: Kind = Kind.COMPUTE, **columns: Any) -> None:
        rows.append(
            builder.task(
                name, kind=kind, resource=cpu, duration_ns=100, op=name, phase=phase, call=call, layer=layer, **columns
            )
        )

    for place, layer in enumerate(LAYERS):
        task("python", Phase.FORWARD, -1, layer, Kind.HOST, output_bytes=0, freed_bytes=0)
        task("aten::forward", Phase.FORWARD, place, layer, output_bytes=1000, freed_bytes=0)
    for place in reversed(range(len(LAYERS))):
        task("aten::backward", Phase.BACKWARD, place, LAYERS[place], output_bytes=0, freed_bytes=1000)
    for name in ("Optimizer.step#SGD.step", "aten::add_", "aten::add_"):
        kind = Kind.HOST if name.startswith("Optimizer") else Kind.COMPUTE
        task(name, Phase.UPDATE, -1, kind=kind, output_bytes=0, freed_bytes=0)
    for src, dst in itertools.pairwise(rows):
        builder.edge(src, dst, kind=EdgeKind.ORDER)
    options = {"lr": 0.1, "momentum": 0.9, "foreach": None, "fused": None}
    width, classes = sizes.get("width", 32), sizes.get("classes", 4)
    group = {
        "options": options,
        "parameters": list(PARAMETERS.values()),
        "shapes": [[width, width], [width], [classes, width], [classes]],
        "dtypes": ["float32"] * 4,
    }
    return builder.build(
        {
            "source": "torch step",
            "hardware": {"num_threads": 1},
            "program": {
                "parameters": {str(key): name for key, name in PARAMETERS.items()},
                "frozen": [],
                "calls": perceptron_rows(**sizes),
            },
            "optimizers": [{"class": "torch.optim.sgd.SGD", "groups": [group]}],
        }
    )
