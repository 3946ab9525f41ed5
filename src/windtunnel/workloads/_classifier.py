"""The training iteration of every image classifier (room workloads, private).

In: a model, its optimiser, a source of images. Out: a ``Workload`` of cross-entropy. Not here: the models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from windtunnel.workloads._images import image_batches
from windtunnel.workloads.workload import Workload

__all__ = ["classifier"]


def classifier(
    name: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    size: str,
    pixels: int,
    batch_size: int,
    num_classes: int,
    seed: int,
    label_smoothing: float = 0.0,
    max_norm: float | None = None,
) -> Workload:
    """Train ``model`` to name the class of an image; gradients are cut to ``max_norm`` where it is given."""
    images = image_batches(pixels=pixels, batch_size=batch_size, num_classes=num_classes, seed=seed)
    loss_function = nn.CrossEntropyLoss(label_smoothing=label_smoothing)

    def step() -> torch.Tensor:
        pictures, labels = images.draw()
        optimizer.zero_grad()
        loss: torch.Tensor = loss_function(_scores(model(pictures)), labels)
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        return loss.detach()

    return Workload(name, (model,), (optimizer,), step, batch_size, size=size, data=images.data)


def _scores(output: Any) -> torch.Tensor:
    """The scores [batch, classes], also out of a record of the transformers library."""
    found: torch.Tensor = getattr(output, "logits", output)
    return found
