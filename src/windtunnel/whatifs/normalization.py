"""Batch normalization fused with its neighbors, or left for group norms (what-if family "normalization").

In: a graph with batch norms. Out: norms that rectify as they normalize, with little more than half the memory traffic;
or norms that do not hang on the rest of the batch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.rerun import Call, Form, Program
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind
from windtunnel.simulate.limits import less_work
from windtunnel.whatifs.device_tasks import device_kernels
from windtunnel.whatifs.layers import calls_in, replacing
from windtunnel.whatifs.measured import Unpriced, has_program, operators_of, require_program, rerun_in_form

__all__ = ["group_norm", "reconstructed_batchnorm"]

Mask = NDArray[np.bool_]
_NORM = r"(?i).*(batch_?norm|bn_(fw|bw)).*"
_RELU = r"(?i).*(relu|clamp_min|threshold_backward).*"
_TRAINING = 5  # place among the arguments of aten::batch_norm


@registry.whatif(
    "reconstructed-batchnorm",
    source="Jung et al., Restructuring batch normalization, MLSys 2019; Daydream, ATC 2020",
    limits=less_work(operators_of, "norms and rectifiers cannot take less than no time"),
)
def reconstructed_batchnorm(graph: Graph) -> Unpriced:
    """Run every batch norm together with the ReLU behind it.

    Measured: the captured norms run as one operator with their ReLUs, interleaved with the original. Paper: a ReLU
    next to a norm goes, as its trip through memory is saved, and the norm takes half, as splitting it between the
    convolutions before and after it saves half of its own.

    Raises
    ------
    NotApplicableError
        There is no batch normalization.
    """
    published = partial(_paper, graph)
    if not has_program(graph):
        return Unpriced.from_paper(published)
    program = require_program(graph)
    norms = tuple(
        (index, *_rectifier_behind(program, index))
        for index, call in enumerate(program.calls)
        if call.operator == "aten::batch_norm" and call.inputs[_TRAINING] is True
    )
    if not norms:
        raise NotApplicableError("there is no batch normalization", where=f"{len(program.calls)} calls")
    return replace(rerun_in_form(graph, Form(rectified=norms)), published=published)


@registry.whatif(
    "group-norm",
    source="Wu and He, ECCV 2018; Hsieh et al., The Non-IID Data Quagmire, ICML 2020",
    limits=less_work(operators_of, "norms cannot take less than no time"),
)
def group_norm(graph: Graph, groups: int = 32, layer: str = "") -> Unpriced:
    """Normalize each sample by itself, over groups of channels, where a batch norm looks at the whole batch.

    Workers that hold different classes then learn one model: the mean of a worker's batch is not that of all data.

    Parameters
    ----------
    graph : Graph
    groups : int
        Of channels; less where they would not be of equal size.
    layer : str
        Regular expression that matches the whole path of a batch norm; all by default.

    Raises
    ------
    NotApplicableError
        There is no batch normalization that trains.
    """
    if groups < 1:
        raise InputError(f"a group norm has 1 group or more, not {groups}", where=f"groups={groups}")
    indices = calls_in(require_program(graph), ("aten::batch_norm",), layer, "batch norm that trains")
    return rerun_in_form(graph, replacing(indices, "group-norm", groups=groups))


def _rectifier_behind(program: Program, norm: int) -> tuple[int, float]:
    """The call that rectifies what a norm gives, and its leak; (-1, 1) where there is none."""
    result = program.calls[norm].outputs[0][0]
    for index in range(norm + 1, len(program.calls)):
        call = program.calls[index]
        if not call.mark and "Tensor" in call.types[0] and call.inputs[0][0] == result:
            leak = _leak(call)
            return (-1, 1.0) if leak is None else (index, leak)
    return -1, 1.0


def _leak(call: Call) -> float | None:
    name = call.operator.removeprefix("aten::").rstrip("_")
    if name == "leaky_relu":
        return float(call.inputs[1])
    return 0.0 if name == "relu" else None


def _paper(graph: Graph) -> Graph:
    kernels = device_kernels(graph)
    norms = kernels & (graph.select(name=_NORM) | graph.select(op=_NORM))
    if not norms.any():
        raise NotApplicableError("there is no batch normalization", where=f"{int(kernels.sum())} tasks that compute")
    # Tasks that read what a normalization wrote, or the other way round; else neighbors in order.
    edges = graph.edges
    is_data = edges["kind"] == EdgeKind.DATA
    near = _select_neighbors(graph, norms, is_data)
    relus = (
        kernels
        & (graph.select(name=_RELU) | graph.select(op=_RELU))
        & (near if near.any() else _select_neighbors(graph, norms, (edges["kind"] == EdgeKind.ORDER) & ~is_data))
    )
    duration = np.rint(graph.duration_ns[norms] / 2).astype(np.int64)
    return graph.set_duration(norms, duration, cost_source="paper").remove(relus)


def _select_neighbors(graph: Graph, norms: Mask, edges: Mask) -> Mask:
    src, dst = graph.edges["src"][edges], graph.edges["dst"][edges]
    near = np.zeros(graph.num_tasks, dtype=bool)
    near[dst[norms[src]]] = True
    near[src[norms[dst]]] = True
    return near & ~norms & graph.select(kind=Kind.COMPUTE)
