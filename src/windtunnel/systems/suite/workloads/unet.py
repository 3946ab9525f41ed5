"""The U-Net of denoising diffusion.

In: widths. Out: a network from noisy images and times to the noise in them. Source: Ho, Jain, Abbeel, NeurIPS 2020,
appendix B (35.7 million parameters at its CIFAR-10 sizes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

__all__ = ["UNet"]

GROUPS = 32


class Residual(nn.Module):
    """Two convolutions, between which the time is added, and attention after them where asked for."""

    def __init__(self, inputs: int, outputs: int, times: int, dropout: float, *, attends: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(GROUPS, inputs), nn.GroupNorm(GROUPS, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = _silent(nn.Conv2d(outputs, outputs, 3, padding=1))
        self.time = nn.Linear(times, outputs)
        self.dropout = nn.Dropout(dropout)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)
        self.attention = Attention(outputs) if attends else nn.Identity()

    def forward(self, features: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Features [batch, outputs, height, width]."""
        inner = self.conv1(functional.silu(self.norm1(features)))
        inner = inner + self.time(functional.silu(times))[:, :, None, None]
        inner = self.conv2(self.dropout(functional.silu(self.norm2(inner))))
        result: torch.Tensor = self.attention(self.shortcut(features) + inner)
        return result


class Attention(nn.Module):
    """Each pixel looks at all others, with one head, and adds what it sees."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.project = nn.Conv2d(channels, 3 * channels, 1)
        self.out = _silent(nn.Conv2d(channels, channels, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features of the same shape."""
        pixels = self.project(self.norm(features)).flatten(2).transpose(1, 2)  # [batch, pixels, 3 * channels]
        seen = functional.scaled_dot_product_attention(*pixels.chunk(3, dim=-1))
        return features + self.out(seen.transpose(1, 2).reshape(features.shape))  # type: ignore[no-any-return]


def _silent(layer: nn.Conv2d) -> nn.Conv2d:
    """A layer that begins with zeros, so that its block begins as its short cut."""
    nn.init.zeros_(layer.weight)
    return layer


class UNet(nn.Module):
    """Down through the resolutions, up again, each level with the features of its way down.

    Parameters
    ----------
    widths : sequence of int
        Channels at each resolution, the finest first.
    blocks : int
        Residual blocks per resolution on the way down; one more on the way up.
    attention_level : int
        The resolution at which pixels attend to one another, counted from the finest.
    dropout : float
    """

    def __init__(self, widths: Sequence[int], blocks: int, attention_level: int, dropout: float) -> None:
        super().__init__()
        times = 4 * widths[0]
        self.embed = nn.Sequential(nn.Linear(widths[0], times), nn.SiLU(), nn.Linear(times, times))
        self.width, self.start = widths[0], nn.Conv2d(3, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels, skips = widths[0], [widths[0]]
        for level, width in enumerate(widths):
            for _ in range(blocks):
                self.down.append(Residual(channels, width, times, dropout, attends=level == attention_level))
                channels = width
                skips.append(channels)
            if level < len(widths) - 1:
                self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                skips.append(channels)
        self.middle = nn.ModuleList(Residual(channels, channels, times, dropout, attends=not last) for last in range(2))
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                inputs = channels + skips.pop()
                self.up.append(Residual(inputs, width, times, dropout, attends=level == attention_level))
                channels = width
            if level:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(channels, channels, 3, padding=1)))
        self.end = nn.Sequential(
            nn.GroupNorm(GROUPS, channels), nn.SiLU(), _silent(nn.Conv2d(channels, 3, 3, padding=1))
        )

    def forward(self, images: torch.Tensor, times_B: torch.Tensor) -> torch.Tensor:
        """The noise in ``images`` [batch, 3, height, width] at the times ``times_B`` [batch]."""
        times = self.embed(sinusoids(times_B, self.width))
        features = self.start(images)
        skips = [features]
        for layer in self.down:
            features = layer(features, times) if isinstance(layer, Residual) else layer(features)
            skips.append(features)
        for layer in self.middle:
            features = layer(features, times)
        for layer in self.up:
            if isinstance(layer, Residual):
                features = layer(torch.cat([features, skips.pop()], dim=1), times)
            else:
                features = layer(features)
        result: torch.Tensor = self.end(features)
        return result


def sinusoids(times_B: torch.Tensor, width: int) -> torch.Tensor:
    """Times as sines and cosines of ``width / 2`` frequencies from 1 to 1/10000 [batch, width]."""
    half = width // 2
    frequencies = torch.exp(-math.log(10_000) / (half - 1) * torch.arange(half, device=times_B.device))
    angles = times_B[:, None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)
