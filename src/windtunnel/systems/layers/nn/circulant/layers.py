"""Linear layers whose weights are circulant blocks, in place of torch's.

In: what torch's layers take. Out: what they give, from a k-th of the weights. ``from_dense`` makes one of a trained
layer by projection; ``CirculantAdapter`` adds one to a layer that is frozen. While it is traced for a compiler or an
export a layer takes ``fft``, or ``dense`` where that was requested: nothing is measured there. Not here: products
(``products``), integers (``fixed``), other layers (``convolution``, ``lstm``), which layers of a model (``modules``).

Source: CirCNN, MICRO 2017; Liao et al., ICCAD 2017.
"""

from __future__ import annotations

import math
import warnings
from functools import cache, partial
from typing import Any

import torch

from windtunnel.errors import InputError
from windtunnel.systems.layers.nn.choice import quickest
from windtunnel.systems.layers.nn.circulant import algebra
from windtunnel.systems.layers.nn.circulant.algebra import Blocks, nearest
from windtunnel.systems.layers.nn.circulant.products import (
    AUTOMATIC,
    check_way,
    multiply,
    multiply_by_prepared_weight,
    prepare_weight,
    way_for,
)

__all__ = ["BlockCirculantLinear", "CirculantAdapter", "CirculantProduct", "check_dtype", "is_quicker"]

Tensor = torch.Tensor
_IN_A_ROW = 8
_DTYPES = (torch.float32, torch.float64)


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse what has no Fourier transform.

    Raises
    ------
    InputError
        Weights have half precision.
    """
    if dtype not in _DTYPES:
        raise InputError(
            f"block-circulant layers have no {str(dtype).removeprefix('torch.')}: there is no Fourier transform of it",
            fix="keep this layer in float32, or quantize it for integers",
        )


class CirculantProduct(torch.nn.Module):
    """First columns and how they are multiplied."""

    def __init__(self, blocks: Blocks, lead: tuple[int, ...], way: str, dtype: Any, device: Any) -> None:
        super().__init__()
        blocks.warn()
        self.blocks, self.way = blocks, check_way(way)
        self.weight = torch.nn.Parameter(torch.empty(*lead, *blocks.shape, dtype=dtype, device=device))
        self._kept: tuple[int, Tensor] | None = None

    def product(self, x: Tensor) -> Tensor:
        """Return ``x W'``."""
        check_dtype(self.weight.dtype)
        if torch.compiler.is_compiling() or torch.compiler.is_exporting():
            return multiply(x, self.weight, self.blocks, "dense" if self.way == "dense" else "fft")
        trains = torch.is_grad_enabled() and (self.weight.requires_grad or x.requires_grad)
        way = self.way
        if way == AUTOMATIC:
            way = way_for(self.blocks, x.shape[:-1].numel(), x.dtype, x.device.type, trains=trains)
        if trains:
            return multiply(x, self.weight, self.blocks, way)
        # The operand of a method, cached until the weight changes.
        version = hash((self.weight._version, self.weight.data_ptr(), way))
        if self._kept is None or self._kept[0] != version:
            with torch.no_grad():
                self._kept = version, prepare_weight(self.weight, self.blocks, way)
        return multiply_by_prepared_weight(x, self._kept[1], self.blocks, way)

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made again."""
        return {**self.__dict__, "_kept": None}

    def describe(self) -> str:
        """Return the layer's size and padding as text."""
        blocks = self.blocks
        text = f"{blocks.num_inputs}, {blocks.num_outputs}, k={blocks.size}"
        return text if blocks.padding == (0, 0) else f"{text}, padded by {blocks.padding[0]} x {blocks.padding[1]}"


