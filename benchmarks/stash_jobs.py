"""Jobs whose stalls are measured: thin residual networks with and without norms and shortcuts, others beside them.

Each function returns a ``Workload``, as ``windtunnel stalls stash_jobs.py:NAME`` reads it.
"""

import torch
from torch import nn

from windtunnel.workloads.workload import Supervised, Workload

BATCH, CLASSES = 16, 10


class Residual(nn.Module):
    """Two convolutions, and perhaps the input beside them."""

    def __init__(self, before: int, after: int, stride: int, norm: bool, shortcut: bool):
        super().__init__()
        norms = [nn.BatchNorm2d(after) if norm else nn.Identity() for _ in range(2)]
        self.inner = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), norms[0], nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), norms[1],
        )  # fmt: skip
        self.stride, self.wider, self.shortcut = stride, after - before, shortcut

    def forward(self, x):
        y = self.inner(x)
        if self.shortcut:  # without parameters: a network without it sends the same
            around = x[:, :, :: self.stride, :: self.stride]
            y = y + nn.functional.pad(around, (0, 0, 0, 0, 0, self.wider))
        return torch.relu(y)


def _resnet(depth: int, norm: bool = True, shortcut: bool = True, width: int = 32) -> nn.Module:
    blocks, before = [], width
    for stage in range(3):
        for place in range((depth - 2) // 6):
            after = width << stage
            blocks.append(Residual(before, after, 2 if place == 0 and stage else 1, norm, shortcut))
            before = after
    first = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width) if norm else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def _vgg(*widths: int) -> nn.Module:
    layers, before = [], 3
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        before = width
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(256), nn.ReLU(), nn.Linear(256, CLASSES))


def _perceptron(width: int, depth: int) -> nn.Module:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, width), nn.ReLU(), *layers, nn.Linear(width, CLASSES))


def _job(name: str, make, *, pixels: int = 32, batch: int = BATCH) -> Workload:
    torch.manual_seed(0)
    model = make()
    images = torch.rand(batch, 3, pixels, pixels) * 2 - 1
    labels = torch.randint(0, CLASSES, (batch,))
    model(images)  # layers that wait for a size get it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loss = nn.CrossEntropyLoss()

    def draw():
        return (torch.rand(batch, 3, pixels, pixels) * 2 - 1,), labels

    def step():
        optimizer.zero_grad()
        found = loss(model(images), labels)
        found.backward()
        optimizer.step()
        return found.detach()

    return Workload(name, (model,), (optimizer,), step, batch, supervised=Supervised(draw, loss))


MODELS = {
    "resnet8": lambda: _resnet(8),
    "resnet14": lambda: _resnet(14),
    "resnet20": lambda: _resnet(20),
    "resnet32": lambda: _resnet(32),
    "resnet20_no_norm": lambda: _resnet(20, norm=False),
    "resnet20_no_shortcut": lambda: _resnet(20, shortcut=False),
    "resnet14_wide": lambda: _resnet(14, width=64),
    "vgg3": lambda: _vgg(32, 64, 128),
    "vgg4": lambda: _vgg(32, 64, 128, 256),
    "perceptron2": lambda: _perceptron(256, 2),
    "perceptron8": lambda: _perceptron(256, 8),
}


def pictures():
    """Large pictures for little work: what reading takes is seen."""
    return _job(
        "pictures", lambda: nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 28 * 28, CLASSES)), pixels=224
    )


def _named(name: str):
    return lambda: _job(name, MODELS[name])


globals().update({name: _named(name) for name in MODELS})
