"""Convolutions by their sizes, and which pixels an output is made of.

In: sizes of a layer; a linear layer is a convolution of one pixel. Out: for each pass a table of taps: which operand
pixel each tap of each output pixel reads. Taps that lie outside of the image, or between the pixels of a strided
gradient, are not operands of any machine here. Not here: zeros (``costs``), cycles (``layer``).
"""

# H W pixels of an input image, P Q of an output image, T taps

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError

__all__ = ["PHASES", "ConvShape", "shape_of"]

PHASES = ("forward", "backward", "weights")
"""Y = W * X; dX = W^T * dY; dW = X correlated with dY."""
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ConvShape:
    """Sizes of one convolution.

    Parameters
    ----------
    images, channels, height, width : int
        Sizes of the input.
    filters : int
    kernel, stride, padding, dilation : (int, int)
        Down and across.
    groups : int

    Examples
    --------
    >>> ConvShape(1, 8, 6, 6, 16, (3, 3), padding=(1, 1)).output
    (6, 6)
    """

    images: int
    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no convolution.

        Raises
        ------
        InputError
            A size is not above zero, groups do not divide channels, or the window is larger than the image.
        """
        sizes = (self.images, self.channels, self.height, self.width, self.filters, self.groups)
        if min(*sizes, *self.kernel, *self.stride, *self.dilation) < 1 or min(self.padding) < 0:
            raise InputError(f"sizes of a convolution are above zero, not {self}", where="shape")
        if self.channels % self.groups or self.filters % self.groups:
            raise InputError(
                f"{self.groups} groups do not divide {self.channels} channels and {self.filters} filters",
                where="groups",
            )
        if min(self.output) < 1:
            raise InputError(f"a window of {self.kernel} does not fit an image of {self.height} x {self.width}")

    @classmethod
    def linear(cls, rows: int, inputs: int, outputs: int) -> ConvShape:
        """Describe a linear layer as a convolution of one pixel."""
        return cls(rows, inputs, 1, 1, outputs)

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of an output image."""
        sides = zip((self.height, self.width), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        down, across = ((size + 2 * pad - far * (side - 1) - 1) // step + 1 for size, side, step, pad, far in sides)
        return down, across

    @property
    def num_input_pixels(self) -> int:
        """Input pixels of all images."""
        return self.images * self.height * self.width

    @property
    def num_output_pixels(self) -> int:
        """Output pixels of all images."""
        return self.images * math.prod(self.output)

    @property
    def num_weights(self) -> int:
        """Weights of all filters."""
        return self.filters * self.channels // self.groups * math.prod(self.kernel)

    def taps(self, phase: str) -> Ints:
        """Operand pixel of each tap of each pixel of one image, int64 [pixels, T]; -1 where there is none.

        ``forward``: output pixels of input pixels; ``backward``: input pixels of output pixels; ``weights`` as
        ``forward``.
        """
        down, across = (self._side(item, phase) for item in (0, 1))
        width = self.output[1] if phase == "backward" else self.width
        both = down[:, None, :, None] * width + across[None, :, None, :]
        is_outside = (down < 0)[:, None, :, None] | (across < 0)[None, :, None, :]
        result: Ints = np.where(is_outside, -1, both).reshape(len(down) * len(across), -1)
        return result

    def _side(self, side: int, phase: str) -> Ints:
        """Return what each tap reads along one side of an image."""
        size = (self.height, self.width)[side]
        step, pad, far = self.stride[side], self.padding[side], self.dilation[side]
        taps = np.arange(self.kernel[side])
        if phase != "backward":
            result = np.arange(self.output[side])[:, None] * step - pad + taps * far
            return np.where((result >= 0) & (result < size), result, -1)
        reached = np.arange(size)[:, None] + pad - taps * far
        result = reached // step
        is_there = (reached % step == 0) & (result >= 0) & (result < self.output[side])
        return np.where(is_there, result, -1)


def shape_of(
    inputs: Sequence[int],
    weight: Sequence[int],
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> ConvShape:
    """From the shapes of tensors: images [N, C, H, W] and filters [F, C / groups, R, S], or rows and a matrix.

    Raises
    ------
    InputError
        The shapes are of another form.
    """
    if len(inputs) != len(weight) or len(inputs) not in (2, 4):
        raise InputError(f"no convolution of two dimensions: {list(inputs)} with {list(weight)}", where="shape")
    if len(inputs) == 2:
        return ConvShape.linear(inputs[0], inputs[1], weight[0])
    kernel, steps, pads, far = ((int(item[0]), int(item[1])) for item in (weight[2:], stride, padding, dilation))
    images, channels, height, width = inputs
    return ConvShape(images, channels, height, width, weight[0], kernel, steps, pads, far, groups)
