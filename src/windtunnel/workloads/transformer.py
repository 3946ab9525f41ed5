"""A small decoder-only transformer language model.

In: sizes. Out: a ``Workload`` of attention, layer norms and feed-forward blocks with AdamW in its plain form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Workload

if TYPE_CHECKING:
    import torch

__all__ = ["transformer"]


@registry.workload("transformer", source="Vaswani et al., NeurIPS 2017; Radford et al., 2019")
def transformer(
    *,
    batch_size: int = 8,
    length: int = 64,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    vocabulary: int = 1000,
    seed: int = 0,
) -> Workload:
    """Predict the next token with causal self-attention."""
    require("torch", extra="torch")
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = _network(length, width, depth, heads, vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loss_function = nn.CrossEntropyLoss()
    tokens = torch.randint(0, vocabulary, (batch_size, length + 1))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        scores = model(tokens[:, :-1])
        loss: torch.Tensor = loss_function(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Workload("transformer", (model,), (optimizer,), step, batch_size)


def _network(length: int, width: int, depth: int, heads: int, vocabulary: int) -> torch.nn.Module:
    import torch
    from torch import nn

    class Block(nn.Module):
        """Attention and feed-forward, each normalized before and added to its input."""

        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.project_in = nn.Linear(width, 3 * width)
            self.project_out = nn.Linear(width, width)
            self.norm2 = nn.LayerNorm(width)
            self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            batch, positions, _ = hidden.shape
            # One product for query, key and value, split along a new axis of three afterwards.
            mixed = self.project_in(self.norm1(hidden)).view(batch, positions, 3, heads, width // heads)
            query, key, value = mixed.permute(2, 0, 3, 1, 4)
            attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            hidden = hidden + self.project_out(attended.transpose(1, 2).reshape(batch, positions, width))
            return hidden + self.feed_forward(self.norm2(hidden))  # type: ignore[no-any-return]

    class Decoder(nn.Module):
        """Token and place embeddings, blocks, scores over the vocabulary."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.places = nn.Parameter(torch.zeros(length, width))
            self.blocks = nn.ModuleList(Block() for _ in range(depth))
            self.norm = nn.LayerNorm(width)
            self.scores = nn.Linear(width, vocabulary, bias=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            hidden = self.tokens(tokens) + self.places
            for block in self.blocks:
                hidden = block(hidden)
            return self.scores(self.norm(hidden))  # type: ignore[no-any-return]

    return Decoder()
