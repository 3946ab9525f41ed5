"""Images with channels innermost (flight of "channels-last").

In: a live program with convolutions. Out: 4-D weights and inputs laid out as NHWC.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights.proof import proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, Undo

if TYPE_CHECKING:
    import torch


@registry.flight("channels-last", source="PyTorch memory formats")
@proven_by(rises("channels-last operators"))
@contextmanager
def channels_last(program: LiveProgram) -> Iterator[None]:
    """Lay out convolution weights and images with channels innermost."""
    import torch

    convolutions: list[torch.nn.Module] = []

    def change(model: torch.nn.Module) -> Undo | None:
        result = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
        if not result:
            return None
        convolutions.extend(result)
        _lay_out(model, torch.channels_last)
        hook = model.register_forward_pre_hook(_channels_last_inputs)

        def restore() -> None:
            hook.remove()
            _lay_out(model, torch.contiguous_format)

        return restore

    with program.each_model(change):
        if program.models and not convolutions:
            raise FlightError("no model has a 2-D convolution", fix="channels-last is for images")
        yield


def _lay_out(model: torch.nn.Module, memory_format: torch.memory_format) -> None:
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=memory_format)
                parameter.grad = None


def _channels_last_inputs(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    import torch

    return tuple(
        value.contiguous(memory_format=torch.channels_last)
        if isinstance(value, torch.Tensor) and value.dim() == 4
        else value
        for value in inputs
    )
