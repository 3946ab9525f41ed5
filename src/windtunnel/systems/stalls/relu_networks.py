"""Five families of convolutional networks for small images, with and without batch normalization.

In: a family. Out: a ``Workload`` that trains a thin form of it on images of 32 x 32: few channels, few blocks, each
block as its paper has it, so that zeros of activations and gradients come about as they do in the large ones. Every
activation is a ReLU. Not here: where the zeros are (``sources``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.registry import did_you_mean
from windtunnel.workloads.workload import Supervised, Workload

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["FAMILIES", "relu_network"]

FAMILIES = ("vgg", "resnet", "googlenet", "densenet", "mobilenet")
_PIXELS, _CLASSES = 32, 10
_STEM = 32


@registry.workload("relu-network", source="Sarma et al., Gradient Output Sparsity, 2021: its five families, thin")
def relu_network(
    *, family: str = "vgg", norm: bool = True, batch_size: int = 32, learning_rate: float = 0.02, seed: int = 0
) -> Workload:
    """Classify 32 x 32 images with a thin VGG, ResNet, GoogLeNet, DenseNet or MobileNet, batch-normalized or not."""
    require("torch", extra="torch")
    import torch
    from torch import nn

    from windtunnel.workloads.images import image_batches

    if family not in FAMILIES:
        raise InputError(f"no family is called {family!r}", where="family", fix=did_you_mean(family, FAMILIES))
    torch.manual_seed(seed)
    images = image_batches(pixels=_PIXELS, batch_size=batch_size, num_classes=_CLASSES, seed=seed)
    model = _network(family, has_norm=norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=5e-4)
    loss_function = nn.CrossEntropyLoss()

    def step() -> torch.Tensor:
        pictures, labels = images.draw()
        optimizer.zero_grad()
        loss: torch.Tensor = loss_function(model(pictures), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def draw() -> tuple[tuple[torch.Tensor], torch.Tensor]:
        pictures, labels = images.draw()
        return (pictures,), labels

    supervised = Supervised(draw, loss_function)
    return Workload("relu-network", (model,), (optimizer,), step, batch_size, data=images.data, supervised=supervised)


def _network(family: str, *, has_norm: bool) -> nn.Module:
    """Features of a family, then the mean over pixels and one linear layer."""
    from torch import nn

    build: Callable[[bool], tuple[list[nn.Module], int]] = {
        "vgg": _vgg,
        "resnet": _resnet,
        "googlenet": _googlenet,
        "densenet": _densenet,
        "mobilenet": _mobilenet,
    }[family]
    features, channels = build(has_norm)
    model = nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, _CLASSES))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def _unit(inputs: int, outputs: int, kernel: int, has_norm: bool, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, normalization, ReLU."""
    from torch import nn

    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=not has_norm)
    norm = [nn.BatchNorm2d(outputs)] if has_norm else []
    return nn.Sequential(convolution, *norm, nn.ReLU())


def _vgg(has_norm: bool) -> tuple[list[nn.Module], int]:
    from torch import nn

    result: list[nn.Module] = []
    inputs = 3
    for width in (32, 64, 128):
        for _ in range(2):
            result.append(_unit(inputs, width, 3, has_norm))
            inputs = width
        result.append(nn.MaxPool2d(2))
    return [*result, _unit(inputs, 128, 3, has_norm)], 128


def _resnet(has_norm: bool) -> tuple[list[nn.Module], int]:
    from torch import nn

    class Block(nn.Module):
        """Two convolutions with a residual connection before the second ReLU."""

        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.first = _unit(inputs, outputs, 3, has_norm, stride)
            self.second = nn.Sequential(*list(_unit(outputs, outputs, 3, has_norm))[:-1])
            is_same = stride == 1 and inputs == outputs
            projected = nn.Sequential(*list(_unit(inputs, outputs, 1, has_norm, stride))[:-1])
            self.shortcut = nn.Identity() if is_same else projected
            self.relu = nn.ReLU()

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.relu(self.second(self.first(features)) + self.shortcut(features))
            return result

    blocks = [Block(32, 32, 1), Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1), Block(64, 128, 2)]
    return [_unit(3, _STEM, 3, has_norm), *blocks, Block(128, 128, 1)], 128


def _googlenet(has_norm: bool) -> tuple[list[nn.Module], int]:
    import torch
    from torch import nn

    class Inception(nn.Module):
        """Concatenated branches of windows of 1, 3 and 5 and of a pool."""

        def __init__(self, inputs: int, widths: tuple[int, int, int, int, int, int]) -> None:
            super().__init__()
            plain, before_3, of_3, before_5, of_5, pooled = widths
            self.branches = nn.ModuleList(
                [
                    _unit(inputs, plain, 1, has_norm),
                    nn.Sequential(_unit(inputs, before_3, 1, has_norm), _unit(before_3, of_3, 3, has_norm)),
                    nn.Sequential(_unit(inputs, before_5, 1, has_norm), _unit(before_5, of_5, 5, has_norm)),
                    nn.Sequential(nn.MaxPool2d(3, 1, 1), _unit(inputs, pooled, 1, has_norm)),
                ]
            )

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return torch.cat([branch(features) for branch in self.branches], dim=1)

    pool = nn.MaxPool2d(3, 2, 1)
    return [
        _unit(3, _STEM, 3, has_norm),
        _unit(_STEM, 48, 3, has_norm, 2),
        Inception(48, (16, 24, 32, 8, 16, 16)),
        Inception(80, (32, 32, 48, 8, 24, 16)),
        pool,
        Inception(120, (48, 32, 64, 16, 32, 16)),
        Inception(160, (48, 40, 80, 16, 32, 32)),
    ], 192


def _densenet(has_norm: bool) -> tuple[list[nn.Module], int]:
    import torch
    from torch import nn

    growth = 16

    def before(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
        norm = [nn.BatchNorm2d(inputs)] if has_norm else []
        return nn.Sequential(*norm, nn.ReLU(), nn.Conv2d(inputs, outputs, kernel, 1, kernel // 2, bias=not has_norm))

    class Dense(nn.Module):
        """The input concatenated with the output of two convolutions."""

        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.made = nn.Sequential(before(inputs, 4 * growth, 1), before(4 * growth, growth, 3))

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return torch.cat([features, self.made(features)], dim=1)

    result: list[nn.Module] = [nn.Conv2d(3, _STEM, 3, 2, 1, bias=False)]
    channels = _STEM
    for stage in range(3):
        for _ in range(4):
            result.append(Dense(channels))
            channels += growth
        if stage < 2:
            result += [before(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
    norm = [nn.BatchNorm2d(channels)] if has_norm else []
    return [*result, *norm, nn.ReLU()], channels


def _mobilenet(has_norm: bool) -> tuple[list[nn.Module], int]:
    result: list[nn.Module] = [_unit(3, _STEM, 3, has_norm)]
    sizes = ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1))
    for inputs, outputs, stride in sizes:
        result += [_unit(inputs, inputs, 3, has_norm, stride, groups=inputs), _unit(inputs, outputs, 1, has_norm)]
    return result, 256
