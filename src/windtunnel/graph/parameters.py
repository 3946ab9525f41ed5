"""Which parameters a graph trains.

In: a graph whose ``meta`` says so. Out: bytes and shapes by name and by layer, in order of registration, and what the
optimizers keep of them. Not here: when their gradients are there.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from windtunnel.graph.graph import Graph

__all__ = ["optimizer_state_ratio", "parameter_bytes_by_layer", "parameter_bytes_by_name", "parameter_shapes"]

_PARAMETER_KEYS = ("parameters", "shapes", "dtypes")
_DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_UNKNOWN_STATES = 2.0  # of the most frequent optimizer, Adam


def parameter_bytes_by_name(graph: Graph) -> dict[str, int]:
    """Bytes of each trained parameter by full name, in order of registration; empty where the capture does not say.

    Read from ``meta.parameters`` (bytes by name), else from the parameters of ``meta.optimizers``.
    """
    known = graph.meta.parameters
    if known:
        return {str(name): int(size_bytes) for name, size_bytes in known.items()}
    return {
        name: math.prod(shape) * _DTYPE_BYTES.get(dtype, 4) for name, shape, dtype in _list_trained_parameters(graph)
    }


def parameter_bytes_by_layer(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Bytes of the trained parameters of each layer, in order of registration; empty where the capture does not say."""
    sizes: dict[str, list[int]] = {}
    for name, size_bytes in parameter_bytes_by_name(graph).items():
        sizes.setdefault(name.rpartition(".")[0], []).append(size_bytes)
    return {layer: tuple(size) for layer, size in sizes.items()}


def parameter_shapes(graph: Graph, layers: Collection[str] | None = None) -> list[tuple[int, ...]]:
    """Shapes of the trained parameters, in order of registration; empty where the capture does not say.

    ``layers`` leaves out those of all others.
    """
    return [
        shape
        for name, shape, _ in _list_trained_parameters(graph)
        if layers is None or name.rpartition(".")[0] in layers
    ]


def optimizer_state_ratio(graph: Graph) -> float:
    """Bytes that the optimizers of a rank keep from step to step, over those of the trained parameters.

    As the capture counted them; 2, as Adam keeps, where it does not say.
    """
    counts = [optimizer.get("state_bytes") for optimizer in graph.meta.optimizers]
    parameter_bytes = sum(parameter_bytes_by_name(graph).values())
    if not counts or None in counts or not parameter_bytes:
        return _UNKNOWN_STATES
    return sum(int(count) for count in counts if count is not None) / parameter_bytes


def _list_trained_parameters(graph: Graph) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of what the optimizers train."""
    frozen = set(graph.meta.program.get("frozen", ()))
    groups = [group for optimizer in graph.meta.optimizers for group in optimizer.get("groups", ())]
    return [
        (str(name), tuple(shape), str(dtype))
        for group in groups
        for name, shape, dtype in zip(*(group.get(key, ()) for key in _PARAMETER_KEYS), strict=True)
        if name not in frozen
    ]
