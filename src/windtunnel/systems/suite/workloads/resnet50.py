"""ResNet-50: image classification by a residual network of bottlenecks.

In: a size. Out: a ``Workload``. ``paper`` is the published network on 224 x 224 images; ``small`` the same network on
smaller ones; ``tiny`` has one bottleneck per stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Training, Workload

__all__ = ["resnet50"]


@dataclass(frozen=True)
class Preset:
    """Sizes of one network: units per stage, channels of the last stage, what it is trained on."""

    units: tuple[int, ...]
    channels: int
    pixels: int
    batch_size: int
    num_classes: int
    learning_rate: float


PRESETS = {
    "tiny": Preset((1, 1, 1, 1), 512, 64, 48, 10, 0.01),
    "small": Preset((3, 4, 6, 3), 2048, 112, 8, 10, 0.001),
    "paper": Preset((3, 4, 6, 3), 2048, 224, 32, 1000, 0.1 * 32 / 256),
}


@registry.workload("resnet50", source="He, Zhang, Ren, Sun, CVPR 2016", domain="image classification")
def resnet50(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Classify images with ResNet-50."""
    require("torch", extra="torch")
    require("pytorchcv", extra="suite")
    import torch
    from pytorchcv.models.resnet import ResNet

    from windtunnel.systems.suite.workloads.classifier import classifier

    training = Training.of("resnet50", PRESETS, size, batch_size, seed)
    preset = training.preset
    stages = [[preset.channels // 2 ** (3 - stage)] * units for stage, units in enumerate(preset.units)]
    model = ResNet(stages, preset.channels // 32, bottleneck=True, conv1_stride=True, num_classes=preset.num_classes)
    model.features.final_pool = torch.nn.AdaptiveAvgPool2d(1)  # the library's own fits one image size only
    optimizer = torch.optim.SGD(model.parameters(), lr=preset.learning_rate, momentum=0.9, weight_decay=1e-4)
    return classifier(
        training,
        model,
        optimizer,
    )
