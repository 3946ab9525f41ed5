"""A flight with its proof: mixed precision on channels-last images, applied to a program that runs.

In: a live program. Out: the same program, changed for as long as the context manager is open. The counts that
``proven_by`` names are taken with and without the change; if one of them does not rise, there is no receipt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from windtunnel import registry
from windtunnel.flights.proof import proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, Undo, swap


@registry.flight("amp-channels-last", source="PyTorch performance tuning guide")
@proven_by(rises("low-precision operators"), rises("channels-last operators"))
@contextmanager
def amp_channels_last(program: LiveProgram, *, dtype: str = "bfloat16") -> Iterator[None]:
    """Run every model's forward pass under autocast on images whose channels are innermost."""
    import torch

    def change(model: torch.nn.Module) -> Undo:
        forward = model.forward
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")

        def mixed(*images: Any) -> Any:
            laid_out = (lay_out(value, torch.channels_last) for value in images)
            with torch.autocast(device, dtype=getattr(torch, dtype)):
                return forward(*laid_out).float()

        lay_out_weights(model, torch.channels_last)
        undo = swap(model, "forward", mixed)

        def restore() -> None:  # turns alternate with the baseline: nothing of the change may stay
            undo()
            lay_out_weights(model, torch.contiguous_format)

        return restore

    def lay_out(value: Any, memory_format: torch.memory_format) -> Any:
        is_image = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.contiguous(memory_format=memory_format) if is_image else value

    def lay_out_weights(model: torch.nn.Module, memory_format: torch.memory_format) -> None:
        for parameter in model.parameters():
            parameter.data = lay_out(parameter.data, memory_format)
            parameter.grad = None  # of the other layout

    with program.each_model(change):
        yield
