"""Convolutions whose channels are mixed by circulant blocks, in place of torch's.

In: images. Out: what torch's convolution gives, from a k-th of the weights: for each place of the kernel a matrix of
circulant blocks over channels. Its own way makes the dense kernel first; ``fft`` transforms the channels of each block
once per pixel, and is then a convolution of fewer channels for each frequency. Not here: products (``products``).

Source: CirCNN, MICRO 2017; Wang et al., AAAI 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.errors import InputError
from windtunnel.systems.layers.nn.circulant import algebra
from windtunnel.systems.layers.nn.circulant.algebra import Blocks, nearest
from windtunnel.systems.layers.nn.circulant.layers import CirculantProduct, check_dtype
from windtunnel.systems.layers.nn.circulant.products import AUTOMATIC

__all__ = ["BlockCirculantConv2d"]

Tensor = torch.Tensor


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    height, width = sizes
    return height, width


class BlockCirculantConv2d(CirculantProduct):
    """A 2-D convolution whose channels are mixed by circulant blocks, one matrix of them for each place of the kernel.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size : int or pair
    k : int
        Rows and columns of a block of channels.
    stride, padding, dilation : int or pair
        As in torch.
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
        created = cls(
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
            created.weight.copy_(nearest(layer.weight.flatten(2).permute(2, 0, 1), created.blocks))
            if created.bias is not None and layer.bias is not None:
                created.bias.copy_(layer.bias)
        return created.train(layer.training)

    def dense_weight(self) -> Tensor:
        """The kernel that a dense convolution would have, [P, C, height, width]."""
        kernel: Tensor = algebra.dense(self.weight, self.blocks).permute(1, 2, 0).unflatten(2, self.kernel_size)
        return kernel

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, P, H', W']."""
        check_dtype(self.weight.dtype)
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

        def convolve(x: Tensor, kernel: Tensor) -> Tensor:
            return torch.nn.functional.conv2d(x, kernel, groups=count, **self.how)

        y_real = convolve(real, w_real) - convolve(imaginary, w_imaginary)
        y_imaginary = convolve(real, w_imaginary) + convolve(imaginary, w_real)
        y = torch.complex(y_real, y_imaginary).unflatten(1, (count, p))  # [B, F, p, H, W]
        whole: Tensor = torch.fft.irfft(y.transpose(1, 2), n=k, dim=2)
        channels = whole.flatten(1, 2)[:, : self.blocks.num_outputs]
        return channels if self.bias is None else channels + self.bias[:, None, None]

    def extra_repr(self) -> str:
        """Channels, kernel, blocks, padding."""
        return f"{self.describe()}, kernel_size={self.kernel_size}"
