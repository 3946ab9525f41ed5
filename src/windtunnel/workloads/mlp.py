"""A multilayer perceptron on flattened images.

In: sizes. Out: a ``Workload`` whose time is nearly all matrix products. Adam in its plain form, one operator per
parameter.
"""

from __future__ import annotations

from itertools import pairwise

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Supervised, Workload

__all__ = ["mlp"]


@registry.workload("mlp", source="Rumelhart, Hinton, Williams, Nature 1986")
def mlp(*, batch_size: int = 256, width: int = 1024, depth: int = 4, num_classes: int = 10, seed: int = 0) -> Workload:
    """Classify 28 x 28 images with fully connected layers."""
    require("torch", extra="torch")
    import torch
    from torch import nn

    torch.manual_seed(seed)
    widths = [784, *[width] * depth]
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()
    images = torch.randn(batch_size, 784)
    labels = torch.randint(0, num_classes, (batch_size,))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    pieces = Supervised(lambda: ((images,), labels), loss_function)
    return Workload("mlp", (model,), (optimizer,), step, batch_size, supervised=pieces)
