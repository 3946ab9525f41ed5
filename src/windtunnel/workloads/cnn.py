"""A small residual network with batch normalization.

In: sizes. Out: a ``Workload`` of convolutions, batch norms and ReLUs, fed by a ``DataLoader`` that augments in
Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Workload, endless, move_to_device

if TYPE_CHECKING:
    import torch

__all__ = ["cnn"]


@registry.workload("cnn", source="He, Zhang, Ren, Sun, CVPR 2016")
def cnn(*, batch_size: int = 32, width: int = 16, blocks: int = 3, num_workers: int = 0, seed: int = 0) -> Workload:
    """Classify 32 x 32 images with a residual network of three stages."""
    require("torch", extra="torch")
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    torch.manual_seed(seed)
    model = _network(width, blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loss_function = nn.CrossEntropyLoss()
    loader: DataLoader[tuple[torch.Tensor, int]] = DataLoader(
        _images(64 * batch_size, seed), batch_size=batch_size, num_workers=num_workers, drop_last=True
    )
    batches, device = endless(loader), torch.get_default_device()

    def step() -> torch.Tensor:
        images, labels = (move_to_device(part, device) for part in next(batches))
        optimizer.zero_grad()
        loss: torch.Tensor = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Workload("cnn", (model,), (optimizer,), step, batch_size, loader)


def _images(count: int, seed: int) -> torch.utils.data.Dataset[tuple[torch.Tensor, int]]:
    import torch
    from torch.utils.data import Dataset

    class Images(Dataset[tuple[torch.Tensor, int]]):
        """Noise as images; every second one is mirrored, all are scaled to about -1 to 1."""

        def __init__(self) -> None:
            with torch.device("cpu"):  # where a loader's workers are
                generator = torch.Generator().manual_seed(seed)
                self.pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
                self.labels = torch.randint(0, 10, (count,), generator=generator).tolist()

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            image = self.pixels[index]
            image = image.flip(-1) if index % 2 else image
            return image.float().div(127.5).sub(1.0), self.labels[index]

    return Images()


def _network(width: int, blocks: int) -> torch.nn.Module:
    from torch import nn

    class Block(nn.Module):
        """Two convolutions around which the input is added."""

        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.relu = nn.ReLU()
            same = stride == 1 and inputs == outputs
            self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            inner = self.relu(self.bn1(self.conv1(features)))
            return self.relu(self.bn2(self.conv2(inner)) + self.shortcut(features))  # type: ignore[no-any-return]

    stages = [
        Block(width * 2 ** max(0, stage - (block == 0)), width * 2**stage, 2 if stage and not block else 1)
        for stage in range(3)
        for block in range(blocks)
    ]
    stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))
    return nn.Sequential(stem, *stages, head)
