"""Linear layers, convolutions and LSTMs whose weights are circulant blocks, in place of torch's (room nn).

In: what torch's layers take. Out: what they give, from a k-th of the weights. ``from_dense`` makes one of a trained
layer by projection; ``CirculantAdapter`` adds one to a layer that is frozen. While it is traced for a compiler or an
export a layer takes ``fft``, or ``dense`` where it was told so: nothing is measured there. Not here: products
(``products``), integers (``fixed``), which layers of a model (``modules``).

Source: CirCNN, MICRO 2017; Wang et al., AAAI 2018 (convolutions); Li et al., E-RNN, HPCA 2019 (LSTM).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.errors import InputError
from windtunnel.nn.circulant import algebra
from windtunnel.nn.circulant.algebra import Blocks, nearest
from windtunnel.nn.circulant.fixed import multiply_fixed
from windtunnel.nn.circulant.products import AUTOMATIC, by_spectrum, checked_way, multiply, spectrum, way_for

__all__ = ["BlockCirculantConv2d", "BlockCirculantLSTM", "BlockCirculantLinear", "CirculantAdapter"]

Tensor = torch.Tensor
_DTYPES = (torch.float32, torch.float64)


def _checked(dtype: torch.dtype) -> None:
    if dtype not in _DTYPES:
        raise InputError(
            f"block-circulant layers have no {str(dtype).removeprefix('torch.')}: there is no Fourier transform of it",
            fix="keep this layer in float32, or quantize it for integers",
        )


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    height, width = sizes
    return height, width


class _Circulant(torch.nn.Module):
    """First columns and how they are multiplied."""

    def __init__(self, blocks: Blocks, lead: tuple[int, ...], way: str, dtype: Any, device: Any) -> None:
        super().__init__()
        blocks.warn()
        self.blocks, self.way = blocks, checked_way(way)
        self.weight = torch.nn.Parameter(torch.empty(*lead, *blocks.shape, dtype=dtype, device=device))
        self._kept: tuple[int, Tensor] | None = None

    def product(self, x: Tensor) -> Tensor:
        """``x W'``."""
        _checked(self.weight.dtype)
        if torch.compiler.is_compiling() or torch.compiler.is_exporting():
            return multiply(x, self.weight, self.blocks, "dense" if self.way == "dense" else "fft")
        trains = torch.is_grad_enabled() and (self.weight.requires_grad or x.requires_grad)
        way = self.way
        if way == AUTOMATIC:
            way = way_for(self.blocks, x.shape[:-1].numel(), x.dtype, x.device.type, trains=trains)
        if trains or way == "dft":
            return multiply(x, self.weight, self.blocks, way)
        made = self._made(way)
        if way == "dense":
            return torch.nn.functional.linear(x, made)
        return by_spectrum(x.reshape(-1, x.shape[-1]), made, self.blocks).reshape(
            *x.shape[:-1], self.blocks.num_outputs
        )

    def _made(self, way: str) -> Tensor:
        """Spectrum or dense matrix, kept until the weight changes."""
        version = hash((self.weight._version, self.weight.data_ptr(), way))
        if self._kept is None or self._kept[0] != version:
            with torch.no_grad():
                made = spectrum(self.weight).contiguous() if way == "fft" else algebra.dense(self.weight, self.blocks)
            self._kept = version, made
        return self._kept[1]

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made again."""
        return {**self.__dict__, "_kept": None}

    def describe(self) -> str:
        """Size, and what is padded."""
        blocks = self.blocks
        text = f"{blocks.num_inputs}, {blocks.num_outputs}, k={blocks.size}"
        return text if blocks.padding == (0, 0) else f"{text}, padded by {blocks.padding[0]} x {blocks.padding[1]}"


class BlockCirculantLinear(_Circulant):
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
        made = cls(
            layer.in_features,
            layer.out_features,
            k,
            bias=layer.bias is not None,
            way=way,
            dtype=weight.dtype,
            device=weight.device,
        )
        with torch.no_grad():
            made.weight.copy_(nearest(weight, made.blocks))
            if made.bias is not None:
                made.bias.copy_(layer.bias)
        return made.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """[..., n] to [..., m]."""
        y = self.product(x)
        return y if self.bias is None else y + self.bias

    def in_fixed_point(self, x: Tensor, bits: int = 16) -> Tensor:
        """What an engine of integers gives, for inference: [..., n] to [..., m].

        Parameters
        ----------
        x : [..., n]
        bits : int
            Of values, spectra and twiddle factors.

        Raises
        ------
        InputError
            k is no power of two, or so many bits are not offered.
        """
        y = multiply_fixed(x.reshape(-1, x.shape[-1]), self.weight, self.blocks, bits).to_float()
        rows = torch.from_numpy(y).to(x.dtype).reshape(*x.shape[:-1], self.blocks.num_outputs)
        return rows if self.bias is None else rows + self.bias.detach()

    def extra_repr(self) -> str:
        """Size, blocks, padding."""
        return self.describe()


class BlockCirculantConv2d(_Circulant):
    """A 2-D convolution whose channels are mixed by circulant blocks, one matrix of them for each place of the kernel.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size : int or pair
    k : int
        Rows and columns of a block of channels.
    stride, padding, dilation : int or pair
        As torch's.
    bias, way, dtype, device
        As of :class:`BlockCirculantLinear`.

    Examples
    --------
    >>> BlockCirculantConv2d(8, 16, 3, k=4, padding=1)(torch.ones(2, 8, 5, 5)).shape
    torch.Size([2, 16, 5, 5])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        k: int,
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        bias: bool = True,
        way: str = AUTOMATIC,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        size = _pair((kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size)
        taps = math.prod(size)
        super().__init__(Blocks(out_channels, in_channels, k), (taps,), way, dtype, device)
        self.kernel_size = size
        self.how: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
        self.bias = torch.nn.Parameter(torch.empty(out_channels, dtype=dtype, device=device)) if bias else None
        bound = 1 / math.sqrt(in_channels * taps)
        torch.nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            torch.nn.init.uniform_(self.bias, -bound, bound)

    @classmethod
    def from_dense(cls, layer: torch.nn.Conv2d, k: int, *, way: str = AUTOMATIC) -> BlockCirculantConv2d:
        """The nearest one to a dense convolution.

        Raises
        ------
        InputError
            The convolution has groups, or pads with other than zeros.
        """
        if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise InputError(
                f"no block-circulant convolution has {layer.groups} groups and padding {layer.padding_mode}",
                fix="keep this convolution dense",
            )
        made = cls(
            layer.in_channels,
            layer.out_channels,
            _pair(layer.kernel_size),
            k,
            stride=_pair(layer.stride),
            padding=_pair(layer.padding),
            dilation=_pair(layer.dilation),
            bias=layer.bias is not None,
            way=way,
            dtype=layer.weight.dtype,
            device=layer.weight.device,
        )
        with torch.no_grad():
            made.weight.copy_(nearest(layer.weight.flatten(2).permute(2, 0, 1), made.blocks))
            if made.bias is not None and layer.bias is not None:
                made.bias.copy_(layer.bias)
        return made.train(layer.training)

    def dense_weight(self) -> Tensor:
        """The kernel that a dense convolution would have, [P, C, height, width]."""
        kernel: Tensor = algebra.dense(self.weight, self.blocks).permute(1, 2, 0).unflatten(2, self.kernel_size)
        return kernel

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, P, H', W']."""
        _checked(self.weight.dtype)
        # channels of a block are transformed once per pixel; per frequency this is a convolution of q to p channels
        if self.way in ("fft", "dft"):
            return self._by_frequency(x)
        return torch.nn.functional.conv2d(x, self.dense_weight(), self.bias, **self.how)

    def _by_frequency(self, x: Tensor) -> Tensor:
        p, q, k = self.blocks.shape
        columns = self.blocks.padding[1]
        padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, columns)) if columns else x
        frequencies = torch.fft.rfft(padded.unflatten(1, (q, k)), dim=2)  # [B, q, F, H, W]
        weight = torch.fft.rfft(self.weight).unflatten(0, self.kernel_size).permute(4, 2, 3, 0, 1)  # [F, p, q, h, w]
        count = len(weight)
        real, imaginary = (part.transpose(1, 2).flatten(1, 2) for part in (frequencies.real, frequencies.imag))
        w_real, w_imaginary = (part.flatten(0, 1) for part in (weight.real, weight.imag))

        def convolved(one: Tensor, kernel: Tensor) -> Tensor:
            return torch.nn.functional.conv2d(one, kernel, groups=count, **self.how)

        y_real = convolved(real, w_real) - convolved(imaginary, w_imaginary)
        y_imaginary = convolved(real, w_imaginary) + convolved(imaginary, w_real)
        y = torch.complex(y_real, y_imaginary).unflatten(1, (count, p))  # [B, F, p, H, W]
        whole: Tensor = torch.fft.irfft(y.transpose(1, 2), n=k, dim=2)
        channels = whole.flatten(1, 2)[:, : self.blocks.num_outputs]
        return channels if self.bias is None else channels + self.bias[:, None, None]

    def extra_repr(self) -> str:
        """Channels, kernel, blocks, padding."""
        return f"{self.describe()}, kernel_size={self.kernel_size}"


class BlockCirculantLSTM(torch.nn.Module):
    """One or more layers of an LSTM whose eight products are of circulant blocks.

    Parameters
    ----------
    input_size, hidden_size, num_layers : int
    k : int
        Of the four gates together: [4 H, D] and [4 H, H].
    batch_first, way
        As torch's, and as of :class:`BlockCirculantLinear`.

    Examples
    --------
    >>> output, (h, c) = BlockCirculantLSTM(8, 16, k=4)(torch.ones(5, 3, 8))
    >>> tuple(output.shape), tuple(h.shape)
    ((5, 3, 16), (1, 3, 16))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        k: int,
        batch_first: bool = False,
        way: str = AUTOMATIC,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.hidden_size, self.batch_first = hidden_size, batch_first
        about: dict[str, Any] = {"way": way, "dtype": dtype, "device": device}
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.inputs = torch.nn.ModuleList([BlockCirculantLinear(size, 4 * hidden_size, k, **about) for size in sizes])
        self.states = torch.nn.ModuleList(
            [BlockCirculantLinear(hidden_size, 4 * hidden_size, k, bias=False, **about) for _ in sizes]
        )

    @classmethod
    def from_dense(cls, layer: torch.nn.LSTM, k: int, *, way: str = AUTOMATIC) -> BlockCirculantLSTM:
        """The nearest one to torch's.

        Raises
        ------
        InputError
            It has two directions, a projection or dropout.
        """
        if layer.bidirectional or layer.proj_size or layer.dropout:
            raise InputError("no block-circulant LSTM has two directions, projections or dropout")
        weight = layer.weight_ih_l0
        made = cls(
            layer.input_size,
            layer.hidden_size,
            layer.num_layers,
            k=k,
            batch_first=layer.batch_first,
            way=way,
            dtype=weight.dtype,
            device=weight.device,
        )
        with torch.no_grad():
            for depth in range(layer.num_layers):
                inputs: Any = made.inputs[depth]
                states: Any = made.states[depth]
                inputs.weight.copy_(nearest(getattr(layer, f"weight_ih_l{depth}"), inputs.blocks))
                states.weight.copy_(nearest(getattr(layer, f"weight_hh_l{depth}"), states.blocks))
                inputs.bias.zero_()
                if layer.bias:
                    inputs.bias.copy_(getattr(layer, f"bias_ih_l{depth}") + getattr(layer, f"bias_hh_l{depth}"))
        return made.train(layer.training)

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[T, B, D] to [T, B, H], and the last states, each [layers, B, H]."""
        data = x.transpose(0, 1) if self.batch_first else x
        zeros = data.new_zeros(len(self.inputs), data.shape[1], self.hidden_size)
        last = []
        for depth, (inputs, states) in enumerate(zip(self.inputs, self.states, strict=True)):
            h, c = (zeros[depth], zeros[depth]) if hx is None else (hx[0][depth], hx[1][depth])
            outputs = []
            for gates in inputs(data).unbind(0):
                i, f, g, o = (gates + states(h)).chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                outputs.append(h)
            data = torch.stack(outputs)
            last.append((h, c))
        h_last, c_last = (torch.stack(parts) for parts in zip(*last, strict=True))
        return data.transpose(0, 1) if self.batch_first else data, (h_last, c_last)


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
        """[..., n] to [..., m]."""
        y: Tensor = self.base(x) + self.scale * self.update(x)
        return y

    def merged(self) -> torch.nn.Linear:
        """One dense layer that gives the same."""
        made = torch.nn.Linear(
            self.base.in_features,
            self.base.out_features,
            self.base.bias is not None,
            device=self.base.weight.device,
            dtype=self.base.weight.dtype,
        )
        with torch.no_grad():
            made.weight.copy_(self.base.weight + self.scale * algebra.dense(self.update.weight, self.update.blocks))
            if made.bias is not None:
                made.bias.copy_(self.base.bias)
        return made
