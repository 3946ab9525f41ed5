"""The training iteration of every image classifier.

In: what is asked for, a model, its optimizer. Out: a ``Workload`` of cross-entropy. Not here: the models.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from windtunnel.workloads.images import image_batches
from windtunnel.workloads.workload import Sized, Supervised, Training, Workload

__all__ = ["FirstToken", "OfImages", "classifier", "reset"]

SPREAD = 0.02


class OfImages(Sized, Protocol):
    """What a preset says of its images."""

    @property
    def pixels(self) -> int:
        """Along each side."""

    @property
    def num_classes(self) -> int:
        """Between which it chooses."""


def classifier(
    training: Training[OfImages],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    label_smoothing: float = 0.0,
    max_norm: float | None = None,
) -> Workload:
    """Train ``model`` to name the class of an image; gradients are cut to ``max_norm`` where it is given."""
    preset = training.preset
    images = image_batches(
        pixels=preset.pixels, batch_size=training.batch_size, num_classes=preset.num_classes, seed=training.seed
    )
    loss_function = nn.CrossEntropyLoss(label_smoothing=label_smoothing)

    def step() -> torch.Tensor:
        pictures, labels = images.draw()
        optimizer.zero_grad()
        loss: torch.Tensor = loss_function(model(pictures), labels)
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        return loss.detach()

    def draw() -> tuple[tuple[torch.Tensor], torch.Tensor]:
        pictures, labels = images.draw()
        return (pictures,), labels

    return training.workload((model,), (optimizer,), step, data=images.data, supervised=Supervised(draw, loss_function))


class FirstToken(nn.Module):
    """Of each sequence [batch, tokens, width] the first token, which stands for the whole picture."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The first tokens [batch, width]."""
        return tokens[:, 0]


def reset(module: nn.Module) -> None:
    """Weights of a layer as the papers of ViT and ConvNeXt have them: normal, biases zero.

    They cut the normal distribution at a hundred of its spreads, which changes no number, but torch's cut reads
    values, which no dry run has.
    """
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.normal_(module.weight, std=SPREAD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    for parameter in (getattr(module, name, None) for name in ("cls_token", "position_embeddings")):
        if isinstance(parameter, nn.Parameter):
            nn.init.normal_(parameter, std=SPREAD)
