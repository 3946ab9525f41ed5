"""Networks on images, dense or of circulant blocks.

In: ``dense`` or ``k=N``, sizes. Out: a network of which the layers that can be are of blocks of N. Scores and the first
convolution stay dense, as in the papers. Not here: training (``tasks``), layers (``nn``).

Source: CirCNN, MICRO 2017; Liao et al., ICCAD 2017.
"""

from __future__ import annotations

import warnings

from torch import nn

from windtunnel.errors import InputError
from windtunnel.systems.layers.nn import BlockCirculantConv2d, BlockCirculantLinear

__all__ = ["block_of", "circulant_network"]

_CLASSES = 10


def block_of(case: str) -> int:
    """Rows of a block; 1 is dense.

    Raises
    ------
    InputError
        The case is none.

    Examples
    --------
    >>> block_of("dense"), block_of("k=16")
    (1, 16)
    """
    if case == "dense":
        return 1
    name, _, size = case.partition("=")
    if name != "k" or not size.isdecimal() or int(size) < 2:
        raise InputError(f"{case!r} is no kind of layers", where="cases", fix="write dense, or k=8 for blocks of 8")
    return int(size)


def circulant_network(kind: str, case: str, channels: int, pixels: int, width: int) -> nn.Module:
    """``perceptron``: two layers of ``width`` and scores; ``convolutions``: four convolutions, one layer, scores."""
    k = block_of(case)

    def linear(num_inputs: int, num_outputs: int) -> nn.Module:
        return nn.Linear(num_inputs, num_outputs) if k == 1 else BlockCirculantLinear(num_inputs, num_outputs, k)

    def convolution() -> nn.Module:
        plain = k == 1 or k > width
        return nn.Conv2d(width, width, 3, padding=1) if plain else BlockCirculantConv2d(width, width, 3, k, padding=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # padding of the pixels is of no interest here
        if kind == "perceptron":
            return nn.Sequential(
                nn.Flatten(), linear(channels * pixels * pixels, width), nn.ReLU(),
                linear(width, width), nn.ReLU(), nn.Linear(width, _CLASSES),
            )  # fmt: skip
        return nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), convolution(), nn.ReLU(), nn.MaxPool2d(2),
            convolution(), nn.ReLU(), convolution(), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), linear(width * (pixels // 4) ** 2, 4 * width), nn.ReLU(), nn.Linear(4 * width, _CLASSES),
        )  # fmt: skip
