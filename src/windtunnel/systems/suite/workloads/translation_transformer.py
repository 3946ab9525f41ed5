"""A transformer with encoder and decoder, which translates.

In: a size and a seed. Out: a ``Workload`` of attention over padded sentences of one bucket per step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.systems.suite.workloads.translation import translation
from windtunnel.workloads.texts import PAD
from windtunnel.workloads.workload import Training, Workload

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "translation_transformer"]


@dataclass(frozen=True)
class Preset:
    """Shape of the network and of its data."""

    batch_size: int
    width: int
    depth: int
    heads: int
    feed_forward: int
    vocabulary: int
    learning_rate: float


PRESETS = {
    "tiny": Preset(16, width=64, depth=2, heads=4, feed_forward=128, vocabulary=1000, learning_rate=3e-3),
    "small": Preset(32, width=256, depth=3, heads=4, feed_forward=1024, vocabulary=8000, learning_rate=5e-4),
    "paper": Preset(256, width=512, depth=6, heads=8, feed_forward=2048, vocabulary=37_000, learning_rate=1e-4),
}
"""``paper`` is Transformer base with a shared vocabulary of 37,000."""


@registry.workload(
    "translation-transformer",
    source="Vaswani et al., NeurIPS 2017; Zhu et al., IISWC 2018",
    domain="translation",
)
def translation_transformer(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Translate sentences with attention alone; counts words of both languages.

    A batch counts sentence pairs. Parameters and errors are those of :meth:`Training.of`.
    """
    require("torch", extra="torch")
    import torch

    training = Training.of("translation-transformer", PRESETS, size, batch_size, seed)
    preset = training.preset
    model = _network(preset)
    return translation(
        training,
        model,
        torch.optim.Adam(model.parameters(), lr=preset.learning_rate, betas=(0.9, 0.98), eps=1e-9),
        label_smoothing=0.1,
    )


def _network(preset: Preset) -> torch.nn.Module:
    import torch
    from torch import nn

    width, longest = preset.width, 64
    shape = (width, preset.heads, preset.feed_forward)

    class Translator(nn.Module):
        """One embedding for both languages and for the scores, sinusoidal positions, normalization after each sum."""

        positions: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(preset.vocabulary, width)
            nn.init.normal_(self.words.weight, std=width**-0.5)
            self.register_buffer("positions", _sinusoids(longest, width), persistent=False)
            self.dropout = nn.Dropout(0.1)
            # not nn.Transformer: it copies its layers, which fake tensors do not survive
            self.encoder = nn.ModuleList(
                nn.TransformerEncoderLayer(*shape, batch_first=True) for _ in range(preset.depth)
            )
            self.decoder = nn.ModuleList(
                nn.TransformerDecoderLayer(*shape, batch_first=True) for _ in range(preset.depth)
            )

        def embed(self, tokens: torch.Tensor) -> torch.Tensor:
            embedded = self.words(tokens) * math.sqrt(width) + self.positions[: tokens.shape[1]]
            return self.dropout(embedded)  # type: ignore[no-any-return]

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            # as addends and not as booleans: layers want masks of one kind
            is_padding = torch.zeros(source.shape, device=source.device).masked_fill(source == PAD, float("-inf"))
            later = torch.full((target.shape[1], target.shape[1]), float("-inf"), device=target.device).triu(1)
            read, written = self.embed(source), self.embed(target)
            for layer in self.encoder:
                read = layer(read, src_key_padding_mask=is_padding)
            for layer in self.decoder:
                written = layer(written, read, tgt_mask=later, memory_key_padding_mask=is_padding, tgt_is_causal=True)
            return written @ self.words.weight.T

    return Translator()


def _sinusoids(length: int, width: int) -> torch.Tensor:
    """Section 3.5 of the paper: float32 [length, width]."""
    import torch

    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
