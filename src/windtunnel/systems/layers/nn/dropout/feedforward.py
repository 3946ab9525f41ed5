"""Feed-forward layers whose dropout shrinks their products.

In: what ``torch.nn.Linear`` takes. Out: what it gives on an input of which whole units are dropped for the whole batch
(``StructuredLinear``), or on a hidden layer of which they are not even computed (``StructuredFeedForward``). In
evaluation both are the dense layers. Not here: the products (``products``).

Source: Sarma et al., NeurIPS 2021: the softmax layer sees the last mask, so that its three products shrink as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from windtunnel.systems.layers.nn.dropout.keep import Keep, Span, count_groups, draw, spans
from windtunnel.systems.layers.nn.dropout.recurrent import Settings, check_layer, seed_of
from windtunnel.systems.layers.nn.dropout.sequence import Dropped, product
from windtunnel.systems.layers.nn.dropout.ways import AUTOMATIC

__all__ = ["StructuredFeedForward", "StructuredLinear", "drop_and_multiply", "drop_units", "multiply_kept_units"]

Tensor = torch.Tensor


def drop_and_multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    settings: Settings,
    *,
    step_dim: int | None = None,
    num_calls: int = 0,
) -> Tensor:
    """A linear layer on an input of which units are dropped.

    Parameters
    ----------
    x : [..., D]
    weight : [G, D]
    bias : [G], optional
    settings : Settings
        ``input`` is the share that is dropped.
    step_dim : int, optional
        The dimension of time, each ``period`` steps of which have a set; None: one set for all.
    num_calls : int
        Numbers the calls of a layer with a seed of its own.
    """
    check_layer(weight.dtype, settings)
    if settings.input == 0:
        return torch.nn.functional.linear(x, weight, bias)
    group = min(settings.group, x.shape[-1])
    moved = x if step_dim is None else x.movedim(step_dim, 0)
    sizes = [moved.shape[:-1].numel()] if step_dim is None else [moved.shape[1:-1].numel()] * len(moved)
    seed = seed_of(settings, num_calls)
    keeps = draw(
        x.shape[-1], settings.input, range(-(-len(sizes) // settings.period)), seed=seed, group=group, device=x.device
    )
    dropped = Dropped(spans(sizes, keeps, settings.period), group, settings.way)
    y = product(moved.reshape(-1, x.shape[-1]), weight, bias, dropped).view(*moved.shape[:-1], -1)
    return y if step_dim is None else y.movedim(0, step_dim)


def drop_units(x: Tensor, settings: Settings) -> tuple[Tensor, Keep]:
    """A tensor [..., D] with units dropped, the same ones everywhere, and which are kept."""
    (keep,) = draw(
        x.shape[-1], settings.input, [0], seed=seed_of(settings, 0), group=min(settings.group, x.shape[-1]),
        device=x.device,
    )  # fmt: skip
    return x * keep.factors(x.dtype), keep


def multiply_kept_units(x: Tensor, weight: Tensor, bias: Tensor | None, keep: Keep, settings: Settings) -> Tensor:
    """A linear layer on what :func:`drop_units` gave: [..., D] to [..., G], without the units that are 0."""
    rows = x.reshape(-1, x.shape[-1])
    scaled = replace(keep, scale=1.0)  # x is scaled already
    dropped = Dropped((Span(0, len(rows), scaled),), min(settings.group, x.shape[-1]), settings.way)
    return product(rows, weight, bias, dropped).view(*x.shape[:-1], -1)


class StructuredLinear(torch.nn.Linear):
    """A linear layer that drops units of its input, the same ones for the whole batch.

    Parameters
    ----------
    *args, **kwargs
        Those of ``torch.nn.Linear``.
    dropout : float
        Share of the input's units that are dropped.
    step_dim : int, optional
        The dimension of time; every step along it has a set of its own. None: one set for all.
    period, group, seed, way
        See :class:`Settings`.

    Raises
    ------
    InputError
        The share is none, or a group is larger than the input.

    Examples
    --------
    >>> StructuredLinear(8, 4, dropout=0.5, seed=1)(torch.ones(5, 3, 8)).shape
    torch.Size([5, 3, 4])
    """

    def __init__(
        self,
        *args: Any,
        dropout: float = 0.5,
        step_dim: int | None = None,
        period: int = 1,
        group: int = 1,
        seed: int | None = None,
        way: str = AUTOMATIC,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.settings = Settings(input=dropout, period=period, group=group, seed=seed, way=way)
        count_groups(self.in_features, dropout, group)
        self.step_dim = step_dim
        self.num_calls = 0
        with torch.no_grad():
            self.weight.data = self.weight.data.t().contiguous().t()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Apply the layer as ``torch.nn.Linear`` does."""
        if not self.training:
            return super().forward(input)
        self.num_calls += 1
        own = self.weight, self.bias, self.settings
        return drop_and_multiply(input, *own, step_dim=self.step_dim, num_calls=self.num_calls)

    def extra_repr(self) -> str:
        """Torch's, and what is dropped."""
        return f"{super().extra_repr()}, dropout={self.settings.input}, step_dim={self.step_dim}"


