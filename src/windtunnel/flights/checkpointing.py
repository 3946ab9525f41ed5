"""Activations computed again in the backward pass, or not (flights of "activation-checkpointing" and its reverse).

In: a live program and a pattern over module paths. Out: those modules keep only their inputs and run twice; or what the
program itself runs under ``torch.utils.checkpoint`` runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.flights.patterns import each_block
from windtunnel.flights.proof import falls, proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, Undo, swap, together

if TYPE_CHECKING:
    import torch


@registry.flight("activation-checkpointing", source="Chen et al., 2016")
@proven_by(rises("operators"))
@contextmanager
def activation_checkpointing(program: LiveProgram, *, layer: str = "") -> Iterator[None]:
    """Run matching modules again in the backward pass instead of keeping their activations."""
    with each_block(program, layer, _rerun):
        yield


@registry.flight("no-activation-checkpointing", source="Chen et al., 2016: what it costs")
@proven_by(falls("operators"))
@contextmanager
def no_activation_checkpointing(program: LiveProgram) -> Iterator[None]:
    """Keep all activations: a checkpoint of the program calls its function, and nothing else."""
    del program
    from torch.utils import checkpoint

    def pass_through(*_: Any, **__: Any) -> Iterator[None]:
        yield

    undo = together(
        [
            swap(checkpoint, "_checkpoint_without_reentrant_generator", pass_through),
            swap(checkpoint, "CheckpointFunction", _Called),
        ]
    )
    try:
        yield
    finally:
        undo()


class _Called:
    """Stands for the autograd function of reentrant checkpoints."""

    @staticmethod
    def apply(function: Callable[..., Any], preserves_random_state: bool, *args: Any) -> Any:
        del preserves_random_state
        return function(*args)


def _rerun(module: torch.nn.Module) -> Undo:
    from torch.utils.checkpoint import checkpoint

    forward = module.forward

    def twice(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return swap(module, "forward", twice)
