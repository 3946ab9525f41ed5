"""Convolutions on multipliers that skip zeros (what-if family "accelerators").

In: a graph that knows how dense its layers' inputs and gradients are. Out: each such layer takes the share of its time
that its cycles on a grid that skips zeros are of its dense cycles there; layers that win nothing stay as they are.
Source: Sarma et al., Exploiting Activation based Gradient Output Sparsity to Accelerate Backpropagation in CNNs, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.graph.kernel_classes import MATRIX_CLASSES, class_of
from windtunnel.hardware import device
from windtunnel.hardware.accelerators import Accelerator
from windtunnel.simulate.limits import less_work, of_kind
from windtunnel.systems.chips.accelerators.sparse import MODES, shape_of
from windtunnel.systems.chips.accelerators.sparse.estimate import Densities, estimate_cycles

__all__ = ["layer_tasks", "sparse_accelerator"]

Mask = NDArray[np.bool_]


@registry.whatif(
    "sparse-accelerator",
    source="Sarma et al., Gradient Output Sparsity, 2021",
    limits=less_work(of_kind(Kind.COMPUTE), "zeros are skipped in operators only", max_added_bytes=0),
)
def sparse_accelerator(graph: Graph, mode: str = "in+out+wr", chip: str = "sparse-grid") -> Graph:
    """Skip operands that are zero and gradients that a ReLU masks anyway, in all passes of convolutions.

    Parameters
    ----------
    graph : Graph
        Captured with its zeros.
    mode : str
        ``in`` (zero operands), ``out`` (masked results), ``in+out`` or ``in+out+wr`` (idle elements take over work).
    chip : str
        A chip that has a grid which skips zeros.

    Raises
    ------
    InputError
        No such mode, or the chip has no such grid.
    NotApplicableError
        The graph does not say how dense its layers are, or no layer wins anything.
    """
    if mode not in MODES[1:]:
        raise InputError(f"no mode is called {mode!r}", where="mode", fix=f"one of {', '.join(MODES[1:])}")
    on = device(chip)
    if not isinstance(on, Accelerator) or on.sparse_grid is None:
        raise InputError(f"{chip} has no grid that skips zeros", where="chip", fix="take sparse-grid")
    layers = graph.meta.own.get("zeros", {})
    if not layers:
        raise NotApplicableError("this graph does not say where it is zero", fix="capture it so: capture --zeros")
    duration = graph.duration_ns.astype(np.float64)
    for name, layer in layers.items():
        forward, backward = _ratios(layer, on, mode)
        for mask, ratio in zip(layer_tasks(graph, name), (forward, backward), strict=True):
            duration[mask] *= ratio
    changed = np.rint(duration).astype(np.int64)
    wins = changed < graph.duration_ns
    if not wins.any():
        raise NotApplicableError("no layer has zeros that could be skipped", where=f"{len(layers)} layers")
    return graph.set_duration(wins, changed[wins], cost_source="sparse grid, estimated")


def layer_tasks(graph: Graph, layer: str) -> tuple[Mask, Mask]:
    """Products and convolutions of a layer, forward and backward, each bool [T]."""
    names = graph.tasks.strings("op")
    is_product = names.where({value: class_of(value) in MATRIX_CLASSES for value in names.values})
    of_layer = graph.tasks.strings("layer")
    selected = is_product & of_layer.where({value: value == layer for value in of_layer.values})
    selected &= graph.select(kind=Kind.COMPUTE)
    return selected & graph.select(phase=Phase.FORWARD), selected & graph.select(phase=Phase.BACKWARD)


def _ratios(record: Mapping[str, Any], chip: Accelerator, mode: str) -> tuple[float, float]:
    """Cycles over dense cycles, forward and backward."""
    assert chip.sparse_grid is not None
    windows = (record[item] for item in ("stride", "padding", "dilation", "groups"))
    shape = shape_of(record["inputs"], record["weight"], *windows)
    densities = Densities.read(record["input"]), Densities.read(record["gradient"])
    is_masked, is_first = bool(record["is_masked"]), bool(record["is_first"])
    cycles = estimate_cycles(shape, *densities, chip.sparse_grid, is_masked=is_masked, is_first=is_first)
    behind = [cycles[phase] for phase in ("backward", "weights") if phase in cycles]
    ratio = sum(item[mode] for item in behind) / sum(item["dc"] for item in behind)
    return min(cycles["forward"][mode] / cycles["forward"]["dc"], 1.0), min(ratio, 1.0)
