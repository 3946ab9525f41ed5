"""One operator for all parameters of an optimizer (flights of "fused-optimizer" and "foreach-optimizer").

In: a live program whose optimizers loop over their parameters. Out: the same optimizers with the same state and
hyper-parameters, set to use another implementation of their update.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import FlightError, NotApplicableError
from windtunnel.flights.proof import proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, Undo, together

if TYPE_CHECKING:
    import torch

__all__ = ["place_step_counts"]


@registry.flight("fused-optimizer", source="Daydream, ATC 2020, FusedAdam")
@proven_by(rises("fused updates"))
@contextmanager
def fused_optimizer(program: LiveProgram) -> Iterator[None]:
    """Update all parameters of a group with one fused operator.

    Raises
    ------
    NotApplicableError
        At the first step: a gradient is sparse.
    """
    checked: set[int] = program.kept.setdefault("dense gradients", set())

    def choose(optimizer: torch.optim.Optimizer) -> Undo:
        undo = _choose(optimizer, "fused", "foreach")
        return undo if id(optimizer) in checked else together([undo, _check_first_step(optimizer, checked)])

    with program.each_optimizer(choose):
        yield


@registry.flight("foreach-optimizer", source="PyTorch multi-tensor optimizers")
@proven_by(rises("updates of many tensors"))
@contextmanager
def foreach_optimizer(program: LiveProgram) -> Iterator[None]:
    """Update all parameters of a group with a few operators on lists of tensors."""
    with program.each_optimizer(lambda optimizer: _choose(optimizer, "foreach", "fused")):
        yield


def _choose(optimizer: torch.optim.Optimizer, flag: str, other: str) -> Undo:
    if flag not in inspect.signature(type(optimizer).__init__).parameters:
        raise FlightError(
            f"{type(optimizer).__name__} has no {flag} implementation",
            fix=f"{flag} implementations exist for Adam, AdamW, SGD and a few others",
        )
    before = [{name: group.get(name) for name in (flag, other)} for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group.update({flag: True, other: False})
    place_step_counts(optimizer)

    def restore() -> None:
        for group, values in zip(optimizer.param_groups, before, strict=True):
            group.update(values)
        place_step_counts(optimizer)

    return restore


def place_step_counts(optimizer: torch.optim.Optimizer) -> None:
    """Move the step counts that exist to where this implementation keeps those that it creates.

    Fused and capturable updates keep them on the device of their parameters and fail on others; all others keep them
    on the host, and would wait for the device at each one.
    """
    for group in optimizer.param_groups:
        is_on_device = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if hasattr(state.get("step"), "to"):  # a number in some optimizers
                state["step"] = state["step"].to(parameter.device if is_on_device else "cpu")


def _check_first_step(optimizer: torch.optim.Optimizer, checked: set[int]) -> Undo:
    """Look at the gradients once, just before they are used; later steps need not pay for it."""

    def check(*_: Any) -> None:
        if id(optimizer) in checked:
            return
        checked.add(id(optimizer))
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        num_sparse = sum(gradient is not None and gradient.is_sparse for gradient in gradients)
        if num_sparse:
            raise NotApplicableError(
                f"no fused update takes sparse gradients, and {num_sparse} parameters have them",
                where=f"the step of {type(optimizer).__name__}",
                fix="make their embeddings with sparse=False, or fly another change",
            )

    undo: Undo = optimizer.register_step_pre_hook(check).remove
    return undo
