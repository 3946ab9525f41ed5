"""Training of a decoder to predict the next word (room workloads).

In: a decoder's shape and its feed-forward layers. Out: a ``Workload`` over windows of running text. Not here: layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from windtunnel.workloads._decoder import Shape, decoder
from windtunnel.workloads._texts import Text
from windtunnel.workloads.workload import Workload

if TYPE_CHECKING:
    import torch

__all__ = ["next_word"]


def next_word(
    name: str,
    shape: Shape,
    feed_forward: Callable[[], torch.nn.Module],
    *,
    size: str,
    batch_size: int,
    learning_rate: float,
    seed: int,
    extra_weight: float = 0.0,
) -> Workload:
    """Train a decoder with AdamW; what its layers add to the loss counts by ``extra_weight``, and is not returned."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = decoder(shape, feed_forward)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    loss_function = nn.CrossEntropyLoss()
    data, random = Text.of(shape.vocabulary, seed), np.random.default_rng(seed)
    num_tokens = 0

    def step() -> torch.Tensor:
        nonlocal num_tokens
        words = torch.from_numpy(data.draw(batch_size, shape.length + 1, random))
        num_tokens += batch_size * shape.length
        optimizer.zero_grad()
        extra: list[torch.Tensor] = []
        scores = model(words[:, :-1], extra)
        loss: torch.Tensor = loss_function(scores.flatten(0, 1), words[:, 1:].flatten())
        (loss + extra_weight * torch.stack(extra).sum() if extra else loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Workload(
        name,
        (model,),
        (optimizer,),
        step,
        batch_size,
        size=size,
        data=data.origin,
        unit="tokens",
        units=lambda: num_tokens,
    )
