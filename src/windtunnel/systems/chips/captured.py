"""A captured training step as a model for the search: its blocks become the one layer that repeats.

In: the graph of one process, how many samples its step has. Out: a ``Model`` per microbatch, of tensor degree 1: what
comes before the blocks, one block, what comes behind them with the loss. Another microbatch has the work of the resized
graph, and tensors in proportion. Not here: finding the blocks (``search.blocks``), published networks
(``networks``).
"""

# T tasks

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from windtunnel.errors import InputError
from windtunnel.graph import Graph, Strings
from windtunnel.search.blocks import blocks_of
from windtunnel.search.placement.from_graph import nodes_of, step_of
from windtunnel.systems.chips.layers import Layers, layers_of
from windtunnel.systems.chips.model import Model
from windtunnel.whatifs.another_batch import with_batch

__all__ = ["models_of_graph"]

_PARTS = ("before", "block", "behind")
_SIZES = ("output_bytes", "freed_bytes")


def models_of_graph(name: str, graph: Graph, num_samples: int, microbatches: Sequence[int]) -> dict[int, Model]:
    """Models by samples of a microbatch.

    Parameters
    ----------
    name : str
    graph : Graph
        One training step of one process, with shapes.
    num_samples : int
        Samples of that step.
    microbatches : sequence of int

    Raises
    ------
    InputError
        The graph has several ranks or no shapes, or does not say how many samples its step has.
    NotApplicableError
        It has no equal blocks.
    """
    if num_samples < 1:
        raise InputError("the graph does not show how many samples its step has", where=name, fix="give --samples N")
    wrong = [microbatch for microbatch in microbatches if microbatch < 1]
    if wrong:
        raise InputError(f"a microbatch cannot be {wrong[0]}", where="microbatch", fix="give a whole number above 0")
    result = {}
    for size in microbatches:
        resized = graph if size == num_samples else with_batch(graph, num_samples, size)
        result[size] = _model(name, resized, num_samples, size)
    return result


def _model(name: str, graph: Graph, num_samples: int, microbatch: int) -> Model:
    step = graph.remove(~step_of(graph, None), keep_gaps=False)
    work = np.asarray(step.tasks.get("flops", np.ones(step.num_tasks, np.int64)))  # blocks are those with most of it
    blocks = blocks_of(step.set_duration(step.all_tasks, work), num_samples).resize_tensors(microbatch)
    ratio = microbatch / num_samples
    sizes = {item: np.round(step.tasks[item] * ratio).astype(np.int64) for item in _SIZES if item in step.tasks}
    messages = step.tasks.get("message_bytes", np.zeros(step.num_tasks, np.int64))
    # Before, the first block, or behind, by task; empty in the other blocks, which are like the first.
    known, node_T = nodes_of(step)
    unit_N = np.array([blocks.unit_of.get(name, blocks.num_units - 1) for name, _ in known])
    part_U = [_PARTS[0], _PARTS[1], *[""] * (blocks.num_blocks - 1), _PARTS[2], _PARTS[2]]
    parted = step.with_columns(
        **sizes,
        layer=Strings.of([part_U[unit_N[node]] if node >= 0 else "" for node in node_T.tolist()]),
        message_bytes=messages,
    )
    created = layers_of(parted, names=_PARTS)
    weights_U = blocks.weight_bytes
    weights = (weights_U[0], weights_U[1], weights_U[blocks.num_blocks + 1 :].sum())
    layers = tuple(
        dataclasses.replace(layer, param_bytes=int(size)) for layer, size in zip(created.layers, weights, strict=True)
    )
    sent = np.array([blocks.crossing_bytes(1), blocks.crossing_bytes(2)]).astype(np.int64)
    return Model(name, microbatch, {1: Layers(layers, np.array([0, 1]), np.array([1, 2]), sent, 1)}, blocks.num_blocks)
