"""Training of a decoder to predict the next word.

In: what is asked for, with a decoder's shape, and its feed-forward layers. Out: a ``Workload`` over windows of running
text. Not here: layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from windtunnel.systems.suite.workloads.decoder import Shape, decoder
from windtunnel.workloads.texts import Text
from windtunnel.workloads.workload import Sized, Supervised, Training, Workload, move_to_device

if TYPE_CHECKING:
    import torch

__all__ = ["OfText", "next_word"]


class OfText(Sized, Protocol):
    """What a preset says of its decoder."""

    @property
    def shape(self) -> Shape:
        """Of the network, and the length of a window of text."""

    @property
    def learning_rate(self) -> float:
        """Of AdamW."""


def next_word(
    training: Training[OfText], feed_forward: Callable[[], torch.nn.Module], *, extra_weight: float = 0.0
) -> Workload:
    """Train a decoder with AdamW; what its layers add to the loss counts by ``extra_weight``, and is not returned."""
    import torch
    from torch import nn

    shape, batch_size = training.preset.shape, training.batch_size
    model = decoder(shape, feed_forward)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=training.preset.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    loss_function = nn.CrossEntropyLoss()
    data, random = Text.of(shape.vocabulary, training.seed), np.random.default_rng(training.seed)
    num_tokens = 0

    def loss_of(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = loss_function(scores.flatten(0, 1), following.flatten())
        return loss

    def draw() -> tuple[tuple[torch.Tensor], torch.Tensor]:
        words = move_to_device(data.draw(batch_size, shape.length + 1, random), training.device)
        return (words[:, :-1],), words[:, 1:]

    def step() -> torch.Tensor:
        nonlocal num_tokens
        (words,), following = draw()
        num_tokens += batch_size * shape.length
        optimizer.zero_grad()
        extra: list[torch.Tensor] = []
        # Layers append their own terms (such as the imbalance of experts) to ``extra`` on the way.
        loss = loss_of(model(words, extra), following)
        (loss + extra_weight * torch.stack(extra).sum() if extra else loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return training.workload(
        (model,),
        (optimizer,),
        step,
        data=data.origin,
        unit="tokens",
        units=lambda: num_tokens,
        supervised=None if extra_weight else Supervised(draw, loss_of),
    )
