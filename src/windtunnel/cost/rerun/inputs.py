"""Tensors that come from outside of a program: parameters, buffers, data.

In: the prepared calls. Out: parameters that require gradients, and a value for every version that no call makes.
Integers stay below what their readers can index; numbers are of a size that keeps activations sane, since denormal
numbers would be slow.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from windtunnel.cost.rerun.arguments import DTYPES, Prepared, Slot, fill
from windtunnel.cost.rerun.form import Form
from windtunnel.cost.rerun.program import Call, Program, argument_names

__all__ = ["bounds_of", "make_inputs"]

_PASS_THROUGH = (
    "view", "reshape", "select", "slice", "transpose", "permute", "to", "_to_copy", "clone", "contiguous", "unsqueeze",
    "squeeze", "flatten", "t", "detach", "alias", "expand", "split", "chunk", "unbind", "narrow",
)  # fmt: skip


def make_inputs(
    program: Program, rows: list[Prepared], form: Form, bounds: dict[int, int]
) -> tuple[list[torch.Tensor], dict[int, Any]]:
    """Make parameters and values by version; ``bounds`` as :func:`bounds_of` says."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _make(program, rows, form, bounds)


def _make(
    program: Program, rows: list[Prepared], form: Form, bounds: dict[int, int]
) -> tuple[list[torch.Tensor], dict[int, Any]]:
    created = {slot.version for row in rows for slot in row.outputs}
    frozen = program.frozen | set(form.frozen)
    parameters: dict[int, torch.Tensor] = {}
    values: dict[int, Any] = {}
    for row in rows:
        for slot in row.inputs:
            # read before any call made it: it comes from outside
            if slot.version in created or slot.version in values:
                continue
            name = program.parameters.get(slot.spec.identity)
            if name is None:
                values[slot.version] = _laid_out(
                    fill(slot.spec, slot.shape, positive=True, bound=bounds.get(slot.version, 2)), form
                )
                continue
            # all versions of a parameter are one leaf, so that its gradients add up
            if slot.spec.identity not in parameters:
                parameters[slot.spec.identity] = _parameter(slot, form).requires_grad_(name not in frozen)
            values[slot.version] = parameters[slot.spec.identity]
    return list(parameters.values()), values


def _parameter(slot: Slot, form: Form) -> torch.Tensor:
    # divided by the root of what a row sums, so that values keep their size through many layers
    fan_in = math.prod(slot.shape[1:]) if len(slot.shape) > 1 else 1
    created = fill(slot.spec, slot.shape, positive=len(slot.shape) < 2)
    return _laid_out(created / math.sqrt(fan_in) if len(slot.shape) > 1 else created, form)


def _laid_out(tensor: torch.Tensor, form: Form) -> torch.Tensor:
    if form.memory_format == "channels_last" and tensor.dim() == 4 and tensor.is_floating_point():
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def bounds_of(program: Program, rows: list[Prepared]) -> dict[int, int]:
    """What integers stay below, by version: their readers are visited from last to first."""
    bounds: dict[int, int] = {}
    for index in range(len(rows) - 1, -1, -1):
        call, row = program.calls[index], rows[index]
        if call.mark or not row.inputs:
            continue
        # a view has its source's values: what its readers need, the source has to fulfil
        if call.operator.removeprefix("aten::") in _PASS_THROUGH:
            known = [bounds[slot.version] for slot in row.outputs if slot.version in bounds]
            if known:
                _lower(bounds, row.inputs[0], min(known))
        else:
            _bound_by(call, row, bounds)
    return bounds


def _lower(bounds: dict[int, int], slot: Slot, bound: int) -> None:
    if not DTYPES.get(slot.spec.dtype, torch.float32).is_floating_point:
        bounds[slot.version] = min(bound, bounds.get(slot.version, bound))


def _bound_by(call: Call, row: Prepared, bounds: dict[int, int]) -> None:
    name = call.operator.removeprefix("aten::")
    by_place = {slot.spec.path[0]: slot for slot in row.inputs}
    first = row.inputs[0].spec
    if name in ("embedding", "embedding_bag", "_embedding_bag"):
        _lower(bounds, row.inputs[1], first.shape[0])
    elif name in ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "multi_margin_loss"):
        _lower(bounds, row.inputs[1], first.shape[1] if len(first.shape) > 1 else first.shape[0])
    elif name in (
        "gather",
        "index_select",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "index_add",
        "index_add_",
    ):
        names = argument_names(call.schema)
        dim = int(call.inputs[names.index("dim")])
        index = by_place.get(names.index("index"))
        if index is not None and first.shape:
            _lower(bounds, index, first.shape[dim])
    elif name in ("index", "index_put", "index_put_"):
        for slot in row.inputs[1:]:
            if len(slot.spec.path) > 1 and slot.spec.path[1] < len(first.shape):
                _lower(bounds, slot, first.shape[slot.spec.path[1]])
    elif name == "one_hot":
        _lower(bounds, row.inputs[0], max(1, int(call.inputs[1])))
