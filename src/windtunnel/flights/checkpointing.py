"""Activations computed again in the backward pass (flight of "activation-checkpointing").

In: a live program and a pattern over module paths. Out: those modules keep only their inputs and run twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.flights._patterns import each_block
from windtunnel.flights._witness import proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, Undo, swap

if TYPE_CHECKING:
    import torch


@registry.flight("activation-checkpointing", source="Chen et al., 2016")
@proven_by(rises("operators"))
@contextmanager
def activation_checkpointing(program: LiveProgram, *, layer: str = "") -> Iterator[None]:
    """Run matching modules again in the backward pass instead of keeping their activations."""
    with each_block(program, layer, _rerun):
        yield


def _rerun(module: torch.nn.Module) -> Undo:
    from torch.utils.checkpoint import checkpoint

    forward = module.forward

    def twice(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return swap(module, "forward", twice)
