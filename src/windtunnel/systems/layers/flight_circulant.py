"""Linear layers and convolutions of circulant blocks (flight of "block-circulant").

In: a live program with such layers. Out: the same modules, which multiply with the nearest matrix of circulant
blocks; its first columns take the weight's place in the optimizer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import FlightError, InputError
from windtunnel.flights.patterns import matching, paths_of
from windtunnel.flights.proof import differs, proven_by
from windtunnel.sources.torch.live import LiveProgram, Undo, swap, together

if TYPE_CHECKING:
    import torch

_LAYERS_KEY = "layers of circulant blocks"


@registry.flight("block-circulant", source="Ding et al., CirCNN, MICRO 2017")
@proven_by(differs("operators"))
@contextmanager
def block_circulant(program: LiveProgram, *, k: int = 64, layer: str = "") -> Iterator[None]:
    """Multiply with circulant blocks in the linear layers and convolutions that match."""
    created: dict[int, tuple[Any, Any]] = program.kept.setdefault(
        (_LAYERS_KEY, k, layer), {}
    )  # weight, layer by old weight

    def change_model(model: torch.nn.Module) -> Undo:
        result = _layers(program, model, k, layer)
        for module in result:
            if id(module.weight) not in created:
                created[id(module.weight)] = module.weight, _circulant(module, k)
        return together([swap(module, "forward", created[id(module.weight)][1].forward) for module in result])

    def change_optimizer(optimizer: torch.optim.Optimizer) -> Undo:
        changed = []
        for group in optimizer.param_groups:
            for row, parameter in enumerate(group["params"]):
                if id(parameter) in created:
                    changed.append((group["params"], row, parameter))
                    group["params"][row] = created[id(parameter)][1].weight
                    parameter.grad = None

        def restore() -> None:
            for parameters, row, parameter in changed:
                parameters[row] = parameter

        return restore

    with program.each_model(change_model):
        if program.models and not created:
            what = f"no linear layer or convolution of {k} units or more on both sides"
            raise FlightError(f"{what} matches {layer!r}" if layer else f"no model has {what.removeprefix('no ')}")
        with program.each_optimizer(change_optimizer):
            yield


def _layers(program: LiveProgram, model: torch.nn.Module, k: int, layer: str) -> list[Any]:
    """Layers that are large enough and share nothing; one that is named and does is refused."""
    from windtunnel.systems.layers.nn.circulant.modules import can_be, check_unshared

    names = {id(module): name for name, module in model.named_modules()}
    modules = matching(program, model, layer) if layer else paths_of(program, model)
    result: list[Any] = []
    module: Any
    for path, module in modules.items():
        if not can_be(module) or min(module.weight.shape[:2]) < k:
            continue
        try:
            check_unshared(model, names[id(module)], module)
        except InputError as error:
            if layer:
                raise FlightError(f"{path}: {error.message}", where=error.where, fix=error.fix) from error
            continue
        result.append(module)
    return result


def _circulant(module: Any, k: int) -> Any:
    from windtunnel.systems.layers.nn.circulant.modules import circulant_of

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # padding is reported where k is given
        created: Any = circulant_of(module, k)
    created.bias = module.bias  # it stays the module's own
    return created
