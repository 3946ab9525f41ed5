"""Layers by name: what runs in place of an operator that a program calls.

In: an operator, the arguments of one call of it, and settings. Out: ``Replacement``: a callable that takes these
arguments, and the parameters that it brings along. Not here: which calls of a program are worth it (``whatifs``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.layers.nn.circulant.convolution import BlockCirculantConv2d
from windtunnel.systems.layers.nn.circulant.layers import BlockCirculantLinear, CirculantProduct
from windtunnel.systems.layers.nn.dropout.feedforward import drop_and_multiply, drop_units
from windtunnel.systems.layers.nn.dropout.native import lay_by_unit
from windtunnel.systems.layers.nn.dropout.recurrent import Settings, run_layers

__all__ = ["Replacement", "block_circulant", "settings_of", "structured_dropout"]

Tensor = torch.Tensor
PLACES = ("nr", "rh", "nr+rh")


@dataclass(frozen=True)
class Replacement:
    """Replacement of an operator.

    Attributes
    ----------
    function : callable
        Takes the operator's positional arguments and gives its results.
    parameters : tuple of Tensor
        Its own, in place of the operator's weight; none where it uses the operator's.
    """

    function: Callable[..., Any]
    parameters: tuple[Tensor, ...] = ()


@registry.layer("structured-dropout", source="Sarma et al., Structured in Space, Randomized in Time, NeurIPS 2021")
def structured_dropout(
    operator: str, arguments: Sequence[Any], *, p: float = 0.5, place: str = "nr+rh", period: int = 1, group: int = 1
) -> Replacement:
    """An LSTM, a GRU or a linear layer that drops units for the whole batch and does not multiply with them.

    Parameters
    ----------
    operator : str
        ``aten::lstm``, ``aten::gru`` or ``aten::linear``; ``aten::dropout`` before a linear layer only scales.
    arguments : sequence
        Arguments of one call.
    p : float
    place : str
        ``nr``: on the way into a layer; ``rh``: from step to step; ``nr+rh``: both.
    period, group : int
    """
    settings = settings_of(p, place, period, group)
    if operator == "aten::dropout":
        return Replacement(lambda x, *_: drop_units(x, settings)[0])
    if operator == "aten::linear":
        lay_by_unit(arguments[1:2])
        return Replacement(lambda x, weight, bias=None: drop_and_multiply(x, weight, bias, settings))
    kind = {"aten::lstm": torch.nn.LSTM, "aten::gru": torch.nn.GRU}.get(operator)
    if kind is None:
        raise InputError(
            f"structured dropout has nothing in place of {operator}", fix="use it for LSTM, GRU, linear, dropout"
        )

    def run(x: Tensor, second: Any, *others: Any) -> Any:
        is_packed = isinstance(second, Tensor) and second.dtype is torch.int64
        given = PackedSequence(x, second) if is_packed else x
        hx, weights, *how = others if is_packed else (second, *others)
        layer = _as_layer(kind, x, weights, *how)
        output, last = run_layers(layer, settings, given, tuple(hx) if isinstance(hx, list | tuple) else hx)
        data = output.data if isinstance(output, PackedSequence) else output
        return (data, *last) if isinstance(last, tuple) else (data, last)

    lay_by_unit(item for given in arguments if isinstance(given, list | tuple) for item in given)
    return Replacement(run)


@registry.layer("block-circulant", source="Ding et al., CirCNN, MICRO 2017; Liao et al., ICCAD 2017")
def block_circulant(operator: str, arguments: Sequence[Any], *, k: int = 64) -> Replacement:
    """A linear layer or a convolution whose weight is of circulant blocks, with a k-th of the weights.

    Parameters
    ----------
    operator : str
        ``aten::linear`` or ``aten::conv2d``.
    arguments : sequence
        Arguments of one call; the weight gives the size.
    k : int
        Rows and columns of a block.
    """
    if operator not in ("aten::linear", "aten::conv2d"):
        raise InputError(
            f"a block-circulant layer cannot replace {operator}", fix="use it for linear layers and convolutions"
        )
    weight: Tensor = arguments[1]
    how: dict[str, Any] = {"bias": False, "dtype": weight.dtype, "device": weight.device}
    created: CirculantProduct
    bias_shape: tuple[int, ...] = (-1,) if operator == "aten::linear" else (-1, 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # padding is reported where the user gives the size
        if operator == "aten::linear":
            created = BlockCirculantLinear(weight.shape[1], weight.shape[0], k, **how)
        else:
            stride, padding, dilation = (_pair(given) for given in arguments[3:6])
            created = BlockCirculantConv2d(
                weight.shape[1], weight.shape[0], _pair(weight.shape[2:]), k,
                stride=stride, padding=padding, dilation=dilation, **how,
            )  # fmt: skip

    def run(x: Tensor, _weight: Tensor, bias: Tensor | None = None, *_how: Any) -> Tensor:
        y: Tensor = created(x)
        return y if bias is None else y + bias.view(bias_shape)

    return Replacement(run, (created.weight,))


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    """Height and width; one number is for both."""
    return int(sizes[0]), int(sizes[-1])


def settings_of(p: float, place: str, period: int, group: int) -> Settings:
    """Settings that drop the same share in every place that is named.

    Raises
    ------
    InputError
        The place is not known.
    """
    if place not in PLACES:
        raise InputError(f"no place of dropout is called {place!r}", fix=f"use one of {', '.join(PLACES)}")
    between = p if "nr" in place else 0.0
    return Settings(between, between, p if "rh" in place else 0.0, period, group)


def _as_layer(
    kind: Any,
    x: Tensor,
    weights: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    is_training: bool,
    is_bidirectional: bool,
    batch_first: bool = False,
) -> torch.nn.RNNBase:
    """Torch's layer around weights that a program holds."""
    del dropout, is_training
    layer = kind(
        x.shape[-1],
        weights[1].shape[1],
        num_layers,
        bias=has_biases,
        batch_first=batch_first,
        bidirectional=is_bidirectional,
        device="meta",
    )
    for name, weight in zip([name for group in layer._all_weights for name in group], weights, strict=True):
        layer._parameters[name] = weight
    created: torch.nn.RNNBase = layer
    return created
