"""One operator for all parameters of an optimiser (flights of "fused-optimizer" and "foreach-optimizer").

In: a live program whose optimisers loop over their parameters. Out: the same optimisers with the same state and
hyper-parameters, told to use another implementation of their update.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights.live import LiveProgram, Undo

if TYPE_CHECKING:
    import torch


@registry.flight("fused-optimizer", source="Daydream, ATC 2020, FusedAdam")
@contextmanager
def fused_optimizer(program: LiveProgram) -> Iterator[None]:
    """Update all parameters of a group with one fused operator."""
    with program.each_optimizer(lambda optimizer: _choose(optimizer, "fused", "foreach")):
        yield


@registry.flight("foreach-optimizer", source="PyTorch multi-tensor optimisers")
@contextmanager
def foreach_optimizer(program: LiveProgram) -> Iterator[None]:
    """Update all parameters of a group with a few operators on lists of tensors."""
    with program.each_optimizer(lambda optimizer: _choose(optimizer, "foreach", "fused")):
        yield


def _choose(optimizer: torch.optim.Optimizer, chosen: str, other: str) -> Undo:
    if chosen not in inspect.signature(type(optimizer).__init__).parameters:
        raise FlightError(
            f"{type(optimizer).__name__} has no {chosen} implementation",
            fix=f"{chosen} implementations exist for Adam, AdamW, SGD and a few others",
        )
    before = [{name: group.get(name) for name in (chosen, other)} for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group.update({chosen: True, other: False})

    def restore() -> None:
        for group, values in zip(optimizer.param_groups, before, strict=True):
            group.update(values)

    return restore
