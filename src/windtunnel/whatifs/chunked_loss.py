"""The logits of a language model a chunk of rows at a time (what-if family "memory for time").

In: a step that ends in a linear layer and the cross-entropy of its results. Out: the same loss, for which the logits
of one chunk are there at a time; the backward pass computes them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.rerun import Call, Form, OperatorsNeed, Program, Ratios, tensors_of
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.graph.kernel_classes import does_matrix_work
from windtunnel.simulate.limits import Baseline, less_work
from windtunnel.whatifs.device_tasks import computes_on_device
from windtunnel.whatifs.insert_tasks import insert_ahead, launch_calls
from windtunnel.whatifs.kernel_groups import streams_in_order
from windtunnel.whatifs.layer_gradients import positions
from windtunnel.whatifs.layers import readers
from windtunnel.whatifs.measured import Unpriced, apply_ratios, calls_of, has_program, require_program
from windtunnel.whatifs.peak_memory import note_form
from windtunnel.whatifs.product_speed import host_time_per_launch_ns

__all__ = ["chunked_loss"]

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
_LOSS = "aten::cross_entropy_loss"
_MEAN, _SUM = 1, 2  # of at::Reduction
_ON_PATH = ("view", "reshape", "_unsafe_view", "flatten", "slice", "contiguous", "clone", "to", "_to_copy", "transpose",
            "permute", "alias", "unflatten")  # fmt: skip
_FLOAT_BYTES = 4
_COPIES = 4  # of logits in float32: themselves, their logarithms, and the gradients of both
_SOFTMAX = r"aten::_log_softmax"
_OPERATORS_PER_CHUNK = {Phase.FORWARD: 4, Phase.BACKWARD: 9}  # that launch a kernel
_SIZE_TOLERANCE = 0.01  # the allocator rounds
_REACH = 6  # kernels between a product and the softmax of it


class _Loss(NamedTuple):
    """A linear layer and the cross-entropy of its results, as places among the calls; sizes of the logits."""

    layer: int
    loss: int
    num_rows: int
    num_classes: int
    width: int
    num_copies: int

    @property
    def logit_bytes(self) -> int:
        """Bytes of all logits in float32."""
        return _FLOAT_BYTES * self.num_rows * self.num_classes


def _tasks(baseline: Baseline) -> Mask:
    """Tasks of the last layer and of the loss; without calls, all of forward and backward."""
    graph = baseline.graph
    if not has_program(graph):
        return graph.select(phase=(Phase.FORWARD, Phase.BACKWARD))
    call = calls_of(graph)
    inside = np.zeros(graph.num_tasks, dtype=bool)
    for item in _losses(require_program(graph)):
        inside |= (call >= item.layer) & (call <= item.loss)
    return inside


def _max_saved_bytes(baseline: Baseline) -> float:
    """All that is as large as the logits goes, but for a chunk."""
    if not has_program(baseline.graph):
        return float("inf")
    return float(sum(item.num_copies * item.logit_bytes for item in _losses(require_program(baseline.graph))))


def _max_added_bytes(baseline: Baseline) -> float:
    """A chunk is there with the gradient of the weights, which came after the logits before."""
    if not has_program(baseline.graph):
        return 0.0
    losses = _losses(require_program(baseline.graph))
    chunks = max(int(baseline.options["num_chunks"]), 1)
    return float(
        sum(
            _COPIES * item.logit_bytes / chunks + _FLOAT_BYTES * item.width * (item.num_classes + 2 * item.num_rows)
            for item in losses
        )
    )


@registry.whatif(
    "chunked-loss",
    source="torchtune, CEWithChunkedOutputLoss, 2024; Hsu et al., Liger Kernel, 2024",
    limits=less_work(
        _tasks,
        "no more is saved than the last layer and its loss take, and no more memory than copies of the logits",
        max_saved_bytes=_max_saved_bytes,
        max_added_bytes=_max_added_bytes,
    ),
)
def chunked_loss(graph: Graph, num_chunks: int = 8) -> Unpriced:
    """Compute the logits and their cross-entropy in chunks of rows, and once more in the backward pass.

    Measured: the last layer and the loss run in chunks, interleaved with the original. Estimate, on a trace of a
    device: each backward pass computes the product and the softmax again; what is larger than a chunk is not kept.

    Parameters
    ----------
    graph : Graph
    num_chunks : int
        Of the rows, which are samples times positions.

    Raises
    ------
    NotApplicableError
        No cross-entropy reads the results of a linear layer, or something else reads them, too.
    """
    if num_chunks < 2:
        raise InputError(f"{num_chunks} chunks change nothing", where="num_chunks=", fix="use 2 or more")
    on_device = partial(_compute_again, graph, num_chunks) if computes_on_device(graph).any() else None
    if not has_program(graph) and on_device is not None:
        return Unpriced.from_paper(on_device)
    program = require_program(graph)
    losses = _losses(program)
    if any(item.num_rows < num_chunks for item in losses):
        raise NotApplicableError(
            f"{num_chunks} chunks of {min(item.num_rows for item in losses)} rows", fix="ask for fewer chunks"
        )
    form = Form(chunked=tuple((item.layer, item.loss + 1, num_chunks) for item in losses))

    def in_chunks(ratios: Ratios) -> Graph:
        return note_form(apply_ratios(graph, _only_losses(ratios, losses, num_chunks)), form)

    return Unpriced((OperatorsNeed(program, form),), in_chunks, published=on_device)


def _only_losses(ratios: Ratios, losses: list[_Loss], num_chunks: int) -> Ratios:
    """All calls but those of the losses keep their time; a loss keeps a chunk of what it held."""
    count = len(ratios.forward)
    inside = np.zeros(count, dtype=bool)
    for item in losses:
        inside[item.layer : item.loss + 1] = True
    sides = [
        replace(
            side,
            forward=np.where(inside, side.forward, 1.0),
            backward=np.where(inside, side.backward, 1.0),
            forward_total=float("nan"),
            backward_total=float("nan"),
            output_bytes=np.where(inside, 1.0 / num_chunks, 1.0),
        )
        for side in (ratios, ratios.device)
        if side is not None
    ]
    return replace(sides[0], device=sides[1] if len(sides) > 1 else None)


# --- which calls ------------------------------------------------------------------------------------------


def _losses(program: Program) -> list[_Loss]:
    """Linear layers whose results are read by a cross-entropy alone.

    Raises
    ------
    NotApplicableError
        There is none.
    """
    calls = [index for index, call in enumerate(program.calls) if call.operator == _LOSS and call.grad]
    if not calls:
        raise NotApplicableError("no cross-entropy is computed", where=f"{len(program.calls)} calls")
    reasons: list[str] = []
    losses = [loss for index in calls for loss in _loss_at(program, index, reasons)]
    if not losses:
        raise NotApplicableError(reasons[0], where=f"call {calls[0]}, {_LOSS}")
    return losses


def _loss_at(program: Program, index: int, reasons: list[str]) -> Iterator[_Loss]:
    call = program.calls[index]
    specs = {spec.path[0]: spec for spec in tensors_of(call.inputs, call.shapes, call.types)}
    if 2 in specs or call.inputs[3] not in (_MEAN, _SUM) or "long" not in specs[1].dtype:
        reasons.append("the loss weighs classes, or is no sum or mean over labels")
        return
    path, current = [index], specs[0].identity
    while True:
        if len(readers(program, current)) > 1:
            reasons.append("the logits are read by more than the loss")
            return
        maker = _maker(program, current, path[-1])
        if maker is None:
            reasons.append("the loss does not read the results of a linear layer")
            return
        path.append(maker)
        made_by = program.calls[maker]
        if made_by.operator == "aten::linear":
            break
        if made_by.operator.removeprefix("aten::") not in _ON_PATH:
            reasons.append(f"{made_by.operator} lies between the last layer and the loss")
            return
        current = tensors_of(made_by.inputs, made_by.shapes, made_by.types)[0].identity
    classes, width = program.calls[maker].shapes[1]
    yield _Loss(maker, index, specs[1].num_elements, int(classes), int(width), _COPIES + len(path))


def _maker(program: Program, identity: int, before: int) -> int | None:
    """The last call before another that made a tensor."""
    for index in range(before - 1, -1, -1):
        call: Call = program.calls[index]
        if not call.mark and identity in {
            spec.identity for spec in tensors_of(call.outputs, call.output_shapes, call.output_types)
        }:
            return index
    return None


# --- on a trace of a device -------------------------------------------------------------------------------


def _compute_again(graph: Graph, num_chunks: int) -> Graph:
    kernels = computes_on_device(graph)
    if "op" not in graph.tasks:
        raise NotApplicableError("kernels do not know their operators", where="column op")
    products = kernels & does_matrix_work(graph) & graph.select(phase=Phase.FORWARD)
    softmax = kernels & graph.select(op=_SOFTMAX, phase=Phase.FORWARD)
    of_softmax = kernels & graph.select(op=f"{_SOFTMAX}_backward_data", phase=Phase.BACKWARD)
    again_ns = [
        int(graph.duration_ns[[row, product]].sum())
        for stream in streams_in_order(graph)
        for row, product in _pairs(stream, softmax, products)
    ]
    rows = np.flatnonzero(of_softmax)
    if not again_ns or len(rows) != len(again_ns):
        raise NotApplicableError(
            "no softmax of a loss follows a product on a device, with its gradient",
            where=f"{int(softmax.sum())} kernels of {_SOFTMAX}, {len(rows)} of its gradient",
        )
    columns = {
        "name": "logits of chunks",
        "op": "chunked loss",
        "duration_ns": np.array(again_ns[::-1], dtype=np.int64),
        "cost_source": "computed again",
    }
    launching, added_ns = _launches(graph, softmax | of_softmax, num_chunks - 1)
    changed, _ = insert_ahead(_keep_a_chunk(graph, num_chunks), rows, columns)
    longer = np.rint(changed.duration_ns[launching] + added_ns).astype(np.int64)
    mask = np.zeros(changed.num_tasks, dtype=bool)
    mask[launching] = True
    return changed.set_duration(mask, longer, cost_source="launches of chunks")


def _keep_a_chunk(graph: Graph, num_chunks: int) -> Graph:
    """Let what is as large as the logits, in 16 or 32 bits, take the memory of a chunk, where it is freed again."""
    if "output_bytes" not in graph.tasks or "freed_bytes" not in graph.tasks:
        return graph
    output_bytes, freed_bytes = graph.tasks["output_bytes"].copy(), graph.tasks["freed_bytes"].copy()
    index, left = positions(graph), freed_bytes.copy()
    sizes = output_bytes[graph.select(op=f"{_SOFTMAX}(_backward_data)?") & (output_bytes > 0)]
    alike = np.isclose(output_bytes[:, None], np.concatenate([sizes / 2, sizes, 2 * sizes]), rtol=_SIZE_TOLERANCE)
    frees = np.flatnonzero(freed_bytes > 0)
    frees = frees[np.argsort(index[frees], kind="stable")]
    rows = np.flatnonzero(alike.any(axis=1) & graph.select(phase=(Phase.FORWARD, Phase.BACKWARD)))
    for row in rows[np.lexsort((index[rows], -output_bytes[rows]))].tolist():  # the largest have the least choice
        size = int(output_bytes[row])
        behind = frees[(index[frees] > index[row]) & (left[frees] >= (1 - _SIZE_TOLERANCE) * size)]
        if len(behind):
            goes = size - size // num_chunks
            left[behind[0]] -= size
            freed_bytes[behind[0]] -= goes
            output_bytes[row] -= goes
    return graph.with_columns(output_bytes=output_bytes, freed_bytes=np.maximum(freed_bytes, 0))


def _launches(graph: Graph, kernels: Mask, num_more: int) -> tuple[Rows, NDArray[np.float64]]:
    """More chunks are more operators: the calls that launch a softmax, and how much longer the host takes there."""
    calls, added_ns = launch_calls(graph), np.zeros(graph.num_tasks)
    for phase, count in _OPERATORS_PER_CHUNK.items():
        own = calls[kernels & graph.select(phase=phase)]
        np.add.at(added_ns, own[own >= 0], num_more * count * host_time_per_launch_ns(graph, phase))
    rows = np.flatnonzero(added_ns)
    return rows, added_ns[rows]


def _pairs(stream: Rows, softmax: Mask, products: Mask) -> Iterator[tuple[int, int]]:
    """Kernels of softmax with the product closely before each."""
    for i in np.flatnonzero(softmax[stream]).tolist():
        near = [row for row in stream[max(0, i - _REACH) : i].tolist() if products[row]]
        if near:
            yield int(stream[i]), near[-1]
