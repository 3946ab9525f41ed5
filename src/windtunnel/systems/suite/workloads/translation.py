"""Training of any network that translates.

In: what is asked for, a network from source and target words to scores, its optimizer. Out: a ``Workload`` whose step
draws padded sentences of one bucket. Not here: networks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from windtunnel.workloads.texts import PAD, translations
from windtunnel.workloads.workload import Sized, Training, Workload, move_to_device

if TYPE_CHECKING:
    import torch

__all__ = ["OfWords", "translation"]


class OfWords(Sized, Protocol):
    """What a preset says of its text."""

    @property
    def vocabulary(self) -> int:
        """Words of each language."""


def translation(
    training: Training[OfWords],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    label_smoothing: float = 0.0,
    max_norm: float | None = None,
) -> Workload:
    """Teach ``model`` the next target word; counts words of both languages; ``max_norm`` clips gradients."""
    from torch import nn

    loss_function = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=label_smoothing)
    data, random = translations(training.preset.vocabulary, training.seed), np.random.default_rng(training.seed)
    num_tokens = 0

    def step() -> torch.Tensor:
        nonlocal num_tokens
        batch = data.draw(training.batch_size, random)
        num_tokens += batch.num_tokens
        source, target = (move_to_device(words, training.device) for words in (batch.source, batch.target))
        optimizer.zero_grad()
        scores = model(source, target[:, :-1])
        loss: torch.Tensor = loss_function(scores.flatten(0, 1), target[:, 1:].flatten())
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        return loss.detach()

    return training.workload((model,), (optimizer,), step, data=data.origin, unit="tokens", units=lambda: num_tokens)