class BlockCirculantLinear(CirculantProduct):
    """A linear layer of circulant blocks.

    Parameters
    ----------
    in_features, out_features : int
    k : int
        Rows and columns of a block; the layer has a k-th of the weights. What k does not divide is padded.
    bias : bool
    way : str
        ``"auto"`` is what is quickest for its shape, else a name in ``products.WAYS``.
    dtype, device
        As torch's.

    Raises
    ------
    InputError
        k is below 2 or larger than the layer.

    Examples
    --------
    >>> layer = BlockCirculantLinear(8, 4, k=4)
    >>> layer(torch.ones(3, 8)).shape, layer.weight.shape
    (torch.Size([3, 4]), torch.Size([1, 2, 4]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        k: int,
        *,
        bias: bool = True,
        way: str = AUTOMATIC,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__(Blocks(out_features, in_features, k), (), way, dtype, device)
        self.bias = torch.nn.Parameter(torch.empty(out_features, dtype=dtype, device=device)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights as those of a dense layer of this width."""
        bound = 1 / math.sqrt(self.blocks.num_inputs)
        torch.nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            torch.nn.init.uniform_(self.bias, -bound, bound)

    @classmethod
    def from_dense(cls, layer: torch.nn.Linear, k: int, *, way: str = AUTOMATIC) -> BlockCirculantLinear:
        """The nearest one to a dense layer."""
        weight = layer.weight
        created = cls(
            layer.in_features,
            layer.out_features,
            k,
            bias=layer.bias is not None,
            way=way,
            dtype=weight.dtype,
            device=weight.device,
        )
        with torch.no_grad():
            created.weight.copy_(nearest(weight, created.blocks))
            if created.bias is not None:
                created.bias.copy_(layer.bias)
        return created.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., n] to [..., m]."""
        y = self.product(x)
        return y if self.bias is None else y + self.bias

    def in_fixed_point(self, x: Tensor, bits: int = 16) -> Tensor:
        """Apply the layer in fixed point, for inference: [..., n] to [..., m].

        Parameters
        ----------
        x : [..., n]
        bits : int
            Of values, spectra and twiddle factors.

        Raises
        ------
        InputError
            k is no power of two, or the number of bits is not supported.
        """
        from windtunnel.systems.layers.nn.circulant.fixed import multiply_fixed_point

        y = multiply_fixed_point(x.reshape(-1, x.shape[-1]), self.weight, self.blocks, bits).to_float()
        rows = torch.from_numpy(y).to(x.dtype).reshape(*x.shape[:-1], self.blocks.num_outputs)
        return rows if self.bias is None else rows + self.bias.detach()

    def extra_repr(self) -> str:
        """Return size, blocks and padding for ``repr``."""
        return self.describe()


def is_quicker(inputs: int, outputs: int, k: int, num_rows: int, like: Tensor, *, trains: bool) -> bool:
    """Return whether the layer is clearly quicker than ``torch.nn.Linear`` on this host, measured once by rows."""
    return _is_quicker(inputs, outputs, k, num_rows, like.dtype, str(like.device), trains, torch.get_num_threads())


@cache
def _is_quicker(
    inputs: int, outputs: int, k: int, num_rows: int, dtype: torch.dtype, device: str, trains: bool, threads: int
) -> bool:
    del threads
    about: dict[str, Any] = {"dtype": dtype, "device": device}
    x = torch.full((num_rows, inputs), 0.01, requires_grad=trains, **about)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # padding is reported where k is given
        layers = {"ours": BlockCirculantLinear(inputs, outputs, k, **about),
                  "dense": torch.nn.Linear(inputs, outputs, **about)}  # fmt: skip

    def step(layer: torch.nn.Module) -> None:
        with torch.set_grad_enabled(trains):
            y = layer(x)
            if trains:
                torch.autograd.grad(y.sum(), [x, *layer.parameters()])

    def often(layer: torch.nn.Module) -> None:
        for _ in range(_IN_A_ROW):
            step(layer)

    # in a network a layer's weights are in no cache, or in one: blocks have to win either way
    return all(
        quickest({name: partial(run, layer) for name, layer in layers.items()}, plain="dense") == "ours"
        for run in (step, often)
    )


class CirculantAdapter(torch.nn.Module):
    """A frozen linear layer and what a block-circulant one adds to it; at first nothing.

    Parameters
    ----------
    base : torch.nn.Linear
        Frozen from here on.
    k : int
    scale : float
        What the addition is multiplied with.
    """

    def __init__(self, base: torch.nn.Linear, k: int, *, scale: float = 1.0, way: str = AUTOMATIC) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        about: dict[str, Any] = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.update = BlockCirculantLinear(base.in_features, base.out_features, k, bias=False, way=way, **about)
        self.scale = scale
        torch.nn.init.zeros_(self.update.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., n] to [..., m]."""
        y: Tensor = self.base(x) + self.scale * self.update(x)
        return y

    def to_linear(self) -> torch.nn.Linear:
        """Return an equivalent dense layer."""
        created = torch.nn.Linear(
            self.base.in_features,
            self.base.out_features,
            self.base.bias is not None,
            device=self.base.weight.device,
            dtype=self.base.weight.dtype,
        )
        with torch.no_grad():
            created.weight.copy_(self.base.weight + self.scale * algebra.dense(self.update.weight, self.update.blocks))
            if created.bias is not None:
                created.bias.copy_(self.base.bias)
        return created
