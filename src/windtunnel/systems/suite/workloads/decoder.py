"""A decoder of today: rotary places, grouped keys, RMS norms, gated feed-forward.

In: its shape and a maker of feed-forward layers. Out: a module from tokens to scores. Not here: training.
Sources: Touvron et al., Llama, 2023; Ainslie et al., GQA, EMNLP 2023; Shazeer, GLU variants, 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Shape", "decoder", "swiglu"]

# B sequences, S positions, H heads, D width of a head


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; ``inner`` is the width of a feed-forward layer."""

    length: int
    width: int
    depth: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int


def decoder(shape: Shape, feed_forward: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Tokens int64 [B, S] to scores [B, S, vocabulary].

    Parameters
    ----------
    shape : Shape
    feed_forward : callable
        Makes one block's feed-forward layer, which is called with the hidden values and a list; a layer with a loss
        of its own appends it there.
    """
    from torch import nn

    width = shape.width

    class Block(nn.Module):
        """Attention and feed-forward, each normalized before and added to its input."""

        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.feed_forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)
            self.attention, self.feed_forward = _attention(shape), feed_forward()

        def forward(self, hidden: torch.Tensor, losses: list[torch.Tensor]) -> torch.Tensor:
            hidden = hidden + self.attention(self.attention_norm(hidden))
            return hidden + self.feed_forward(self.feed_forward_norm(hidden), losses)  # type: ignore[no-any-return]

    class Decoder(nn.Module):
        """Embedding, blocks, scores."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(shape.vocabulary, width)
            nn.init.normal_(self.words.weight, std=0.02)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.depth))
            self.norm = nn.RMSNorm(width)
            self.scores = nn.Linear(width, shape.vocabulary, bias=False)

        def forward(self, tokens: torch.Tensor, losses: list[torch.Tensor] | None = None) -> torch.Tensor:
            hidden, extra = self.words(tokens), [] if losses is None else losses
            for block in self.blocks:
                hidden = block(hidden, extra)
            return self.scores(self.norm(hidden))  # type: ignore[no-any-return]

    return Decoder()


def _attention(shape: Shape) -> torch.nn.Module:
    import torch
    from torch import nn

    head_width = shape.width // shape.heads

    class Attention(nn.Module):
        """Causal attention in which several query heads share a key head."""

        cosines: torch.Tensor
        sines: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(shape.width, shape.heads * head_width, bias=False)
            self.key = nn.Linear(shape.width, shape.key_heads * head_width, bias=False)
            self.value = nn.Linear(shape.width, shape.key_heads * head_width, bias=False)
            self.out = nn.Linear(shape.heads * head_width, shape.width, bias=False)
            cosines, sines = _rotations(shape.length, head_width)
            self.register_buffer("cosines", cosines, persistent=False)
            self.register_buffer("sines", sines, persistent=False)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            query, key, value = (
                project(hidden).unflatten(-1, (-1, head_width)).transpose(1, 2)
                for project in (self.query, self.key, self.value)
            )
            # Grouped queries: each key head serves ``shared`` query heads, and is repeated for the fused operator.
            shared = shape.heads // shape.key_heads
            key, value = (self.rotate(key).repeat_interleave(shared, 1), value.repeat_interleave(shared, 1))
            attended = nn.functional.scaled_dot_product_attention(self.rotate(query), key, value, is_causal=True)
            return self.out(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

        def rotate(self, vectors_BHSD: torch.Tensor) -> torch.Tensor:
            length = vectors_BHSD.shape[2]
            # Rotary positions in the layout of halves: (a, b) turns to (a cos - b sin, b cos + a sin).
            first, second = vectors_BHSD.chunk(2, dim=-1)
            turned = torch.cat([-second, first], dim=-1)
            return vectors_BHSD * self.cosines[:length] + turned * self.sines[:length]

    return Attention()


def _rotations(length: int, head_width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every place and pair of channels: float32 [S, D] each."""
    import torch

    rates = 10_000.0 ** (-torch.arange(0, head_width, 2) / head_width)
    angles = (torch.arange(length)[:, None] * rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def swiglu(width: int, inner: int) -> torch.nn.Module:
    """The SwiGLU feed-forward layer."""
    from torch import nn

    class Gated(nn.Module):
        """A linear layer that another one, through SiLU, opens and shuts."""

        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(width, inner, bias=False)
            self.up = nn.Linear(width, inner, bias=False)
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, hidden: torch.Tensor, losses: list[torch.Tensor]) -> torch.Tensor:  # noqa: ARG002
            return self.down(nn.functional.silu(self.gate(hidden)) * self.up(hidden))  # type: ignore[no-any-return]

    return Gated()
