"""Which modules of a model can be replaced by block-circulant ones, and doing so.

In: a model, sizes of blocks by path. Out: the model with layers in place of others. Not here: the layers (``layers``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from windtunnel.errors import InputError
from windtunnel.registry import did_you_mean
from windtunnel.systems.layers.nn.circulant.convolution import BlockCirculantConv2d
from windtunnel.systems.layers.nn.circulant.layers import BlockCirculantLinear, is_quicker
from windtunnel.systems.layers.nn.circulant.lstm import BlockCirculantLSTM

__all__ = ["can_be", "check_unshared", "circulant_of", "find_modules", "project"]

Module = torch.nn.Module


def can_be(module: Any) -> bool:
    """Whether a module is a linear layer, or a convolution that has a block-circulant form."""
    if type(module) is torch.nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is torch.nn.Linear


def circulant_of(module: Module, k: int, *, way: str = "auto") -> Module | None:
    """The nearest block-circulant layer; None for what has none.

    Raises
    ------
    InputError
        k is none for a layer of this size.
    """
    if type(module) is torch.nn.Linear:
        return BlockCirculantLinear.from_dense(module, k, way=way)
    if type(module) is torch.nn.Conv2d:
        return BlockCirculantConv2d.from_dense(module, k, way=way)
    if type(module) is torch.nn.LSTM:
        return BlockCirculantLSTM.from_dense(module, k, way=way)
    return None


def find_modules(model: Module, names: list[str]) -> dict[str, Module]:
    """Modules by their paths.

    Raises
    ------
    InputError
        There is none of such a name; the nearest three are offered.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if name not in known:
            raise InputError(f"no module is called {name!r}", fix=did_you_mean(name, filter(None, known)))
    return {name: known[name] for name in names}


def check_unshared(model: Module, path: str, module: Module) -> None:
    """Refuse a module that others use too, and one whose weights are those of another.

    Raises
    ------
    InputError
        It is so.
    """
    paths = [name for name, item in model.named_modules(remove_duplicate=False) if item is module]
    if len(paths) > 1:
        raise InputError(
            f"{path} is used in {len(paths)} places, and would have to be replaced in all",
            where=", ".join(paths),
            fix="leave it dense, or give each place a layer of its own",
        )
    owners = Counter(id(item) for _, item in model.named_parameters(remove_duplicate=False))
    for name, parameter in module.named_parameters(recurse=False):
        if owners[id(parameter)] > 1:
            others = [
                other
                for other, item in model.named_parameters(remove_duplicate=False)
                if item is parameter and other != f"{path}.{name}"
            ]
            raise InputError(
                f"{path}.{name} is tied to another layer's weight, which cannot follow it into circulant blocks",
                where=", ".join(others),
                fix="leave it dense, or untie it",
            )


def project(model: Module, k: int | Mapping[str, int], *, rows: int = 0) -> Module:
    """Put the nearest block-circulant layers in place of dense ones, in the model itself.

    Parameters
    ----------
    model : Module
    k : int or mapping of path to int
        One size for every linear layer and convolution whose smaller side has as many units, or one for each layer
        that is named.
    rows : int
        Samples times steps of a product: where one size is for all, layers that would not be quicker in training with
        so many, as measured here, stay dense. 0: all are replaced.

    Returns
    -------
    Module
        The model; another one where the model itself is such a layer.

    Raises
    ------
    InputError
        A named layer is not there, is shared or tied, or is none that can be replaced.
    """
    if isinstance(k, int):
        large = {name: module for name, module in model.named_modules() if _smaller_side(module) >= k}
        sizes = {name: k for name, module in large.items() if not rows or _pays(module, k, rows)}
    else:
        sizes = dict(k)
    for name, module in find_modules(model, list(sizes)).items():
        check_unshared(model, name, module)
        created = circulant_of(module, sizes[name])
        if created is None:
            raise InputError(
                f"{name} is a {type(module).__name__}, for which there is no block-circulant layer",
                fix="name linear layers, 2-D convolutions and LSTMs",
            )
        if not name:
            return created
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, created)
    return model


def _pays(module: Any, k: int, rows: int) -> bool:
    """Convolutions of blocks are written out as dense ones, which never is quicker."""
    if type(module) is not torch.nn.Linear:
        return False
    return is_quicker(module.in_features, module.out_features, k, rows, module.weight, trains=True)


def _smaller_side(module: Any) -> int:
    return min(module.weight.shape[:2]) if can_be(module) else 0
