"""Layers that drop whole units for a batch (flight of "structured-dropout").

In: a live program with LSTMs or GRUs, or with linear layers that read what a module of dropout gives. Out: the same
modules, with the same parameters, whose products in training leave out what is dropped. Which dropout feeds which
linear layer is seen in the first iteration, in which both stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights.patterns import matching, paths_of
from windtunnel.flights.proof import differs, proven_by
from windtunnel.sources.torch.live import LiveProgram, Undo, swap, together

if TYPE_CHECKING:
    import torch

    from windtunnel.systems.layers.nn.dropout.recurrent import Settings

_NOTE = "_windtunnel_kept"


@registry.flight("structured-dropout", source="Sarma et al., NeurIPS 2021")
@proven_by(differs("operators"))
@contextmanager
def structured_dropout(
    program: LiveProgram, *, p: float = 0.5, place: str = "nr+rh", period: int = 1, group: int = 1, layer: str = ""
) -> Iterator[None]:
    """Drop whole units for a batch in the recurrent layers, and linear layers behind a dropout, that match."""
    import torch

    from windtunnel.systems.layers.nn.layers import settings_of

    settings = settings_of(p, place, period, group)
    changed: list[str] = []

    def change(model: torch.nn.Module) -> Undo:
        modules = matching(program, model, layer) if layer else paths_of(program, model)
        recurrent = {path: module for path, module in modules.items() if type(module) in (torch.nn.LSTM, torch.nn.GRU)}
        undos = [_with_dropout(item, settings) for item in recurrent.values()]
        dropouts = [module for module in model.modules() if type(module) is torch.nn.Dropout]
        linear = {path: module for path, module in modules.items() if type(module) is torch.nn.Linear}
        changed.extend(recurrent)
        if settings.input and dropouts and linear:
            undos += _behind_dropout(dropouts, list(linear.values()), settings)
            changed.extend(linear)
        return together(undos)

    with program.each_model(change):
        if program.models and not changed:
            what = "LSTM or GRU, and no linear layer where there is dropout,"
            raise FlightError(f"no {what} matches {layer!r}" if layer else f"no model has an {what}")
        yield


def _behind_dropout(dropouts: list[Any], linear: list[Any], settings: Settings) -> list[Undo]:
    """A dropout notes on what it gives which units it kept; a linear layer that reads this multiplies with them."""
    from windtunnel.systems.layers.nn.dropout.feedforward import drop_units, multiply_kept_units
    from windtunnel.systems.layers.nn.dropout.recurrent import lay_out

    feeding: set[int] = set()

    def dropping(module: Any) -> Undo:
        plain = module.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            if not module.training:
                return plain(x)  # type: ignore[no-any-return]
            kept = None
            if id(module) in feeding:
                given, kept = drop_units(x, settings)
            else:
                given = plain(x)
            setattr(given, _NOTE, (id(module), kept))
            return given

        return swap(module, "forward", forward)

    def multiplying(module: Any) -> Undo:
        plain = module.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            source, kept = getattr(x, _NOTE, (0, None))
            if source:
                feeding.add(source)
            if kept is None or not module.training:
                return plain(x)  # type: ignore[no-any-return]
            if module.weight.is_contiguous():
                lay_out(module)
            return multiply_kept_units(x, module.weight, module.bias, kept, settings)

        return _restoring(module, swap(module, "forward", forward))

    return [*map(dropping, dropouts), *map(multiplying, linear)]


def _with_dropout(module: Any, settings: Any) -> Undo:
    from windtunnel.systems.layers.nn.dropout.recurrent import lay_out, run_layers

    plain = module.forward

    def forward(given: Any, hx: Any = None) -> Any:
        return run_layers(module, settings, given, hx) if module.training else plain(given, hx)

    undo = swap(module, "forward", forward)
    lay_out(module)
    _forget_gradients(module)
    return _restoring(module, undo)


def _restoring(module: torch.nn.Module, undo: Undo) -> Undo:
    """Undo, and store weights as torch does."""

    def restore() -> None:
        undo()
        for parameter in module.parameters():
            parameter.data = parameter.data.contiguous()
        _forget_gradients(module)

    return restore


def _forget_gradients(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None  # of the other layout
