"""A Llama-like decoder, which predicts the next word (room workloads).

In: a size and a seed. Out: a ``Workload`` of causal attention and gated feed-forward layers in pure torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from windtunnel import registry
from windtunnel.extras import require
from windtunnel.workloads._decoder import Shape, decoder, gated
from windtunnel.workloads._texts import Text
from windtunnel.workloads.workload import Workload, of_size

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "decoder_lm"]


@dataclass(frozen=True)
class Preset:
    """Shape of the network and of its training."""

    batch_size: int
    shape: Shape
    learning_rate: float


PRESETS = {
    "tiny": Preset(8, Shape(32, width=64, depth=2, heads=4, key_heads=2, inner=172, vocabulary=1000), 3e-3),
    "small": Preset(8, Shape(128, width=256, depth=4, heads=8, key_heads=4, inner=688, vocabulary=8000), 5e-4),
    "paper": Preset(
        4, Shape(2048, width=4096, depth=32, heads=32, key_heads=32, inner=11_008, vocabulary=32_000), 3e-4
    ),
}
"""``paper`` is Llama 7B; its batch is one device's share of the published four million tokens."""


@registry.workload("decoder-lm", source="Touvron et al., Llama, 2023", domain="language")
def decoder_lm(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Predict the next word with a decoder of today.

    Parameters
    ----------
    size : str
        ``tiny``, ``small`` or ``paper``.
    batch_size : int or None
        Windows of text per step; None for the size's own.
    seed : int

    Raises
    ------
    InputError
        There is no such size.
    """
    require("torch", extra="torch")
    import torch
    from torch import nn

    preset = of_size(PRESETS, size)
    shape = preset.shape
    num_windows = batch_size or preset.batch_size
    torch.manual_seed(seed)
    model = decoder(shape, lambda: gated(shape.width, shape.inner))
    optimizer = torch.optim.AdamW(model.parameters(), lr=preset.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    loss_function = nn.CrossEntropyLoss()
    data, random = Text.of(shape.vocabulary, seed), np.random.default_rng(seed)
    num_tokens = 0

    def step() -> torch.Tensor:
        nonlocal num_tokens
        words = torch.from_numpy(data.draw(num_windows, shape.length + 1, random))
        num_tokens += num_windows * shape.length
        optimizer.zero_grad()
        scores = model(words[:, :-1], [])
        loss: torch.Tensor = loss_function(scores.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Workload(
        "decoder-lm",
        (model,),
        (optimizer,),
        step,
        num_windows,
        size=size,
        data=data.origin,
        unit="tokens",
        units=lambda: num_tokens,
    )
