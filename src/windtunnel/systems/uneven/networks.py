"""Small networks that are trained on uneven fleets: GN-LeNet, thin residual networks, a next-word GRU.

In: sizes, the kind of normalization. Out: ``torch.nn.Module``. Sources: Hsieh et al., The Non-IID Data Quagmire, ICML
2020 (LeNet and the norms); He et al., CVPR 2016, section 4.2 (ResNets of 6 n + 2 layers for images of 32 pixels).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from windtunnel.errors import InputError

__all__ = ["NORMS", "lenet_network", "next_word_network", "norm_of", "resnet_network"]

Norm = Callable[[int], nn.Module]
NORMS: dict[str, Norm] = {
    "group": lambda channels: nn.GroupNorm(2, channels),
    "batch": nn.BatchNorm2d,
    "none": lambda _: nn.Identity(),
}


def norm_of(name: str) -> Norm:
    """A normalization by its name.

    Raises
    ------
    InputError
        There is none of that name.
    """
    if name not in NORMS:
        raise InputError(f"no normalization is called {name!r}", where="norm", fix=f"known: {', '.join(NORMS)}")
    return NORMS[name]


def lenet_network(channels: int, pixels: int, norm: Norm) -> nn.Module:
    """GN-LeNet, or the same with another normalization."""

    def block(before: int, after: int, pool: nn.Module, *, pools_first: bool) -> list[nn.Module]:
        layers = [norm(after), nn.ReLU()]
        pooled = [pool, *layers] if pools_first else [*layers, pool]
        return [nn.Conv2d(before, after, 5, padding=2), *pooled]

    def halve(size: int) -> int:
        return (size - 3 + 1) // 2 + 1  # a window of 3, every 2, rounded up

    left = halve(halve(halve(pixels)))
    return nn.Sequential(
        *block(channels, 32, nn.MaxPool2d(3, 2, ceil_mode=True), pools_first=True),
        *block(32, 32, nn.AvgPool2d(3, 2, ceil_mode=True), pools_first=False),
        *block(32, 64, nn.AvgPool2d(3, 2, ceil_mode=True), pools_first=False),
        nn.Flatten(),
        nn.Linear(64 * left * left, 10),
    )


def resnet_network(channels: int, depth: int, norm: Norm) -> nn.Module:
    """Three stages of 16, 32 and 64 channels with (depth - 2) / 6 blocks each.

    Raises
    ------
    InputError
        There is none of that depth.
    """
    num_blocks, left = divmod(depth - 2, 6)
    if left or num_blocks < 1:
        raise InputError(f"no such network has {depth} layers", where="depth", fix="8, 14, 20, 32 ...: 6 n + 2")
    blocks, before = [], 16
    for width in (16, 32, 64):
        for index in range(num_blocks):
            blocks.append(_Residual(before, width, 2 if index == 0 and width > 16 else 1, norm))
            before = width
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1, bias=False), norm(16), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class _Residual(nn.Module):
    """Two convolutions around which the input is added."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), norm(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), norm(after),
        )  # fmt: skip
        is_same = stride == 1 and before == after
        around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))
        self.around = nn.Identity() if is_same else around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.relu(self.inner(x) + self.around(x))
        return result


def next_word_network(vocabulary: int, width: int) -> nn.Module:
    """An embedding, a GRU and a linear layer: int64 [B, S] to scores [B, vocabulary, S]."""
    return _NextWord(vocabulary, width)


class _NextWord(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.embedding(words))
        scores: torch.Tensor = self.decoder(hidden).transpose(1, 2)
        return scores
