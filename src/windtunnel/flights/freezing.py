"""Layers that no longer learn (flight of "freeze-layers").

In: a live program and a pattern over module paths. Out: parameters of those modules need no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights.patterns import matching
from windtunnel.flights.proof import differs, proven_by
from windtunnel.sources.torch.live import LiveProgram, Undo

if TYPE_CHECKING:
    import torch


@registry.flight("freeze-layers", source="Transfer learning")
@proven_by(differs("operators"))
@contextmanager
def freeze_layers(program: LiveProgram, *, layer: str = "") -> Iterator[None]:
    """Train without the parameters of the modules that match."""
    frozen: list[torch.nn.Parameter] = []

    def change(model: torch.nn.Module) -> Undo:
        modules = matching(program, model, layer).values()
        local = {id(parameter): parameter for module in modules for parameter in module.parameters()}
        parameters = [parameter for parameter in local.values() if parameter.requires_grad]
        frozen.extend(parameters)
        for parameter in parameters:
            parameter.requires_grad_(False)
            parameter.grad = None

        def restore() -> None:
            for parameter in parameters:
                parameter.requires_grad_(True)

        return restore

    with program.each_model(change):
        if program.models and not frozen:
            raise FlightError(f"no trainable parameter lies in a module that matches {layer!r}")
        yield
