"""Group norms in place of batch norms (flight of "group-norm").

In: a live program with batch norms. Out: the same modules with the same scales and offsets, which normalize each sample
on its own over groups of channels, in training and after it. Running means are neither read nor kept.
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


@registry.flight("group-norm", source="Wu and He, ECCV 2018; Hsieh et al., ICML 2020")
@proven_by(differs("operators"))
@contextmanager
def group_norm(program: LiveProgram, *, groups: int = 32, layer: str = "") -> Iterator[None]:
    """Normalize over groups of channels in the batch norms that match."""
    from torch.nn.modules.batchnorm import _BatchNorm

    changed: list[str] = []

    def change(model: torch.nn.Module) -> Undo:
        modules = matching(program, model, layer) if layer else paths_of(program, model)
        local = {path: module for path, module in modules.items() if isinstance(module, _BatchNorm)}
        changed.extend(local)
        return together([_over_groups(item, groups) for item in local.values()])

    with program.each_model(change):
        if program.models and not changed:
            raise FlightError(f"no batch norm matches {layer!r}" if layer else "no model has a batch norm")
        yield


def _over_groups(norm: Any, groups: int) -> Undo:
    import torch

    from windtunnel.systems.layers.nn.group_norm import num_groups

    num = num_groups(norm.num_features, groups)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.group_norm(x, num, norm.weight, norm.bias, norm.eps)

    return swap(norm, "forward", forward)
