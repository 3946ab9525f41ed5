"""The two residual networks of WGAN-GP.

In: widths. Out: a generator and a critic, each of four residual blocks (14 convolutions and linear layers with the
short cuts) at 64 x 64. Source: Gulrajani et al., NeurIPS 2017, appendix F, and the authors' ``GoodGenerator`` and
``GoodDiscriminator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

__all__ = ["critic_network", "generator_network"]

START_PIXELS = 4


class Block(nn.Module):
    """Two convolutions after normalization, which change the resolution, around which a 1 x 1 convolution leads.

    The critic normalizes within each sample (paper, section 4): its penalty is about single samples, so no sample
    may see the others of the batch.
    """

    def __init__(self, inputs: int, outputs: int, *, grows: bool) -> None:
        super().__init__()
        middle = outputs if grows else inputs
        self.before: nn.Module = nn.Upsample(scale_factor=2) if grows else nn.Identity()
        self.after: nn.Module = nn.Identity() if grows else nn.AvgPool2d(2)
        self.norm1 = _norm(inputs, of_batch=grows)
        self.conv1 = nn.Conv2d(inputs, middle, 3, padding=1, bias=False)
        self.norm2 = _norm(middle, of_batch=grows)
        self.conv2 = nn.Conv2d(middle, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features at twice or half the resolution."""
        inner = self.conv1(self.before(self.norm1(features).relu()))
        inner = self.conv2(self.norm2(inner).relu())
        added: torch.Tensor = self.after(inner) + self.after(self.shortcut(self.before(features)))
        return added


def _norm(channels: int, *, of_batch: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if of_batch else nn.GroupNorm(1, channels)


def generator_network(latent: int, widths: Sequence[int]) -> nn.Module:
    """From noise [batch, latent] to images in -1..1 of ``4 * 2 ** (len(widths) - 1)`` pixels on a side."""
    start = nn.Linear(latent, widths[0] * START_PIXELS**2)
    blocks = [Block(inputs, outputs, grows=True) for inputs, outputs in pairwise(widths)]
    end = nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU(), nn.Conv2d(widths[-1], 3, 3, padding=1), nn.Tanh())
    return nn.Sequential(start, nn.Unflatten(1, (widths[0], START_PIXELS, START_PIXELS)), *blocks, end)


def critic_network(widths: Sequence[int]) -> nn.Module:
    """From images to one number each [batch, 1]; the widths are those of the generator."""
    backwards = list(reversed(widths))
    start = nn.Conv2d(3, backwards[0], 3, padding=1)
    blocks = [Block(inputs, outputs, grows=False) for inputs, outputs in pairwise(backwards)]
    end = nn.Sequential(nn.Flatten(), nn.Linear(backwards[-1] * START_PIXELS**2, 1))
    return nn.Sequential(start, *blocks, end)
