"""Training of any network that translates (room workloads).

In: a network from source and target words to scores, its optimiser, a vocabulary size. Out: a ``Workload`` whose step
draws padded sentences of one bucket. Not here: networks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from windtunnel.workloads._texts import PAD, translations
from windtunnel.workloads.workload import Workload

if TYPE_CHECKING:
    import torch

__all__ = ["translation"]


def translation(
    name: str,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    size: str,
    batch_size: int,
    vocabulary: int,
    seed: int,
    label_smoothing: float = 0.0,
    max_norm: float | None = None,
) -> Workload:
    """Teach ``model`` the next target word; counts words of both languages; ``max_norm`` clips gradients."""
    import torch
    from torch import nn

    loss_function = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=label_smoothing)
    data, random = translations(vocabulary, seed), np.random.default_rng(seed)
    num_tokens = 0

    def step() -> torch.Tensor:
        nonlocal num_tokens
        batch = data.draw(batch_size, random)
        num_tokens += batch.num_tokens
        source, target = torch.from_numpy(batch.source), torch.from_numpy(batch.target)
        optimizer.zero_grad()
        scores = model(source, target[:, :-1])
        loss: torch.Tensor = loss_function(scores.flatten(0, 1), target[:, 1:].flatten())
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
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
