"""Results that the forward pass keeps for the backward pass.

In: a graph with data edges and sizes. Out: one row per kept result, and the edit that lets it go in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Phase
from windtunnel.whatifs.layer_gradients import positions

__all__ = ["Activation", "activations_of", "release"]


@dataclass(frozen=True, slots=True)
class Activation:
    """One result: the forward task that makes it, its bytes, its layer, the backward tasks that read it, in order."""

    row: int
    size_bytes: int
    layer: str
    readers: tuple[int, ...]


def activations_of(graph: Graph, minimum_bytes: int = 1) -> list[Activation]:
    """Results of forward tasks that backward tasks read, in the order in which they are made.

    Raises
    ------
    NotApplicableError
        None is known, or none is as large as ``minimum_bytes``.
    """
    edges, tasks = graph.edges, graph.tasks
    if "output_bytes" not in tasks or "phase" not in tasks:
        raise NotApplicableError("sizes of results are not recorded", where="column output_bytes")
    phase, size_bytes = tasks["phase"], tasks["output_bytes"]
    kept = (edges["kind"] == EdgeKind.DATA) & (phase[edges["src"]] == Phase.FORWARD)
    kept &= (phase[edges["dst"]] == Phase.BACKWARD) & (size_bytes[edges["src"]] >= minimum_bytes)
    index = positions(graph)
    readers: dict[int, list[int]] = {}
    for row, reader in zip(edges["src"][kept].tolist(), edges["dst"][kept].tolist(), strict=True):
        readers.setdefault(row, []).append(reader)
    if not readers:
        raise NotApplicableError(
            f"no forward task keeps a result of {minimum_bytes} bytes or more for the backward pass",
            where="data edges from phase FORWARD to BACKWARD",
        )
    layers = tasks.get("layer")
    return [
        Activation(
            row,
            int(size_bytes[row]),
            "" if layers is None else layers.decode(row),
            tuple(sorted(set(readers[row]), key=lambda reader: int(index[reader]))),
        )
        for row in sorted(readers, key=lambda row: int(index[row]))
    ]


def release(graph: Graph, activations: list[Activation]) -> Graph:
    """Drop the data edges to the backward readers: nothing keeps these results over the forward pass any more."""
    edges = graph.edges
    kept = np.zeros(graph.num_tasks, dtype=bool)
    kept[[activation.row for activation in activations]] = True
    to_backward: NDArray[np.bool_] = graph.select(phase=Phase.BACKWARD)[edges["dst"]]
    return graph.disconnect(kept[edges["src"]] & to_backward & (edges["kind"] == EdgeKind.DATA))
