"""Recurrent layers that drop whole units for a batch (flight of "structured-dropout").

In: a live program with LSTMs or GRUs. Out: the same modules, with the same parameters, whose products in training leave
out what is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights._patterns import matching, paths_of
from windtunnel.flights._witness import differs, proven_by
from windtunnel.sources.torch.live import LiveProgram, Undo, swap, together

if TYPE_CHECKING:
    import torch


@registry.flight("structured-dropout", source="Sarma et al., NeurIPS 2021")
@proven_by(differs("operators"))
@contextmanager
def structured_dropout(
    program: LiveProgram, *, p: float = 0.5, place: str = "nr+rh", period: int = 1, group: int = 1, layer: str = ""
) -> Iterator[None]:
    """Drop whole units for a batch in the recurrent layers that match."""
    import torch

    from windtunnel.nn.layers import settings_of

    settings = settings_of(p, place, period, group)
    changed: list[str] = []

    def change(model: torch.nn.Module) -> Undo:
        modules = matching(program, model, layer) if layer else paths_of(program, model)
        mine = {path: one for path, one in modules.items() if type(one) in (torch.nn.LSTM, torch.nn.GRU)}
        changed.extend(mine)
        return together([_with_dropout(one, settings) for one in mine.values()])

    with program.each_model(change):
        if program.models and not changed:
            raise FlightError(f"no LSTM or GRU matches {layer!r}" if layer else "no model has an LSTM or a GRU")
        yield


def _with_dropout(module: Any, settings: Any) -> Undo:
    from windtunnel.nn.dropout.recurrent import lay_out, run_layers

    plain = module.forward

    def forward(given: Any, hx: Any = None) -> Any:
        return run_layers(module, settings, given, hx) if module.training else plain(given, hx)

    undo = swap(module, "forward", forward)
    lay_out(module)
    _forget_gradients(module)

    def restore() -> None:
        undo()
        for parameter in module.parameters():
            parameter.data = parameter.data.contiguous()
        _forget_gradients(module)

    return restore


def _forget_gradients(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None  # of the other layout