class _Selected(torch.autograd.Function):
    """Both products of a feed-forward layer with the kept hidden units only."""

    @staticmethod
    def forward(context: Any, weight: Tensor, keep: Keep, dim: int) -> Tensor:
        context.keep, context.dim = keep, dim
        context.shape = weight.shape
        context.is_row_major = weight.is_contiguous()
        return weight.index_select(dim, keep.index)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        whole = gradient.new_zeros(context.shape if context.is_row_major else context.shape[::-1])
        whole = whole if context.is_row_major else whole.t()
        return whole.index_copy(context.dim, context.keep.index, gradient), None, None


class StructuredFeedForward(torch.nn.Module):
    """Two linear layers with an activation and dropout between; what is dropped is not computed.

    Both products, and all their gradients, take 1 - p of the multiply-adds.

    Parameters
    ----------
    in_features, hidden_features, out_features : int
    dropout : float
        Share of the hidden units that are dropped for a whole batch.
    activation : callable
        Elementwise activation.
    bias : bool
    group, seed
        See :class:`Settings`.

    Examples
    --------
    >>> StructuredFeedForward(8, 32, 8, dropout=0.5)(torch.ones(5, 3, 8)).shape
    torch.Size([5, 3, 8])
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        dropout: float = 0.5,
        activation: Callable[[Tensor], Tensor] = torch.nn.functional.relu,
        bias: bool = True,
        group: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.settings = Settings(input=dropout, group=group, seed=seed)
        count_groups(hidden_features, dropout, group)
        self.expand = torch.nn.Linear(in_features, hidden_features, bias=bias)
        self.reduce = torch.nn.Linear(hidden_features, out_features, bias=bias)
        self.activation = activation
        self.num_calls = 0
        with torch.no_grad():
            self.reduce.weight.data = self.reduce.weight.data.t().contiguous().t()

    def forward(self, x: Tensor) -> Tensor:
        """Expand, activate, drop, reduce: [..., D] to [..., O]."""
        if not self.training or self.settings.input == 0:
            return self.reduce(self.activation(self.expand(x)))  # type: ignore[no-any-return]
        check_layer(self.expand.weight.dtype, self.settings)
        self.num_calls += 1
        own, seed = self.settings, seed_of(self.settings, self.num_calls)
        (keep,) = draw(self.expand.out_features, own.input, [0], seed=seed, group=own.group, device=x.device)
        bias = None if self.expand.bias is None else self.expand.bias.index_select(0, keep.index)
        hidden = self.activation(torch.nn.functional.linear(x, _Selected.apply(self.expand.weight, keep, 0), bias))
        kept = _Selected.apply(self.reduce.weight, keep, 1)
        return torch.nn.functional.linear(hidden * keep.scale, kept, self.reduce.bias)
